"""SGD of other packages, which benchmarks compare P4SGD with; as a script, the whole job from a file to a model.

    PYTHONPATH=tests python -m support.peers torch gisette.libsvm --epochs 10 --batch 16 --out model.npz

None of the packages but scikit-learn is a dependency of P4SGD: `Peer.check` raises `ImportError` for one that is
missing (``pip install torch vowpalwabbit``). They are imported where they are used, so that a job pays for
its own package alone. The jobs scale features as P4SGD does: dense ones to a mean of 0 and a deviation of 1, sparse
ones to a largest magnitude of 1. Vowpal Wabbit reads the file itself and does without, because its steps heed
the size of a feature.
"""

import argparse
import importlib
import importlib.metadata
import os
import platform
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Features = Any
"""A float array (samples, features), or a CSR array."""

FloatArray = npt.NDArray[np.floating]

_DENSE = 0.05
"""From this part of stored values on, PyTorch is faster with a dense matrix."""

_CONSTANT = 11650396
"""Vowpal Wabbit's hash of the feature that is 1 in every sample."""


@dataclass(frozen=True)
class Settings:
    """How to train.

    ``batch``: samples of a mini-batch, where there are any; ``threads``: threads that may be used, where that can be
    chosen; ``rate``: learning rate, where there is no good default, times the mean squared norm of a sample; ``l2``,
    ``l1``: strengths of the penalties of scaled coefficients, ``l2 / 2 · ‖w‖² + l1 · ‖w‖₁`` beside the mean loss; one
    of them at most, and only for scikit-learn and Vowpal Wabbit, which applies them beside steps of other sizes and so
    minimises something else.
    """

    loss: str = "logistic"
    batch: int = 16
    threads: int = 1
    rate: float = 1.0
    l2: float = 0.0
    l1: float = 0.0


class Peer:
    """A model of another package and the data to train it with."""

    distribution: ClassVar[str]
    """What `importlib.metadata` calls it."""
    package: ClassVar[str]
    """What is imported."""
    batches: ClassVar[str]
    """Samples of an update, for tables."""
    has_rate: ClassVar[bool] = True
    """Whether it heeds `Settings.rate`."""

    def __init__(self, features: Features, labels: FloatArray, settings: Settings) -> None:
        raise NotImplementedError

    @classmethod
    def check(cls) -> None:
        """Raise `ImportError` if the package cannot be used."""
        importlib.import_module(cls.package)

    @classmethod
    def from_file(cls, path: Path, settings: Settings) -> "Peer":
        """Read and scale the samples of a file."""
        features, labels = read_file(path)
        offset, scale = _scale(features)
        peer = cls(features, labels, settings)
        peer._offset, peer._scale = offset, scale
        return peer

    _offset: FloatArray | float = 0.0
    _scale: FloatArray | float = 1.0

    def fit(self, epochs: int) -> None:
        """Train for so many epochs, beginning anew."""
        raise NotImplementedError

    def _coefficients(self) -> tuple[FloatArray, float]:
        """Those of scaled features, and the intercept."""
        raise NotImplementedError

    def coefficients(self) -> tuple[FloatArray, float]:
        """The coefficients of raw features, float64 (features,), and the intercept; after `fit`."""
        scaled, intercept = self._coefficients()
        raw = np.asarray(scaled, np.float64) * self._scale
        return raw, intercept - float((raw * self._offset).sum())


class ScikitLearn(Peer):
    """SGDClassifier or SGDRegressor, with the schedule invscaling."""

    distribution, package, batches = "scikit-learn", "sklearn.linear_model", "1"

    def __init__(self, features: Features, labels: FloatArray, settings: Settings) -> None:
        from sklearn.linear_model import SGDClassifier, SGDRegressor

        self._data = features, labels
        rate = {"learning_rate": "invscaling", "power_t": 0.25, "eta0": settings.rate / _mean_square(features)}
        # In the order of the samples, which is that of their memory.
        penalty = "l2" if settings.l2 else "l1" if settings.l1 else None
        strength = {"penalty": penalty, "alpha": settings.l2 or settings.l1}
        options: dict[str, Any] = {"tol": None, "shuffle": False, **rate, **strength}
        self._model = SGDClassifier(loss="log_loss", **options)
        if settings.loss == "squared":
            self._model = SGDRegressor(**options)

    def fit(self, epochs: int) -> None:
        self._model.set_params(max_iter=epochs).fit(*self._data)

    def _coefficients(self) -> tuple[FloatArray, float]:
        return self._model.coef_.reshape(-1), float(self._model.intercept_[0])


