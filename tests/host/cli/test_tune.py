"""`p4sgd tune`: the trade between precision, accuracy and time on boards, and the command that it recommends."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import run
from support.tensor_file import read

from p4sgd.host.data import read_dataset
from p4sgd.host.run import tuning
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.metrics import score
from p4sgd.host.training.model_file import load_model
from p4sgd.hw.spec.config import CLOCK_NS

SMALL = ["--precision", "2,8", "--batch", "16,64", "--l2", "0,0.01", "--epochs", 2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def tuned(*words):
    return json.loads(run("tune", *words, "--json").stdout)


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        (["breast_cancer", "--seed", 3, "--scaling", "minmax", "--no-bias", "--lr", 0.7], "accuracy"),
        (["diabetes", "--loss", "huber", "--epsilon", 40.125, "--validation-fraction", 0.3], "r2"),
        (["iris"], "accuracy"),
    ],
)
def test_every_run_is_that_of_train(words, metric, tmp_path):
    """Although data are prepared once for several penalties. The command that is recommended trains its model again."""
    found = tuned(*words, *SMALL, "--metric", metric, "--splits", 1, "--out", tmp_path / "ours")
    combinations = [(p, b, l2) for p in (2, 8) for b in (16, 64) for l2 in (0.0, 0.01)]
    combinations += [(8, 16, None)] * (metric == "accuracy")  # the default penalty of classes is none of the grid's
    assert {(each["precision"], each["batch"], each["l2"]) for each in found["trials"]} == set(combinations)
    rows = read_dataset(words[0])
    fraction = 0.3 if "--validation-fraction" in words else 0.2
    rest, held_out = rows.split(fraction, seed=3 if "--seed" in words else 0, stratified=metric != "r2")
    for name, data in (("rest.npz", rest), ("held out.npz", held_out)):
        np.savez(name, X=data.features, y=data.labels)
    options = [word for word in words[1:] if word not in ("--validation-fraction", fraction)]
    for each in found["trials"]:
        choice = ["--precision", each["precision"], "--batch", each["batch"], "--epochs", 2]
        choice += [] if each["l2"] is None else ["--l2", each["l2"]]
        trained = json.loads(run("train", "rest.npz", *options, *choice, "--test", "held out.npz", "--json").stdout)
        assert [trained["metrics"][f"test_{metric}"]] == pytest.approx(each["scores"], rel=1e-12)
        assert each["learning_rates"] == [trained.get("learning_rate")]
    command = found["command"]
    assert command[:2] == ["p4sgd", "train"]
    assert command[-2:] == ["--out", str(tmp_path / "ours")]
    run(*command[1:-1], tmp_path / "theirs")
    models = []
    for name in ("ours", "theirs"):
        models.append({each: array.tolist() for each, array in read(tmp_path / name)[0].items()})
    assert models[0] == models[1]


def test_the_metric_is_that_of_the_samples_held_out():
    """By default log loss; each division is that of the next seed, and weights count."""
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=(300, 3)).round(3), rng.integers(1, 4, 300)
    y = (x[:, 0] + rng.normal(size=300) > 0).astype(int)
    np.savetxt("data.csv", np.column_stack([x, weights, y]), delimiter=",", header="a,b,c,w,y", comments="")
    data = read_dataset("data.csv", weight_column="w")
    words = "data.csv", "--weight-column", "w", "--precision", 8, "--batch", 16, "--l2", 0, "--epochs", 3
    for metric in ("log_loss", "auc", "average_precision"):
        found = tuned(*words, "--splits", 2, "--metric", metric)["trials"][0]
        scores = []
        for seed in (0, 1):
            rest, held_out = data.split(0.2, seed=seed, stratified=True)
            np.savez("rest.npz", X=rest.features, y=rest.labels, weights=rest.sample_weights)
            options = "--epochs", 3, "--seed", seed, "--out", "m", "--overwrite"
            run("train", "rest.npz", *options)
            scores.append(score(load_model(Path("m")), held_out)[metric])
        assert found["scores"] == pytest.approx(scores)
        assert found["score"] == pytest.approx(np.mean(scores))
        assert found["spread"] == pytest.approx(np.std(scores, ddof=1))
    assert tuned(*words)["metric"] == "log_loss"
    assert tuned("diabetes", "--loss", "squared", *SMALL, "--splits", 1)["metric"] == "r2"


def test_several_targets_cannot_be_compared():
    np.savez("t.npz", X=np.random.default_rng(0).normal(size=(50, 4)), y=np.eye(50, 2))
    done = run("tune", "t.npz", "--loss", "squared", status=2)
    assert "has several targets, of which models do not compare" in done.stderr


def test_time_is_that_of_boards():
    """Eight samples take a plane of a chunk a cycle, and a mini-batch waits for its sums, at most some µs."""
    one, two = (tuned("breast_cancer", *SMALL, "--splits", 1, "--workers", workers) for workers in (1, 2))
    assert (one["boards"], two["boards"]) == (1, 2)
    for each, other in zip(one["trials"], two["trials"], strict=True):
        assert each["scores"] == other["scores"]
        mini_batches = math.ceil(455 / each["batch"]) * each["epochs"][0]
        busy_ms = mini_batches * each["batch"] // 8 * each["precision"] * CLOCK_NS / 1e6
        assert busy_ms + mini_batches * 0.5e-3 < each["board_ms"] < busy_ms + mini_batches * 3e-3
    Path("wide.libsvm").write_text("1 1:1 600000:1\n-1 2:1\n" * 40)
    done = run("tune", "wide.libsvm", "--precision", "1,8", "--batch", 16, "--l2", 0, "--epochs", 1)
    assert "1 board cannot hold 600,000 columns: times are not predicted" in done.stderr
    assert " *→ " in done.stdout


def trial(scores, ms, metric="r2"):
    return tuning.Trial(TrainingOptions(), metric, tuple(scores), board_ms=ms)


SCORES = st.lists(st.floats(0, 1), min_size=3, max_size=3)


@given(st.lists(st.tuples(SCORES, st.floats(1e-3, 1e3)), min_size=1, max_size=8), st.sampled_from(["r2", "log_loss"]))
def test_the_choice_is_the_fastest_that_is_as_good(drawn, metric):
    """Less of a loss is better. Nothing that scores less than the first trial is chosen."""
    trials = [trial(scores, ms, metric) for scores, ms in drawn]
    best, chosen = tuning.choose(trials, 0.2)
    sign = -1 if metric == "log_loss" else 1
    means = [sign * each.score for each in trials]
    assert means[best] == max(means)
    enough = [max(means[0], means[best] - tuning.difference_error(trials[best], each, 0.2)) for each in trials]
    good = [place for place in range(len(trials)) if means[place] >= enough[place]]
    assert chosen in good
    assert all(1.05 * trials[place].board_ms >= trials[chosen].board_ms for place in good)
    assert all(trials[place].board_ms > trials[chosen].board_ms for place in good if means[place] > means[chosen])


def test_a_weaker_penalty_has_to_be_better_for_sure():
    plain, weaker, better, stronger = (
        dataclasses.replace(trial(scores, ms), l2=l2)
        for scores, ms, l2 in (
            ([0.5, 0.6, 0.7], 9.0, 0.01),
            ([0.6, 0.5, 0.8], 1.0, 0.001),
            ([0.6, 0.7, 0.8], 5.0, 0.001),
            ([0.6, 0.5, 0.8], 7.0, 0.1),
        )
    )
    assert tuning.choose([plain, weaker], 0.2) == (0, 0)
    assert tuning.choose([plain, weaker, better], 0.2) == (2, 2)
    assert tuning.choose([plain, weaker, stronger], 0.2) == (2, 2)


def test_trials_that_have_fallen_behind_or_have_no_score():
    assert tuning.choose([trial([0.5] * 2, None), trial([0.6] * 2, None), trial([0.9], None)], 0.2) == (1, 1)
    assert tuning.choose([trial([math.nan], 1.0), trial([0.6], 2.0)], 0.2) == (1, 1)
    with pytest.raises(tuning.UserError, match="hold out more"):
        tuning.choose([trial([math.nan], 1.0)], 0.2)
    assert list(itertools.islice(tuning._survivors(36), 5)) == [36, 18, 9, 6, 6]


def test_options_from_a_file_and_names_with_blanks():
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
