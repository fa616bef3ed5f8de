"""Launchers by name: how the processes of a job were started, and so how they find each other."""

import os
from typing import TYPE_CHECKING

from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import ALONE, Alone

if TYPE_CHECKING:
    from p4sgd.host.launch.mpi import MpiCommunicator

__all__ = ["LAUNCHERS", "open_communicator"]

LAUNCHERS = ("none", "mpi")
"""Names, the default first."""

_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where MPICH, Open MPI and Slurm tell a process how many they have started; the first that is there counts."""


def open_communicator(launcher: str | None) -> "Alone | MpiCommunicator":
    """Meet the other processes of the job.

    Parameters
    ----------
    launcher
        One of `LAUNCHERS`; ``None``, if the user has named none, is the first.

    Raises
    ------
    UserError
        If there is no such launcher, if it has not started this process, or if MPI is not there or is another one than
        the launcher's; or if none was named, but several processes were started, which all would do the same.
    """
    started = next((os.environ[name] for name in _SIZES if name in os.environ), None)
    if launcher is None:
        if started not in (None, "1"):
            raise UserError(
                f"was started {started} times, and each would train by itself: --launcher mpi has them train together "
                f"(--launcher none, if each is to do so)"
            )
        return ALONE
    if launcher not in LAUNCHERS:
        raise UserError(f"there is no launcher {launcher!r}; there are {', '.join(LAUNCHERS)}")
    if launcher == "none":
        return ALONE
    if started == "1":
        return ALONE
    if started is None:
        raise UserError(
            "the launcher mpi is for processes that mpiexec starts: mpiexec -n WORKERS p4sgd train … --launcher mpi"
        )
    try:
        from p4sgd.host.launch.mpi import MpiCommunicator
    except ModuleNotFoundError as error:
        raise UserError("the launcher mpi needs mpi4py: pip install 'p4sgd[mpi]'") from error
    except (ImportError, RuntimeError) as error:  # what mpi4py says without a library
        raise UserError(
            f"mpi4py finds no MPI library ({error}): install one, or pip install mpich, whose mpiexec then is the one "
            f"to use"
        ) from error
    communicator = MpiCommunicator()
    if str(communicator.size) != started:
        raise UserError(
            f"mpiexec has started {started} processes, but mpi4py's MPI library sees {communicator.size}: they are of "
            f"different MPIs; use the mpiexec that belongs to the library"
        )
    return communicator
