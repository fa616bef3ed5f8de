"""The command `p4sgd worker`."""

import contextlib

import click

from p4sgd.host.cli.options import configuration, quiet_option
from p4sgd.host.cli.output import SIMULATOR_OPENING, Output
from p4sgd.host.errors import UserError

__all__ = ["worker"]


@click.command()
@click.option("--interface", required=True, help="Network interface for its packets, such as eth0.")
@click.option(
    "--control",
    required=True,
    metavar="ADDRESS",
    help="Where its registers and memory are served: unix:PATH, for the owner only, or tcp:HOST:PORT, for everybody "
    "who can connect.",
)
@click.option(
    "--config", "name", type=configuration, default="small", show_default=True, help="Configuration of the worker."
)
@click.option(
    "--device",
    type=click.Choice(["emulator", "rtl"]),
    default="emulator",
    show_default=True,
    help="What the worker is made of: arithmetic, or its Verilog under Verilator, which needs g++ and make.",
)
@click.option(
    "--memory-limit",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    metavar="MIB",
    help="How much the emulator's memories may hold, all together; those of rtl have a fixed size.",
)
@quiet_option
def worker(interface: str, control: str, name: str, device: str, memory_limit: int, quiet: bool) -> None:
    """Be a worker: a board made of a process.

    It trains for who connects to its control socket, one client at a time: p4sgd train and doctor with --device
    cluster. Sums are formed by packets over the interface. A run goes on when its client is gone, as on a board, but is
    aborted after 10 s.

    SIGTERM or Ctrl-C ends it, with status 0.
    """
    from p4sgd.host.board.served import ServedWorker
    from p4sgd.host.board.server import BoardServer, cycles_now
    from p4sgd.host.board.simulated import SimulatedWorker
    from p4sgd.host.control.address import ControlAddress
    from p4sgd.host.control.listening import ControlListener, check_address
    from p4sgd.host.links import open_link
    from p4sgd.hw.spec.config import PRESETS
    from p4sgd.sim.cluster.protocol import MEMORY_BITS
    from p4sgd.sim.emulator import NetworkedWorker, warm_up

    output = Output(quiet=quiet)
    address = ControlAddress.parse(control)
    if interface.startswith("udp:"):
        raise UserError("--interface: workers speak Ethernet only: give the name of an interface, such as eth0")
    config = PRESETS[name]()
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        link = stack.enter_context(contextlib.closing(open_link(interface)))
        served: ServedWorker
        if device == "rtl":
            check_address(address)  # before the work
            with output.working(SIMULATOR_OPENING, told=True):
                served = stack.enter_context(contextlib.closing(SimulatedWorker(config, link.send)))
            memory_limit = config.memories << MEMORY_BITS - 20
        else:
            served = NetworkedWorker(config, link.send, cycles_now)
            with output.working("getting ready"):
                warm_up(config)
        listener = stack.enter_context(contextlib.closing(ControlListener(address)))
        output.remark(f"a worker of configuration {name} ({device}) on {interface}, at {address}")
        BoardServer(served, link, listener.socket, memory_limit << 20).serve()
