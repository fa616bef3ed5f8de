"""Estimators for those who are used to scikit-learn: data are arrays, and options are parameters of the constructor.

A fit is a training run like that of ``p4sgd train`` with the same options and data, and ends with the same weights.
"""

import contextlib
import dataclasses
import inspect
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_origin

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, validate_data

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.data.table import FILLINGS, CellError, Survey, Table, TableEncoding, UnknownTexts, is_text, suits
from p4sgd.host.devices import DEVICES
from p4sgd.host.distributed.communicator import SINGLE_PROCESS
from p4sgd.host.errors import UserError
from p4sgd.host.losses import ELSEWHERE, LOSSES, Loss, Probabilistic, Task, get_loss
from p4sgd.host.losses.log_link import LogLink
from p4sgd.host.run.checks import check_absent, check_replaces, with_parameters
from p4sgd.host.run.execute import execute
from p4sgd.host.run.plan import make_plan
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.training import EpochRecord, ResultSet, StopReason, TrainingOptions, TrainingResult, model_file
from p4sgd.host.training.model_file import Model, ModelSet
from p4sgd.host.training.options import PRECONDITIONS, SCHEDULES
from p4sgd.host.training.start import Start
from p4sgd.host.training.weights import BALANCED
from p4sgd.hw.spec.config import CONFIGURATIONS

__all__ = ["GLMClassifier", "GLMRegressor", "load_model", "save_model"]

_NAME = "X"
"""Name of the samples, for messages and the model file."""

_NO_Y = "no_validation"
"""What `validate_data` gets for y where there is none."""

_LEFT_OUT = ("positive", "parallel", "seed")
"""Fields of `TrainingOptions` that estimators have not: y says what is 1, there is one process, and `random_state`."""

_FIELDS = {field.name: field for field in dataclasses.fields(TrainingOptions) if field.name not in _LEFT_OUT}

_OF_CLASSES = ("class_weight",)
"""Those fields that only classifiers have."""

_OTHERS = {
    "device": "emulator",
    "cluster": None,
    "config": None,
    "sparse_workers": 0,
    "warm_start": False,
    "random_state": 0,
    "verbose": 0,
}
"""Parameters that are not options of training, with their defaults."""

_OTHERS_TEXT = """
device
    What trains: ``emulator``; ``rtl``, the simulated Verilog; or ``cluster``.
cluster
    For the device ``cluster`` its file, which also says how many workers there are.
config
    Name of the workers' configuration; ``None`` chooses it by device and data.
sparse_workers
    How many of the emulator's workers are sparse, the last ones.
warm_start
    Whether `fit` starts from the weights that there are, with their scaling of features and their meaning of y.
random_state
    Seed of the shuffle and of the validation split: an int, for the same result every time, a
    `numpy.random.RandomState`, or ``None`` for another result every time.
verbose
    With 1, `fit` prints a line for every epoch, and remarks.
"""
"""Their descriptions."""

_Estimator = TypeVar("_Estimator", bound=type)


def _with_parameters(loss: str) -> Callable[[_Estimator], _Estimator]:
    """Give an estimator a constructor with the fields of `TrainingOptions`, and their descriptions.

    scikit-learn takes the names of parameters from the constructor's signature, as do notebooks.

    Parameters
    ----------
    loss
        The default loss.
    """
    left_out = () if _classifies(LOSSES[loss]) else _OF_CLASSES
    fields = {name: field for name, field in _FIELDS.items() if name not in left_out}
    defaults = {name: field.default for name, field in fields.items()} | {"loss": loss} | _OTHERS
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    chosen = [inspect.Parameter(name, keyword, default=default) for name, default in defaults.items()]
    signature = inspect.Signature([own, *chosen])

    def complete(cls: _Estimator) -> _Estimator:
        def __init__(self: Any, /, *arguments: Any, **parameters: Any) -> None:  # noqa: N807 - it becomes the class's
            bound = signature.bind(self, *arguments, **parameters)
            bound.apply_defaults()
            for name in defaults:
                setattr(self, name, bound.arguments[name])

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        __init__.__qualname__ = f"{cls.__name__}.__init__"
        setattr(cls, "__init__", __init__)  # noqa: B010 - mypy refuses the assignment
        if cls.__doc__ and TrainingOptions.__doc__:  # python -OO has none
            options = _parameters_of(TrainingOptions.__doc__, fields)
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{parameters}", options + _OTHERS_TEXT.rstrip())
        return cls

    return complete