class Torch(Peer):
    """Mini-batch SGD by matrix-vector products of float32, on views of the data and in memory that is kept."""

    distribution, package, batches = "torch", "torch", "B"

    def __init__(self, features: Features, labels: FloatArray, settings: Settings) -> None:
        import torch

        self._settings, self._step = settings, -settings.rate / _mean_square(features) / settings.batch
        self._sparse = not isinstance(features, np.ndarray) and features.nnz < _DENSE * np.prod(features.shape)
        # The bias is the weight of one more feature, which costs no calls of its own.
        self._weights = torch.zeros(features.shape[1] + 1)
        self._buffer = torch.empty(settings.batch)
        goals = torch.from_numpy(np.asarray(labels > 0 if settings.loss == "logistic" else labels, np.float32))
        if self._sparse:
            import scipy.sparse

            ones = scipy.sparse.hstack([features, np.ones((features.shape[0], 1))], "csr", np.float32)
            rows = range(0, features.shape[0], settings.batch)
            parts: Any = [_sparse_part(ones[first : first + settings.batch]) for first in rows]
        else:
            x = torch.ones(features.shape[0], features.shape[1] + 1)
            x[:, :-1] = torch.from_numpy(features if isinstance(features, np.ndarray) else features.toarray())
            parts = [(part, part.T) for part in x.split(settings.batch)]
        self._parts = [
            (*part, y, self._buffer[: len(y)]) for part, y in zip(parts, goals.split(settings.batch), strict=True)
        ]

    def fit(self, epochs: int) -> None:
        import torch

        torch.set_num_threads(self._settings.threads)
        weights, step, logistic = self._weights.zero_(), self._step, self._settings.loss == "logistic"
        with torch.inference_mode():
            for _ in range(epochs):
                if self._sparse:
                    for x, rows, columns, values, y, z in self._parts:
                        torch.mv(x, weights, out=z)
                        (z.sigmoid_() if logistic else z).sub_(y)
                        weights.index_add_(0, columns, z[rows].mul_(values), alpha=step)
                else:
                    for x, transposed, y, z in self._parts:
                        torch.mv(x, weights, out=z)
                        (z.sigmoid_() if logistic else z).sub_(y)
                        weights.addmv_(transposed, z, alpha=step)

    def _coefficients(self) -> tuple[FloatArray, float]:
        weights = self._weights.numpy()
        return weights[:-1], float(weights[-1])


class VowpalWabbit(Peer):
    """The driver of Vowpal Wabbit with its default update, on a cache file that the first pass makes."""

    distribution, package, batches = "vowpalwabbit", "vowpalwabbit", "1"
    has_rate = False

    def __init__(self, features: Features, labels: FloatArray, settings: Settings) -> None:
        from sklearn.datasets import dump_svmlight_file

        self._count: int = features.shape[1]
        self._folder = tempfile.TemporaryDirectory()
        self._settings = settings
        libsvm = Path(self._folder.name, "data.libsvm")
        dump_svmlight_file(features, labels, str(libsvm), zero_based=False)
        self._take(libsvm)

    @classmethod
    def from_file(cls, path: Path, settings: Settings) -> "Peer":
        if path.suffix != ".libsvm":
            raise ValueError("it reads text alone")
        peer = cls.__new__(cls)
        peer._count, peer._settings, peer._folder = 0, settings, tempfile.TemporaryDirectory()
        peer._take(path)
        return peer

    def _take(self, libsvm: Path) -> None:
        """Rewrite LIBSVM text as text of Vowpal Wabbit: a bar between label and features."""
        self._text = Path(self._folder.name, "data.vw")
        with libsvm.open("rb") as source, self._text.open("wb") as text:
            for line in source:
                text.write(line.replace(b" ", b" | ", 1))
                last = line.rpartition(b":")[0].rpartition(b" ")[2]
                self._count = max(self._count, int(last or 0))

    def fit(self, epochs: int) -> None:
        from vowpalwabbit import Workspace

        cache, self._bits = self._text.with_suffix(".cache"), max(18, (self._count + 1).bit_length())
        settings = self._settings
        self._model = Workspace(
            f"--data {self._text} --cache_file {cache} --passes {epochs} --holdout_off --bit_precision {self._bits} "
            f"--loss_function {settings.loss} --l2 {settings.l2} --l1 {settings.l1} --quiet"
        )

    def _coefficients(self) -> tuple[FloatArray, float]:
        if self._settings.l2 or self._settings.l1:
            from vowpalwabbit import Workspace

            # Penalties that are still to be applied are applied when a model is saved.
            saved = self._text.with_suffix(".model")
            self._model.save(str(saved))
            self._model = Workspace(f"--initial_regressor {saved} --testonly --quiet")
        weights = [self._model.get_weight_from_name(str(column + 1)) for column in range(self._count)]
        return np.array(weights), self._model.get_weight(_CONSTANT % (1 << self._bits))


