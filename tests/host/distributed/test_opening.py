"""How processes were started: what may be wrong is told with a remedy, and the launcher is known again."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from p4sgd.host.distributed import SINGLE_PROCESS, open_communicator
from p4sgd.host.distributed.launching import launch_command
from p4sgd.host.errors import UserError

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
MODULE = "p4sgd.host.distributed.mpi"
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}
MPIEXEC = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in {*SIZES, *SRUN, *MPIEXEC}:
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


class Raising(ModuleType):
    """A package whose parts cannot be imported."""

    def __init__(self, said):
        super().__init__("mpi4py")
        self._said = said

    def __getattr__(self, name):
        raise RuntimeError(self._said)


MISSING = "cannot open shared object file: No such file or directory"
TRIED = ("libmpi.so.12", "libfabric.so.1", "/usr/lib/libmpi.so.40")
MANY = "\n".join(["cannot load MPI library", *(f"{name}: {MISSING}" for name in TRIED)])
"""What mpi4py says where there is MPICH without a library of its own; names that no library has are not told."""


@pytest.mark.parametrize(
    ("launcher", "installed", "says"),
    [
        ("slurm", None, r"'slurm'.* none, mpi"),
        ("mpi", None, r"pip install 'p4sgd\[mpi\]'"),
        ("mpi", SimpleNamespace(), r"no MPI library .*pip install mpich"),  # whose part MPI cannot be imported
        ("mpi", Raising(MANY), rf"library \(cannot load MPI library; libfabric\.so\.1: {MISSING}\): install"),
    ],
    ids=["no such launcher", "no mpi4py", "no library", "a library without its own"],
)
def test_what_is_missing(monkeypatch, launcher, installed, says):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", installed)
    with pytest.raises(UserError, match=says):
        open_communicator(launcher)


def test_without_mpiexec():
    with pytest.raises(UserError, match="mpiexec -n WORKERS p4sgd train"):
        open_communicator("mpi")


@pytest.mark.parametrize("name", SIZES)
def test_mpiexec_of_another_mpi(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(MpiCommunicator=lambda: SimpleNamespace(size=1)))
    with pytest.raises(UserError, match=r"mpiexec has started 4 processes, .* sees 1: .*use the mpiexec"):
        open_communicator("mpi")
    if name not in MPIEXEC:
        for each in SRUN.items():
            monkeypatch.setenv(*each)
        with pytest.raises(UserError, match=r"srun has started 4 processes, .* sees 1: .*--mpi for srun"):
            open_communicator("mpi")
    monkeypatch.setenv(name, "1")
    assert open_communicator("mpi").size == 1


@pytest.mark.parametrize(
    ("environment", "program"),
    [
        ({}, "mpiexec"),
        (SRUN, "srun"),
        ({"SLURM_JOB_ID": "7"}, "mpiexec"),
        *((SRUN | {name: "2"}, "mpiexec") for name in MPIEXEC),
    ],
    ids=["mpiexec", "srun", "a Slurm job's script", "MPICH within Slurm", "Open MPI within Slurm"],
)
def test_a_command_begins_with_the_launcher_of_this_process(monkeypatch, environment, program):
    """Within Slurm mpiexec starts its processes through srun, so they have Slurm's variables too."""
    for each in environment.items():
        monkeypatch.setenv(*each)
    command = launch_command(["p4sgd", "train"], SimpleNamespace(rank=1, size=2))
    assert command == [program, "-n", "2", "p4sgd", "train", "--launcher", "mpi"]
    assert launch_command(["p4sgd", "train"], SINGLE_PROCESS) == ["p4sgd", "train"]
