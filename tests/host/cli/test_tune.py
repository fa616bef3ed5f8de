"""`p4sgd tune`: the trade between precision, accuracy and time on boards, and the command that it recommends."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run
from support.tensor_file import read

from p4sgd.host.run import tuning
from p4sgd.host.training import TrainingOptions
from p4sgd.hw.spec.config import CLOCK_NS

SMALL = ["--precision", "2,8", "--batch", "16,64", "--l2", "0,0.001", "--epochs", 4]


def tuned(*words):
    return json.loads(run("tune", *words, "--json").stdout)


def facts(document):
    """What a run has measured, without its times."""
    return {name: value for name, value in document["metrics"].items() if name.startswith(("train", "validation"))}


@pytest.mark.parametrize(
    "words",
    [
        ["breast_cancer", "--seed", 3, "--scaling", "minmax", "--no-bias", "--lr", 0.7],
        ["diabetes", "--loss", "huber", "--epsilon", 40.125, "--validation-fraction", 0.3],
    ],
)
def test_every_run_is_that_of_train(words, tmp_path):
    """Although data are prepared once for several penalties. The command that is recommended trains its model again."""
    found = tuned(*words, *SMALL, "--out", tmp_path / "ours")
    combinations = [(p, b, l2) for p in (2, 8) for b in (16, 64) for l2 in (0.0, 0.001)]
    assert [(each["precision"], each["batch"], each["l2"]) for each in found["trials"]] == combinations
    for each in found["trials"]:
        choice = ["--precision", each["precision"], "--batch", each["batch"], "--l2", each["l2"], "--epochs", 4]
        more = [] if "--validation-fraction" in words else ["--validation-fraction", 0.2]
        trained = json.loads(run("train", *words, *choice, *more, "--json").stdout)
        assert facts(trained) == facts(each)
        assert (trained["best_epoch"], trained["learning_rate"]) == (each["epoch"], each["learning_rate"])
    command = found["command"]
    assert command[:2] == ["p4sgd", "train"]
    assert command[-2:] == ["--out", str(tmp_path / "ours")]
    trained = json.loads(run(*command[1:-1], tmp_path / "theirs", "--json").stdout)
    chosen = found["trials"][found["chosen"]]
    assert facts(trained) == facts(chosen)
    assert trained["best_epoch"] == len(trained["epochs"]) == chosen["epoch"]
    models = []
    for name in ("ours", "theirs"):
        models.append({each: array.tolist() for each, array in read(tmp_path / name)[0].items()})
    assert models[0] == models[1]


def test_several_classes(tmp_path):
    words = ["iris", "--precision", "2,8", "--batch", "16", "--l2", "0,0.01", "--epochs", 4]
    for each in tuned(*words, "--out", tmp_path / "m")["trials"]:
        choice = ["--precision", each["precision"], "--l2", each["l2"], "--epochs", 4, "--validation-fraction", 0.2]
        assert facts(json.loads(run("train", "iris", *choice, "--json").stdout)) == facts(each)
    np.savez(tmp_path / "t.npz", X=np.random.default_rng(0).normal(size=(50, 4)), y=np.eye(50, 2))
    done = run("tune", tmp_path / "t.npz", "--loss", "squared", status=2)
    assert "has several targets, of which models do not compare" in done.stderr


@pytest.mark.parametrize("loss", ["logistic", "squared", "poisson"])
def test_samples_count_by_their_weights(loss, tmp_path):
    """A sample of weight 2 is two samples, in the score and roughly in its standard error; one of weight 0 is none."""
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=(400, 3)), rng.integers(0, 3, 400)
    y = x[:, 0] + rng.normal(size=400)
    y = {"logistic": (y > 0).astype(float), "squared": y, "poisson": rng.poisson(np.exp(y / 2)).astype(float)}[loss]
    np.savetxt(tmp_path / "data.csv", np.column_stack([x, weights, y]), delimiter=",")
    words = [tmp_path / "data.csv", "--weight-column", 4, "--loss", loss]
    (found,) = tuned(*words, "--precision", 4, "--batch", 16, "--l2", 0, "--epochs", 3)["trials"]
    score = found["metrics"][f"validation_{ {'logistic': 'accuracy', 'squared': 'r2', 'poisson': 'd2'}[loss] }"]
    assert found["score"] == score
    assert 0.02 < found["error"] < 0.2
    if loss == "logistic":
        counted = (weights > 0).sum() / 5
        assert found["error"] == pytest.approx(math.sqrt(score * (1 - score) / counted), rel=0.25)


def test_time_is_that_of_boards(tmp_path):
    """Eight samples take a plane of a chunk a cycle, and a mini-batch waits for its sums, at most some µs."""
    one, two = (tuned("digits:3", *SMALL, "--workers", workers) for workers in (1, 2))
    assert (one["boards"], two["boards"]) == (1, 2)
    for each, other in zip(one["trials"], two["trials"], strict=True):
        assert facts(each) == facts(other)
        mini_batches = math.ceil(1437 / each["batch"]) * each["epoch"]
        busy_ms = mini_batches * each["batch"] // 8 * each["precision"] * CLOCK_NS / 1e6
        assert busy_ms + mini_batches * 0.5e-3 < each["board_ms"] < busy_ms + mini_batches * 3e-3
    path = tmp_path / "wide.libsvm"
    path.write_text("1 1:1 400000:1\n-1 2:1\n" * 40)
    done = run("tune", path, "--precision", "1,8", "--batch", 16, "--l2", 0, "--epochs", 1)
    assert "1 board cannot hold 400,000 columns: times are not predicted" in done.stderr
    assert " *→ " in done.stdout


def trial(score, error, ms):
    return tuning.Trial(TrainingOptions(), 1.0, {}, score, error, ms)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 0.1), st.floats(1e-3, 1e3)), min_size=1, max_size=8))
def test_the_choice_is_the_fastest_that_is_as_good(drawn):
    trials = [trial(*each) for each in drawn]
    best, chosen = tuning.choose(trials)
    assert trials[best].score == max(each.score for each in trials)
    enough = trials[best].score - trials[best].error
    assert trials[chosen].score >= enough
    good = [each for each in trials if each.score >= enough]
    assert all(1.05 * each.board_ms >= trials[chosen].board_ms for each in good)
    assert all(each.board_ms > trials[chosen].board_ms for each in good if each.score > trials[chosen].score)


def test_choices_without_a_time_or_a_score():
    assert tuning.choose([trial(0.5, 0.4, None), trial(0.6, 0.4, None)]) == (1, 1)
    assert tuning.choose([trial(math.nan, 0.0, 1.0), trial(0.6, math.nan, 2.0)])[0] == 1
    with pytest.raises(tuning.UserError, match="hold out more"):
        tuning.choose([trial(math.nan, 0.0, 1.0)])


def test_the_table():
    words = ["digits:3", "--loss", "squared", *SMALL]
    lines = [line for line in run("tune", *words).stdout.splitlines() if line.strip()]
    assert re.split(r"\s{2,}", lines[0].strip()) == ["bits", "batch", "L2", "rate", "epochs", "R²", "±", "board ms"]
    assert len(lines) == 2 + 8 + 2
    marks = [line.split()[0] for line in lines[2:-2] if not line.split()[0].isdigit()]
    assert sorted("".join(marks)) == ["*", "→"]
    assert re.match(r"recommended: p4sgd train digits:3 --precision .* --out MODEL$", lines[-1])
    assert lines[-2] not in run("tune", *words, "--quiet").stdout


def test_options_from_a_file_and_names_with_blanks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savetxt("some data.csv", np.column_stack([rng.random((60, 3)), np.arange(60) % 2]), delimiter=",")
    with open("run.toml", "w") as file:
        file.write(
            '[tune]\nprecision = "2,4"\nbatch = 16\nl2 = 0\nepochs = 2\nlabel-column = 4\nschedule = "constant"\n'
        )
    done = run("tune", "some data.csv", "--options", "run.toml", "--ignore-column", 1, "--ignore-column", 2)
    recommended = done.stdout.splitlines()[-1]
    assert recommended.startswith("recommended: p4sgd train 'some data.csv' --precision ")
    for part in ("--schedule constant", "--label-column 4", "--ignore-column 1 --ignore-column 2"):
        assert part in recommended