def _parameters_of(text: str, names: Mapping[str, object]) -> str:
    """Those entries of a docstring's list of parameters that have one of the names."""
    listed = inspect.cleandoc(text).partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    entries: list[list[str]] = []
    for line in listed.splitlines():
        if line[:1].isspace():
            entries[-1].append(line)
        else:
            entries.append([line])
    return "\n".join("\n".join(entry) for entry in entries if entry[0] in names)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Samples as rows of a table, (samples, columns), see `p4sgd.host.data.table.Table.rows`."""

    rows: npt.NDArray[np.float64]
    table: Table

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape


def _as_table(X: Any) -> Any:
    """A DataFrame, of whatever library, as a table of pyarrow; ``None`` if X is something else."""
    if not hasattr(X, "columns") or len(getattr(X, "shape", ())) != 2:
        return None
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"X: a column has neither numbers nor texts alone: {error}") from error


def _has_texts(columns: Any) -> bool:
    """Whether a table of pyarrow has columns of texts, or of booleans."""
    from pyarrow import types

    return any(is_text(kind) or types.is_boolean(kind) for kind in _kinds(columns))


def _kinds(columns: Any) -> list[Any]:
    """The types of the columns of a table of pyarrow, without dictionary encoding."""
    from pyarrow import types

    return [kind.value_type if types.is_dictionary(kind) else kind for kind in columns.schema.types]


@contextlib.contextmanager
def _value_errors() -> Iterator[None]:
    """Turn errors that the user can correct into what scikit-learn raises for them, with parameters for options."""
    try:
        yield
    except UserError as error:
        raise ValueError(_told(str(error))) from None  # it says all that the other does


def _told(text: str) -> str:
    """A message or a remark with the names of parameters."""
    choices = (LOSSES, KINDS, SCHEDULES, PRECONDITIONS, FILLINGS, DEVICES, CONFIGURATIONS)
    defaults = {name: field.default for name, field in _FIELDS.items()} | _OTHERS | {"overwrite": False}
    return with_parameters(text, defaults, set().union(*choices))


class _GLM(BaseEstimator):
    """What both estimators have in common."""

    _classifies: ClassVar[bool]

    loss: str
    missing: str
    device: str
    cluster: str | os.PathLike[str] | None
    config: str | None
    sparse_workers: int
    warm_start: bool
    random_state: Any
    verbose: int
    model_: Model | ModelSet
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def _options(self, **others: Any) -> TrainingOptions:
        """The options of a run.

        Raises
        ------
        ValueError
            If a parameter has the wrong type, or a value that is not allowed.
        """
        fields = {name: field for name, field in _FIELDS.items() if hasattr(self, name)}
        chosen = {name: _plain(name, getattr(self, name), field.type) for name, field in fields.items()}
        suitable = {name: _classifies(each) == self._classifies for name, each in LOSSES.items()}
        if not suitable.get(ELSEWHERE.get(chosen["loss"], chosen["loss"]), True):
            what = "classification" if self._classifies else "regression"
            known = ", ".join(name for name, suits in suitable.items() if suits)
            raise ValueError(f"the loss {self.loss} is not for {what}: choose one of {known}")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        with _value_errors():
            return TrainingOptions(**chosen | {"seed": int(seed)} | others)

    def _train(self, data: Dataset, options: TrainingOptions, start: Start | None) -> None:
        """Train, and keep the model and what is known of the run."""
        before = 0 if start is None else start.epochs
        request = TrainingRequest(
            data=data,
            options=options.to_json() if self.device != "cluster" else _without_workers(options),
            device=self.device,
            cluster=None if self.cluster is None else Path(self.cluster),
            config=self.config,
            sparse_workers=int(self.sparse_workers),
            start=start,
        )

        def show(record: EpochRecord) -> None:
            if self.verbose and record.epoch > before:
                print(_line(record), flush=True)

        def remark(text: str) -> None:
            print(_told(text), flush=True)

        def begin(row: int, names: Sequence[str]) -> None:
            if self.verbose:
                print(f"{row + 1} of {len(names)}: {names[row]}", flush=True)

        tell = remark if self.verbose else None
        with _value_errors(), _compilations_told(self.verbose):
            result = execute(make_plan(request), on_epoch=show, on_remark=tell, on_row=begin)
        self._keep(result)
        if result.stopped is StopReason.INTERRUPTED:
            raise KeyboardInterrupt  # what is around this, such as a search, is to end, too

    def _keep(self, result: TrainingResult | ResultSet) -> None:
        self.model_ = result.model
        if isinstance(result, TrainingResult):
            self.n_iter_ = len(result.history)
            self.history_ = [record.to_json() for record in result.history]
        else:
            kind, rows = result.model.labels.row_kind, list(zip(result.names, result.rows, strict=True))
            self.n_iter_ = max(len(row.history) for row in result.rows)
            self.history_ = [{kind: name, **record.to_json()} for name, row in rows for record in row.history]
        self.remarks_ = list(map(_told, result.remarks))
        self._next_start = result.next_start

    def _start(self, *, partial: bool) -> Start | None:
        """What a run starts from, if it goes on from an earlier one."""
        if not (partial or self.warm_start) or not hasattr(self, "model_"):
            return None
        with _value_errors():
            start: Start = self._next_start or Start.of_model(self.model_, "the model")
        if isinstance(start.coding, LabelCoding) and start.coding.positive is not None:
            # A model of one class against the rest has the classes 0 and 1, and so have the labels.
            start = dataclasses.replace(start, coding=dataclasses.replace(start.coding, positive=None, names=()))
        return start if partial else start.anew()

    def _fit(self, data: Dataset) -> Self:
        self._train(data, self._options(), self._start(partial=False))
        return self

    def _partial_fit(self, data: Dataset, coding: LabelCoding | None) -> Self:
        start = self._start(partial=True) or Start(coding=coding)
        # Losses of other samples do not compare, so there is nothing to choose an epoch or to adapt the rate by.
        others: dict[str, Any] = {"epochs": start.epochs + 1, "validation_fraction": 0.0, "patience": None}
        if self.schedule == "adaptive":
            others |= {"schedule": "constant", "tolerance": _default("tolerance")}
        options = self._options(**others)
        self._train(data, options, dataclasses.replace(start, refit=False))
        return self

    def _data(self, X: Any, labels: Any = None, names: Sequence[str] = (), sample_weight: Any = None) -> Dataset:
        """A data set of samples that `_validated` has checked."""
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        features = tuple(map(str, self.feature_names_in_)) if hasattr(self, "feature_names_in_") else ()
        about: dict[str, Any] = {"feature_names": features}
        values = np.zeros(X.shape[0]) if labels is None else labels
        if values.ndim == 2:
            about["target_names"] = tuple(f"target {place + 1}" for place in range(values.shape[1]))
        if isinstance(X, _Rows):
            encoding = self.model_.space.encoding if hasattr(self, "model_") else None
            if encoding is None or X.table is not encoding.table:
                X, about["table"] = X.rows, X.table
            else:
                X, about["feature_names"] = encoding.apply(X.rows), encoding.names
                about["encoding"] = encoding
        with _value_errors():
            return Dataset(X, values, _NAME, tuple(names), labelled=labels is not None, sample_weights=weights, **about)

    def _validated(self, X: Any, y: Any = _NO_Y, *, reset: bool, **how: Any) -> Any:
        """Samples, and with y both, checked by scikit-learn; tables with texts or gaps become `_Rows`.

        Raises
        ------
        ValueError
            If they are not what the estimator can take, or was fitted to.
        """
        encoding = None if reset or not hasattr(self, "model_") else self.model_.space.encoding
        columns, fills = _as_table(X), self.missing != "error"
        if not (encoding is not None or (reset and (fills or (columns is not None and _has_texts(columns))))):
            try:
                return validate_data(self, X, y, accept_sparse="csr", dtype="numeric", reset=reset, **how)
            except ValueError as error:
                if not str(error).startswith("Input X contains NaN"):
                    raise
                raise ValueError(
                    "Input X contains NaN: fill the gaps, or fit with missing='mean' or 'indicator'"
                ) from None
        if columns is None:
            if encoding is not None and any(column.values is not None for column in encoding.columns):
                raise ValueError("X must be a DataFrame with texts, such as the estimator was fitted to")
            X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset)
            table = Table.of_numbers((), X.shape[1]) if encoding is None else encoding.table
            if encoding is not None and encoding.missing == "error":
                assert_all_finite(X, input_name="X")
            assert_all_finite(np.where(np.isnan(X), 0.0, X), input_name="X")
            made = _Rows(X, table)
        else:
            validate_data(self, X, reset=reset, skip_check_array=True)
            made = self._rows(columns, encoding)
        if isinstance(y, str) and y == _NO_Y:
            return made
        y = _check_y(y, estimator=self, **how)
        check_consistent_length(made.rows, y)
        return made, y

    def _rows(self, columns: Any, encoding: TableEncoding | None) -> _Rows:
        """The rows of a DataFrame; without an encoding its columns are surveyed first."""
        names, table = columns.column_names, None if encoding is None else encoding.table
        gaps = (self.missing if encoding is None else encoding.missing) != "error"
        for name, kind in zip(names, _kinds(columns), strict=True):
            if not suits(kind):
                raise ValueError(f"X, column {name}: holds {kind}, neither numbers nor texts: leave it out")
        batches = [batch.columns for batch in columns.to_batches()]

        def told(cell: CellError) -> UserError:
            return cell.told(f"{_NAME}, row {cell.row + 1}, column {names[cell.column]}")

        unknown, parts, first = UnknownTexts(), [], 0
        with _value_errors():
            if table is None:
                survey = Survey(names, len(names))
                for arrays in batches:
                    survey.add(arrays)
                table = survey.finish(_NAME, gaps=gaps, tell=told)
            for arrays in batches:
                try:
                    parts.append(table.rows(arrays, gaps=gaps, unknown=unknown))
                except CellError as error:
                    raise told(CellError(first + error.row, error.column, error.text)) from None
                first += len(arrays[0])
        for remark in unknown.remarks(SINGLE_PROCESS):
            warnings.warn(remark, stacklevel=5)
        return _Rows(np.concatenate(parts) if parts else np.empty((0, len(names))), table)

    def _samples(self, X: Any) -> Dataset:
        """Samples to predict on."""
        check_is_fitted(self, "model_")
        data = self._data(self._validated(X, reset=False))
        # Names are compared already; those in a file may be spelt as texts.
        return dataclasses.replace(data, feature_names=())

    def _load(self, model: Model | ModelSet) -> None:
        """Become what was trained to a model; options of the run become parameters."""
        began = model.training.get("options", {})
        known = {name: began[name] for name in _FIELDS if name in began and hasattr(self, name)}
        seed = {"random_state": began["seed"]} if "seed" in began else {}
        self.set_params(**known | seed | {"loss": model.loss})
        self.model_, self._next_start = model, None
        self.n_features_in_ = model.space.column_count
        if model.space.column_names:
            self.feature_names_in_ = np.array(model.space.column_names, dtype=object)


def _classifies(loss: Loss) -> bool:
    return loss.task is Task.CLASSIFICATION


def _default(name: str) -> Any:
    return _FIELDS[name].default


def _plain(name: str, value: Any, expected: Any) -> Any:
    """The value of an option as Python's own type, which NumPy's numbers are not.

    Raises
    ------
    ValueError
        If it is of another type.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    allowed = expected.__args__ if isinstance(expected, types.UnionType) else (expected,)
    allowed = tuple(get_origin(each) or each for each in allowed)
    if float in allowed and type(plain) is int:
        plain = float(plain)
    if type(plain) not in allowed:
        names = " or ".join("None" if each is types.NoneType else each.__name__ for each in allowed)
        raise ValueError(f"{name} must be {names}, not {value!r}")
    return plain


