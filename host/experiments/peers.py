"""Solvers of other packages for logistic regression with an L2 penalty, and ours, for comparisons of time.

None of the packages but scikit-learn is a dependency of P4SGD: ``pip install 'p4sgd[peers]'``. Each is imported where
it is used. All minimise the objective of `Problem`; solvers that do without scaling get raw features, all others
standardise dense ones as their guides advise, which counts.
"""

import importlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import StandardScaler

FloatArray: TypeAlias = npt.NDArray[np.float64]

Fitted: TypeAlias = tuple[FloatArray, float]
"""Coefficients of raw features, (features,), and the intercept."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples of two classes: features, float64 (samples, features) or a CSR array, and classes 0 and 1, int64.

    The objective is the mean logistic loss and 1 / (2 · samples) · ‖w‖², the penalty of scikit-learn's C = 1, of
    coefficients of dense features with a deviation of 1, or of raw sparse ones.
    """

    name: str
    features: Any
    labels: npt.NDArray[np.int64]

    @property
    def sparse(self) -> bool:
        return not isinstance(self.features, np.ndarray)

    @property
    def l2(self) -> float:
        return 1 / self.labels.size

    @property
    def values(self) -> int:
        """Number of stored values."""
        return int(self.features.nnz if self.sparse else self.features.size)

    def objective(self, fitted: Fitted) -> float:
        """The objective of a model, infinite if it has diverged."""
        coefficients, intercept = fitted
        with np.errstate(all="ignore"):
            z = self.features @ coefficients + intercept
            scaled = coefficients if self.sparse else coefficients * self.features.std(axis=0)
            value = np.logaddexp(0, np.where(self.labels == 1, -z, z)).mean() + self.l2 / 2 * (scaled @ scaled)
        return float(value) if np.isfinite(value) else float("inf")


Solver: TypeAlias = Callable[[Any, npt.NDArray[np.int64], float, float, Any], Fitted]
"""Fits features as it gets them, classes, the strength of L2, a budget and a setting."""


@dataclass(frozen=True)
class Peer:
    """A solver: its ``package``, and the ``budgets`` that it may get, iterations, epochs or tolerances, so that each
    takes longer than the one before; with each of some ``settings``.

    Many values in the format of `Text`, ``most_values`` at most, would take longer to write than all else.
    """

    name: str
    package: str
    solver: Solver
    budgets: Sequence[float]
    settings: Sequence[Any] = (None,)
    scales: bool = True
    dense: bool = True
    sparse: bool = True
    most_values: int = 1 << 40
    prepare: Callable[[Problem], Any] | None = None
    """Makes of the samples, before time is taken, what the solver gets as features."""

    def suits(self, problem: Problem) -> bool:
        """Whether it takes such samples, and so many."""
        return (self.sparse if problem.sparse else self.dense) and problem.values <= self.most_values

    def missing(self) -> str | None:
        """A sentence if the package cannot be imported."""
        try:
            importlib.import_module(self.package)
        except Exception as error:  # libraries that are missing raise many kinds
            return f"{self.name} is left out: {error}: pip install 'p4sgd[peers]'"
        return None

    def fit(self, problem: Problem, features: Any, budget: float, setting: Any) -> Fitted:
        """Fit what ``prepare`` made of the samples, or the samples themselves."""
        if problem.sparse or not self.scales:
            return self.solver(features, problem.labels, problem.l2, budget, setting)
        scaler = StandardScaler()
        coefficients, intercept = self.solver(
            scaler.fit_transform(features), problem.labels, problem.l2, budget, setting
        )
        raw = coefficients / scaler.scale_
        return raw, intercept - float(raw @ scaler.mean_)


def _of(model: Any) -> Fitted:
    """Coefficients of an estimator."""
    return np.asarray(model.coef_, np.float64).ravel(), float(np.ravel(model.intercept_)[0])


def fit_p4sgd(x: Any, y: Any, l2: float, epochs: float, setting: dict[str, Any], **options: Any) -> Fitted:
    """With default options but those of the setting, in which ``rate`` is the learning rate times the mean squared norm
    of a scaled sample: without it there is a search."""
    from p4sgd.host.estimators import GLMClassifier

    dense, options = isinstance(x, np.ndarray), options | setting
    if "rate" in options:
        squares = 1 + (x.shape[1] if dense else _mean_square(x))
        # At most what the register of the penalty holds.
        options["learning_rate"] = min(options.pop("rate") / squares, 0.99 * 2**-6 / l2)
    return _of(GLMClassifier(epochs=int(epochs), l2=l2, scaling="auto" if dense else "none", **options).fit(x, y))


def _logistic_regression(x: Any, y: Any, l2: float, iterations: float, solver: str) -> Fitted:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / (l2 * y.size), solver=solver, max_iter=int(iterations), tol=1e-12)
    return _of(model.fit(x, y))


