"""Export of models, as an ONNX graph or as an estimator of scikit-learn."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.training.model_file import Model, ModelSet

_OPSET, _IR = 13, 7  # versions of ONNX that old runtimes read, too

_PROBABILITIES: dict[str, list[tuple[Any, ...]]] = {
    "logistic": [("Sigmoid",)],
    "modified_huber": [("Clip", -1.0, 1.0), ("Add", 1.0), ("Mul", 0.5)],
}
"""By loss that gives probabilities: the operators of ONNX that make one from an activation, with their constants."""


def to_onnx(model: Model | ModelSet) -> bytes:
    """An ONNX graph that predicts as the model does, in float64: coefficients of raw features may cancel.

    The input is ``features``, float64 (samples, features). The outputs of a classifier are ``label``, the predicted
    class of each sample as text or int64 (float64 if a label is no integer), if the loss gives them ``probabilities``,
    float64 (samples, classes), and ``activation``, float64 (samples,), or of more than two classes (samples, classes);
    that of a regression is ``prediction``, float64 (samples,). Of several targets all outputs are (samples, targets).
    The metadata ``loss``, ``classes``, ``targets``, ``feature_names``, ``offset`` and ``table`` are JSON, the last of
    them how features are made of the columns of a table (`p4sgd.host.data.encoding.TableEncoding`). ``offset`` tells
    that the model was trained with an offset or an exposure of every sample: predictions are those without.

    Raises `UserError` if the package onnx is not installed, or if targets have different classes.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise UserError("ONNX needs the package onnx, which is not installed: pip install 'p4sgd[export]'") from error

    coding, (coefficients, intercept) = model.labels, model.linear()
    of_labels = [coding] if isinstance(coding, LabelCoding) else list(coding.rows)
    classes = of_labels[0].named(np.array(of_labels[0].classes))
    if any(each.named(np.array(each.classes)) != classes for each in of_labels):
        raise UserError("the targets have different classes, for which there is no ONNX graph with a single label")
    constants: dict[str, Any] = {
        "coefficients": np.ascontiguousarray(coefficients.T, np.float64),
        "intercept": np.asarray(intercept, np.float64),
    }
    several, chooses, nodes, outputs = len(model.rows) > 1, len(coding.classes) > 2, [], []
    columns = [len(model.rows)] if several else []

    def node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))

    def result(name: str, kind: int, *more: int) -> None:
        outputs.append(helper.make_tensor_value_info(name, kind, ["samples", *more]))

    linear = {Task.CLASSIFICATION: "activation", Task.REGRESSION: "prediction"}.get(coding.task, "logarithm")
    node("MatMul", ["features", "coefficients"], "products")
    node("Add", ["products", "intercept"], linear)
    if linear == "logarithm":
        node("Exp", ["logarithm"], "prediction")
    if coding.task is Task.CLASSIFICATION:
        texts = any(isinstance(name, str) for name in classes)  # ONNX wants them as objects
        constants |= {"classes": np.array(classes, object if texts else None), "columns": np.array([1], np.int64)}
        if chooses:
            node("ArgMax", ["activation"], "index", axis=1, keepdims=0)
        else:
            constants["zero"] = np.float64(0)
            node("Greater", ["activation", "zero"], "second")
            node("Cast", ["second"], "index", to=TensorProto.INT64)
        node("Gather", ["classes", "index"], "label")
        result("label", helper.np_dtype_to_tensor_dtype(constants["classes"].dtype), *([] if chooses else columns))
        if model.loss in _PROBABILITIES:
            last = "activation"
            if not several:  # each from its own activation: 1 − σ(z) would round small probabilities to 0
                node("Neg", ["activation"], "opposite")
                node("Unsqueeze", ["opposite", "columns"], "first_column")
                node("Unsqueeze", ["activation", "columns"], "second_column")
                node("Concat", ["first_column", "second_column"], "activations", axis=1)
                last = "activations"
            for kind, *more in _PROBABILITIES[model.loss]:
                names = [f"{kind}_{place}" for place in range(len(more))]
                constants |= {name: np.float64(value) for name, value in zip(names, more, strict=True)}
                node(kind, [last, *names], f"{kind}_output")
                last = f"{kind}_output"
            if chooses:  # where the sum is 0, all are alike
                constants |= {"nothing": np.float64(0), "one": np.float64(1), "alike": np.float64(1 / len(classes))}
                node("ReduceSum", [last, "columns"], "sum", keepdims=1)
                node("Greater", ["sum", "nothing"], "possible")
                node("Where", ["possible", "sum", "one"], "divisor")
                node("Div", [last, "divisor"], "quotients")
                node("Where", ["possible", "quotients", "alike"], "shares")
                last = "shares"
            node("Identity", [last], "probabilities")
            result("probabilities", TensorProto.DOUBLE, *(columns or [len(classes)]))
    result("activation" if coding.task is Task.CLASSIFICATION else "prediction", TensorProto.DOUBLE, *columns)
    graph = helper.make_graph(
        nodes,
        "p4sgd",
        [helper.make_tensor_value_info("features", TensorProto.DOUBLE, ["samples", model.space.count])],
        outputs,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", _OPSET)
    made = helper.make_model(graph, producer_name="p4sgd", opset_imports=[opset], ir_version=_IR)
    about: dict[str, Any] = {"loss": model.loss, "classes": classes}
    if isinstance(coding, TargetCoding):
        about["targets"] = coding.row_names
    about["feature_names"] = model.space.names
    if model.space.offset is not None:
        about["offset"] = model.space.offset
    if model.space.encoding is not None:
        about["table"] = model.space.encoding.to_json()
    helper.set_model_props(made, {name: json.dumps(value) for name, value in about.items()})
    content: bytes = made.SerializeToString()
    return content


def to_sklearn(model: Model | ModelSet) -> Any:
    """A fitted estimator of scikit-learn that predicts as the model does, on raw features.

    For losses with probabilities it is a `LogisticRegression`, or an `SGDClassifier`, which gives those of one against
    the rest; for other classifiers a `LinearSVC`. Of regressions it is a `PoissonRegressor`, a `GammaRegressor` or a
    `TweedieRegressor`, or a `LinearRegression`. Of several targets it is one of several of these.
    """
    from scipy.sparse import csr_array
    from sklearn import linear_model, multioutput
    from sklearn.svm import LinearSVC

    coding, loss, (coefficients, intercept) = model.labels, model.loss, model.linear()
    estimator: Any
    if isinstance(coding, TargetCoding):
        rows = list(map(to_sklearn, model.rows))
        if coding.task is Task.CLASSIFICATION:
            estimator = multioutput.MultiOutputClassifier(rows[0])
            estimator.classes_ = [row.classes_ for row in rows]
        else:
            estimator = multioutput.MultiOutputRegressor(rows[0])
        estimator.estimators_ = rows
    elif coding.task is Task.CLASSIFICATION:
        if loss == "logistic" and len(model.rows) == 1:
            estimator = linear_model.LogisticRegression()
        elif loss in _PROBABILITIES:
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
            estimator.fit(csr_array((2, model.space.count)), [1.0, 1.0])  # which keeps more than coefficients
        estimator.coef_, estimator.intercept_ = coefficients.copy(), intercept
    estimator.n_features_in_ = model.space.count
    if model.space.names:
        estimator.feature_names_in_ = np.array(model.space.names, object)
    return estimator