def _without_workers(options: TrainingOptions) -> dict[str, Any]:
    """Options for a cluster, whose file says how many workers there are."""
    chosen = options.to_json()
    if chosen["workers"] == _default("workers"):
        del chosen["workers"]
    return chosen


def _line(record: EpochRecord) -> str:
    """What is told of an epoch."""
    metrics = [f"{name.replace('_', ' ')} {value:.6g}" for name, value in record.metrics.items()]
    return ", ".join([f"epoch {record.epoch}", *metrics, f"rate {record.learning_rate:.3g}"])


@contextlib.contextmanager
def _compilations_told(verbose: int) -> Iterator[None]:
    """Print when Numba compiles the emulator's loops, if ``verbose``."""
    logger = logging.getLogger("p4sgd.sim.compiled")
    if not verbose:
        yield
        return
    handler, level = logging.StreamHandler(sys.stdout), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _has_probabilities(estimator: "GLMClassifier") -> bool:
    if not isinstance(LOSSES.get(estimator.loss), Probabilistic):
        known = " and ".join(name for name, each in LOSSES.items() if isinstance(each, Probabilistic))
        raise AttributeError(f"the loss {estimator.loss} gives no probabilities; {known} do")
    return True


@_with_parameters("logistic")
class GLMClassifier(ClassifierMixin, _GLM):
    """A linear classifier, trained by SGD on FPGAs or on their exact emulation.

    Of more than two classes each is trained against the rest, and the one with the largest activation is predicted.
    Several labels, a matrix of zeros and ones, are trained one by one. Its weights are those of ``p4sgd train`` with
    the same options on the same data, bit for bit. They do not depend on workers, device or threads.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, ascending.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients of the features as they are given, float64; with more than two classes, or with several labels, a
        row for each.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        The intercepts, float64.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has texts for names.
    n_iter_ : int
        Number of epochs, the most of any class; `partial_fit` goes on counting.
        Models from files lack this and the following attributes.
    history_ : list of dict
        A record of each epoch: metrics, learning rate, times, saturations.
    remarks_ : list of str
        What the user should know about the run, such as rounding or saturation.
    model_ : p4sgd.host.training.model_file.Model
        The model of the best epoch, with the integers of the hardware; with more than two classes a `ModelSet`.

    Notes
    -----
    Errors that the user can correct are a `ValueError`. Ctrl-C in `fit` keeps the best model so far, and raises
    `KeyboardInterrupt`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.model_selection import train_test_split
    >>> from p4sgd import GLMClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    >>> classifier = GLMClassifier(precision=4, epochs=10).fit(X_train, y_train)
    >>> classifier.score(X_test, y_test) > 0.95
    True
    >>> classifier.predict_proba(X_test[:3]).shape
    (3, 2)
    """

    _classifies = True
    class_weight: str | dict[Any, float] | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = tags.target_tags.multi_output = True
        return tags

    classes_: npt.NDArray[Any]

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Coefficients of the features as they are given, (1, n_features) or (n_classes, n_features)."""
        return np.atleast_2d(self.model_.coefficients)

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        """The intercepts, (1,) or (n_classes,)."""
        return np.atleast_1d(self.model_.intercept)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from nothing, or with ``warm_start`` from the weights that there are.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples. Sparse ones become CSR, and are never made dense.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Their classes, two or more, as numbers or texts; or a matrix of zeros and ones, whether a sample has each of
            several labels. Then ``classes_`` are the numbers of the labels.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each sample counts, at least 0; all count the same without it. The hardware has steps of 1/65,536
            of the largest.

        Returns
        -------
        self : GLMClassifier
            The estimator.

        Raises
        ------
        ValueError
            If data or parameters do not suit.
        """
        warm = self.warm_start and hasattr(self, "model_")
        X, y = self._checked(X, y, reset=not warm)
        if not warm:
            self.classes_ = _classes(y) if y.ndim == 1 else np.arange(y.shape[1])
        if y.ndim == 2:
            return self._fit(self._data(X, y.astype(np.float64), sample_weight=sample_weight))
        return self._fit(self._labelled(X, y, sample_weight))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for an epoch on these samples, from the weights that there are.

        The first call fixes the scaling of the features, by its samples, and the learning rate, which it searches for
        if there is none; values beyond the range that these samples have are clamped in training. Let it have some
        thousand samples. The schedule ``adaptive`` is ``constant`` here, and nothing is held out. The intercept is the
        bias as it was trained, where `fit` fits it to its samples.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Their classes; one class is enough.
        classes : array-like of shape (n_classes,), default=None
            All classes, needed in the first call.
        sample_weight : array-like of shape (n_samples,), default=None
            How much each sample counts beside the others of this call.

        Returns
        -------
        self : GLMClassifier
            The estimator.

        Raises
        ------
        ValueError
            If data or parameters do not suit.
        """
        if self.class_weight == BALANCED:
            raise ValueError("class_weight='balanced' needs all samples: give partial_fit weights by class")
        first = not hasattr(self, "classes_")
        X, y = self._checked(X, y, reset=first)
        if first and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit")
        if classes is not None:
            known = _classes(classes)
            if first:
                self.classes_ = known
            elif not np.array_equal(known, self.classes_):
                raise ValueError(f"classes are {known}, those of earlier calls were {self.classes_}")
        if y.ndim == 2:
            raise ValueError("partial_fit takes one label a sample: fit takes several")
        data = self._labelled(X, y, sample_weight)
        numbers = np.arange(self.classes_.size) if data.label_names else self.classes_
        coding = LabelCoding(Task.CLASSIFICATION, tuple(numbers.astype(np.float64).tolist()), names=data.label_names)
        return self._partial_fit(data, coding)

    def _checked(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, npt.NDArray[Any]]:
        X, y = self._validated(X, y, reset=reset, multi_output=True)
        check_classification_targets(y)
        if y.ndim == 2 and type_of_target(y) != "multilabel-indicator":
            y = column_or_1d(y, warn=True)  # raises if there are several columns
        return X, y if isinstance(y, np.ndarray) else y.toarray()

    def _labelled(self, X: Any, y: npt.NDArray[Any], sample_weight: Any) -> Dataset:
        """A data set with classes as in a file: numbers, or indices into texts."""
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"y has the class {unknown[0]}, which is not one of {self.classes_}")
        # Numbers of which float64 does not tell one from another go as texts.
        count = self.classes_.size
        if self.classes_.dtype.kind in "biuf" and np.unique(self.classes_.astype(np.float64)).size == count:
            return self._data(X, np.asarray(y, dtype=np.float64), sample_weight=sample_weight)
        places, names = np.searchsorted(self.classes_, y).astype(np.float64), list(map(str, self.classes_))
        return self._data(X, places, names, sample_weight)

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Activations, of two classes above 0 for the second, of more largest for the one that is predicted.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        z : ndarray of shape (n_samples,) or (n_samples, n_classes)
            Activations, float64.
        """
        samples = self._samples(X)
        with _value_errors():
            return self.model_.decision_function(samples)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Classes.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Their predicted classes, those of ``p4sgd predict``; of several labels zeros and ones, (n_samples,
            n_labels).
        """
        z = self.decision_function(X)
        if isinstance(self.model_.labels, TargetCoding):
            return (z > 0).astype(np.int64)
        places: npt.NDArray[np.intp] = (z > 0).astype(np.intp) if z.ndim == 1 else z.argmax(axis=1)
        return self.classes_[places]

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities of the classes; only with the losses ``logistic`` and ``modified_huber``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        p : ndarray of shape (n_samples, n_classes)
            Probabilities, float64, in the order of ``classes_``. Of more than two classes, those of each against the
            rest are divided by their sum; of several labels, those of having them.
        """
        z = self.decision_function(X)
        found = self.model_.probabilities(z)
        assert found is not None
        return found

    def _load(self, model: Model | ModelSet) -> None:
        super()._load(model)
        known = np.array(model.labels.classes)
        self.classes_ = np.array(model.labels.named(known)) if known.size else np.arange(len(model.rows))


