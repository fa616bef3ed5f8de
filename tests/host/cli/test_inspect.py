"""`p4sgd inspect` on saved models."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest
from support.command_line import run

from p4sgd.host.training.model_file import load_model, save_model
from p4sgd.hw.spec.fixed import WEIGHT


def rows(text):
    """The rows of the tables, by their first words, with runs of spaces as one."""
    lines = (line.split("  ", 1) for line in map(str.strip, text.splitlines()) if "  " in line)
    return {first: " ".join(rest.split()) for first, rest in lines}


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A regression on columns with names, units and a constant among them: the target is 3 small − 0.001 large."""
    folder = tmp_path_factory.mktemp("named")
    rng = np.random.default_rng(5)
    small, large = rng.normal(size=200), 1000 * rng.normal(size=200)
    lines = [f"{a},{b},1,{3 * a - 0.001 * b}" for a, b in zip(small, large, strict=True)]
    (folder / "data.csv").write_text("\n".join(["small,large,constant,target", *lines]))
    words = ["--loss", "squared", "--epochs", 20, "--validation-fraction", 0.1, "--l2", 0.0001, "--precision", 4]
    run("train", folder / "data.csv", *words, "--planes", 6, "--out", folder / "model", "--quiet")
    return folder / "model"


def test_what_a_model_is_and_how_it_was_trained(named, tmp_path):
    model, found = load_model(named), rows(run("inspect", named).stdout)
    expected = {
        "loss": "squared",
        "intercept": f"{model.labels.mean + model.labels.scale * model.intercept:.6g}",
        **{"features": "3", "nonzero": "2", "named": "yes", "precision": "4", "planes": "6", "signed": "yes"},
        **{"samples": "180", "validation samples": "20", "scaling": "standard", "scaling reason": "the data are dense"},
        **{"epoch": str(model.training["epoch"]), "option l2": "0.0001", "device": "emulator"},
    }
    assert {name: found[name] for name in expected} == expected
    assert {"train loss", "train R²", "validation R²"} <= set(found)
    assert "option l1" not in found
    save_model(dataclasses.replace(model, training={}), tmp_path / "bare")
    assert set(rows(run("inspect", tmp_path / "bare", "--top", 0).stdout)) >= {"loss", "features", "precision"}
    for training in ({"options": "x"}, {"metrics": {"train_loss": "x"}}):
        save_model(dataclasses.replace(model, training=training), tmp_path / "damaged")
        assert "damaged: a damaged model file: " in run("inspect", tmp_path / "damaged", "--json", status=2).stderr


def test_the_largest_coefficients_by_name(named):
    """By what a feature matters, not by its unit; constants have none."""
    model = load_model(named)
    document = json.loads(run("inspect", named, "--json").stdout)
    assert [each["feature"] for each in document["coefficients"]] == ["small", "large"]
    coefficients = (model.labels.scale * model.coefficients[:2]).tolist()
    assert [each["coefficient"] for each in document["coefficients"]] == coefficients
    assert coefficients == pytest.approx([3, -0.001], rel=0.1)
    weights = model.labels.scale * WEIGHT.to_real(model.weights[:2].astype(np.int64))
    assert [each["scaled"] for each in document["coefficients"]] == pytest.approx(weights.tolist())
    assert (document["nonzero"], document["training"]) == (2, model.training)
    shown = run("inspect", named, "--top", 1).stdout
    assert ("small" in shown, "large" in shown) == (True, False)
    assert rows(run("inspect", named, "--top", 0).stdout).get("feature") is None


def test_a_prediction_by_hand(tmp_path):
    """Of a table with texts and gaps, from the document alone."""
    run("data", "synth", "titanic", "--out", tmp_path / "data.csv")
    words = ["--label-column", "survived", "--missing", "indicator", "--epochs", 2]
    run("train", tmp_path / "data.csv", *words, "--out", tmp_path / "model", "--quiet")
    about = json.loads(run("inspect", tmp_path / "model", "--json").stdout)
    found = json.loads(run("predict", tmp_path / "model", tmp_path / "data.csv", "--probabilities", "--json").stdout)
    coefficients = {each["feature"]: each["coefficient"] for each in about["coefficients"]}
    probabilities = []
    for row in csv.DictReader((tmp_path / "data.csv").open()):
        z = about["intercept"]
        for column in about["table"]["columns"]:
            name, cell = column["name"], row[column["name"]]
            if column["values"] is None:
                z += coefficients[name] * float(cell or column["mean"])
            if column["values"] is not None or not cell:
                z += coefficients.get(f"{name}={cell or 'missing'}", 0.0)
        probabilities.append(1 / (1 + math.exp(-z)))
    assert probabilities == pytest.approx(found["probabilities"], rel=1e-9)


def test_kinds_of_classes_features_and_losses(tmp_path):
    """Numbered features, --positive, names that are hashed, and a parameter in the unit of the target."""
    (tmp_path / "x.svm").write_text("".join(f"{row % 3} 0:{row % 3} 2:{row % 2}\n" for row in range(48)))
    (tmp_path / "x.vw").write_text("".join(f"{1 if row % 2 else -1} |n word{row % 2}\n" for row in range(32)))
    for data, words, name, says in (
        ("x.svm", "--positive 2", "classes", "other, 2"),
        ("x.svm", "--positive 2", "zero based", "yes"),
        ("x.vw", "--hash-bits 5", "hash bits", "5"),
        ("diabetes", "--loss huber --epsilon 5", "epsilon", 5),
        ("diabetes", "--loss quantile --quantile 0.25", "quantile", 0.25),
    ):
        path = data if data == "diabetes" else tmp_path / data
        run("train", path, *words.split(), "--epochs", 3, "--out", tmp_path / "model", "--overwrite", "--quiet")
        found = rows(run("inspect", tmp_path / "model").stdout)[name]
        assert float(found) == pytest.approx(says, rel=0.02) if data == "diabetes" else found.startswith(says)
        document = json.loads(run("inspect", tmp_path / "model", "--json").stdout)
        start = {"x.vw": "column ", "x.svm": "feature ", "diabetes": ""}[data]
        assert all(each["feature"].startswith(start) for each in document["coefficients"])
