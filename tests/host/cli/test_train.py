"""`p4sgd train`: its JSON, tables, options and model file."""

import dataclasses
import functools
import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from support import command_line
from support.command_line import commands

from p4sgd.host.cli.app import main
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.model_file import load_model
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK, chaining_cycles, round_trip_cycles

run = functools.partial(command_line.run, "train")


def test_json_document(tmp_path):
    out = tmp_path / "model"
    arguments = ["breast_cancer", "--test", "breast_cancer", "--epochs", 3, "--validation-fraction", 0.25, "--out", out]
    done = run(*arguments, "--json")
    document = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert [epoch["epoch"] for epoch in document["epochs"]] == [1, 2, 3]
    for epoch in document["epochs"]:
        assert epoch["counters"] is None, "the emulator does not count"
    for metrics in (*document["epochs"], document["metrics"]):
        for data in ("train", "validation", "test"):
            assert math.isfinite(metrics[f"{data}_loss"])
            assert 0 <= metrics[f"{data}_accuracy"] <= 1
    assert document["epochs"][-1]["test_accuracy"] > 0.85
    assert document["device"] == "emulator"
    assert document["configuration"] == dataclasses.asdict(WorkerConfig(lanes=8, chunks=128))
    assert document["flags"] == []
    assert document["samples"] + document["validation_samples"] == 569
    assert document["out"] == str(out)
    weights = load_model(out).weights
    assert document["weights_sha256"] == hashlib.sha256(weights.astype("<i4").tobytes()).hexdigest()


def test_the_split_of_sparse_data_is_shown(tmp_path):
    """A row for each worker, and what one kind of workers would take; as JSON, too."""
    path = tmp_path / "sparse.libsvm"
    samples: list[set[int]] = [set() for _ in range(80)]
    for column in range(400):
        samples[column % 80].add(column + 1)
        if column < 192:
            samples[(column + 1) % 80].add(column + 1)
    lines = [f"{n % 2} " + " ".join(f"{each}:1" for each in sorted(columns)) for n, columns in enumerate(samples)]
    path.write_text("\n".join(lines) + "\n")
    sizes = ("--config", "small", "--workers", 4, "--sparse-workers", 1, "--unit", 8, "--batch", 64, "--precision", 8)
    done = run(path, *sizes, "--split", 192, "--skip-zeros", "never", "--epochs", 1, "--lr", 1, "--json")
    rows = [re.split(r"  +", line.strip()) for line in done.stderr.splitlines()]
    first = rows.index(["worker", "columns", "nonzeros", "predicted µs a sample"])
    # By hand: 384 + 208 nonzeros and 80 of the bias, 4 ns each. Boards: 8 micro-batches of 4 chunks and 8 planes, and
    # latencies, to which test_latencies.py and test_cycles.py hold the hardware; with all columns 9 chunks.
    latencies = round_trip_cycles(WorkerConfig.small(), BOARDS_NETWORK) + chaining_cycles(8)
    assert rows[first + 2 : first + 8] == [
        *([f"{n} dense", "64", "19.0%", f"{(8 * 4 * 8 + latencies) * 4 / 64 / 1000:.3g}"] for n in range(3)),
        ["3 sparse", "209", "42.9%", "0.0144"],
        ["all dense", "401", "100.0%", f"{(8 * 9 * 8 + latencies) * 4 / 64 / 1000:.3g}"],
        ["all sparse", "401", "100.0%", "0.0336"],
    ]
    split = json.loads(done.stdout)["split"]
    assert (split["columns"], split["total"]) == (192, 401)
    assert [worker["columns"] for worker in split["workers"]] == [64, 64, 64, 209]
    assert [worker["sparse"] for worker in split["workers"]] == [False, False, False, True]
    assert sum(worker["nonzeros"] for worker in split["workers"]) == pytest.approx(1)
    slowest = max(worker["sample_ns"] for worker in split["workers"])
    assert split["sample_ns"] == slowest == (8 * 4 * 8 + latencies) * 4 / 64
    assert split["all_sparse"]["sample_ns"] == pytest.approx(33.6)
    skipped = run(path, *sizes, "--split", 192, "--skip-zeros", "always", "--epochs", 1, "--lr", 1).stderr
    (alone,) = re.findall(r"all dense +401 +100.0% +(\S+)", skipped)
    assert float(alone) < (8 * 9 * 8 + latencies) * 4 / 64 / 1000
    few = run(path, *sizes, "--workers", 2, "--unit", 64, "--config", "tiny", "--epochs", 1, "--lr", 1).stderr
    assert re.search(r"all dense +at most 128 +too many columns", few)
    assert "columns" not in run(path, *sizes, "--epochs", 1, "--lr", 1, "--quiet").stderr
    assert "mpiexec -n N" in run(path, "--parallel", "data").stderr


