"""`p4sgd predict` and `p4sgd evaluate` on saved models."""

import csv
import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from support.command_line import run

from p4sgd.host.data import read_dataset
from p4sgd.host.training.model_file import load_model

CANCER = load_breast_cancer()


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    run("train", "breast_cancer", "--epochs", 5, "--out", path, "--quiet")
    return path


def train(*words):
    return run("train", *words, "--out", "model", "--quiet")


def predicted(data, *words, model="model"):
    return run("predict", model, data, *words).stdout


def evaluated(data, *words, model="model"):
    return json.loads(run("evaluate", model, data, *words, "--json").stdout)


def write_table(name, header, rows):
    with open(name, "w", newline="") as file:
        csv.writer(file).writerows([*([header] if header else []), *rows])


def test_one_prediction_a_line_on_standard_output_or_in_a_file(model):
    lines = predicted("breast_cancer", model=model).splitlines()
    assert lines == [f"{label:.0f}" for label in load_model(model).predict(read_dataset("breast_cancer"))]
    assert np.mean([int(line) for line in lines] == CANCER.target) > 0.9
    document = json.loads(predicted("breast_cancer", "--probabilities", "--json", model=model))
    assert set(document) == {"model", "data", "samples", "out", "predictions", "probabilities", "probabilities_of"}
    assert (document["samples"], document["out"], document["probabilities_of"]) == (569, None, 1)
    assert document["predictions"] == list(map(int, lines))
    assert predicted("breast_cancer", "--out", "-", model=model).splitlines() == lines
    done = run("predict", model, "breast_cancer", "--out", "predictions.csv")
    assert (done.stdout, "569 predictions" in done.stderr) == ("", True)
    out, other = Path("predictions.csv"), Path("other")
    assert out.read_text().splitlines() == lines
    assert list(Path().iterdir()) == [out]
    other.touch()
    assert out.stat().st_mode == other.stat().st_mode, "that of the umask"
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    run("predict", model, "breast_cancer", "--out", "pipe", "--quiet")
    assert os.read(reader, 1 << 16).decode() == out.read_text()
    os.close(reader)
    assert Path("pipe").is_fifo()
    for path in (".", "no/file", "/dev/full"):
        done = run("predict", model, "breast_cancer", "--json", "--out", path, status=2)
        assert (done.stdout, path in done.stderr) == ("", True), "what cannot be written is not announced"


def test_ids_are_carried_into_predictions():
    """From a file or standard input, with headers or without, a feature or not."""
    rows = [[f"k{place}", place, place % 7, "yes" if place % 7 > 3 else "no"] for place in range(60)]
    write_table("customers.csv", ["customer", "age", "visits", "label"], rows)
    train("customers.csv", "--ignore-column", "customer", "--epochs", 3)
    plain = predicted("customers.csv", "--probabilities").splitlines()
    named = predicted("customers.csv", "--probabilities", "--id-column", "customer").splitlines()
    assert named == ["customer,prediction,probability yes", *(f"k{place},{line}" for place, line in enumerate(plain))]
    piped = run("predict", "model", "-", "--probabilities", "--id-column", 1, stdin=Path("customers.csv").read_text())
    assert piped.stdout.splitlines() == named
    document = json.loads(predicted("customers.csv", "--id-column", "age", "--json"))
    assert (document["ids"], len(document["predictions"])) == ([str(place) for place in range(60)], 60)
    write_table("bare.csv", None, [[row[1], row[2], row[0]] for row in rows])
    bare = predicted("bare.csv", "--probabilities", "--no-header", "--id-column", -1).splitlines()
    assert bare[1:] == named[1:]


def test_standard_input_is_read_like_a_file():
    rows = [[place % 5, place % 3, int(place % 5 > 2)] for place in range(60)]
    write_table("data.csv", ["a", "b", "label"], rows)
    text = Path("data.csv").read_text()
    expected = json.loads(run("train", "data.csv", "--epochs", 3, "--json").stdout)
    found = json.loads(run("train", "-", "--epochs", 3, "--json", stdin=text).stdout)
    assert (found["weights_sha256"], found["data"]) == (expected["weights_sha256"], "standard input")
    mistake = run("train", "-", status=2, stdin=text + "x,1,1\n").stderr
    assert "standard input, line 62, column 1 (a): 'x' is not a number" in mistake


def test_data_without_labels(model):
    """A table as wide as the model has features has no label column."""
    np.savetxt("new.csv", CANCER.data, delimiter=",", fmt="%.17g")
    np.savetxt("old.csv", np.c_[CANCER.data, CANCER.target], delimiter=",", fmt="%.17g")
    expected = predicted("breast_cancer", model=model)
    assert predicted("new.csv", model=model) == predicted("old.csv", model=model) == expected


