"""Tables with texts and gaps on the command line: trained on, prepared, predicted, evaluated, inspected, exported."""

import json

import pytest
from support.command_line import run

from p4sgd.host.training.model_file import load_model as load_model_file


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The table as CSV and Parquet, another one, and a model."""
    folder = tmp_path_factory.mktemp("titanic")
    for name, seed in (("titanic.csv", 0), ("titanic.parquet", 0), ("test.csv", 1)):
        run("data", "synth", "titanic", "--out", folder / name, "--seed", seed)
    options = ("--missing", "indicator", "--validation-fraction", 0.2, "--epochs", 20)
    done = run("train", folder / "titanic.csv", *options, "--out", folder / "model", "--json")
    return folder, options, json.loads(done.stdout)


def test_predictions(files, tmp_path):
    folder, _, _ = files
    path = tmp_path / "some.csv"
    path.write_text("sex,pclass,deck,embarked,fare,parch,sibsp,age\nfemale,1,C,Cork,80,0,0,\nmale,3,,,7,0,0,30\n")
    done = run("predict", folder / "model", path, "--probabilities")
    first, second = (float(line.split(",")[1]) for line in done.stdout.splitlines())
    assert first > 0.8 > 0.4 > second
    told = f"{path}: embarked: 1 value that the model does not know, such as 'Cork': taken for none of those"
    assert told in " ".join(done.stderr.split())
    path.write_text("sex,pclass,deck,embarked,fare,parch,sibsp,age\nfemale,first,C,,80,0,0,\n")
    done = run("predict", folder / "model", path, status=2)
    assert "line 2, column 2 (pclass): 'first' is not a number" in done.stderr


def test_training_goes_on_with_the_features_of_a_model(files, tmp_path):
    folder, _, _ = files
    odd = tmp_path / "odd.csv"
    odd.write_text((folder / "test.csv").read_text().replace("Queenstown", "Cobh"))
    done = run("train", odd, "--init", folder / "model", "--epochs", 2, "--out", tmp_path / "next", "--test", odd)
    assert "values that the model does not know, such as 'Cobh'" in " ".join(done.stderr.split())
    ours, theirs = load_model_file(tmp_path / "next"), load_model_file(folder / "model")
    assert ours.space.encoding == theirs.space.encoding
    assert not (ours.weights == theirs.weights).all()
    done = run("train", odd, "--init", folder / "model", "--missing", "mean", status=2)
    assert "this model was trained with --missing indicator, not with --missing mean" in done.stderr
