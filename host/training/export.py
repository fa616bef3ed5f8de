"""Export of models, as an estimator of scikit-learn or an ONNX graph."""

import datetime
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.encoding import TableEncoding
from p4sgd.host.data.labels import TargetCoding
from p4sgd.host.data.table import DateColumn, NumberColumn, TextColumn
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.training.model_file import Model, ModelSet
from p4sgd.host.training.onnx_graph import PROBABILITIES, rounding, to_onnx

__all__ = ["rounding", "to_onnx", "to_sklearn"]

_GAP_TEXTS = ("None", "nan", "<NA>", "NaT")
"""Gaps of columns of objects, as `numpy.asarray` makes texts of them."""


def to_sklearn(model: Model | ModelSet) -> Any:
    """A fitted estimator of scikit-learn that predicts as the model does, on raw features.

    For losses with probabilities it is a `LogisticRegression`, or an `SGDClassifier`, which gives those of one against
    the rest; for other classifiers a `LinearSVC`. Of regressions it is a `PoissonRegressor`, a `GammaRegressor` or a
    `TweedieRegressor`, or a `LinearRegression`. Of several targets it is one of several of these. Of a table with
    texts, dates, gaps or truth values it is a `Pipeline` of a `ColumnTransformer`, which takes a DataFrame with the
    columns by name, or an array of them if they have no names, and one of these; dates are datetime64, or texts such as
    2024-03-31. Of a time zone the clock counts, as in training, in columns of pandas that training made numbers of;
    from others it is to be dropped. It knows no offsets: they are to be added to activations, or to the logarithm of a
    prediction.
    """
    encoding = model.space.encoding
    if encoding is None:
        estimator = _estimator(model, np.arange(model.space.count))
        estimator.n_features_in_ = model.space.count
        if model.space.names:
            estimator.feature_names_in_ = np.array(model.space.names, object)
        return estimator
    from sklearn.pipeline import Pipeline

    transformer, places = _transformer(encoding)
    return Pipeline([("table", transformer), ("model", _estimator(model, places))])


def _estimator(model: Model | ModelSet, places: npt.NDArray[np.intp]) -> Any:
    """The estimator of the model's features at these places, negative for one that it does not know."""
    from scipy.sparse import csr_array
    from sklearn import linear_model, multioutput
    from sklearn.svm import LinearSVC

    coding, loss, (coefficients, intercept) = model.labels, model.loss, model.linear()
    coefficients = np.where(places < 0, 0.0, coefficients[..., places])
    estimator: Any
    if isinstance(coding, TargetCoding):
        rows = [_estimator(row, places) for row in model.rows]
        if coding.task is Task.CLASSIFICATION:
            estimator = multioutput.MultiOutputClassifier(rows[0])
            estimator.classes_ = [row.classes_ for row in rows]
        else:
            estimator = multioutput.MultiOutputRegressor(rows[0])
        estimator.estimators_ = rows
    elif coding.task is Task.CLASSIFICATION:
        if loss == "logistic" and (not isinstance(model, ModelSet) or model.softmax is not None):
            estimator = linear_model.LogisticRegression()
        elif loss in PROBABILITIES:
            estimator = linear_model.SGDClassifier(loss="log_loss" if loss == "logistic" else loss)
        else:
            estimator = LinearSVC()
        estimator.coef_, estimator.intercept_ = np.array(coefficients, ndmin=2), np.array(intercept, ndmin=1)
        estimator.classes_ = np.array(coding.named(np.array(coding.classes)))
        estimator.n_iter_ = np.array([max(row.training.get("epoch", 0) for row in model.rows)], np.int32)
    else:
        estimator = linear_model.LinearRegression()
        if coding.task is not Task.REGRESSION:
            kinds = {"poisson": linear_model.PoissonRegressor, "gamma": linear_model.GammaRegressor}
            parameters = get_loss(loss, model.rows[0].loss_parameters).parameters
            power = {"power": parameters["tweedie_power"], "link": "log"} if loss == "tweedie" else {}
            estimator = kinds.get(loss, linear_model.TweedieRegressor)(**power)
            estimator.fit(csr_array((2, places.size)), [1.0, 1.0])  # which keeps more than coefficients
        estimator.coef_, estimator.intercept_ = coefficients, intercept
    estimator.n_features_in_ = places.size
    return estimator


