"""The supervisor of a local cluster by itself. Whole clusters are in tests/system/test_local_cluster.py."""

import contextlib
import signal
import socket
import subprocess
import threading

import pytest

from p4sgd.host.errors import UserError
from p4sgd.host.serve import local_cluster
from p4sgd.host.serve.local_cluster import ClusterRequest, end_local_cluster, find_local_cluster
from p4sgd.host.serve.supervisor import _Member, _Supervisor


@pytest.mark.parametrize(
    ("command", "log", "ended"),
    [
        ("kill -KILL $$", "", "was killed (SIGKILL)"),
        (f"kill -{signal.SIGRTMIN + 1} $$", "", f"was killed (signal {signal.SIGRTMIN + 1})"),
        ("exit 0", "", "was ended"),
        ("exit 3", "first\nlast\n", "has ended with status 3: last"),
        ("exit 3", "", "has ended with status 3: it said nothing"),
        ("exit 3", None, "has ended with status 3: it said nothing"),
    ],
)
def test_how_a_process_has_ended(tmp_path, command, log, ended):
    member = _Member("worker 0", "worker", "tiny", f"unix:{tmp_path}/w", [], tmp_path / "log")
    if log is not None:
        member.log.write_text(log)
    member.process = subprocess.Popen(["sh", "-c", command])
    member.process.wait(10)
    assert member.ended == ended


def test_one_that_is_busy_is_not_taken_for_none(tmp_path, monkeypatch):
    """Nor is it for long, if its clients say nothing."""
    monkeypatch.setattr("p4sgd.host.serve.supervisor._IDLE_S", 2.0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    request = ClusterRequest(file=None, workers=1, sparse=0, config="tiny", slots=None, faults=(), seed=0)
    supervisor = _Supervisor(request)
    is_over = threading.Event()

    def serve():
        while not is_over.is_set():
            supervisor._server.turn(0.01)

    thread = threading.Thread(target=serve)
    with supervisor._opened, contextlib.ExitStack() as opened:
        thread.start()
        opened.callback(thread.join)
        opened.callback(is_over.set)
        for _ in range(8):
            silent = opened.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(str(tmp_path / "p4sgd" / local_cluster.SOCKET))
            assert silent.recv(1000)
        for does in (find_local_cluster, end_local_cluster):
            with pytest.raises(UserError, match=r"^the local cluster is in use by many programs: try again$"):
                does()
        while silent.recv(1000):  # until it hangs up
            pass
        assert [each["name"] for each in find_local_cluster()["members"]] == ["switch", "worker 0"]
    assert find_local_cluster() is None