def _sgd(x: Any, y: Any, l2: float, epochs: float, rate: float) -> Fitted:
    """With the schedule ``optimal``, or ``invscaling`` from a rate times the mean squared norm of a sample on."""
    from sklearn.linear_model import SGDClassifier

    schedule: dict[str, Any] = {"learning_rate": "optimal"}
    if rate:
        schedule = {"learning_rate": "invscaling", "power_t": 0.25, "eta0": rate / _mean_square(x)}
    model = SGDClassifier(loss="log_loss", alpha=l2, max_iter=int(epochs), tol=None, random_state=0, **schedule)
    return _of(model.fit(x, y))


def _snapml(x: Any, y: Any, l2: float, epochs: float, dual: bool) -> Fitted:
    from snapml import LogisticRegression

    options = {"regularizer": l2 * y.size, "tol": 1e-12, "fit_intercept": True, "n_jobs": 1, "random_state": 0}
    return _of(LogisticRegression(max_iter=int(epochs), dual=dual, **options).fit(_plain(x), y))


class Listed:
    """Samples as the lists of LIBLINEAR, scaled if they are dense: ``samples``. Its package makes them in Python."""

    def __init__(self, problem: Problem) -> None:
        from liblinear.liblinearutil import problem as listed

        scaler = StandardScaler(with_mean=not problem.sparse, with_std=not problem.sparse)
        features = scaler.fit_transform(problem.features)
        self.mean: Any = 0.0 if problem.sparse else scaler.mean_
        self.scale: Any = 1.0 if problem.sparse else scaler.scale_
        self.samples = listed(problem.labels, _csr_matrix(features), bias=1)


def _liblinear(listed: Listed, y: Any, l2: float, tolerance: float, solver: int) -> Fitted:
    from liblinear.liblinearutil import parameter, train

    model = train(listed.samples, parameter(f"-s {solver} -c {1 / (l2 * y.size)} -e {tolerance} -B 1 -q"))
    coefficients, intercept = model.get_decfun()  # of the class that comes first
    sign = 1 if model.get_labels()[0] == 1 else -1
    raw = sign * np.asarray(coefficients) / listed.scale
    return raw, sign * float(intercept) - float(np.sum(raw * listed.mean))


def _csr_matrix(x: Any) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_matrix(x)


def _plain(x: Any) -> Any:
    """Dense features as they are, sparse ones as the old class, which some packages ask for."""
    return x if isinstance(x, np.ndarray) else _csr_matrix(x)


def _glum(x: Any, y: Any, l2: float, iterations: float, solver: str) -> Fitted:
    from glum import GeneralizedLinearRegressor

    options: dict[str, Any] = {"family": "binomial", "alpha": l2, "l1_ratio": 0, "gradient_tol": 1e-12}
    return _of(GeneralizedLinearRegressor(solver=solver, max_iter=int(iterations), **options).fit(_plain(x), y))


def _gblinear(x: Any, y: Any, l2: float, rounds: float, rate: float) -> Fitted:
    from xgboost import XGBClassifier

    options = {"booster": "gblinear", "updater": "coord_descent", "reg_lambda": l2, "base_score": 0.5, "n_jobs": 1}
    return _of(XGBClassifier(n_estimators=int(rounds), learning_rate=rate, **options).fit(x, y))


def _torch(x: Any, y: Any, l2: float, epochs: float, setting: tuple[int, float]) -> Fitted:
    """Mini-batch SGD by matrix-vector products of float32 in memory that is kept; the bias is one more column."""
    import torch

    batch, rate = setting
    torch.set_num_threads(1)
    step, weights = rate / _mean_square(x) / batch, torch.zeros(x.shape[1] + 1)
    goals = torch.from_numpy(y.astype(np.float32)).split(batch)
    if isinstance(x, np.ndarray):
        whole = torch.from_numpy(np.column_stack([x, np.ones(y.size)]).astype(np.float32))
        parts: Any = [(part, part.T) for part in whole.split(batch)]
    else:
        parts = _sparse_parts(x, batch)
    with torch.inference_mode():
        for _ in range(int(epochs)):
            for (part, transposed), goal in zip(parts, goals, strict=True):
                delta = torch.mv(part, weights).sigmoid_().sub_(goal)
                weights.mul_(1 - step * batch * l2).sub_(torch.mv(transposed, delta), alpha=step)
    found = weights.numpy().astype(np.float64)
    return found[:-1], float(found[-1])


def _sparse_parts(x: Any, batch: int) -> list[tuple[Any, Any]]:
    """Mini-batches as CSR tensors, and their transposes."""
    import scipy.sparse
    import torch

    def tensor(part: Any) -> Any:
        arrays = (torch.from_numpy(each) for each in (part.indptr, part.indices, part.data))
        return torch.sparse_csr_tensor(*arrays, part.shape)

    wider = scipy.sparse.hstack([x, scipy.sparse.csr_array(np.ones((x.shape[0], 1)))], format="csr")
    ones: Any = wider.astype(np.float32)
    rows = (ones[first : first + batch] for first in range(0, x.shape[0], batch))
    return [(tensor(part), tensor(part.T.tocsr())) for part in rows]


