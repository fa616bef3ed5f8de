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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--slots", "3"], "--slots must be a power of two, not 3"),
        (["--slots", "8192"], "--slots must be 2 to 4096, not 8192"),
        (["--sparse"], "--sparse is --config sparse: leave --config tiny or --sparse out"),
        (["--fault", "memory_stall=0.1"], "there is no fault 'memory_stall': choose one of link_loss"),
        (["--fault", "up_burst_begin=0.1"], "--fault burst_begin without burst_end: bursts would never end"),
    ],
)
def test_workers_that_cannot_be(run, no_work, tmp_path, words, says):
    done = run(f"unix:{tmp_path}/board", *words)
    assert done.exit_code == 2
    assert says in done.stderr


def test_an_address_in_use(run, no_work, tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "board"))
        other.listen()
        done = run(address := f"unix:{tmp_path}/board")
    assert done.exit_code == 2
    assert f"{address}: another program" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run(address := f"tcp:127.0.0.1:{other.getsockname()[1]}")
    assert done.exit_code == 2
    assert f"{address}: another program" in done.stderr


def test_an_address_that_cannot_be(run, no_work, tmp_path):
    done = run(f"unix:{tmp_path}/none/board")
    assert done.exit_code == 2
    assert f"no folder {tmp_path}/none:" in done.stderr


def test_sparse_workers_are_not_simulated(run, no_work, tmp_path):
    done = run(f"unix:{tmp_path}/board", "--config", "sparse", "--sparse")
    assert done.exit_code == 2
    assert "sparse workers are programs and cannot be simulated: leave --device rtl out" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_compiler(run, monkeypatch, tmp_path):
    def build_single_worker(config):
        raise MissingToolError("g++ is missing; install it with: apt-get install g++")

    monkeypatch.setattr(build, "build_single_worker", build_single_worker)
    done = run(f"unix:{tmp_path}/board")
    assert done.exit_code == 1
    assert done.stderr.endswith("p4sgd worker: g++ is missing; install it with: apt-get install g++\n")
    assert list(tmp_path.iterdir()) == []
