"""`p4sgd predict` and `p4sgd evaluate` on saved models."""

import csv
import gzip
import json
import os
import re

import numpy as np
import pytest
from sklearn import metrics
from sklearn.datasets import load_breast_cancer, load_iris
from support.command_line import run

from p4sgd.host.data import read_dataset
from p4sgd.host.losses import LOSSES
from p4sgd.host.training.model_file import load_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    run("train", "breast_cancer", "--epochs", 5, "--out", path, "--quiet")
    return path


def test_one_prediction_a_line(model):
    done = run("predict", model, "breast_cancer")
    lines = done.stdout.splitlines()
    expected = load_model(model).predict(read_dataset("breast_cancer"))
    assert lines == [f"{label:.0f}" for label in expected]
    assert np.mean([int(line) for line in lines] == load_breast_cancer().target) > 0.9
    document = json.loads(run("predict", model, "breast_cancer", "--probabilities", "--json").stdout)
    assert set(document) == {"model", "data", "samples", "out", "predictions", "probabilities", "probabilities_of"}
    assert (document["samples"], document["out"], document["probabilities_of"]) == (569, None, 1)
    assert document["predictions"] == list(map(int, lines))


def test_to_a_file(model, tmp_path):
    out = tmp_path / "predictions.csv"
    done = run("predict", model, "breast_cancer", "--out", out)
    assert done.stdout == ""
    assert "569 predictions" in done.stderr
    assert out.read_text() == run("predict", model, "breast_cancer").stdout
    assert list(tmp_path.iterdir()) == [out]
    (other := tmp_path / "other").touch()
    assert out.stat().st_mode == other.stat().st_mode, "that of the umask"


def test_a_device_as_the_file_stays_a_device(model, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run("predict", model, "breast_cancer", "--out", pipe, "--quiet")
        assert os.read(reader, 1 << 16).decode() == run("predict", model, "breast_cancer").stdout
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux' /dev/full")
def test_what_cannot_be_written_is_not_announced(model, tmp_path):
    for out in (tmp_path, tmp_path / "no" / "file", "/dev/full"):
        done = run("predict", model, "breast_cancer", "--json", "--out", out, status=2)
        assert done.stdout == ""
        assert str(out) in done.stderr


def test_data_without_labels(model, tmp_path):
    """A table as wide as the model has features has no label column."""
    features = load_breast_cancer().data
    np.savetxt(tmp_path / "new.csv", features, delimiter=",", fmt="%.17g")
    np.savetxt(tmp_path / "old.csv", np.c_[features, load_breast_cancer().target], delimiter=",", fmt="%.17g")
    expected = run("predict", model, "breast_cancer").stdout
    assert run("predict", model, tmp_path / "new.csv").stdout == expected
    assert run("predict", model, tmp_path / "old.csv").stdout == expected


def test_labels_that_are_texts(tmp_path):
    """Predictions name classes as the training data do, quoted where CSV needs it."""
    iris = load_iris()
    names = np.array(["setosa", 'versi"color', "virginica, or so"])
    rows = [[*values, names[label]] for values, label in zip(iris.data, iris.target, strict=True) if label]
    for name, order in (("train.csv", rows), ("test.csv", rows[::-1])):
        with open(tmp_path / name, "w", newline="") as file:
            csv.writer(file).writerows(order)
    model = tmp_path / "model"
    run("train", tmp_path / "train.csv", "--epochs", 30, "--out", model, "--quiet")
    lines = list(csv.reader(run("predict", model, tmp_path / "test.csv").stdout.splitlines()))
    assert {line for (line,) in lines} == set(names[1:])
    correct = [line == [row[-1]] for line, row in zip(lines, rows[::-1], strict=True)]
    assert np.mean(correct) > 0.85
    document = json.loads(run("evaluate", model, tmp_path / "test.csv", "--json").stdout)
    assert document["accuracy"] == np.mean(correct)
    done = run("predict", model, tmp_path / "test.csv", "--probabilities")
    assert re.fullmatch("probabilities .* virginica, or so\n", done.stderr)
    assert all((row[0] == names[2]) == (float(row[1]) > 0.5) for row in csv.reader(done.stdout.splitlines()))


def test_columns_in_another_order_and_no_labels(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.random((40, 3)).round(3)
    names, labels = ["a", "b", "c"], (rows[:, 0] > rows[:, 1]).astype(int)

    def table(name, columns, **more):
        content = dict(zip(names, rows.T.tolist(), strict=True)) | {"label": labels.tolist()} | more
        with open(tmp_path / name, "w", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*(content[column] for column in columns), strict=True)])
        return tmp_path / name

    model = tmp_path / "model"
    train = table("train.csv", ["a", "b", "c", "label"])
    run("train", train, "--epochs", 20, "--out", model, "--quiet", "--test", table("x.csv", ["label", "c", "b", "a"]))
    expected = run("predict", model, train).stdout
    assert len(set(expected.split())) == 2
    for columns in (["c", "label", "a", "b"], ["b", "c", "a"]):
        assert run("predict", model, table("other.csv", columns)).stdout == expected
    assert run("predict", model, table("bare.csv", ["label", "b", "c", "a"], label=[""] * 40)).stdout == expected
    lacking = run("predict", model, table("lacking.csv", ["a", "b", "label"]), status=2)
    assert re.search(r"lacking\.csv: features are missing .*column 3 \(label\).*: c$", lacking.stderr.strip())
    same = json.loads(run("evaluate", model, table("x.csv", ["label", "c", "b", "a"]), "--json").stdout)
    assert same == json.loads(run("evaluate", model, train, "--json").stdout) | {"data": str(tmp_path / "x.csv")}


