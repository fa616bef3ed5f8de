"""The supervisor of a cluster of processes on this machine: starts switch and workers, watches them, ends them all.

It is their parent, and has a control socket of its own. The kernel kills its children if it is killed.
"""

import contextlib
import ctypes
import errno
import functools
import json
import os
import secrets
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec

from p4sgd.host.aggregators.cluster_file import Cluster, read_cluster
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.links.opening import UDP
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlAddress, ControlListener, check_address
from p4sgd.host.rpc.client import ControlClient, GoneError
from p4sgd.host.rpc.server import ControlServer, Methods
from p4sgd.host.serve.local_cluster import SOCKET, STAY, ClusterRequest, make_folder, python_command
from p4sgd.hw.spec.config import NamedConfig
from p4sgd.hw.spec.udp import PORT, PROGRAM_PORTS
from p4sgd.sim.ending import ending_signals

_LOOK_S = 0.1  # time between two looks at the processes
_READY_S = 300.0  # longest time until all answer: the first start compiles the emulator's loops
_ANSWER_S = 10.0  # longest time until a process that listens greets
_PATIENCE_S = 10.0  # how long processes have to end by themselves


@dataclass
class _Member:
    """A process of the cluster; ``config`` is a worker's configuration, ``words`` are those of its command."""

    name: str
    server: str
    config: str | None
    control: str
    words: list[str]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    answers: bool = False

    def start(self) -> None:
        try:
            log = self.log.open("wb")
        except OSError as error:
            raise write_error(self.log, error) from None
        with log:
            self.process = subprocess.Popen(
                python_command("from p4sgd.host.cli import main; main()", *self.words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=functools.partial(_end_with_parent, ctypes.CDLL(None), os.getpid()),
            )

    @property
    def ended(self) -> str | None:
        """How the process has ended, None if it runs."""
        status = None if self.process is None else self.process.poll()
        if status is None:
            return None
        if status < 0:
            names = {each.value: each.name for each in signal.Signals}  # most real-time signals have none
            return f"was killed ({names.get(-status, f'signal {-status}')})"
        if status == 0:
            return "was ended"
        last = ""
        with contextlib.suppress(OSError):  # somebody has removed the log
            last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f"has ended with status {status}: {last or 'it said nothing'}"

    def check_answer(self) -> bool:
        if not self.answers:
            with contextlib.suppress(UserError, GoneError):
                address = ControlAddress.parse(self.control)
                ControlClient(address, self.server, self.name, "p4sgd cluster up", timeout_s=_ANSWER_S).close()
                self.answers = True
        return self.answers

    def find_successor(self) -> int | None:
        """The process that its user has started in its place, once it has ended; None if there is none."""
        if not self.answers or self.ended is None:
            return None
        try:
            with ControlAddress.parse(self.control).connect(_LOOK_S) as connection:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return None
        pid, user, _ = struct.unpack("=iII", credentials)  # struct ucred of unix(7)
        return pid if user == os.geteuid() else None

    def state(self) -> dict[str, Any]:
        """What `find_local_cluster` tells about it."""
        successor = self.find_successor()
        return {
            "name": self.name,
            "config": self.config,
            "control": self.control,
            "command": shlex.join(["p4sgd", *self.words]),
            "pid": successor or (None if self.process is None else self.process.pid),
            "ended": None if successor else self.ended,
        }


def _end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even if the parent is killed."""
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of linux/prctl.h
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


class _Supervisor:
    def __init__(self, request: ClusterRequest) -> None:
        self._folder = make_folder()
        self._is_over = False
        self._may_stay = False
        with contextlib.ExitStack() as opened:
            # First of all, as it is the lock.
            self._listener = ControlListener(ControlAddress(path=self._folder / SOCKET))
            self._server = ControlServer(
                self._listener,
                "cluster",
                Methods(status=self._status, end=self._end),
                most_clients=32,
                busy="is in use by many programs: try again",
            )
            opened.callback(self._server.close)
            self._file = (
                Path(request.file)
                if request.file is not None
                else _make_file(self._folder, request.workers, request.racks)
            )
            self._members = _members(self._folder, self._file, read_cluster(self._file), request)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Run the cluster until it is to end; print its state once all processes answer.

        Raises P4sgdError if one ends or does not answer before.
        """
        for number in ending_signals():
            signal.signal(number, self._stop)
        with self._opened:
            try:
                for member in self._members:
                    member.start()
                limit, is_ready = time.monotonic() + _READY_S, False
                while not self._is_over:
                    if not is_ready and self._all_answer(limit):
                        is_ready = True
                        print(json.dumps(self._status()), flush=True)
                    self._server.turn(_LOOK_S)
                    self._look_around()
            finally:
                self._end_members()

    def _all_answer(self, limit: float) -> bool:
        for member in self._members:
            if member.ended:
                raise P4sgdError(f"{member.name} {member.ended}")
            if not member.check_answer():
                if time.monotonic() > limit:
                    raise P4sgdError(f"{member.name} does not answer: {member.log} may say why")
                return False
        return True

    def _look_around(self) -> None:
        """End if the starter has hung up without having said that the cluster may stay, or if nobody could end it, as
        its socket is gone: removed, or with $XDG_RUNTIME_DIR after a log-out."""
        self._is_over |= not self._listener.can_be_found
        if not self._may_stay and select.select([sys.stdin], [], [], 0)[0]:
            self._may_stay = os.read(sys.stdin.fileno(), 1) == STAY
            self._is_over |= not self._may_stay

    def _end_members(self) -> None:
        """End the processes, and those that others have started in their stead."""
        pids = {member.process.pid for member in self._members if member.process and member.process.poll() is None}
        pids |= {pid for member in self._members if (pid := member.find_successor()) is not None}
        with contextlib.ExitStack() as opened:
            running = []
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    running.append(os.pidfd_open(pid))
                    opened.callback(os.close, running[-1])
            number, end = signal.SIGTERM, time.monotonic() + _PATIENCE_S
            while running := [each for each in running if not select.select([each], [], [], 0)[0]]:
                if number == signal.SIGTERM or time.monotonic() > end:
                    for each in running:
                        with contextlib.suppress(ProcessLookupError):
                            signal.pidfd_send_signal(each, number)
                    number = signal.SIGKILL
                self._server.turn(_LOOK_S)

    def _status(self) -> dict[str, Any]:
        members = [member.state() for member in self._members]
        return {"file": str(self._file), "folder": str(self._folder), "members": members}

    def _end(self) -> dict[str, Any]:
        self._stop()
        return self._status()

    def _stop(self, *_: Any) -> None:
        self._is_over = True


def supervise() -> None:
    """The program of the supervisor: takes a request from standard input, and prints the state once all answer."""
    try:
        _Supervisor(msgspec.json.decode(sys.stdin.readline(), type=ClusterRequest)).run()
    except (UserError, P4sgdError, OSError) as error:
        print(json.dumps({"error": str(error), "is_users": isinstance(error, UserError)}), flush=True)


# -- what it starts ----------------------------------------------------------------------------------------------------


def _make_file(folder: Path, workers: int, racks: int) -> Path:
    """Write a cluster file with free addresses, to which no other cluster comes even while it is being started."""
    switch, *others = _free_addresses(1 + workers + racks)
    text = f'''# made by p4sgd cluster up
[aggregator]
kind = "socket"
control = "unix:switch"
udp = "{switch}"

[network]
resend_us = {_RESEND_US}
'''
    for rack, address in enumerate(others[workers:]):
        text += f'\n[[racks]]\nkind = "socket"\ncontrol = "unix:rack{rack}"\nudp = "{address}"\nport = 0\nuplink = 0\n'
    for index, address in enumerate(others[:workers]):
        text += f'\n[[workers]]\ncontrol = "unix:worker{index}"\nudp = "{address}"\nport = 0\n'
        text += f"rack = {index * racks // workers}\n" if racks else ""
    path = folder / "cluster.toml"
    with new_file(path) as file:
        file.write(text.encode())
    return path


_RESEND_US = 20_000  # processes of one machine wait for a processor for longer than packets are under way

_TRIES = 100


def _free_addresses(count: int) -> list[str]:
    """Free UDP addresses with one loopback address, which is drawn at random so that clusters do not share it."""
    for _ in range(_TRIES):
        host = IPv4Address((127 << 24) + 2 + secrets.randbelow((1 << 24) - 3))
        ports = []
        for port in PROGRAM_PORTS:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
                try:
                    tried.bind((str(host), port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise UserError(f"loopback addresses such as {host} cannot be used: {error.strerror}") from None
                    continue
            if port != PORT:  # broadcasts come to that one
                ports.append(port)
            if len(ports) == count:
                return [f"{host}:{port}" for port in ports]
    raise UserError(f"there are no {count} free UDP ports from {PROGRAM_PORTS[0]} to {PROGRAM_PORTS[-1]}")


def _members(folder: Path, path: Path, cluster: Cluster, request: ClusterRequest) -> list[_Member]:
    """The processes of a cluster file, not started; raises UserError if it is for others than those of this machine."""
    workers = cluster.workers
    if request.sparse > len(workers):
        raise UserError(f"--sparse-workers {request.sparse}: there are only {len(workers)} workers")
    if cluster.aggregator.kind != "socket" or any(worker.board for worker in workers):
        raise UserError(f'{path}: this is no cluster of processes: p4sgd cluster up starts those with kind = "socket"')
    if not cluster.udp:
        raise UserError(f"{path}: p4sgd cluster up needs udp addresses for the aggregator and all workers")
    switches = [cluster.aggregator, *cluster.racks]
    for control in (*(switch.control for switch in switches), *(worker.control for worker in workers)):
        address = ControlAddress.parse(control)
        if address.path is None:
            raise UserError(f'{path}: p4sgd cluster up starts processes with control = "unix:PATH", not {control}')
        check_address(address)  # or another process would seem to be the one that is started
    if any(worker.port for worker in workers) or any(rack.port or rack.uplink for rack in cluster.racks):
        raise UserError(f"{path}: p4sgd cluster up starts switches with one port: give port = 0, and racks uplink = 0")
    sparse = NamedConfig.of("sparse", slots=request.config.config.slots)
    members = []
    for number, switch in enumerate(switches):
        words = ["switch", "serve", "--interface", UDP + udp_address_text(switch.address), "--control", switch.control]
        name = f"rack {number - 1}" if number else "switch"
        log = folder / f"{name.replace(' ', '')}.log"
        members.append(_Member(name, "aggregator", None, str(switch.control), words, log))
    for index, worker in enumerate(workers):
        config = sparse if index >= len(workers) - request.sparse else request.config
        words = ["worker", "--interface", UDP + udp_address_text(worker.local_mac), "--control", worker.control]
        words += config.options
        words += [word for fault in request.faults for word in ("--fault", fault)]
        words += ["--seed", str(request.seed + index)]
        log = folder / f"worker{index}.log"
        members.append(_Member(f"worker {index}", "worker", str(config), str(worker.control), words, log))
    return members
