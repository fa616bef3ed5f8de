"""What boards can be: a worker, or an aggregator."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from p4sgd.build.devices import DEVICES
from p4sgd.build.hbm import HbmMap, map_memories
from p4sgd.build.vitis import kernel as kernels
from p4sgd.build.vitis.kernel import FREE_CLOCK, REFERENCE_CLOCK, TRANSCEIVERS, Kernel, memory_bus
from p4sgd.build.vitis.link import Design, bank
from p4sgd.build.vitis.shell import SHELLS, Shell
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["Image", "aggregator_image", "worker_image"]


@dataclass(frozen=True)
class Image:
    """What a board is loaded with.

    Attributes
    ----------
    name
        Its name, that of the kernel that matters.
    board
        The board, one of `SHELLS`.
    designs
        What v++ links, by its targets: ``hw``, the board, and ``hw_emu``, an emulator of its logic.
    summaries
        What that is, in a sentence each.
    aggregator
        Size of the aggregator, on the board or beside a worker in the emulator.
    worker, memory
        Size of the worker and its memory; None of an aggregator.
    """

    name: str
    board: str
    designs: Mapping[str, Design]
    summaries: Mapping[str, str]
    aggregator: AggregatorConfig
    worker: WorkerConfig | None = None
    memory: HbmMap | None = None

    @property
    def kernels(self) -> dict[str, Kernel]:
        """Kernels of all targets by name."""
        return {kernel.name: kernel for design in self.designs.values() for kernel in design.kernels}


def worker_image(config: WorkerConfig, board: str, *, build_id: int = 0) -> Image:
    """A worker behind QSFP28 port 0.

    A MAC cannot be emulated. So the emulator has an aggregator at the worker's streams, and the worker can train alone.

    Parameters
    ----------
    config
        Size of the worker.
    board
        One of `SHELLS`.
    build_id
        Number that the BUILD_ID registers give.

    Raises
    ------
    KeyError
        If there is no such board.
    ValueError
        If the worker has more memory ports than the board.
    """
    shell = SHELLS[board]
    memory = map_memories(config, shell.hbm)
    worker = kernels.worker(config, DEVICES[board], build_id)
    mac = kernels.cmac(0, build_id)
    sizes = AggregatorConfig(slots=config.slots, jobs=2, ports=len(shell.macs), udp=config.udp)
    aggregator = kernels.aggregator(sizes, build_id)
    memories = {
        f"{worker.unit}.{memory_bus(number)}": bank(channels, shell.other_memory)
        for number, channels in enumerate(memory.channels)
    }
    return Image(
        worker.name,
        board,
        {
            "hw": Design(
                (worker, mac),
                memories,
                (_stream(worker, mac), _stream(mac, worker, "rx", "rx")),
                tuple(_wires(mac, shell, 0)),
                {mac.unit: DEVICES[board].network_die},
            ),
            "hw_emu": Design(
                (worker, aggregator),
                memories,
                (
                    _stream(worker, aggregator, "tx", "rx0"),
                    _stream(aggregator, worker, "tx0", "rx"),
                    *(_stream(aggregator, aggregator, f"tx{port}", f"rx{port}") for port in range(1, sizes.ports)),
                ),
            ),
        },
        {
            "hw": "a worker and the MAC of QSFP28 port 0",
            "hw_emu": "a worker and, in place of the MAC, which cannot be emulated, an aggregator",
        },
        sizes,
        config,
        memory,
    )


def aggregator_image(board: str, *, udp: bool = False, build_id: int = 0) -> Image:
    """An aggregator between the QSFP28 ports of a board; in the emulator what leaves a port comes back in.

    Parameters
    ----------
    board, build_id
        As in `worker_image`.
    udp
        Whether packets travel in UDP.

    Raises
    ------
    KeyError
        If there is no such board.
    """
    shell = SHELLS[board]
    config = AggregatorConfig(ports=len(shell.macs), udp=udp)
    aggregator = kernels.aggregator(config, build_id)
    ports = range(config.ports)
    macs = [kernels.cmac(port, build_id) for port in ports]
    die = DEVICES[board].network_die
    return Image(
        aggregator.name,
        board,
        {
            "hw": Design(
                (aggregator, *macs),
                {},
                (
                    *(_stream(aggregator, macs[port], f"tx{port}", "tx") for port in ports),
                    *(_stream(macs[port], aggregator, "rx", f"rx{port}") for port in ports),
                ),
                tuple(wire for port in ports for wire in _wires(macs[port], shell, port)),
                {kernel.unit: die for kernel in (aggregator, *macs)},
            ),
            "hw_emu": Design(
                (aggregator,), {}, tuple(_stream(aggregator, aggregator, f"tx{port}", f"rx{port}") for port in ports)
            ),
        },
        {
            "hw": "an aggregator between the MACs of all QSFP28 ports",
            "hw_emu": "an aggregator whose ports are looped back, as MACs cannot be emulated",
        },
        config,
    )


def _stream(source: Kernel, sink: Kernel, out: str = "tx", into: str = "tx") -> tuple[str, str]:
    return f"{source.unit}.axis_{out}", f"{sink.unit}.axis_{into}"


def _wires(mac: Kernel, shell: Shell, port: int) -> Iterator[tuple[str, str]]:
    yield shell.reference_clocks[port], f"{mac.unit}/{REFERENCE_CLOCK}"
    yield f"{mac.unit}/{TRANSCEIVERS}", shell.transceivers[port]
    yield f"{mac.unit}/{FREE_CLOCK}", shell.free_clock