def test_features_of_sparse_text_that_the_model_lacks_are_left_out_and_told(tmp_path):
    train, wide, model = tmp_path / "train.libsvm", tmp_path / "wide.libsvm", tmp_path / "model"
    train.write_text("1 1:1 2:1\n0 1:-1 2:0.5\n" * 8)
    wide.write_text("1 1:1 2:1 5000:3\n0 1:-1 2:0.5\n" * 8)
    says = f"{wide}: 8 values of 1 feature beyond the 2 that the model knows: left out"
    assert says in run("train", train, "--epochs", 2, "--out", model, "--test", wide).stderr
    known = run("predict", model, train)
    done = run("predict", model, wide)
    assert (done.stdout, done.stderr.strip()) == (known.stdout, says)
    assert says in run("evaluate", model, wide).stderr


@pytest.mark.parametrize("prepared", [True, False])
def test_the_label_column_of_a_table_without_names_is_remembered(tmp_path, prepared):
    rows = np.random.default_rng(0).normal(size=(200, 4))
    rows[:, 0] = rows[:, 1] - rows[:, 2] > 0
    table, folder, model = tmp_path / "table.npy", tmp_path / "folder", tmp_path / "model"
    np.save(table, rows)
    column = ("--label-column", "1")
    if prepared:
        run("data", "prepare", table, *column, "--out", folder)
    run("train", *([folder] if prepared else [table, *column]), "--epochs", 3, "--out", model)
    predicted = run("predict", model, table).stdout
    assert (np.array(predicted.split(), np.float64) == rows[:, 0]).mean() > 0.9
    assert run("evaluate", model, table).stdout == run("evaluate", model, table, *column).stdout
    np.save(tmp_path / "features.npy", rows[:, 1:])
    assert run("predict", model, tmp_path / "features.npy").stdout == predicted


