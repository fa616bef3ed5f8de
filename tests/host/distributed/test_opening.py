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


class Raising(ModuleType):
    """A package whose parts cannot be imported."""

    def __getattr__(self, name):
        raise RuntimeError(MANY)


MISSING = "cannot open shared object file: No such file or directory"
MANY = "\n".join(["cannot load MPI library", *(f"{name}: {MISSING}" for name in ("libmpi.so.12", "libfabric.so.1"))])
"""What mpi4py says where there is MPICH without a library of its own; names that no library has are not told."""


def opened_by(size):
    """The module of the communicator, with so many ranks."""
    return {MODULE: SimpleNamespace(MpiCommunicator=lambda: SimpleNamespace(size=size))}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(
    ("launcher", "started", "modules", "says"),
    [
        ("none", "4", {}, None),
        (None, None, {}, None),
        (None, "1", {}, None),
        ("mpi", "1", {}, None),
        ("mpi", "4", opened_by(4), None),
        (None, "2", {}, r"was started 2 times, .* --launcher mpi"),
        ("mpi", None, {}, "mpiexec -n WORKERS p4sgd train"),
        ("slurm", "2", {}, r"'slurm'.* none, mpi"),
        ("mpi", "2", {"mpi4py": None}, r"pip install 'p4sgd\[mpi\]'"),
        ("mpi", "2", {"mpi4py": SimpleNamespace()}, r"no MPI library .*pip install mpich"),  # without a part MPI
        ("mpi", "2", {"mpi4py": Raising("mpi4py")}, rf"\(cannot load MPI library; libfabric\.so\.1: {MISSING}\): in"),
        ("mpi", "4", opened_by(1), r"has started 4 processes, .* sees 1: use the mpiexec .* srun another --mpi"),
    ],
)
def test_opening(monkeypatch, name, launcher, started, modules, says):
    for each in SRUN.items() if name == SIZES[2] else ():
        monkeypatch.setenv(*each)
    if started is not None:
        monkeypatch.setenv(name, started)
    for each, module in modules.items():
        monkeypatch.setitem(sys.modules, each, module)
    if says is None:
        found = open_communicator(launcher)
        assert found.size == 4 if modules else found is SINGLE_PROCESS
    else:
        with pytest.raises(UserError, match=says):
            open_communicator(launcher)


@pytest.mark.parametrize(
    ("environment", "program"),
    [
        ({}, "mpiexec"),
        (SRUN, "srun"),
        ({"SLURM_JOB_ID": "7"}, "mpiexec"),  # a job's script
        *((SRUN | {name: "2"}, "mpiexec") for name in MPIEXEC),  # which starts its processes through srun
    ],
)
def test_a_command_begins_with_the_launcher_of_this_process(monkeypatch, environment, program):
    for each in environment.items():
        monkeypatch.setenv(*each)
    command = launch_command(["p4sgd", "train"], SimpleNamespace(rank=1, size=2))
    assert command == [program, "-n", "2", "p4sgd", "train", "--launcher", "mpi"]
    assert launch_command(["p4sgd", "train"], SINGLE_PROCESS) == ["p4sgd", "train"]