PEERS: Mapping[str, type[Peer]] = {
    "scikit-learn": ScikitLearn,
    "torch": Torch,
    "vowpal-wabbit": VowpalWabbit,
}
"""Peers by name."""


def read_file(path: Path) -> tuple[Features, FloatArray]:
    """Features, float32, and labels of a .libsvm file, or of an .npz file with dense ones."""
    if path.suffix == ".libsvm":
        from sklearn.datasets import load_svmlight_file

        features, labels = load_svmlight_file(str(path), dtype=np.float32)
        # It gives 64 bits, which SGDClassifier refuses and PyTorch is slower with.
        features.indices, features.indptr = features.indices.astype(np.int32), features.indptr.astype(np.int32)
        return features, labels
    with np.load(path) as arrays:
        return np.asarray(arrays["features"], np.float32), arrays["labels"]


def _scale(features: Features) -> tuple[FloatArray | float, FloatArray]:
    """Scale features in place; returns offsets and factors of their columns."""
    if not isinstance(features, np.ndarray):
        factor = 1 / np.maximum(abs(features).max(axis=0).toarray().reshape(-1), 1e-30)
        features.data *= factor[features.indices]
        return 0.0, factor
    offset = features.mean(axis=0)
    features -= offset
    deviation = np.sqrt(np.einsum("ij,ij->j", features, features) / features.shape[0])
    factor = 1 / np.where(deviation > 0, deviation, 1)
    features *= factor
    return offset, factor


def _mean_square(features: Features) -> float:
    """Mean squared norm of a sample."""
    values = features.reshape(-1) if isinstance(features, np.ndarray) else features.data
    return float(np.dot(values, values)) / features.shape[0]


def _sparse_part(part: Any) -> tuple[Any, Any, Any, Any]:
    """A mini-batch as a CSR tensor for the forward pass; its rows, columns and values for the backward pass."""
    import torch

    values, columns = torch.from_numpy(part.data), torch.from_numpy(part.indices)
    rows = torch.from_numpy(np.repeat(np.arange(part.shape[0]), np.diff(part.indptr)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse CSR tensors are in beta state
        matrix = torch.sparse_csr_tensor(torch.from_numpy(part.indptr), columns, values, part.shape)
    return matrix, rows, columns, values


def limit_threads(threads: int) -> None:
    """Let processes that are started from now on use so many threads in all libraries, and keep compiled modules."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = str(threads)


def describe_machine(threads: int) -> str:
    """Processor, threads and versions, for the head of a report."""
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    versions = [f"Python {platform.python_version()}"]
    for name in ("numpy", "numba", *(peer.distribution for peer in PEERS.values())):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return f"{model}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}; {', '.join(versions)}"


def main() -> None:
    """Do a whole job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = Settings(batch=options.batch, threads=options.threads, rate=options.rate)
    peer = PEERS[options.peer].from_file(options.file, settings)
    peer.fit(options.epochs)
    coefficients, intercept = peer.coefficients()
    with options.out.open("wb") as out:  # savez appends .npz to names
        np.savez(out, coefficients=coefficients, intercept=intercept)


if __name__ == "__main__":
    main()