def _transformer(encoding: TableEncoding) -> tuple[Any, npt.NDArray[np.intp]]:
    """A fitted `ColumnTransformer` for the columns of a table, and the place of each of its outputs among the features
    of the encoding, negative for a text that has none."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder

    def converted(kind: type | str, *steps: Any) -> Any:
        return make_pipeline(FunctionTransformer(np.asarray, kw_args={"dtype": kind}), *steps)

    named = bool(encoding.headers) and all(encoding.headers)
    parts: list[tuple[str, Any, list[Any]]] = []
    places: list[int] = []
    sample: dict[Any, list[Any]] = {}  # two rows, with gaps where the table has a feature for these
    means: dict[str, float] = {}
    first = 0
    for place, column in enumerate(encoding.columns):
        key, name = column.name if named else place, f"column {place + 1}"
        outputs = list(range(first, first + len(column.features(""))))
        first += len(outputs)
        more: list[tuple[str, Any]] = []
        if isinstance(column, TextColumn):
            kind, texts = _texts(column, outputs)
            sample[key] = [*texts, None][:1] * 2
            if not texts:
                continue
            categories = np.empty(len(texts), object)
            categories[:], outputs = list(texts), list(texts.values())
            steps = converted(kind, OneHotEncoder(categories=[categories], handle_unknown="ignore"))
        else:
            assert isinstance(column, NumberColumn)
            filled = [] if column.mean is None else [SimpleImputer(add_indicator=True, keep_empty_features=True)]
            if column.mean is not None:
                means[name] = column.mean
            value: Any = True if column.truth else 1.0
            steps = converted(float, *filled)
            if column.truth:
                truths, unknown = np.array([False, True], object), {"unknown_value": np.nan}
                coder = OrdinalEncoder(categories=[truths], handle_unknown="use_encoded_value", **unknown)
                steps = converted(object, coder, *filled)
            elif isinstance(column, DateColumn):
                value = datetime.datetime(1970, 1, 1)
                number, others = _dates(column)
                steps = converted(str, *number, *filled)
                more = [(f"{name} {kind}", converted(str, *each)) for kind, each in others.items()]
            sample[key] = [value, None if column.gaps else value]
        parts += [(kind, each, [key]) for kind, each in [(name, steps), *more]]
        places += outputs
    transformer = ColumnTransformer(parts)
    transformer.fit(_frame(sample) if named else np.array(list(sample.values()), object).T)
    for name, mean in means.items():
        transformer.named_transformers_[name][-1].statistics_ = np.array([mean])
    return transformer, np.array(places, np.intp)


def _dates(column: DateColumn) -> tuple[list[Any], dict[str, list[Any]]]:
    """Steps that make the number of a moment as `numpy.asarray` writes it, NaN of gaps, and by kind those that make
    features of its parts. Numpy would go to UTC: they cut off the zone, and make gaps empty, which it reads as NaT."""
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    def since(start: str, unit: Any, one: Any, *more: tuple[str, float]) -> list[Any]:
        epoch = ("__sub__", np.datetime64(start, unit))
        calls = [("astype", f"datetime64[{unit}]"), epoch, ("__truediv__", np.timedelta64(1, one)), *more]
        clock = [methodcaller("astype", "U19"), partial(np.char.strip, chars="".join(_GAP_TEXTS))]
        return list(map(FunctionTransformer, [*clock, *(methodcaller(*call) for call in calls)]))

    if column.parts is None:
        return since("1970-01-01", "s", "D"), {}
    counted = {
        "month": since("1970-01", "M", "M", ("__mod__", 12)),
        "weekday": since("1969-12-29", "D", "D", ("__mod__", 7)),
        "hour": since("1970-01-01T00", "h", "h", ("__mod__", 24)),
    }
    features = {
        kind: [*counted[kind], OneHotEncoder(categories=[np.array(known, float)], handle_unknown="ignore")]
        for kind, known in column.known.items()
    }
    return since("1970", "Y", "Y", ("__add__", 1970)), features


def _texts(column: TextColumn, outputs: list[int]) -> tuple[type, dict[Any, int]]:
    """What `numpy.asarray` is to make of a column of texts, and the feature of each text or gap that it then has."""
    known = [-1, *outputs] if len(column.values) + column.gaps == 2 else outputs
    texts: dict[Any, int] = dict(zip(column.values, known, strict=False))
    if set(_GAP_TEXTS) & texts.keys():  # as objects, which are not called so
        return object, texts | (dict.fromkeys((None, np.nan), known[-1]) if column.gaps else {})
    # As texts, numbers and truth values may be categories. With gaps among them, integers of pandas have a fraction.
    others = {f"{text}.0": feature for text, feature in texts.items() if text.isdecimal()}
    others |= {text.title(): feature for text, feature in texts.items() if text in ("true", "false")}
    others |= {moment: feature for text, feature in texts.items() for moment in _moments(text)}
    return str, others | texts | (dict.fromkeys(_GAP_TEXTS, known[-1]) if column.gaps else {})


def _moments(text: str) -> list[str]:
    """How `numpy.asarray` writes the `datetime64` that a text may have been, in its units."""
    whole, point, fraction = text.partition(".")
    try:
        moment = datetime.datetime.fromisoformat(whole).isoformat(timespec="seconds")
    except ValueError:
        return []
    fractions = [point + fraction] if point else ["", ".000", ".000000", ".000000000"]
    return [moment + each for each in fractions]


def _frame(columns: dict[str, list[Any]]) -> Any:
    """A DataFrame: of pandas if it is installed, which every version of scikit-learn knows."""
    import pyarrow as pa

    table = pa.table(columns)
    try:
        return table.to_pandas()
    except ImportError:
        return table
