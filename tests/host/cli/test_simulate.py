"""`p4sgd simulate`: a training run in RTL that counts its cycles, with the emulator's weights."""

import errno
import json
import os
from importlib import import_module

import numpy as np
import pytest
from click.testing import CliRunner

from p4sgd.host import devices
from p4sgd.host.cli import main
from p4sgd.host.data import read_dataset
from p4sgd.host.model_file import load_model
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import counters as all_counters
from p4sgd.sim.cluster import build, protocol
from p4sgd.sim.emulator import EmulatedDevice

RUN = ["digits:3", "--samples", "64", "--epochs", "2", "--precision", "3", "--config", "tiny", "--workers", "2"]


def invoke(*words):
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.rtl
@pytest.mark.slow
def test_cycles_by_cause_and_the_emulators_weights(tmp_path):
    model = tmp_path / "model"
    document = json.loads(invoke("simulate", *RUN, "--link-loss", 0.01, "--out", model, "--json").stdout)
    assert document["device"] == "rtl"
    assert document["disturbances"] == {"memory_stall": 0, "link_stall": 0, "link_loss": 655 / 65536}
    for counters in document["counters"]:
        assert set(counters) == {name for name, _ in all_counters(WorkerConfig.tiny())}
        causes = [value for name, value in counters.items() if name.startswith("CYCLES_")]
        assert counters["CYCLES"] == sum(causes) > 0
        assert counters["PACKETS_SENT"] >= 2 * 2 * 8, "a PARTIAL and an ACK for each of 8 micro-batches, twice"
    totals = [sum(epoch["counters"][1]["CYCLES"] for epoch in document["epochs"])]
    assert totals == [document["counters"][1]["CYCLES"]]

    # The same samples, through a file, on the emulator.
    data = read_dataset("digits:3")
    np.savez(tmp_path / "first.npz", X=data.features[:64], y=data.labels[:64])
    words = [tmp_path / "first.npz", *RUN[3:], "--json"]
    assert json.loads(invoke("train", *words).stdout)["weights_sha256"] == document["weights_sha256"]


def test_too_many_samples_are_refused_before_the_simulator_is_built(monkeypatch):
    monkeypatch.setattr(protocol, "MEMORY_BITS", 12)
    monkeypatch.setattr(build, "build_cluster", lambda *_: pytest.fail("a simulator takes minutes"))
    done = CliRunner().invoke(main, ["simulate", "digits:3"])
    assert done.exit_code == 2
    assert "bytes of a worker's memory, there are 4,096: use fewer samples" in done.stderr


def test_the_model_is_written_before_the_counters_are_shown(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(devices, "open_device", lambda _, config, workers, **__: EmulatedDevice(config, workers))
    monkeypatch.setattr(import_module("p4sgd.host.cli.commands.simulate"), "_show", full)
    done = CliRunner().invoke(main, ["simulate", *RUN, "--out", str(tmp_path / "model")])
    assert (done.exit_code, done.stderr) == (2, "p4sgd simulate: No space left on device\n")
    assert load_model(tmp_path / "model").training["epoch"] == 2


@pytest.mark.rtl
@pytest.mark.slow
def test_table_and_waveform(tmp_path):
    waves = tmp_path / "run.vcd"
    stdout = invoke("simulate", *RUN, "--waves", waves).stdout
    for name, _ in all_counters(WorkerConfig.tiny()):
        assert name.lower() in stdout
    assert "worker 1" in stdout
    assert "%" in stdout
    with waves.open() as file:
        start = file.read(100_000)
    assert "$timescale" in start
    assert "$var" in start
