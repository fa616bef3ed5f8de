"""The simulator's process: however it ends, nothing of it stays. Programs of a few lines stand in for the simulator."""

import contextlib
import os
import signal
import sys
import tempfile
import time

import pytest

from p4sgd.sim.cluster import process
from p4sgd.sim.cluster.process import ClusterProcess
from p4sgd.sim.verilator import Build, SimulationError

CONNECT = """
import os, time
from multiprocessing.connection import Connection
client = Connection(0)
def answer():
    client.recv()
    client.send(os.getpid())
"""
OBEDIENT = CONNECT + "while True: answer()"
HANGING = CONNECT + "answer()\nanswer()\ntime.sleep(600)"
DEAF = "import os, time\nopen('../group', 'w').write(str(os.getpgrp()))\ntime.sleep(600)"
BROKEN = "open('simulation.log', 'w').write('no licence')"


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder for temporary files; empty again at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "_STOP_SECONDS", 1.0)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def stand_in(monkeypatch, program):
    """Have clusters start a program, by way of a parent as cocotb's runner is one."""
    runner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}])"
    monkeypatch.setattr(process, "_SIMULATOR", (sys.executable, "-c", runner))
    return Build(None, "cluster", False)


def gone(pid, *, group=False):
    """Whether a process or a group is gone; an orphan stays for a moment until it is reaped."""
    for _ in range(50):
        try:
            (os.killpg if group else os.kill)(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def interrupted_after(seconds):
    """Ctrl-C after a while, which must get through."""
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_an_answer_to_another_request_is_never_taken_and_who_hangs_is_killed(scratch, monkeypatch):
    with ClusterProcess(stand_in(monkeypatch, HANGING), {}) as cluster:
        pid = cluster.request("who")
        with interrupted_after(0.5):
            cluster.request("who")
        with pytest.raises(SimulationError, match="ended unexpectedly"):
            cluster.request("who")
    assert gone(pid), "the simulator itself, not just the process that started it"


def test_ctrl_c_while_starting_and_while_waiting_for_the_end(scratch, monkeypatch):
    monkeypatch.setattr(process, "_STOP_SECONDS", 60.0)
    cluster = ClusterProcess(stand_in(monkeypatch, HANGING), {})
    pid = cluster.request("who")
    with interrupted_after(0.5):
        cluster.close()
    assert gone(pid)
    monkeypatch.setattr(process, "_STOP_SECONDS", 1.0)
    with interrupted_after(3.0):
        ClusterProcess(stand_in(monkeypatch, DEAF), {})
    group = scratch / "group"
    assert gone(int(group.read_text()), group=True)
    group.unlink()


def test_it_does_not_start_or_ends_and_its_files_stay_until_closed(scratch, monkeypatch):
    with pytest.raises(SimulationError, match=r"did not start:\nno licence"):
        ClusterProcess(stand_in(monkeypatch, BROKEN), {})
    cluster = ClusterProcess(stand_in(monkeypatch, OBEDIENT), {"seed": 1})
    assert cluster.directory.parent == scratch
    os.kill(cluster.request("who"), signal.SIGKILL)
    with pytest.raises(SimulationError, match="ended unexpectedly"):
        cluster.request("who")
    assert cluster.directory.is_dir(), "a waveform may be in it"
    cluster.close()
    cluster.close()
    monkeypatch.setattr(process, "_SIMULATOR", (str(scratch / "none"),))
    with pytest.raises(FileNotFoundError):
        ClusterProcess(Build(None, "cluster", False), {})