def _mean_square(x: Any) -> float:
    """Mean squared norm of a sample."""
    values: Any = x.ravel() if isinstance(x, np.ndarray) else x.data
    return float(values @ values) / int(x.shape[0])


class Text:
    """Samples as a text file of Vowpal Wabbit, in a folder that goes with it."""

    def __init__(self, problem: Problem) -> None:
        from sklearn.datasets import dump_svmlight_file

        self._folder = tempfile.TemporaryDirectory()
        self.path, self.columns = Path(self._folder.name, "data.vw"), problem.features.shape[1]
        libsvm = self.path.with_suffix(".libsvm")
        dump_svmlight_file(problem.features, 2 * problem.labels - 1, str(libsvm), zero_based=False)
        with libsvm.open("rb") as source, self.path.open("wb") as text:
            for line in source:
                text.write(line.replace(b" ", b" | ", 1))


_CONSTANT = 11650396
"""Vowpal Wabbit's hash of the feature that is 1 in every sample."""


def _vowpal_wabbit(text: Text, y: Any, l2: float, passes: float, rate: float) -> Fitted:
    from vowpalwabbit import Workspace

    bits = max(18, (text.columns + 1).bit_length())
    model = Workspace(
        f"--data {text.path} --cache_file {text.path}.cache --kill_cache --passes {int(passes)} --holdout_off "
        f"--bit_precision {bits} --loss_function logistic --learning_rate {rate} --quiet"
    )
    coefficients = np.array([model.get_weight(column + 1) for column in range(text.columns)])
    intercept = model.get_weight(_CONSTANT % (1 << bits))
    model.finish()
    return coefficients, float(intercept)


_EPOCHS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 80, 160)
_ITERATIONS = (1, 2, 3, 4, 6, 8, 10, 15, 20, 30, 50, 80, 120, 200, 400)
_TOLERANCES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4)
_RATES = (0.25, 1.0, 4.0, 16.0)

OURS = Peer("p4sgd", "p4sgd", fit_p4sgd, _EPOCHS, ({},), scales=False)
"""With default options but the number of epochs, which search for the rate."""

_LATE = {"tolerance": 1e-4}  # of the default, training ends, or lowers its rate, when it is close enough for most
_GIVEN = tuple(more | {"rate": rate} for rate in (4.0, 16.0, 64.0, 256.0) for more in ({}, _LATE))
_WHITENED = tuple(each | {"precondition": "block"} for each in ({}, *_GIVEN[::2]))

TUNED = tuple(
    Peer("p4sgd, tuned", "p4sgd", fit_p4sgd, _EPOCHS, settings, scales=False, dense=dense, sparse=not dense)
    for dense, settings in ((False, ({}, _LATE, *_GIVEN)), (True, ({}, _LATE, *_GIVEN, *_WHITENED)))
)
"""For sparse and dense samples, with the best of some options, found in time that does not count, as for the others."""

PEERS = (
    Peer("lbfgs", "sklearn", _logistic_regression, _ITERATIONS, ("lbfgs",)),
    Peer("liblinear of scikit-learn", "sklearn", _logistic_regression, _ITERATIONS[:9], ("liblinear",)),
    Peer("newton-cholesky", "sklearn", _logistic_regression, _ITERATIONS[:7], ("newton-cholesky",), sparse=False),
    Peer("SGDClassifier", "sklearn", _sgd, _EPOCHS, (0.0, *_RATES)),
    Peer("snapml", "snapml", _snapml, _EPOCHS, (True, False)),
    Peer("liblinear", "liblinear", _liblinear, _TOLERANCES, (0, 7), scales=False, prepare=Listed),
    Peer("glum", "glum", _glum, _ITERATIONS[:9], ("irls-ls", "lbfgs"), sparse=False),  # it keeps pairs of columns
    Peer("XGBoost gblinear", "xgboost", _gblinear, _ITERATIONS, (0.5, 1.0)),
    Peer("PyTorch", "torch", _torch, _EPOCHS, tuple((batch, rate) for batch in (64, 512) for rate in _RATES)),
    Peer(
        "Vowpal Wabbit",
        "vowpalwabbit",
        _vowpal_wabbit,
        _EPOCHS,
        (0.1, 0.5, 2.0),
        False,
        most_values=1 << 22,
        prepare=Text,
    ),
)
"""The others, at the best of their settings. Vowpal Wabbit reads a text file, and has no penalty, which is too weak to
matter: its steps heed the size of a feature, and so would the penalty."""
