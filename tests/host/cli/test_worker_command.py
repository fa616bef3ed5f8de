"""`p4sgd worker --device rtl`: what is wrong is told in a line, and before minutes of work if it can be."""

import socket

import pytest
from click.testing import CliRunner

from p4sgd.host import links
from p4sgd.host.cli.app import main
from p4sgd.host.serve import simulated_worker as simulated
from p4sgd.sim.cluster import build
from p4sgd.sim.verilator import MissingToolError


class Link:
    """An interface that is there."""

    def __init__(self, name):
        self.name = name

    def send(self, frame):
        pytest.fail("sends")

    def close(self):
        pass


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(links, "open_link", Link)

    def run(control, *more):
        words = ["worker", "--interface", "eth0", "--config", "tiny", "--device", "rtl", "--control", str(control)]
        return CliRunner().invoke(main, [*words, *more])

    return run


@pytest.fixture
def no_work(monkeypatch):
    monkeypatch.setattr(simulated, "SimulatedWorker", lambda *_: pytest.fail("worked first"))


def test_an_address_in_use(run, no_work, tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "board"))
        other.listen()
        done = run(f"unix:{tmp_path}/board")
    assert (done.exit_code, "board: another program" in done.stderr) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run(address := f"tcp:127.0.0.1:{other.getsockname()[1]}")
    assert (done.exit_code, f"{address}: another program" in done.stderr) == (2, True)


def test_a_missing_compiler(run, monkeypatch, tmp_path):
    def build_single_worker(config):
        raise MissingToolError("g++ is missing; install it with: apt-get install g++")

    monkeypatch.setattr(build, "build_single_worker", build_single_worker)
    done = run(f"unix:{tmp_path}/board")
    assert done.exit_code == 1
    assert done.stderr.endswith("p4sgd worker: g++ is missing; install it with: apt-get install g++\n")
    assert list(tmp_path.iterdir()) == []
