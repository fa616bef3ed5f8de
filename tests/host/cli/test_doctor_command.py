"""`p4sgd doctor`: the findings as a table, as sentences and as JSON, and an exit status."""

import json
import re

import pytest
from click.testing import CliRunner
from support.command_line import run
from support.failing_device import FailingDevice
from support.networked_device import NetworkedDevice

from p4sgd.host import devices
from p4sgd.host.cli.app import main
from p4sgd.host.devices.device import NetworkError


@pytest.fixture
def opened(monkeypatch):
    """Devices that were opened, with their options; their last worker hears nothing if ``deaf``."""
    found = []

    def open_device(name, config, workers, **options):
        device = NetworkedDevice(config, workers)
        if options.get("down_loss"):
            device.down = lambda worker, echo: None if worker == workers - 1 else echo
        found.append((name, config, options, device))
        return device

    monkeypatch.setattr(devices, "open_device", open_device)
    return found


def doctor(*words):
    return CliRunner().invoke(main, ["doctor", "--config", "tiny", *words])


def test_a_healthy_cluster(opened):
    done = doctor("--workers", "3")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [row[2] for row in rows] == ["passed"] * 3 * 5
    assert done.stdout.rstrip().endswith("the cluster can train")
    ((name, config, options, device),) = opened
    assert (name, config.lanes, options, len(device.workers), device.closed) == ("rtl", 8, {}, 3, True)


def test_a_sick_cluster(opened):
    done = doctor("--fault", "down_loss=0.5")
    assert done.exit_code == 1
    assert re.search("failed: worker 1: .*the way down .*: check", done.stdout)
    assert "left out" in done.stdout
    assert "can train" not in done.stdout
    assert opened[0][2] == {"down_loss": 0.5}
    done = doctor("--json", "--fault", "down_loss=0.5", "--quiet")
    document = json.loads(done.stdout)
    assert (done.exit_code, done.stderr, document["healthy"], document["complete"]) == (1, "", False, False)
    (found,) = [finding for finding in document["findings"] if finding["result"] == "failed"]
    assert (found["worker"], found["check"], "cable" in found["remedy"]) == (1, "link", True)
    assert found["evidence"] == {"probes": 32, "echoes": 0, "aggregator_frames": 32, "aggregator_echoes": 32}


def test_training_that_nobody_answers_names_the_doctor(monkeypatch):
    error = NetworkError("the aggregator does not answer worker 0")
    monkeypatch.setattr(devices, "open_device", lambda _, config, workers: FailingDevice(config, workers, 1, error))
    done = run("train", "breast_cancer", "--workers", "2", "--config", "small", status=1)
    problem, remedy = done.stderr.splitlines()[-2:]
    assert problem == "p4sgd train: the aggregator does not answer worker 0"
    assert "p4sgd doctor --device emulator --workers 2 --config small" in remedy
