"""`p4sgd simulate`: a training run in RTL that counts its cycles, with the emulator's weights."""

import errno
import itertools
import json
import os
import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.command_line import run
from support.waves import TICKS, read_changes, skip_without_headers

from p4sgd.host import devices
from p4sgd.host.data import read_dataset
from p4sgd.host.training.model_file import load_model
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.registers import counters as all_counters
from p4sgd.hw.spec.run import EVENTS, STAGES
from p4sgd.sim.cluster import cluster, protocol
from p4sgd.sim.cluster.trace import Interval, Trace
from p4sgd.sim.emulator import EmulatedDevice

RUN = ["digits:3", "--samples", "64", "--epochs", "2", "--precision", "3", "--config", "tiny", "--workers", "2"]


@pytest.mark.rtl
@pytest.mark.slow
def test_cycles_by_cause_and_the_emulators_weights(tmp_path):
    model = tmp_path / "model"
    document = json.loads(run("simulate", *RUN, "--fault", "link_loss=0.01", "--out", model, "--json").stdout)
    assert document["device"] == "rtl"
    assert document["faults"] == {"link_loss": 655 / 65536}
    for counters in document["counters"]:
        assert set(counters) == set(all_counters(WorkerConfig.tiny()))
        causes = [value for name, value in counters.items() if name.startswith("CYCLES_")]
        assert counters["CYCLES"] == sum(causes) > 0
        assert counters["PACKETS_SENT"] >= 2 * 2 * 8, "a PARTIAL and an ACK for each of 8 micro-batches, twice"
    totals = [sum(epoch["counters"][1]["CYCLES"] for epoch in document["epochs"])]
    assert totals == [document["counters"][1]["CYCLES"]]

    # The same samples, through a file, on the emulator.
    data = read_dataset("digits:3")
    np.savez(tmp_path / "first.npz", X=data.features[:64], y=data.labels[:64])
    words = [tmp_path / "first.npz", *RUN[3:], "--json"]
    assert json.loads(run("train", *words).stdout)["weights_sha256"] == document["weights_sha256"]


def test_too_many_samples_are_refused_before_the_simulator_is_built(monkeypatch):
    monkeypatch.setattr(protocol, "MEMORY_BITS", 12)
    monkeypatch.setattr(cluster, "build_cluster", lambda *_: pytest.fail("a simulator takes minutes"))
    done = run("simulate", "digits:3", status=2)
    assert "bytes of a worker's memory, there are 4,096: use fewer samples" in done.stderr


@pytest.fixture
def emulated(monkeypatch):
    """The emulator in place of the simulator, which counts nothing; it gives a trace that ends early."""

    class Device(EmulatedDevice):
        def __init__(self, config, workers, *, on_trace=lambda trace: None, **_):
            super().__init__(config, workers)
            self._on_trace = on_trace

        def close(self):
            self._on_trace(Trace(2 * [{stage: [Interval(0, 0, 5, 6)] for stage in STAGES}], False))

    monkeypatch.setattr(devices, "open_device", lambda _, *sizes, **options: Device(*sizes, **options))
    module = import_module("p4sgd.host.cli.simulate")
    monkeypatch.setattr(module, "_show_counters", lambda *_: None)
    return lambda show: monkeypatch.setattr(module, "_show_counters", show)


def test_the_model_is_written_before_the_counters_are_shown(tmp_path, emulated):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    emulated(full)
    done = run("simulate", *RUN, "--quiet", "--out", tmp_path / "model", status=2)
    assert done.stderr == "p4sgd simulate: No space left on device\n"
    assert load_model(tmp_path / "model").training["epoch"] == 2


def test_minutes_of_silence_are_announced_and_a_trace_may_end_early(tmp_path, emulated):
    trace = tmp_path / "run.json"
    done = run("simulate", *RUN, "--trace", trace)
    assert done.stderr.count("preparing the simulator") == 1
    assert f"trace in {trace}, which ends after 1 micro-batches" in done.stdout
    quiet = run("simulate", *RUN, "--trace", trace, "--json", "--quiet")
    assert (json.loads(quiet.stdout)["trace"], quiet.stderr) == (str(trace), "")


