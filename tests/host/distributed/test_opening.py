"""What may be wrong where a process is to be one of several is told with what to do."""

import sys
from types import SimpleNamespace

import pytest

from p4sgd.host.distributed import SINGLE_PROCESS, open_communicator
from p4sgd.host.errors import UserError

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
MODULE = "p4sgd.host.distributed.mpi"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def test_a_process_is_alone_unless_it_is_told_otherwise(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    assert open_communicator("none") is SINGLE_PROCESS


@pytest.mark.parametrize("name", SIZES)
def test_several_processes_that_were_not_told_to_be_one_job(monkeypatch, name):
    assert open_communicator(None) is SINGLE_PROCESS
    monkeypatch.setenv(name, "1")
    assert open_communicator(None) is SINGLE_PROCESS
    monkeypatch.setenv(name, "2")
    with pytest.raises(UserError, match=r"was started 2 times, .* --launcher mpi"):
        open_communicator(None)


def test_unknown_launcher():
    with pytest.raises(UserError, match="no launcher 'slurm'; there are none, mpi"):
        open_communicator("slurm")


def test_without_mpiexec():
    with pytest.raises(UserError, match="mpiexec -n WORKERS p4sgd train"):
        open_communicator("mpi")


@pytest.mark.parametrize("name", SIZES)
def test_without_mpi4py(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match=r"pip install 'p4sgd\[mpi\]'"):
        open_communicator("mpi")


def test_without_a_library(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace())  # whose part MPI cannot be imported
    with pytest.raises(UserError, match="finds no MPI library"):
        open_communicator("mpi")


@pytest.mark.parametrize("name", SIZES)
def test_mpiexec_of_another_mpi(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(MpiCommunicator=lambda: SimpleNamespace(size=1)))
    with pytest.raises(UserError, match="has started 4 processes, but mpi4py's MPI library sees 1"):
        open_communicator("mpi")
    monkeypatch.setenv(name, "1")
    assert open_communicator("mpi").size == 1