def test_columns_in_another_order_and_no_labels():
    rows = np.random.default_rng(0).random((40, 3)).round(3)
    content = dict(zip("abc", rows.T.tolist(), strict=True)) | {"label": (rows[:, 0] > rows[:, 1]).astype(int).tolist()}

    def table(name, columns, **more):
        found = content | more
        write_table(name, columns, zip(*(found[column] for column in columns), strict=True))
        return name

    train(table("train.csv", ["a", "b", "c", "label"]), "--epochs", 20)
    expected = predicted("train.csv")
    assert len(set(expected.split())) == 2
    for columns in (["c", "label", "a", "b"], ["b", "c", "a"]):
        assert predicted(table("other.csv", columns)) == expected
    assert predicted(table("bare.csv", ["label", "b", "c", "a"], label=[""] * 40)) == expected
    lacking = run("predict", "model", table("lacking.csv", ["a", "b", "label"]), status=2)
    assert re.search(r"lacking\.csv: features are missing .*column 3 \(label\).*: c$", lacking.stderr.strip())
    same = evaluated(table("x.csv", ["label", "c", "b", "a"]))
    assert same == evaluated("train.csv") | {"data": "x.csv"}


@pytest.mark.parametrize("prepared", [True, False])
def test_models_remember_the_columns_that_are_no_features(prepared):
    """The training file is read as it was, also by a model of the folder that was made of it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).round(3)
    answer = np.where(x[:, 0] > x[:, 1], "yes", "no")
    write_table(
        "train.csv",
        ["id", "answer", "a", "b", "w"],
        zip(range(200), answer, *x.T, rng.integers(3, size=200), strict=True),
    )
    columns = "--label-column", "answer", "--ignore-column", "id", "--weight-column", "w"
    if prepared:
        run("data", "prepare", "train.csv", *columns, "--out", "folder")
    train(*(["folder"] if prepared else ["train.csv", *columns]), "--epochs", 3)
    found = predicted("train.csv")
    assert (np.array(found.split()) == answer).mean() > 0.9
    assert evaluated("train.csv") == evaluated("train.csv", *columns)
    facts = [line.split()[-1] for line in run("inspect", "model").stdout.splitlines() if " column" in line]
    assert facts == ["answer", "w", "id"]
    write_table("more.csv", ["b", "a", "note", "class"], [(x[1], x[0], "new", 1) for x in x.tolist()])
    done = run("predict", "model", "more.csv")
    assert done.stdout == found
    assert done.stderr.strip() == "more.csv: left out what the model does not know: note"
    done = run("evaluate", "model", "more.csv", status=2)
    assert "more.csv: the label column answer is missing: labels are those of column 4 (class)" in done.stderr
    done = run("evaluate", "model", "more.csv", "--label-column", "b", status=2)
    assert "more.csv: features are missing beside the label (column 1 (b)): b" in done.stderr
    write_table("two.csv", ["b", "a", "note", "more"], [(x[1], x[0], 1, 2) for x in x.tolist()])
    done = run("evaluate", "model", "two.csv", status=2)
    assert "two.csv: the label column answer is missing: --label-column names it, of note, more" in done.stderr


def test_metrics_that_are_not_defined(model):
    """Of samples of one class; of activations that overflow; of a loss without probabilities."""
    np.savez("one.npz", X=CANCER.data[CANCER.target == 1], y=np.ones(357))
    found = evaluated("one.npz", model=model)
    assert (found["auc"], found["confusion_matrix"][0]) == (None, [0, 0])
    done = run("evaluate", model, "one.npz")
    assert ["auc", "undefined"] in [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    np.savez("huge.npz", X=np.full((3, 30), 1e308), y=np.array([0, 1, 1]))
    done = run("evaluate", model, "huge.npz", status=2)
    assert re.search(r"huge\.npz: sample 1 has features so large .*: compare their units", done.stderr)


def test_a_sample_with_most_of_the_error_is_told():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(x[:, 0])) * 1.0
    np.savez("calm.npz", X=x, y=y)
    x[150, 0] = 30
    np.savez("wild.npz", X=x, y=y)
    train("calm.npz", "--loss", "poisson", "--epochs", 3)
    assert "sample" not in run("evaluate", "model", "calm.npz").stderr
    assert "wild.npz: sample 151 has more than half of the squared error" in run("evaluate", "model", "wild.npz").stderr
    np.savez("weighted.npz", X=x, y=y, sample_weight=np.arange(200) != 150)
    assert "sample" not in run("evaluate", "model", "weighted.npz").stderr


def test_the_confusion_matrix(monkeypatch):
    """Names stay apart where they are cut, also those of --positive; without room, what is confused most is listed."""
    labels = [f"a class with a long name, the {which}" for which in ("first", "second", "third")]
    rows = [f"{x:.3f};{labels[int(x > 0.3) + int(x > 0.6)]}" for x in np.random.default_rng(3).random(60)]
    Path("data.csv").write_text("\n".join(["x;label", *rows]))
    train("data.csv", "--loss", "hinge", "--positive", labels[1], "--epochs", 5)
    shown = run("evaluate", "model", "data.csv").stdout
    found = evaluated("data.csv")
    counts = found["confusion_matrix"]
    assert (found["classes"], "log_loss" in found, sum(map(sum, counts))) == ([0, 1], False, 60)
    assert re.search(r"true . predicted +other +a class …e second", shown)
    rows = re.findall(r"^ (?:other|a class …e second) +(\d+) +(\d+)", shown, re.MULTILINE)
    assert [list(map(int, row)) for row in rows] == counts
    monkeypatch.setattr("p4sgd.host.cli.output._FILE_WIDTH", 40)
    shown = run("evaluate", "model", "data.csv").stdout
    pairs = sorted((counts[1][0], counts[0][1]), reverse=True)
    assert [int(line.split()[-1]) for line in shown.splitlines() if "…e second" in line] == [n for n in pairs if n]
    assert "of 2 classes these are confused most" in shown
    train("iris:0", "--epochs", 3, "--overwrite")
    monkeypatch.setattr("p4sgd.host.cli.output._FILE_WIDTH", 20)
    shown = " ".join(run("evaluate", "model", "iris:0").stdout.split())
    assert "predicted" not in shown
    assert "of 2 classes none is taken for another" in shown


def test_hashed_features():
    """The model file says how names become columns; numbers may be columns or names."""
    words = np.random.default_rng(2).integers(0, 20, (80, 6))
    labels = np.where(words[:, 0] < 10, 1, -1)
    lines = [
        f"{label} 'id |text:0.5 {' '.join(f'word{word}:{word % 3 + 1}' for word in row)} |n {row[0]}\n"
        for label, row in zip(labels, words, strict=True)
    ]
    Path("x.vw").write_text("".join(lines[:60]))
    Path("y.vw.gz").write_bytes(gzip.compress("".join(lines[60:]).encode()))
    train("x.vw", "--epochs", 30, "--precision", 4, "--hash-bits", 10, "--test", "y.vw.gz")
    trained = load_model(Path("model"))
    assert (trained.coefficients.size, trained.space.hash_bits) == (1024, 10)
    correct = np.mean(np.array(predicted("y.vw.gz").split(), int) == labels[60:])
    assert evaluated("y.vw.gz")["accuracy"] == correct > 0.75
    Path("z.libsvm").write_text("1 3:1\n-1 4:1\n")
    for command in ("predict", "evaluate"):
        told = [" ".join(run(command, "model", *words).stderr.split()) for words in (["z.libsvm"], ["x.vw"])]
        assert "z.libsvm: features are numbers, taken modulo 2^10 as the model's" in told[0]
        assert "modulo" not in told[1] + run(command, "model", "z.libsvm", "--hash-bits", 10).stderr
    done = run("evaluate", "model", "y.vw.gz", "--hash-bits", 7, status=2)
    assert "--hash-bits is 7, but was 10 for the training data" in done.stderr
    done = run("predict", "model", "breast_cancer", "--hash-bits", 6, status=2)
    assert "--hash-bits is for libsvm, vw, but breast_cancer is built in: leave it out" in done.stderr


def test_several_classes():
    X, y = load_iris(return_X_y=True)
    names = ["setosa", "versicolor", "virginica"]
    rows = [[*row, names[label]] for row, label in zip(X.tolist(), y, strict=True)]
    write_table("iris.csv", ["a", "b", "c", "d", "label"], rows)
    shown = run("train", "iris.csv", "--epochs", 6, "--out", "model").stdout
    assert re.search(r"class +epochs +best epoch +train loss +train accuracy +first rate *\n", shown)
    assert "best model: the epoch of each class with the lowest objective; kept in" in shown
    done = run("predict", "model", "iris.csv", "--probabilities")
    assert "probabilities are those of setosa, versicolor, virginica\n" in done.stderr
    lines = [line.split(",") for line in done.stdout.splitlines()]
    loaded = load_model(Path("model"))
    z = loaded.decision_function(read_dataset("iris.csv"))
    powers = np.exp(loaded.softmax.logits(z))
    np.testing.assert_allclose(np.array([row[1:] for row in lines], float), powers / powers.sum(axis=1, keepdims=True))
    assert [row[0] for row in lines] == [names[place] for place in powers.argmax(axis=1)]
    document = json.loads(predicted("iris.csv", "--probabilities", "--json"))
    assert (document["probabilities_of"], np.array(document["probabilities"]).shape) == (names, (150, 3))
    about = json.loads(run("inspect", "model", "--json").stdout)
    assert about["labels"]["names"] == names
    assert len(about["intercept"]) == len(about["rows"]) == 3
    assert about["softmax"] == {name: list(values) for name, values in vars(loaded.softmax).items()}
    largest = np.abs(loaded.linear()[0] / loaded.rows[0].slope[:4]).max()
    assert abs(about["coefficients"][0]["scaled"]) == pytest.approx(largest)
    shown = run("inspect", "model").stdout
    for row in (
        "classes +setosa, versicolor, virginica",
        "class +best epoch +intercept",
        "class +feature +coefficient",
    ):
        assert re.search(row, shown), row
