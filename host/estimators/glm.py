"""What the estimators for classification and regression have in common."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, validate_data

from p4sgd.host.data import Dataset
from p4sgd.host.data.encoding import FeatureSpace, TableEncoding
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.sample_numbers import EXPOSURE, OFFSET, offsets_of
from p4sgd.host.data.table import NumberColumn, Table
from p4sgd.host.estimators.frames import NAME, Rows, as_table, decoded, is_plain, opened, rows_of
from p4sgd.host.estimators.parameters import (
    classifies,
    default_of,
    numbers_in,
    parameters_of,
    plain_value,
    value_errors,
    warn,
)
from p4sgd.host.estimators.stream import ENOUGH, HANDFUL, Beginning, drift_remark
from p4sgd.host.losses import ELSEWHERE, LOSSES, Task
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training import EpochRecord, ResultSet, StopReason, TrainingOptions, TrainingResult
from p4sgd.host.training.events import ConvergenceRemark, Events, Note, ScalingRemark
from p4sgd.host.training.model_file import Model, ModelSet
from p4sgd.host.training.rate import ENOUGH_EPOCHS
from p4sgd.host.training.start import Start

_NO_Y = "no_validation"  # for `validate_data`

_TEXTS = "give a DataFrame, whose columns may hold them"
_ONE_EACH = "give a number for each sample"


class _Shown(Events):
    """Remarks of a run as warnings of Python, those on scaling and convergence not of a ``passing`` model; and if
    ``verbose`` all remarks and its epochs after ``before``, printed."""

    def __init__(self, before: int, *, passing: bool, verbose: bool) -> None:
        self._before = before
        self._passing = passing
        self._verbose = verbose

    def row(self, row: int, names: Sequence[str]) -> None:
        self._print(f"{row + 1} of {len(names)}: {names[row]}")

    def epoch(self, record: EpochRecord) -> None:
        if record.epoch > self._before:
            metrics = [f"{name.replace('_', ' ')} {value:.6g}" for name, value in record.metrics.items()]
            self._print(", ".join([f"epoch {record.epoch}", *metrics, f"rate {record.learning_rate:.3g}"]))

    def remark(self, text: str) -> None:
        self._print(text)
        quiet = (Note, ScalingRemark, ConvergenceRemark) if self._passing else Note
        if not isinstance(text, quiet):
            warn(str(text), ConvergenceWarning if isinstance(text, ConvergenceRemark) else UserWarning)

    def warning(self, text: str) -> None:
        warn(text)

    def _print(self, text: str) -> None:
        if self._verbose:
            print(text, flush=True)


def _still_falls(result: TrainingResult, tolerance: float) -> bool:
    """Whether a run of too few epochs for a remark of its own has one, or ends with progress: as solvers of
    scikit-learn that reach ``max_iter``, it may not have converged."""
    *before, last = (record.metrics[result.monitored] for record in result.history)
    few = result.stopped is StopReason.EPOCHS and len(before) < ENOUGH_EPOCHS - 1
    return few and (not before or last < min(before) * (1 - tolerance))


class GLM(BaseEstimator):
    """Base of both estimators."""

    _classifies: ClassVar[bool]

    loss: str
    tolerance: float
    missing: str
    dates: str
    device: str
    cluster: str | os.PathLike[str] | None
    config: str | None
    sparse_workers: int
    warm_start: bool
    random_state: Any
    verbose: int
    model_: Model | ModelSet
    _beginning: Beginning | None = None
    """The samples of `partial_fit` as long as they are few."""
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        tags.input_tags.sparse = not tags.input_tags.allow_nan
        return tags

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If it raises before there is a new model, leave all as it was."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            if self.__dict__.get("model_") is before.get("model_"):
                self.__dict__ = before
            raise

    def _chosen(self) -> dict[str, Any]:
        return {name: plain_value(name, getattr(self, name)) for name in parameters_of(classifies=self._classifies)}

    def _options(self, **others: Any) -> TrainingOptions:
        """The options of a run; `ValueError` if a parameter has the wrong type, or a value that is not allowed."""
        chosen = self._chosen()
        suitable = {name: classifies(each) == self._classifies for name, each in LOSSES.items()}
        if not suitable.get(ELSEWHERE.get(chosen["loss"], chosen["loss"]), True):
            what = "classification" if self._classifies else "regression"
            known = ", ".join(name for name, suits in suitable.items() if suits)
            raise ValueError(f"the loss {self.loss} is not for {what}: choose one of {known}")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        with value_errors():
            return TrainingOptions(**chosen | {"seed": int(seed)} | others)

    def _train(
        self, data: Dataset, options: TrainingOptions, start: Start, before: int = 0, *, passing: bool = False
    ) -> TrainingResult | ResultSet:
        """Train, and keep the model and what is known of the run; epochs ``before`` are not shown. A ``passing`` model
        will be made anew of more samples."""
        chosen = options.to_json()
        if self.device == "cluster" and options.workers == default_of("workers"):
            del chosen["workers"]  # the cluster file says how many there are
        request = TrainingRequest(
            data=data,
            options=chosen,
            device=self.device,
            cluster=None if self.cluster is None else Path(self.cluster),
            config=self.config,
            sparse_workers=int(self.sparse_workers),
            start=start,
        )
        with value_errors():
            result = TrainingRun(request).execute(_Shown(before, passing=passing, verbose=bool(self.verbose)))
        self._keep(result)
        if result.stopped is StopReason.INTERRUPTED:
            raise KeyboardInterrupt  # what is around this, such as a search, is to end, too
        return result

    def _keep(self, result: TrainingResult | ResultSet) -> None:
        self.model_ = result.model
        if isinstance(result, TrainingResult):
            self.n_iter_ = len(result.history)
            self.history_ = [record.to_json() for record in result.history]
        else:
            kind, rows = result.model.labels.row_kind, list(zip(result.names, result.rows, strict=True))
            self.n_iter_ = max(len(row.history) for row in result.rows)
            self.history_ = [{kind: name, **record.to_json()} for name, row in rows for record in row.history]
        self.remarks_ = list(map(str, result.remarks))
        self._next_start = result.next_start

    def _start(self, *, partial: bool) -> Start | None:
        """What a run starts from, if it goes on from an earlier one."""
        if not (partial or self.warm_start) or not hasattr(self, "model_"):
            return None
        with value_errors():
            start: Start = self._next_start or Start.of_model(self.model_, "the model")
        if isinstance(start.coding, LabelCoding) and start.coding.positive is not None:
            # A model of one class against the rest has the classes 0 and 1, and so have the labels.
            start = dataclasses.replace(start, coding=dataclasses.replace(start.coding, positive=None, names=()))
        return start if partial else start.anew()

    def _fit(self, data: Dataset) -> Self:
        # scikit-learn has checked what y is.
        result = self._train(data, self._options(), self._start(partial=False) or Start(guess=False))
        self._beginning = None
        rows = result.rows if isinstance(result, ResultSet) else (result,)
        told = any(isinstance(text, ConvergenceRemark) for text in result.remarks)
        if not told and any(_still_falls(row, self.tolerance) for row in rows):
            text = f"training has not converged in {self.n_iter_} epoch{'s' * (self.n_iter_ > 1)}: raise epochs"
            _Shown(0, passing=False, verbose=bool(self.verbose)).remark(ConvergenceRemark(text))
            self.remarks_.append(text)
        return self

    def _partial_fit(self, X: Any, data: Dataset, coding: LabelCoding | None) -> Self:
        """Train for an epoch on a data set of samples ``X``."""
        if hasattr(self, "model_") and self.model_.space.offset is not None:
            raise ValueError("the model was trained with offsets, which partial_fit does not take: fit with warm_start")
        with value_errors():
            TrainingOptions(**self._chosen())
        weights = data.sample_weights
        start, data, calls = self._start(partial=True), data.counted(), getattr(self, "n_iter_", 0)
        began, before = self._beginning, 0 if start is None else start.epochs
        remark, epochs = self._stream_remark(start, data), before + 1
        if start is None or began is not None:
            columns = as_table(X, numbers=self.missing != "error")
            columns = None if columns is None else decoded(columns)
            if columns is not None and weights is not None:
                columns = columns.filter(weights != 0)
            began = Beginning(data, columns) if began is None else began.joined(data, columns)
        anew = began is not None and began.due
        if began is not None and anew:
            if began.columns is not None:
                rows = rows_of(began.columns, None, missing=self.missing, dates=self.dates)
                began = began.surveyed(rows, tuple(map(str, self.feature_names_in_)))
            data, epochs = began.data, max(epochs, min(self.epochs, began.epochs))
            loss = LOSSES.get(self.loss)
            if loss is not None and loss.task is Task.NON_NEGATIVE and not data.labels.any():
                coding = LabelCoding(loss.task)  # the first counts may be 0
            start = Start(coding=coding)
        assert start is not None
        if remark is not None:
            data = dataclasses.replace(data, remarks=(*data.remarks, f"{NAME}: {remark}"))
        # Losses of other samples do not compare, so there is nothing to choose an epoch or to adapt the rate by.
        others: dict[str, Any] = {"epochs": epochs, "validation_fraction": 0.0, "patience": None}
        if self.l2 is None and self.alpha is None:  # the default depends on all samples
            others["l2"] = 0.0
        if self.schedule == "adaptive":
            others |= {"schedule": "constant", "tolerance": default_of("tolerance")}
        passing = began is not None and not began.complete
        self._train(data, self._options(**others), dataclasses.replace(start, refit=False), before, passing=passing)
        self.n_iter_ = calls + 1
        if began is not None and anew:
            began = began.trained(self.model_.space.encoding)
        self._beginning = None if began is None or began.complete else began
        return self

    def _stream_remark(self, start: Start | None, data: Dataset) -> str | None:
        if start is None and data.samples < HANDFUL:
            made = f"the scaling of features is made of {data.samples} sample{'s' * (data.samples > 1)}"
            return f"{made}, and anew while fewer than {ENOUGH} have come: give the first call some hundred"
        if start is None or self._beginning is not None:
            return None
        samples = self.model_.training.get("samples", HANDFUL)
        if start.refit and samples < HANDFUL:
            return f"the scaling of features is that of {samples} samples: fit a new model to more"
        return drift_remark(start.scaling, data)

    def _weights(self, X: Any, sample_weight: Any) -> npt.NDArray[np.float64] | None:
        if sample_weight is None:
            return None
        with numbers_in(sample_weight, "sample_weight", _ONE_EACH):
            checked: npt.NDArray[np.float64] = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        return checked

    def _data(
        self,
        X: Any,
        labels: Any = None,
        names: Sequence[str] = (),
        weights: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> Dataset:
        """A data set of samples and weights that `_validated` and `_weights` have checked."""
        if offset is not None and exposure is not None:
            raise ValueError("offset and exposure are given: add the logarithm of the exposure to the offset")
        kind, given = (OFFSET, offset) if exposure is None else (EXPOSURE, exposure)
        addends = None
        if given is not None:
            with numbers_in(given, kind, _ONE_EACH):
                given = check_array(given, ensure_2d=False, dtype=np.float64, input_name=kind)
            if given.ndim != 1 and given.shape[1:] != (1,):
                raise ValueError(f"{kind} must be one number of each sample, not of shape {given.shape}")
            given = given.reshape(-1)
            check_consistent_length(X if isinstance(X, np.ndarray) else np.empty(X.shape[0]), given)
            with value_errors():
                addends = offsets_of(given, kind, NAME)
        features = tuple(map(str, self.feature_names_in_)) if hasattr(self, "feature_names_in_") else ()
        space, table = FeatureSpace(X.shape[1], features), None
        values = np.zeros(X.shape[0]) if labels is None else labels
        targets = values.shape[1] if values.ndim == 2 else 0
        if isinstance(X, Rows):
            if isinstance(X.table, TableEncoding):
                X, space = X.table.apply(X.rows), X.table.space
            else:
                X, table = X.rows, X.table
        with value_errors():
            return Dataset(
                X,
                values,
                NAME,
                tuple(names),
                labelled=labels is not None,
                sample_weights=weights,
                space=dataclasses.replace(space, offset=None if addends is None else kind),
                table=table,
                target_names=tuple(f"target {place + 1}" for place in range(targets)),
                offsets=addends,
            )

    def _validated(self, X: Any, y: Any = _NO_Y, *, reset: bool, **how: Any) -> Any:
        """Samples, and with y both, checked by scikit-learn; tables with texts or gaps become `Rows`.

        Raises `ValueError` if they are not what the estimator can take, or was fitted to.
        """
        known: Table | None = None
        if not reset and hasattr(self, "model_"):
            space = self.model_.space
            known = space.encoding or Table.of_numbers((), space.count)
        needed = isinstance(known, TableEncoding) or (reset and self.missing != "error")
        X = opened(X)
        columns = as_table(X, numbers=needed)
        if not needed and (columns is None or is_plain(columns)):
            try:
                with numbers_in(X, "X", _TEXTS):
                    return validate_data(self, X, y, accept_sparse="csr", dtype="numeric", reset=reset, **how)
            except ValueError as error:
                if not str(error).startswith("Input X contains NaN"):
                    raise
                remedy = "fill the gaps, or fit with missing='mean' or 'indicator'"
                raise ValueError(f"Input X contains NaN: {remedy}") from None
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        if columns is not None:
            validate_data(self, X, reset=reset, skip_check_array=True)
            few = self._beginning is not None and not (isinstance(y, str) and y == _NO_Y)  # they will be known
            made = rows_of(columns, known, missing=self.missing, dates=self.dates, warns=not few)
        elif known is not None and not all(isinstance(column, NumberColumn) for column in known.columns):
            raise ValueError("X must be a DataFrame with texts, such as the estimator was fitted to")
        else:
            with numbers_in(X, "X", _TEXTS):
                X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset)
            gaps = not isinstance(known, TableEncoding) or known.missing != "error"
            assert_all_finite(np.where(np.isnan(X), 0.0, X) if gaps else X, input_name="X")
            made = Rows(X, known or Table.of_numbers((), X.shape[1]))
        if isinstance(y, str) and y == _NO_Y:
            return made
        y = _check_y(y, estimator=self, **how)
        check_consistent_length(made.rows, y)
        return made, y

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Names of the features that ``coef_`` is of: of a table those of its columns, or ``column=text``."""
        check_is_fitted(self, "model_")
        space = self.model_.space
        return np.array([space.name(column) for column in range(space.count)], dtype=object)

    def _samples(self, X: Any, offset: Any = None, exposure: Any = None) -> Dataset:
        check_is_fitted(self, "model_")
        data = self._data(self._validated(X, reset=False), offset=offset, exposure=exposure)
        # Names are compared already; those in a file may be spelt as texts.
        return dataclasses.replace(data, space=dataclasses.replace(data.space, names=()))

    def _load(self, model: Model | ModelSet) -> None:
        """Become what was trained to a model; options of the run become parameters."""
        began = model.training.get("options", {})
        known = {name: began[name] for name in parameters_of(classifies=self._classifies) if name in began}
        seed = {"random_state": began["seed"]} if "seed" in began else {}
        self.set_params(**known | seed | {"loss": model.loss})
        self.model_, self._next_start = model, None
        self.n_features_in_ = model.space.column_count
        if model.space.column_names:
            self.feature_names_in_ = np.array(model.space.column_names, dtype=object)