def _classes(y: Any) -> npt.NDArray[Any]:
    """The classes of some labels, ascending.

    Raises
    ------
    ValueError
        If there is a single one.
    """
    classes = np.unique(y)
    if classes.size == 1:
        raise ValueError(f"y has one class, {classes[0]}: a classifier needs samples of two")
    return classes


@_with_parameters("squared")
class GLMRegressor(RegressorMixin, _GLM):
    """A linear regression, trained by SGD on FPGAs or on their exact emulation.

    Its weights are those of ``p4sgd train`` with the same options on the same data, bit for bit. They do not depend on
    workers, device or threads.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients of the features as they are given, float64, in the unit of the target; of its logarithm with the
        losses ``poisson``, ``gamma`` and ``tweedie``.
    intercept_ : float or ndarray of shape (n_targets,)
        The intercept, in the same unit.
    n_features_in_, feature_names_in_, n_iter_, history_, remarks_, model_
        As those of `GLMClassifier`.

    Notes
    -----
    Errors that the user can correct are a `ValueError`. Ctrl-C in `fit` keeps the best model so far, and raises
    `KeyboardInterrupt`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from p4sgd import GLMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = GLMRegressor(epochs=10).fit(X, y)
    >>> round(regressor.score(X, y), 1)
    0.5
    >>> regressor.coef_.shape
    (10,)
    """

    _classifies = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        """Coefficients of the features as they are given, (n_features,) or (n_targets, n_features)."""
        return self.model_.linear()[0]

    @property
    def intercept_(self) -> Any:
        """The intercept, or those of the targets, (n_targets,)."""
        return self.model_.linear()[1]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R², or with ``poisson``, ``gamma`` and ``tweedie`` D², the fraction of the deviance that is explained.

        Of several targets it is the mean.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their targets; of several, each becomes a row of the model.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples.

        Returns
        -------
        score : float
            At most 1.
        """
        first = self.model_.rows[0]
        loss = get_loss(first.loss, first.loss_parameters)
        if not isinstance(loss, LogLink):
            return float(super().score(X, y, sample_weight))
        power = loss.power
        columns = (np.asarray(each).reshape(len(each), -1).T for each in (y, self.predict(X)))
        each = [
            d2_tweedie_score(*pair, sample_weight=sample_weight, power=power) for pair in zip(*columns, strict=True)
        ]
        return float(np.mean(each))

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from nothing, or with ``warm_start`` from the weights that there are.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples. Sparse ones become CSR, and are never made dense.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their targets; of several, each becomes a row of the model.
        sample_weight : array-like of shape (n_samples,), default=None
            As in `GLMClassifier.fit`.

        Returns
        -------
        self : GLMRegressor
            The estimator.

        Raises
        ------
        ValueError
            If data or parameters do not suit.
        """
        return self._fit(self._checked(X, y, sample_weight, reset=not (self.warm_start and hasattr(self, "model_"))))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for an epoch on these samples, from the weights that there are.

        The first call fixes the scaling of features and targets, by its samples; for all else see
        `GLMClassifier.partial_fit`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Their targets; of several, each becomes a row of the model.
        sample_weight : array-like of shape (n_samples,), default=None
            As in `GLMClassifier.partial_fit`.

        Returns
        -------
        self : GLMRegressor
            The estimator.

        Raises
        ------
        ValueError
            If data or parameters do not suit.
        """
        return self._partial_fit(self._checked(X, y, sample_weight, reset=not hasattr(self, "model_")), None)

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Dataset:
        X, y = self._validated(X, y, reset=reset, y_numeric=True, multi_output=True)
        return self._data(X, y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y, sample_weight=sample_weight)

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Targets.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Their predicted targets, float64, those of ``p4sgd predict``.
        """
        samples = self._samples(X)
        with _value_errors():
            return self.model_.predict(samples)


