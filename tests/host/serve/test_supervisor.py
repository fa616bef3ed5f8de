"""The supervisor of a local cluster by itself. Whole clusters are in tests/system/test_local_cluster.py."""

import signal
import subprocess

import pytest

from p4sgd.host.serve.supervisor import _Member


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