def test_the_metrics_of_a_classifier_are_those_of_scikit_learn(model):
    document = json.loads(run("evaluate", model, "breast_cancer", "--json").stdout)
    truth, z = load_breast_cancer().target, load_model(model).decision_function(read_dataset("breast_cancer"))
    predicted = (z > 0).astype(int)
    assert {name: document[name] for name in document.keys() - {"model", "data", "samples", "loss"}} == {
        "accuracy": metrics.accuracy_score(truth, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, predicted),
        "log_loss": metrics.log_loss(truth, LOSSES["logistic"].probabilities(z)),
        "auc": metrics.roc_auc_score(truth, z),
        "average_precision": metrics.average_precision_score(truth, z),
        "f1": metrics.f1_score(truth, predicted),
        "classes": [0, 1],
        "confusion_matrix": metrics.confusion_matrix(truth, predicted).tolist(),
    }


def test_the_metrics_of_a_regression_are_those_of_scikit_learn(tmp_path):
    model, data = tmp_path / "model", read_dataset("diabetes")
    run("train", "diabetes", "--loss", "squared", "--epochs", 3, "--out", model, "--quiet")
    predicted = load_model(model).predict(data)
    document = json.loads(run("evaluate", model, "diabetes", "--json").stdout)
    expected = {
        "r2": metrics.r2_score(data.labels, predicted),
        "rmse": metrics.root_mean_squared_error(data.labels, predicted),
        "mae": metrics.mean_absolute_error(data.labels, predicted),
        "mse": metrics.mean_squared_error(data.labels, predicted),
    }
    assert {name: document[name] for name in expected} == expected
    assert set(document) == {"model", "data", "samples", "loss", *expected}
    assert f"{expected['mae']:.6g}" in run("evaluate", model, "diabetes").stdout
    assert run("predict", model, "diabetes").stdout.split() == list(map(repr, predicted.tolist()))


def test_metrics_of_classes_with_names_in_a_narrow_terminal(tmp_path, monkeypatch):
    """Names stay apart where they are cut, also those of --positive; a hinge loss has no log loss."""
    rng = np.random.default_rng(3)
    labels = [f"a class with a long name, the {which}" for which in ("first", "second", "third")]
    rows = [f"{x:.3f};{labels[int(x > 0.3) + int(x > 0.6)]}" for x in rng.random(60)]
    data = tmp_path / "data.csv"
    data.write_text("\n".join(["x;label", *rows]))
    model = tmp_path / "model"
    run("train", data, "--loss", "hinge", "--positive", labels[1], "--epochs", 5, "--out", model, "--quiet")
    monkeypatch.setattr("p4sgd.host.cli.output._FILE_WIDTH", 60)
    lines = run("evaluate", model, data).stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.split()[:4] == ["true", "\\", "predicted", "other"] for line in lines)
    assert any(line.strip().startswith("a class …e second") for line in lines)
    assert not any("log loss" in line for line in lines)
    document = json.loads(run("evaluate", model, data, "--json").stdout)
    assert document["classes"] == [0, 1]
    assert "log_loss" not in document
    assert sum(map(sum, document["confusion_matrix"])) == 60


def test_a_matrix_without_room_tells_what_is_confused_most(tmp_path, monkeypatch):
    data, model = tmp_path / "data.csv", tmp_path / "model"
    rng = np.random.default_rng(2)
    labels = np.arange(400) % 20
    centres = rng.normal(size=(20, 3))
    points = (centres[labels] + rng.normal(size=(400, 3))).tolist()
    rows = [[*x, f"kind{label:02}"] for x, label in zip(points, labels, strict=True)]
    data.write_text("\n".join(["a,b,c,label", *(",".join(map(str, row)) for row in rows)]))
    run("train", data, "--epochs", 1, "--out", model, "--quiet")
    counts = np.array(json.loads(run("evaluate", model, data, "--json").stdout)["confusion_matrix"])
    assert "confused" not in run("evaluate", model, data).stdout
    monkeypatch.setattr("p4sgd.host.cli.output._FILE_WIDTH", 60)
    shown = run("evaluate", model, data).stdout
    assert "…" not in shown
    assert "of 20 classes these are confused most; a wider terminal or --json has the whole matrix" in shown
    listed = re.findall(r"^ kind(\d\d) +kind(\d\d) +(\d+) *$", shown, re.MULTILINE)
    assert [counts[int(true), int(predicted)] for true, predicted, _ in listed] == [int(n) for *_, n in listed]
    assert [int(n) for *_, n in listed] == sorted((counts - np.diag(np.diag(counts))).ravel().tolist())[-10:][::-1]


