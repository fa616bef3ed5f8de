"""`p4sgd worker --device rtl`: what is wrong is told in a line, and before minutes of work if it can be."""

import socket

import pytest
from click.testing import CliRunner
from support.loopback import loopback

from p4sgd.host.cli.app import main
from p4sgd.host.serve import simulated_worker as simulated
from p4sgd.sim.cluster import build
from p4sgd.sim.verilator import MissingToolError


def run(control):
    words = ["worker", "--interface", f"udp:{loopback(130)}", "--config", "tiny", "--device", "rtl"]
    return CliRunner().invoke(main, [*words, "--control", control])


def test_an_address_in_use(monkeypatch, tmp_path):
    monkeypatch.setattr(simulated, "SimulatedWorker", lambda *_: pytest.fail("worked first"))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "board"))
        other.listen()
        done = run(f"unix:{tmp_path}/board")
    assert (done.exit_code, "board: another program" in done.stderr) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run(address := f"tcp:127.0.0.1:{other.getsockname()[1]}")
    assert (done.exit_code, f"{address}: another program" in done.stderr) == (2, True)


def test_a_missing_compiler(monkeypatch, tmp_path):
    def build_single_worker(config):
        raise MissingToolError("g++ is missing; install it with: apt-get install g++")

    monkeypatch.setattr(build, "build_single_worker", build_single_worker)
    done = run(f"unix:{tmp_path}/board")
    assert done.exit_code == 1
    assert done.stderr.endswith("p4sgd worker: g++ is missing; install it with: apt-get install g++\n")
    assert list(tmp_path.iterdir()) == []
