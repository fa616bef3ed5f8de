"""Export of models as an ONNX graph."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from p4sgd.host.data.encoding import TableEncoding
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.data.sample_numbers import EXPOSURE
from p4sgd.host.data.table import DateColumn, NumberColumn, TextColumn
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task
from p4sgd.host.training.model_file import Model, ModelSet

_OPSET, _ML_OPSET, _IR = 13, 1, 7  # versions of ONNX that old runtimes read, too

PROBABILITIES: dict[str, list[tuple[Any, ...]]] = {
    "logistic": [("Sigmoid",)],
    "modified_huber": [("Clip", -1.0, 1.0), ("Add", 1.0), ("Mul", 0.5)],
}
"""By loss that gives probabilities: the operators of ONNX that make one from an activation, with their constants."""


def to_onnx(model: Model | ModelSet, *, float32: bool = False) -> bytes:
    """An ONNX graph that predicts as the model does, in float64: coefficients of raw features may cancel.

    The input is ``features``, float64 (samples, features). Of a table with texts, dates, gaps or truth values every
    column is an input of its own, (samples, 1), by its name or ``feature 1``, after the word column if an output or
    another input has that name: numbers are float64, NaN where they are missing; truth values 0 and 1; dates are days
    since 1970 with the time of day as fraction, float64 and NaN where they are missing; texts are texts, empty where
    they are missing. A model of offsets or exposures has one more, ``offset`` or ``exposure``, float64 (samples,). With
    ``float32`` numbers but dates are float32; what they then lack is `rounding`.

    The outputs of a classifier are ``label``, the predicted class of each sample as text or int64 (float64 if a label
    is no integer), if the loss gives them ``probabilities``, float64 (samples, classes), and ``activation``, float64
    (samples,), or of more than two classes (samples, classes); that of a regression is ``prediction``, float64
    (samples,). Of several targets all outputs are (samples, targets). The metadata ``loss``, ``classes``, of targets
    with different ones a list for each, ``targets``, ``feature_names``, ``offset`` and ``table`` are JSON, the last of
    them how features are made of the columns of a table (`p4sgd.host.data.encoding.TableEncoding`).

    Raises `UserError` if the package onnx is not installed, or if targets have numbers and texts as classes.
    """
    graph, coding, space = _Graph(float32=float32), model.labels, model.space
    coefficients, intercept = model.linear()
    given = None if space.offset is None else graph.numbers(space.offset)  # before columns, which may have its name
    if space.encoding is None:
        features = graph.numbers("features", space.count)
    else:
        features = _encode(graph, space.encoding)
    linear = {Task.CLASSIFICATION: "activation", Task.REGRESSION: "prediction"}.get(coding.task, "")
    products = graph.node("MatMul", [features, graph.constant("coefficients", coefficients.T.astype(np.float64))])
    addends = [products, graph.constant("intercept", np.asarray(intercept, np.float64))]
    if given is not None:
        shift = graph.node("Log", [given]) if space.offset == EXPOSURE else given
        if len(model.rows) > 1:
            shift = graph.node("Unsqueeze", [shift, graph.columns()])
        addends = [graph.node("Add", addends), shift]
    last = graph.node("Add", addends, linear)
    if linear == "":
        graph.node("Exp", [last], "prediction")
    about: dict[str, Any] = {"loss": model.loss}
    columns = [len(model.rows)] if len(model.rows) > 1 else []
    if coding.task is Task.CLASSIFICATION:
        about["classes"] = _classify(graph, model, last, columns)
    graph.output("activation" if coding.task is Task.CLASSIFICATION else "prediction", np.float64, *columns)
    if isinstance(coding, TargetCoding):
        about["targets"] = coding.row_names
    about["feature_names"] = space.names
    if space.offset is not None:
        about["offset"] = space.offset
    if space.encoding is not None:
        about["table"] = space.encoding.to_json()
    return graph.made(about)


def rounding(model: Model | ModelSet) -> float | None:
    """Most that activations of features in the range of the model's scaling, or predictions of a regression in the unit
    of the target, may change if the features are rounded to float32; ``None`` if it does not know the range."""
    if model.scaling is None:
        return None
    offset, scale = model.scaling.offset, model.scaling.scale
    reach = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    largest = np.maximum(np.abs(offset), np.maximum(np.abs(offset + reach), np.abs(offset - reach)))
    return float((np.abs(np.atleast_2d(model.linear()[0])) * largest).sum(axis=1).max()) * 2.0**-24


_OUTPUTS = ("label", "probabilities", "activation", "prediction")


class _Graph:
    """A graph that grows node by node. Nodes, inputs and constants are known by the names of their outputs, which
    begin with ``p4sgd/`` if they are nobody else's."""

    def __init__(self, *, float32: bool) -> None:
        try:
            import onnx
        except ImportError as error:
            raise UserError(
                "ONNX needs the package onnx, which is not installed: pip install 'p4sgd[export]'"
            ) from error
        self._onnx = onnx
        self._float = np.dtype(np.float32 if float32 else np.float64)
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: dict[str, Any] = {}

    def _described(self, name: str, kind: Any, *more: int, what: str = "") -> Any:
        made = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return self._onnx.helper.make_tensor_value_info(name, made, ["samples", *more], what)

    def input(self, name: str, kind: Any, *more: int, what: str = "") -> str:
        taken = {*_OUTPUTS, *(each.name for each in self._inputs)}
        while name in taken or name.startswith("p4sgd/"):
            name = f"column {name}"
        self._inputs.append(self._described(name, kind, *more, what=what))
        return name

    def numbers(self, name: str, *more: int) -> str:
        """An input of numbers, (samples, …), as float64."""
        given = self.input(name, self._float, *more)
        return given if self._float == np.float64 else self.cast(given, np.float64)

    def output(self, name: str, kind: Any, *more: int) -> None:
        self._outputs.append(self._described(name, kind, *more))

    def constant(self, name: str, value: Any) -> str:
        name = f"p4sgd/{name}"
        self._constants[name] = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        return name

    def columns(self) -> str:
        return self.constant("columns", np.array([1]))

    def node(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """A node of one output, which is named if it is one of the graph."""
        output = output or f"p4sgd/{kind} {len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def cast(self, given: str, kind: Any) -> str:
        return self.node("Cast", [given], to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def made(self, about: dict[str, Any]) -> bytes:
        helper, from_array = self._onnx.helper, self._onnx.numpy_helper.from_array
        constants = [from_array(value, name) for name, value in self._constants.items()]
        graph = helper.make_graph(self._nodes, "p4sgd", self._inputs, self._outputs, constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
        made = helper.make_model(graph, producer_name="p4sgd", opset_imports=opsets, ir_version=_IR)
        helper.set_model_props(made, {name: json.dumps(value) for name, value in about.items()})
        content: bytes = made.SerializeToString()
        return content


def _encode(graph: _Graph, encoding: TableEncoding) -> str:
    """The features of the columns of a table, float64 (samples, features), as `TableEncoding.apply` makes them."""
    parts = []
    for place, column in enumerate(encoding.columns):
        label = encoding.label(place)
        if isinstance(column, TextColumn):
            given = graph.input(label, object, 1)
            # The features' texts: of a gap it is empty, and others are all zeros.
            texts = [*column.values, *([""] if column.gaps else [])][-len(column.features(label)) or None :]
            if column.features(label):
                chosen = graph.node("OneHotEncoder", [given], domain="ai.onnx.ml", cats_strings=texts, zeros=1)
                shape = graph.constant(f"{label} shape", np.array([-1, len(texts)]))
                parts.append(graph.cast(graph.node("Reshape", [chosen, shape]), np.float64))
            continue
        assert isinstance(column, NumberColumn)
        more = []
        if isinstance(column, DateColumn):
            given = graph.input(label, np.float64, 1, what="days since 1970, with the time of day as fraction")
            if column.parts is not None:
                of_date = _parts_of_dates(graph, given)
                given = of_date["year"]
                for kind, known in column.known.items():
                    values = graph.constant(f"{label} {kind}", np.array([known], np.float64))
                    more.append(graph.cast(graph.node("Equal", [of_date[kind], values]), np.float64))
        else:
            given = graph.numbers(label, 1)
        if column.mean is None:
            parts.append(given)
        else:
            gaps = graph.node("IsNaN", [given])
            parts.append(graph.node("Where", [gaps, graph.constant(f"{label} mean", np.float64(column.mean)), given]))
            if column.gaps:
                parts.append(graph.cast(gaps, np.float64))
        parts += more
    return graph.node("Concat", parts, axis=1)


def _parts_of_dates(graph: _Graph, days: str) -> dict[str, str]:
    """Year, month, weekday and hour of days since 1970, as `DateColumn.known` counts them."""

    def by(kind: str, given: str, number: float) -> str:
        return graph.node(kind, [given, graph.constant(f"{number}", np.float64(number))])

    def divided(given: str, number: float) -> tuple[str, str]:
        quotient = graph.node("Floor", [by("Div", given, number)])
        return quotient, graph.node("Sub", [given, by("Mul", quotient, number)])

    minutes = graph.node("Floor", [by("Add", by("Mul", days, 1440), 1e-6)])
    day, minute = divided(minutes, 1440)
    _, weekday = divided(by("Add", day, 3), 7)
    # H. Hinnant, chrono-compatible low-level date algorithms: of years that begin in March, 400 have 146,097 days, 4 in
    # a century have 1,461, and 5 months have 153.
    centuries, rest = divided(by("Add", by("Mul", by("Add", day, 719468), 4), 3), 146097)
    years, rest = divided(by("Add", by("Mul", divided(rest, 4)[0], 4), 3), 1461)
    months, _ = divided(by("Add", by("Mul", divided(rest, 4)[0], 5), 2), 153)
    years = graph.node("Add", [by("Mul", centuries, 100), years])
    year, month = divided(by("Add", graph.node("Add", [by("Mul", years, 12), months]), 2), 12)
    return {"year": year, "month": month, "weekday": weekday, "hour": divided(minute, 60)[0]}


def _classify(graph: _Graph, model: Model | ModelSet, activation: str, columns: Sequence[int]) -> Any:
    """Add labels and probabilities; returns the classes, of targets with different ones a list for each."""
    coding = model.labels
    of_labels = [coding] if isinstance(coding, LabelCoding) else list(coding.rows)
    classes = [each.named(np.array(each.classes)) for each in of_labels]
    alike = all(each == classes[0] for each in classes)
    kinds = {isinstance(name, str) for each in classes for name in each}
    if len(kinds) > 1:
        raise UserError("the targets have numbers and texts as classes, for which ONNX has no single label")
    names = np.array(
        classes[0] if alike else classes, object if kinds == {True} else None
    )  # ONNX wants texts as objects
    if len(coding.classes) > 2:
        index = graph.node("ArgMax", [activation], axis=1, keepdims=0)
        graph.node("Gather", [graph.constant("classes", names), index], "label")
        graph.output("label", names.dtype)
    else:
        second = graph.node("Greater", [activation, graph.constant("zero", np.float64(0))])
        both = [graph.constant(f"{name} class", names[..., place]) for place, name in enumerate(("first", "second"))]
        graph.node("Where", [second, both[1], both[0]], "label")
        graph.output("label", names.dtype, *columns)
    if model.loss in PROBABILITIES:
        graph.node("Identity", [_probabilities(graph, model, activation)], "probabilities")
        graph.output("probabilities", np.float64, *(columns or [2]))
    return classes[0] if alike else classes


def _probabilities(graph: _Graph, model: Model | ModelSet, activation: str) -> str:
    """The probabilities of the classes, or of the second class of each target, from activations."""
    if isinstance(model, ModelSet) and model.softmax is not None:  # its factors are in the activations
        return graph.node("Softmax", [activation], axis=1)
    last = activation
    if len(model.rows) == 1:  # each from its own activation: 1 − σ(z) would round small probabilities to 0
        opposite = graph.node("Neg", [activation])
        both = [graph.node("Unsqueeze", [each, graph.columns()]) for each in (opposite, activation)]
        last = graph.node("Concat", both, axis=1)
    for kind, *more in PROBABILITIES[model.loss]:
        last = graph.node(
            kind, [last, *(graph.constant(f"{kind} {place}", v) for place, v in enumerate(map(np.float64, more)))]
        )
    if len(model.labels.classes) <= 2:
        return last
    # One against the rest: divided by their sum, and where that is 0, all are alike.
    total = graph.node("ReduceSum", [last, graph.columns()], keepdims=1)
    possible = graph.node("Greater", [total, graph.constant("nothing", np.float64(0))])
    divisor = graph.node("Where", [possible, total, graph.constant("one", np.float64(1))])
    quotients = graph.node("Div", [last, divisor])
    alike = graph.constant("alike", np.float64(1 / len(model.labels.classes)))
    return graph.node("Where", [possible, quotients, alike])