def test_metrics_of_samples_of_one_class(model, tmp_path):
    bunch = load_breast_cancer()
    np.savez(tmp_path / "one.npz", X=bunch.data[bunch.target == 1], y=np.ones(357))
    document = json.loads(run("evaluate", model, tmp_path / "one.npz", "--json").stdout)
    assert document["auc"] is None
    assert document["confusion_matrix"][0] == [0, 0]
    done = run("evaluate", model, tmp_path / "one.npz")
    assert ["AUC", "undefined"] in [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""


def test_activations_that_overflow_have_no_metrics(model, tmp_path):
    np.savez(tmp_path / "huge.npz", X=np.full((3, 30), 1e308), y=np.array([0, 1, 1]))
    done = run("evaluate", model, tmp_path / "huge.npz", status=2)
    assert re.search(r"huge\.npz: sample 1 has features so large .*: compare their units", done.stderr)


def test_hashed_features(tmp_path):
    """The model file says how names become columns."""
    rng = np.random.default_rng(2)
    words = rng.integers(0, 20, (80, 6))
    labels = np.where(words[:, 0] < 10, 1, -1)
    lines = [
        f"{label} 'id |text:0.5 {' '.join(f'word{word}:{word % 3 + 1}' for word in row)} |n {row[0]}\n"
        for label, row in zip(labels, words, strict=True)
    ]
    train, test = tmp_path / "x.vw", tmp_path / "y.vw.gz"
    train.write_text("".join(lines[:60]))
    test.write_bytes(gzip.compress("".join(lines[60:]).encode()))
    run(
        "train", train, "--epochs", 30, "--precision", 4, "--hash-bits", 10, "--test", test, "--out", tmp_path / "model"
    )
    trained = load_model(tmp_path / "model")
    assert (trained.coefficients.size, trained.space.hash_bits) == (1024, 10)
    found = [int(line) for line in run("predict", tmp_path / "model", test).stdout.splitlines()]
    assert np.mean(found == labels[60:]) > 0.8
    accuracy = json.loads(run("evaluate", tmp_path / "model", test, "--json").stdout)["accuracy"]
    assert accuracy == np.mean(found == labels[60:])
    done = run("evaluate", tmp_path / "model", test, "--hash-bits", 7, status=2)
    assert "--hash-bits is 7, but was 10 for the training data: leave it out" in done.stderr
    done = run("predict", tmp_path / "model", "breast_cancer", "--hash-bits", 6, status=2)
    assert "--hash-bits is for libsvm, vw, but breast_cancer is built in: leave it out" in done.stderr


def test_numbers_where_the_model_may_know_names(tmp_path):
    train, numbers = tmp_path / "x.vw", tmp_path / "y.libsvm"
    train.write_text("1 | 3 sun\n-1 | 4 rain\n" * 8)
    numbers.write_text("1 3:1\n-1 4:1\n")
    run("train", train, "--hash-bits", 4, "--out", tmp_path / "model")
    remark = f"{numbers}: features are numbers, taken modulo 2^4 as the model's"
    for command in ("predict", "evaluate"):
        assert remark in " ".join(run(command, tmp_path / "model", numbers).stderr.split())
        assert "modulo" not in run(command, tmp_path / "model", numbers, "--hash-bits", 4).stderr
        assert "modulo" not in run(command, tmp_path / "model", train).stderr


def test_several_classes(tmp_path):
    model, (X, y) = tmp_path / "model", load_iris(return_X_y=True)
    names = ["setosa", "versicolor", "virginica"]
    data = tmp_path / "iris.csv"
    lines = [",".join([*map(str, row), names[label]]) for row, label in zip(X.tolist(), y, strict=True)]
    data.write_text("\n".join(["a,b,c,d,label", *lines]) + "\n")
    shown = run("train", data, "--epochs", 6, "--out", model).stdout
    assert re.search(r"class +epochs +best epoch +train loss +train accuracy +first rate *\n", shown)
    assert [line.split()[0] for line in shown.splitlines() if line.split()[:1] and line.split()[0] in names] == names
    assert "best model: the epoch of each class with the lowest train loss; kept in" in shown

    loaded = load_model(model)
    done = run("predict", model, data, "--probabilities")
    assert "probabilities are those of setosa, versicolor, virginica\n" in done.stderr
    rows = [line.split(",") for line in done.stdout.splitlines()]
    z = loaded.decision_function(read_dataset(data))
    shares = 1 / (1 + np.exp(-z))
    np.testing.assert_allclose(np.array([row[1:] for row in rows], float), shares / shares.sum(axis=1, keepdims=True))
    assert [row[0] for row in rows] == [names[place] for place in z.argmax(axis=1)]
    document = json.loads(run("predict", model, data, "--probabilities", "--json").stdout)
    assert document["probabilities_of"] == names
    assert np.array(document["probabilities"]).shape == (150, 3)

    assert re.search(r"true . predicted +setosa +versicolor +virginica", run("evaluate", model, data).stdout)

    about = json.loads(run("inspect", model, "--json").stdout)
    assert about["labels"]["names"] == names
    assert len(about["intercept"]) == len(about["rows"]) == 3
    assert {each["class"] for each in about["coefficients"]} <= set(names)
    largest = max(np.abs(row.coefficients / row.slope[:4]).max() for row in loaded.rows)
    assert abs(about["coefficients"][0]["scaled"]) == pytest.approx(largest)
    shown = run("inspect", model).stdout
    assert re.search(r"classes +setosa, versicolor, virginica", shown)
    assert re.search(r"class +best epoch +intercept", shown)
    assert re.search(r"class +feature +coefficient +scaled", shown)


def test_several_targets_in_their_file_and_without_it(tmp_path):
    """Columns that the model predicts are no features, whether they are there or not; true and false are labels."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2)).round(3)
    big, both = x[:, 0] > 0, (x.sum(axis=1) > 0).astype(int)
    data, features, model = tmp_path / "data.csv", tmp_path / "features.csv", tmp_path / "model"
    for path, header, more in ((data, "a,b,big,both", True), (features, "a,b", False)):
        rows = [[*row, *([big[place], both[place]] if more else [])] for place, row in enumerate(x.tolist())]
        path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    run("train", data, "--label-column", "big", "--label-column", "both", "--epochs", 9, "--out", model)
    predicted = run("predict", model, data).stdout
    assert run("predict", model, features).stdout == predicted
    np.savez(tmp_path / "data.npz", X=x, y=np.column_stack([big, both]))
    assert run("predict", model, tmp_path / "data.npz").stdout == predicted
    names = json.loads(run("evaluate", model, data, "--json").stdout)
    assert json.loads(run("evaluate", model, tmp_path / "data.npz", "--json").stdout)["accuracy"] == names["accuracy"]
    correct = np.array([line.split(",") for line in predicted.splitlines()], int) == np.column_stack([big, both])
    assert correct.mean() > 0.9
    data.write_text(data.read_text().replace("True", "yes").replace("False", "no"))
    done = run("train", data, "--label-column", "big", "--label-column", "both", status=2)
    assert (
        "data.csv: the labels of big are texts, those of several targets must be numbers: write 0 and 1" in done.stderr
    )