WAVES = "p4sgd simulate wine:1 --config tiny --workers 1 --waves run.fst --waves-scope worker0 --waves-window 3000:3400"
"""A command of a README, with the second mini-batch in the window."""


@pytest.mark.rtl
@pytest.mark.slow
def test_waveform_of_a_part_and_a_mini_batch(tmp_path, monkeypatch):
    """Of one worker: that simulator takes half as long to build. The trace is written by another part of it."""
    skip_without_headers()
    monkeypatch.chdir(tmp_path)
    run(*WAVES.split()[1:], "--trace", "run.json")
    happened, second = {name: set() for name in EVENTS}, set()  # the cycles of each event, and of the mini-batch
    for event in json.loads(Path("run.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            first = round(event["ts"] * 1000 / CLOCK_NS)
            last = first + event["args"]["cycles"] - 1
            for name, cycle in zip(STAGES[event["cat"]], (first, last), strict=True):
                happened[name].add(cycle)
            second |= {first, last} if event["args"]["mini_batch"] == 1 else set()
    begin, end = map(int, WAVES.rpartition(" ")[2].split(":"))
    assert begin < min(second) < max(second) < end

    changes = read_changes(Path("run.fst"))
    assert {".".join(name.split(".")[:2]) for name in changes} == {"cluster.worker0"}
    readme = (Path(cluster.__file__).with_name("README.md")).read_text()
    shown = re.findall(r"`(worker0\.[\w.]*)`", readme)
    assert len(shown) == 9
    assert {f"cluster.{name}" for name in shown} <= {*changes}
    assert not any(part.startswith(("$", "port$")) for name in changes for part in name.split(".")), "without a name"
    edges = [at for at, value in changes["cluster.worker0.clk"] if value]
    assert edges == [cycle * TICKS for cycle in range(begin, end)]
    pulses = {name: set() for name in EVENTS}  # the cycles whose edge an event comes with
    for (since, bits), (until, _) in pairwise([*changes["cluster.worker0.events"], (end * TICKS, 0)]):
        for bit, name in enumerate(EVENTS):
            pulses[name] |= {*range(since // TICKS + 1, until // TICKS + 1)} if bits >> bit & 1 else set()
    for name in {*EVENTS} - {"mini_batch_begins"}:
        assert pulses[name] == {cycle for cycle in happened[name] if begin < cycle <= end}, name


@pytest.mark.rtl
@pytest.mark.slow
def test_table_trace_and_report(tmp_path):
    trace, report = tmp_path / "run.json", tmp_path / "run.html"
    faults = ["--fault", "memory_stall=0.1", "--fault", "up_loss=0.05", "--batch", 32]
    stdout = run("simulate", *RUN, *faults, "--trace", trace, "--timeline", "--report", report).stdout
    for name in all_counters(WorkerConfig.tiny()):
        assert name.lower() in stdout
    assert "worker 1" in stdout
    assert "%" in stdout

    # 2 epochs of 64 samples are 16 micro-batches, in mini-batches of 4.
    assert f"trace in {trace}\n" in stdout
    assert "worker 0, mini-batch 1: " in stdout
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    for worker, stage in itertools.product((1, 2), STAGES):
        numbers = sorted(
            (event["args"]["micro_batch"], event["args"]["mini_batch"])
            for event in events
            if (event["pid"], event["cat"]) == (worker, stage)
        )
        assert numbers == [(number, number // 4) for number in range(16)]

    # The report has the same cycles and the same mini-batch.
    (cycles,) = re.findall(r"worker 0, mini-batch 1: (\d+) cycles", stdout)
    page = report.read_text()
    assert f"Worker 0 in mini-batch 1, {int(cycles):,} cycles" in page
    (counted,) = re.findall(r"^\s*cycles +cycles +([\d,]+)", stdout, re.MULTILINE)
    assert f"<td>{counted}</td>" in page
    assert "predicted" in page