def save_model(
    estimator: GLMClassifier | GLMRegressor, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Write a model file, which ``p4sgd predict`` and ``p4sgd evaluate`` take.

    Parameters
    ----------
    estimator
        A fitted estimator.
    path
        The file.
    overwrite
        Whether it may replace a model, as with ``p4sgd train --overwrite``.

    Raises
    ------
    ValueError
        If the file exists and is not to be replaced, or is no model, or if it cannot be written.
    """
    check_is_fitted(estimator, "model_")
    with _value_errors():
        check_replaces(Path(path), model_file.is_model_file, "model file")
        check_absent(Path(path), overwrite=overwrite)
        model_file.save_model(estimator.model_, Path(path))


def load_model(path: str | os.PathLike[str]) -> GLMClassifier | GLMRegressor:
    """Read a model file, such as ``p4sgd train --out`` writes.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    An estimator that predicts what ``p4sgd predict`` does, with the options of its training as parameters. Its
    `partial_fit` and ``warm_start`` go on from the weights, with a learning rate that is searched for anew.

    Raises
    ------
    ValueError
        If it cannot be read or is no model file.
    """
    with _value_errors():
        model = model_file.load_model(Path(path))
    estimator = GLMClassifier() if model.labels.task is Task.CLASSIFICATION else GLMRegressor()
    estimator._load(model)
    return estimator