@pytest.mark.parametrize(
    ("data", "kind", "why"),
    [("breast_cancer", "standard", "dense"), ("sparse.libsvm", "none", "sparse"), ("wild.csv", "standard", "dense")],
)
def test_the_scaling_that_auto_takes_is_told(data, kind, why, own_folder):
    Path("sparse.libsvm").write_text("1 1:2 99:1\n-1 2:1\n" * 8)
    Path("wild.csv").write_text("height,weight,y\n9e9,9e9,0\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(300)))
    told = [run(data, "--epochs", 1), command_line.run("data", "prepare", data, "--out", "folder")]
    told.append(run("folder", "--epochs", 1))
    for done in told:
        assert re.search(rf"^features scaled with {kind}: .*{why}", done.stdout, re.MULTILINE)
        assert ("2 of 2 features (1 (height), 2 (weight)) lie within" in " ".join(done.stderr.split())) == (
            data == "wild.csv"
        )
    document = json.loads(run(data, "--epochs", 1, "--json").stdout)
    assert (document["scaling"], document["options"]["scaling"]) == (kind, "auto")
    assert why in document["scaling_reason"]


def test_flags_and_options_without_effect_are_reported():
    document = json.loads(run("breast_cancer", "--scaling", "minmax", "--epochs", 1, "--lr", 500, "--json").stdout)
    assert document["flags"] == ["residual_saturated", "weight_saturated"]
    words = ["breast_cancer", "--epochs", 1, "--lr", 0.1, "--merge"]
    assert "--merge 4 had no effect: only the programs of a cluster" in " ".join(run(*words, 4).stderr.split())
    assert "--merge" not in run(*words, "auto").output


def test_every_training_option_is_an_option():
    """Whose declaration is its own; the values of all kinds reach the run."""
    train = commands()["train"]
    parent = main.make_context("p4sgd", ["train", "data"])
    found = train.make_context("train", ["data"], parent=parent).params
    options = TrainingOptions()
    assert {name: found[name] for name in options.to_json()} == options.to_json()
    words = "--loss hinge --lr 0.25 --schedule invscaling --power 0.75 --no-bias --positive 1 --class-weight 1=2,7=0.5"
    words += (
        " --unit 16 --split none --merge 4 --on-loss stop --stand-ins --staleness 1 --patience 9 --seed 4 --epochs 2"
    )
    document = json.loads(run("digits", *words.split(), "--config", "tiny", "--json").stdout)
    given = {"loss": "hinge", "learning_rate": 0.25, "schedule": "invscaling", "power": 0.75, "bias": False}
    given |= {"positive": "1", "class_weight": {"1": 2, "7": 0.5}, "unit": 16, "split": "none", "merge": "4"}
    given |= {"on_loss": "stop", "stand_ins": True, "staleness": 1, "patience": 9, "seed": 4, "epochs": 2}
    assert document["options"] == options.to_json() | given


def test_weights_of_classes_may_be_named_again(own_folder):
    """In any order and spelling, for a folder and a checkpoint."""
    x = np.random.default_rng(11).normal(size=(120, 5))
    np.savez("data.npz", X=x, y=np.where(x[:, 0] > 0.5, "spam", "ham"))
    chosen, again, other = (("--class-weight", text) for text in ("spam=4,ham=0.5", "ham=.5,spam=4.0", "spam=2"))
    command_line.run("data", "prepare", "data.npz", *chosen, "--out", "made")
    run("data.npz", *chosen, "--checkpoint", "kept", "--epochs", 1)
    for words, began in (("made", "was prepared with"), ("--resume kept", "this run began with --")):
        run(*words.split(), *again, "--epochs", 2)
        stderr = run(*words.split(), *other, status=2).stderr
        assert f"{began} class-weight spam=4.0,ham=0.5, not ".replace("-- ", "--") in stderr
