"""`p4sgd inspect` on saved models."""

import dataclasses
import json

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


def test_what_a_model_is_and_how_it_was_trained(named):
    shown, model = run("inspect", named).stdout, load_model(named)
    found = rows(shown)
    assert found["loss"] == "squared: linear regression"
    assert found["features"].startswith("3, by name; 2 have a coefficient")
    assert found["intercept"] == f"{model.labels.mean + model.labels.scale * model.intercept:.6g}"
    assert found["precision"] == "4 bits of 6 a feature, signed"
    assert found["scaling"] == "standard: the data are dense"
    assert "data.csv: 180 samples, 20 held out" in " ".join(shown.split()), "maybe on two lines"
    assert found["epoch"] == f"{model.training['epoch']} of 20"
    assert found["L2 penalty"] == "0.0001"
    assert found["device"] == "emulator, 1 worker"
    assert {"train loss", "train R²", "validation R²"} <= set(found)
    assert "L1 penalty" not in found


def test_the_largest_coefficients_by_name(named):
    """By what a feature matters, not by its unit; constants have none."""
    model = load_model(named)
    document = json.loads(run("inspect", named, "--json").stdout)
    assert [each["feature"] for each in document["coefficients"]] == ["small", "large"]
    assert [each["coefficient"] for each in document["coefficients"]] == (
        model.labels.scale * model.coefficients[:2]
    ).tolist()
    assert document["coefficients"][0]["coefficient"] == pytest.approx(3, rel=0.1)
    assert document["coefficients"][1]["coefficient"] == pytest.approx(-0.001, rel=0.1)
    weights = model.labels.scale * WEIGHT.to_real(model.weights[:2].astype(np.int64))
    assert [each["scaled"] for each in document["coefficients"]] == pytest.approx(weights.tolist())
    assert document["nonzero"] == 2
    assert document["training"] == model.training
    shown = run("inspect", named, "--top", 1).stdout
    assert "small" in shown
    assert "large" not in shown
    assert rows(run("inspect", named, "--top", 0).stdout).get("feature") is None


def test_classes_and_kinds_of_features(tmp_path):
    """Numbered features, --positive, and names that are hashed."""
    (tmp_path / "x.svm").write_text("".join(f"{row % 3} 0:{row % 3} 2:{row % 2}\n" for row in range(48)))
    (tmp_path / "x.vw").write_text("".join(f"{1 if row % 2 else -1} |n word{row % 2}\n" for row in range(32)))
    model = tmp_path / "model"
    run("train", tmp_path / "x.svm", "--positive", 2, "--epochs", 3, "--out", model, "--quiet")
    done = run("inspect", model)
    found = rows(done.stdout)
    assert (found["classes"], done.stderr) == ("other, 2", "")
    assert found["features"].startswith("3, numbered from 0; ")
    assert "feature 0" in done.stdout
    run("train", tmp_path / "x.vw", "--hash-bits", 5, "--epochs", 3, "--out", model, "--overwrite", "--quiet")
    assert "hashed to 2^5 columns" in rows(run("inspect", model).stdout)["features"]
    document = json.loads(run("inspect", model, "--json").stdout)
    assert document["hash_bits"] == 5
    assert all(each["feature"].startswith("column ") for each in document["coefficients"])


@pytest.mark.parametrize(("loss", "name", "value"), [("huber", "epsilon", "5"), ("quantile", "quantile", "0.25")])
def test_parameters_of_a_loss(tmp_path, loss, name, value):
    run("train", "diabetes", "--loss", loss, f"--{name}", value, "--epochs", 1, "--out", tmp_path / "model", "--quiet")
    found = rows(run("inspect", tmp_path / "model").stdout)
    assert float(found[name]) == pytest.approx(float(value), rel=0.02), "epsilon is rounded for the table"
    assert {"epsilon", "quantile"} & set(found) == {name}


def test_a_model_without_facts_of_its_training(named, tmp_path):
    save_model(dataclasses.replace(load_model(named), training={}), tmp_path / "bare")
    assert set(rows(run("inspect", tmp_path / "bare", "--top", 0).stdout)) >= {"loss", "features", "precision"}
    save_model(dataclasses.replace(load_model(named), training={"epoch": 1}), tmp_path / "damaged")
    assert "damaged: a damaged model file" in run("inspect", tmp_path / "damaged", status=2).stderr
