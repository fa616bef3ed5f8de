"""The commands that run servers: `p4sgd switch serve` and `p4sgd worker`."""

import contextlib
import errno
import math
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError
from p4sgd.sim.ending import ending_signals

if TYPE_CHECKING:
    from p4sgd.host.rpc.address import ControlAddress
    from p4sgd.hw.spec.config import NamedConfig

_MOST_SLOTS = 1 << 20
"""Maximum number of slots of all jobs together: 1.6 GB, once all have been used with the longest frames."""

_control = options.together(
    click.option(
        "--control",
        required=True,
        metavar="ADDRESS",
        help="Control socket: unix:PATH, for its owner, or tcp:HOST:PORT.",
    ),
    options.path(
        "--token",
        "FILE",
        "With --control tcp:HOST:PORT: the file of the secret that clients must have, too, which only its owner may "
        "read. Needed for all but loopback addresses.",
    ),
)


def _read_address(control: str, token: Path | None) -> "tuple[ControlAddress, bytes | None]":
    from p4sgd.host.rpc.address import ControlAddress
    from p4sgd.host.rpc.token import read_token

    address = ControlAddress.parse(control)
    if token is not None and address.path is not None:
        raise UserError(f"--token is for tcp:HOST:PORT, not for {address}, which is its owner's anyway: leave it out")
    return address, None if token is None else read_token(token)


@click.command()
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    required=True,
    metavar="LINK",
    help="A port to workers: eth0 for an Ethernet interface, udp:10.0.0.1 or udp:10.0.0.1:51200 for UDP at an address "
    "of this machine, which serves any number of workers. Repeat it for each port of the aggregator, port 0 first.",
)
@_control
@options.count("--slots", 1, "Slots of each job.", most=1 << 16, default=4096)
@options.count("--jobs", 1, "Maximum number of jobs at a time.", most=256, default=8)
@options.common
def serve(interfaces: tuple[str, ...], control: str, token: Path | None, slots: int, jobs: int, output: Output) -> None:
    """Run a software aggregator in place of a switch.

    It receives the workers' packets on network interfaces, sums them up and answers, until Ctrl-C, SIGTERM or SIGHUP.
    Programs that train register their jobs over the control socket. Only its owner may connect to a Unix socket; over
    TCP, who has the token.

    Ethernet interfaces need the capability CAP_NET_RAW, which root has; setpriv or systemd gives it to other users.
    """
    from p4sgd.host.links import open_link
    from p4sgd.host.rpc.address import check_address
    from p4sgd.host.serve.aggregator import SoftwareAggregatorServer, warm_up
    from p4sgd.hw.spec.job import MAX_PORTS

    if slots * jobs > _MOST_SLOTS:
        raise UserError(
            f"--slots {slots} of --jobs {jobs} would be {slots * jobs:,} slots, the most are {_MOST_SLOTS:,}: "
            "ask for fewer of either"
        )
    if len(interfaces) > MAX_PORTS:
        raise UserError(f"--interface: an aggregator has at most {MAX_PORTS} ports, not {len(interfaces)}")
    if twice := {name for name in interfaces if interfaces.count(name) > 1}:
        raise UserError(f"--interface: {min(twice)} is given twice")
    address, secret = _read_address(control, token)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as opened:
        links = {}
        for name in interfaces:
            links[name] = opened.enter_context(contextlib.closing(open_link(name)))
            opened.enter_context(_claim(name))
        check_address(address, secret)  # before the loops are compiled
        with _ending_at_once():
            warm_up()
        server = SoftwareAggregatorServer(links, address, slots=slots, jobs=jobs, token=secret, tell=output.remark)
        opened.callback(server.close)
        for number in ending_signals():
            signal.signal(number, lambda number, frame: server.stop())
        output.document({"control": str(address), "interfaces": list(interfaces), "slots": slots, "jobs": jobs})
        output.remark(
            f"serving up to {jobs} jobs of {slots:,} slots on {', '.join(interfaces)}, control at {address}; Ctrl-C "
            "ends it"
        )
        server.run()


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Have signals end this process with status 0 while loops are compiled, before anybody is served.

    Numba's compiler calls Python from C, where an exception would be lost and become an error of its own.
    """
    numbers = ending_signals()
    before = [signal.signal(number, lambda number, frame: os._exit(0)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _claim(interface: str) -> Iterator[None]:
    """Let no other aggregator serve the same interface.

    An abstract socket's name is the lock: the system frees it however the process ends.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        try:
            claim.bind(f"\0p4sgd-aggregator-{interface.removeprefix('ethernet:')}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise UserError(f"--interface: another aggregator serves {interface}: end it first") from None
        yield


@click.command()
@click.option(
    "--interface",
    required=True,
    metavar="LINK",
    help="For packets: eth0 for an Ethernet interface; udp:10.0.0.2, or udp:10.0.0.2:51201 with a port, 51200 to "
    "51455, for UDP at an address of this machine.",
)
@_control
@options.worker_configuration(
    "Configuration of the worker. Workers of one job must have equally many slots; sparse keeps only features that are "
    "not 0, for sparse data.",
    hardware=False,
    default="small",
)
@options.count(
    "--memory-limit",
    1,
    "Limit of its memories, all together.",
    default=4096,
    metavar="MIB",
)
@click.option(
    "--speed",
    type=float,
    default=math.inf,
    show_default="no limit",
    metavar="VALUES",
    help="Values, features times samples or nonzeros, with which it computes in a second at most, 1000 or more, to try "
    "out a slow worker. As a stand-in it computes with as many again, on a second thread.",
)
@options.link_faults
@options.output(json=False, file=False)
def worker(
    interface: str,
    control: str,
    token: Path | None,
    config: "NamedConfig",
    memory_limit: int,
    speed: float,
    fault: dict[str, float],
    seed: int,
    output: Output,
) -> None:
    """Run a worker as a process, in place of a board.

    It serves one client at a time at its control socket: p4sgd train and doctor with --device cluster. It exchanges
    packets with an aggregator over the interface. A run whose client is gone is aborted after 10 s.

    Ctrl-C, SIGTERM or SIGHUP ends it, with status 0.
    """
    from concurrent.futures import ThreadPoolExecutor

    from p4sgd.host.links import Link, open_link
    from p4sgd.host.links.faulty import FaultyLink
    from p4sgd.host.rpc.address import ControlListener, check_address
    from p4sgd.host.serve.worker import WorkerServer, cycles_now
    from p4sgd.hw.spec.packet import most_micro_batches
    from p4sgd.sim.emulator import warm_up
    from p4sgd.sim.emulator.networked import NetworkedWorker

    address, secret = _read_address(control, token)
    if not speed >= 1000:  # also for nan
        raise UserError(f"--speed must be at least 1000 values a second, not {speed:g}: leave it out for full speed")
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        link: Link = stack.enter_context(contextlib.closing(open_link(interface)))
        if fault:
            link = FaultyLink(link, fault, seed)
        check_address(address, secret)  # before the loops are compiled
        most = most_micro_batches(link.most_bytes)
        later = ThreadPoolExecutor(1).submit  # its thread begins with the first run as a stand-in
        served = NetworkedWorker(config.config, link.send, cycles_now, speed=speed, most=most, later=later)
        with _ending_at_once():
            warm_up(config.config)
        listener = stack.enter_context(contextlib.closing(ControlListener(address, token=secret)))
        output.remark(f"a worker of configuration {config} on {interface}, at {address}")
        WorkerServer(served, link, listener, memory_limit << 20, tell=output.remark).serve()
