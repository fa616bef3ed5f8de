"""How launchers start the processes that train together, and how these find each other."""

import errno
import os
from collections.abc import Sequence

from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError

LAUNCHERS = ("none", "mpi")
"""Names of launchers, the default first: ways to start the processes that train together."""

# Environment variables: with the number of processes, of MPICH, Open MPI and Slurm, of which the first one set counts;
# set in every process that srun starts; and set by the mpiexec of MPICH (Hydra) and of Open MPI (ORTE, PRTE) alone.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_SLURM = ("SLURM_STEP_ID", "SLURM_PROCID")
_MPIEXEC = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_SIZE")


def launcher_program() -> str:
    """The program to start several processes with: ``srun`` if it has started this one, otherwise ``mpiexec``.

    Within a Slurm allocation mpiexec reaches other nodes through srun, so its processes have Slurm's variables too.
    """
    by_slurm = all(name in os.environ for name in _SLURM) and not any(name in os.environ for name in _MPIEXEC)
    return "srun" if by_slurm else "mpiexec"


def launch_command(command: Sequence[str], communicator: Communicator) -> list[str]:
    """Prefix a ``p4sgd train`` command with the launcher, to start it with as many processes as there are now."""
    if communicator.size == 1:
        return list(command)
    return [launcher_program(), "-n", str(communicator.size), *command, "--launcher", "mpi"]


def open_communicator(launcher: str | None) -> Communicator:
    """Find the other processes that were started with this one, by one of `LAUNCHERS`; ``None`` names none.

    Raises `UserError` if the launcher has not started this process, if MPI is missing or does not belong to the
    launcher, or if none is named although several processes were started, each of which would train alone.
    """
    started = next((os.environ[name] for name in _SIZES if name in os.environ), None)
    if launcher is None:
        if started not in (None, "1"):
            raise UserError(
                f"was started {started} times, and each process would train alone: choose --launcher mpi to train "
                f"together, or --launcher none"
            )
        return SINGLE_PROCESS
    if launcher not in LAUNCHERS:
        raise UserError(f"there is no launcher {launcher!r}: choose one of {', '.join(LAUNCHERS)}")
    if launcher == "none" or started == "1":
        return SINGLE_PROCESS
    if started is None:
        raise UserError(
            "the launcher mpi is for processes that mpiexec starts: mpiexec -n WORKERS p4sgd train … --launcher mpi"
        )
    try:
        from p4sgd.host.distributed.mpi import MpiCommunicator
    except ModuleNotFoundError as error:
        raise UserError("the launcher mpi needs mpi4py: pip install 'p4sgd[mpi]'") from error
    except (ImportError, RuntimeError) as error:  # raised by mpi4py where there is no MPI library
        missing = os.strerror(errno.ENOENT)  # of each name that it may have, in a line
        lines = [line.strip() for line in str(error).splitlines() if not ("libmpi" in line and missing in line)]
        raise UserError(
            f"mpi4py finds no MPI library ({'; '.join(lines)}): install one, or pip install mpich, and use its mpiexec"
        ) from error
    communicator = MpiCommunicator()
    if str(communicator.size) != started:
        raise UserError(
            f"{launcher_program()} has started {started} processes, but mpi4py's MPI library sees {communicator.size}: "
            f"use the mpiexec that belongs to the library, or with srun another --mpi (srun --mpi=list shows them)"
        )
    return communicator
