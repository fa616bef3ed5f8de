"""A cluster of processes on this machine, in UDP on loopback addresses: starting it, finding it and ending it.

There is one if its supervisor (`p4sgd.host.serve.supervisor`) answers. That ends when it is told to, or when its
starter is gone before all processes answer. So nothing is left of a start that was broken off, and no file says that
there is a cluster when there is none.
"""

import contextlib
import os
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import ControlClient, GoneError
from p4sgd.hw.spec.config import NamedConfig
from p4sgd.sim.cache import cache_directory


@dataclass(frozen=True)
class ClusterRequest:
    """Options of `p4sgd cluster up`: a cluster ``file``, or a number of ``workers`` for which one is made.

    With ``racks`` so many have an aggregator of their own below the switch.

    The last ``sparse`` of them keep only features that are not 0, the others are of configuration ``config``; all have
    its slots. ``faults`` are of the workers' links, as ``link_loss=0.02``; worker i takes ``seed`` + i.
    """

    file: str | None
    workers: int
    racks: int
    sparse: int
    config: NamedConfig
    faults: tuple[str, ...]
    seed: int


_TIMEOUT_S = 10.0  # longest time without an answer of the supervisor
_LOOK_S = 0.1  # time between two looks whether it has ended

STAY = b"s"
"""What the starter sends when it has heard that all processes answer. If it hangs up before, it was killed."""

SOCKET = "control"
"""Name of the supervisor's socket in the folder."""

_END_S = 60.0  # longest time to wait for the end of all processes


def find_local_cluster() -> dict[str, Any] | None:
    """The state of this user's local cluster; None if none is running.

    It has ``file``, the path of its cluster file, ``folder``, with the logs, and ``members``: ``name``, ``config`` of a
    worker, ``control``, the ``command`` that starts it, ``pid``, and ``ended``, how it has ended or None.
    """
    return _ask("status")


def note_ended(error: Exception) -> None:
    """Add to an error that names processes of the local cluster how those have ended, and what starts them again."""
    with contextlib.suppress(UserError, P4sgdError):
        for each in (find_local_cluster() or {"members": []})["members"]:
            if each["ended"] and each["control"] in str(error):
                error.add_note(f"{each['name']} {each['ended']}; to start it again: {each['command']}")


def local_cluster_file() -> Path:
    """The cluster file of this user's local cluster; raises UserError if none is running."""
    found = find_local_cluster()
    if found is None:
        raise UserError("no local cluster is running: start one (p4sgd cluster up), or give --cluster FILE.toml")
    return Path(found["file"])


def start_local_cluster(request: ClusterRequest) -> dict[str, Any]:
    """Start a cluster and wait until all of its processes answer; returns its state.

    Whatever keeps it from returning ends all that was started: UserError if one is running or the request or its file
    is wrong, P4sgdError if one of the processes ends.
    """
    folder = make_folder()
    if (running := find_local_cluster()) is not None:
        ended = ", ".join(f"{each['name']} {each['ended']}" for each in running["members"] if each["ended"])
        raise UserError(
            f"a local cluster is running already{f', but {ended}' if ended else ''}: p4sgd cluster down ends it"
        )
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            python_command("from p4sgd.host.serve.supervisor import supervise; supervise()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
        answer = msgspec.json.decode(process.stdout.readline() or b"{}")
        if "members" not in answer:
            error = UserError if answer.get("is_users") else P4sgdError
            raise error(answer.get("error") or f"the cluster has ended: {folder}/cluster.log says why")
        process.stdin.write(STAY)
        process.stdin.close()
    except BaseException:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait(_END_S)
        raise
    finally:
        process.stdout.close()
    return dict(answer)


def end_local_cluster() -> dict[str, Any] | None:
    """End the local cluster; returns the state that it was in, None if none was running."""
    state = _ask("end")
    end = time.monotonic() + _END_S
    with contextlib.suppress(GoneError):  # it has ended while it was asked
        while state is not None and find_local_cluster() is not None:
            if time.monotonic() > end:
                raise P4sgdError(f"the cluster does not end: {state['folder']}/cluster.log may say why")
            time.sleep(_LOOK_S)
    return state


def _folder() -> Path:
    """The folder with socket, logs and file: ``p4sgd`` in $XDG_RUNTIME_DIR, else ``cluster`` in the cache."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    return runtime / "p4sgd" if runtime.is_absolute() and runtime.is_dir() else cache_directory() / "cluster"


def make_folder() -> Path:
    """Make the folder with socket, logs and file of the local cluster, which only its owner may look into."""
    folder = _folder()
    try:
        ControlAddress.parse(f"unix:{folder / SOCKET}")
    except UserError as error:
        raise UserError(f"{error}, by another $XDG_RUNTIME_DIR") from None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UserError(f"{folder}: is not a folder of yours: remove it, or choose another $XDG_RUNTIME_DIR")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UserError(f"{folder}: others may look into it: chmod 700 {folder}")
    return folder


def _ask(do: str) -> dict[str, Any] | None:
    """What the supervisor answers; None if there is none."""
    try:
        address = ControlAddress.parse(f"unix:{_folder() / SOCKET}")
    except UserError:  # too long a path for a socket
        return None
    try:
        client = ControlClient(address, "cluster", "the local cluster", "p4sgd cluster up", timeout_s=_TIMEOUT_S)
    except UserError as error:
        if isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
            return None
        raise
    with contextlib.closing(client):
        return dict(client.call(do)[0])


def python_command(program: str, *words: str) -> list[str]:
    """The command for a Python program; -P keeps modules in the current folder from being imported."""
    return [sys.executable, "-P", "-c", program, *words]
