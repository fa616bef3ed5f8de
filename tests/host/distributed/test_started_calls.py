"""Sums and broadcasts that are started and waited for later: exact, in any order, for all ranks or one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.mpi import MPIEXEC, needs_mpi

from p4sgd.host.distributed import open_communicator

OWNERS = (None, 0, 1, None, 2)


def values(rank, number):
    """Large values, whose sum no float64 holds; shapes differ, and one array is not contiguous."""
    drawn = np.random.default_rng([rank, number]).integers(-(2**60), 2**60, (2 * number + 1, 3))
    return drawn.T if number == 3 else drawn


def check_sums(ranks):
    """Start all sums, then wait for the last one first."""
    started = [ranks.start_sum(values(ranks.rank, number), owner) for number, owner in enumerate(OWNERS)]
    for number, owner in reversed(list(enumerate(OWNERS))):
        total = started[number].wait()
        if owner in (None, ranks.rank):
            np.testing.assert_array_equal(total, sum(values(rank, number) for rank in range(ranks.size)), strict=True)
        else:
            assert total is None


def check_broadcasts(ranks):
    """With a sum under way between them."""
    sent = [values(owner, 0) / 3 for owner in range(ranks.size)]
    buffers = [sent[owner] if owner == ranks.rank else np.zeros((1, 3)) for owner in range(ranks.size)]
    started = [ranks.start_broadcast(buffer, owner) for owner, buffer in enumerate(buffers)]
    check_sums(ranks)
    for owner in reversed(range(ranks.size)):
        np.testing.assert_array_equal(started[owner].wait(), sent[owner], strict=True)


def check_interruption(ranks):
    """Ctrl-C in one rank leaves the sums alone, and ends all ranks in the next other call."""
    started = [ranks.start_sum(values(ranks.rank, number)) for number in range(2)]
    if ranks.rank == 1:
        signal.raise_signal(signal.SIGINT)
    assert ranks.interrupted == (ranks.rank == 1)
    assert started[1].wait() is not None
    with pytest.raises(KeyboardInterrupt):
        ranks.all_gather(0)
    assert not ranks.interrupted
    check_sums(ranks)  # while the first sum of above is still there


def check_interruptible(ranks):
    """Ctrl-C in one rank ends all when they wait for the sum that says so, and not before."""
    for interrupted in (False, True):
        started = [ranks.start_sum(values(ranks.rank, 3))]
        if interrupted and ranks.rank == 1:
            signal.raise_signal(signal.SIGINT)
        started.append(ranks.start_sum(values(ranks.rank, 3), interruptible=True))
        total = sum(values(rank, 3) for rank in range(ranks.size))
        np.testing.assert_array_equal(started[0].wait(), total)
        if interrupted:
            started.append(ranks.start_sum(values(ranks.rank, 3)))  # for which nobody is going to wait
            with pytest.raises(KeyboardInterrupt):
                started[1].wait()
            assert not started[2].request, "nothing is under way when MPI ends"
        else:
            np.testing.assert_array_equal(started[1].wait(), total, strict=True)
    check_sums(ranks)


@needs_mpi
def test_mpi():
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [MPIEXEC, "-n", "3", sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["done"] * 3), done.stderr


if __name__ == "__main__":  # as a rank
    communicator = open_communicator("mpi")
    check_broadcasts(communicator)
    check_interruption(communicator)
    check_interruptible(communicator)
    sys.stdout.write("done\n")
