"""Link configurations for v++ (UG1393): a worker, an aggregator or a self-test in the vendor's shell of a board.

A configuration names the kernels, the memory of every memory port, the streams between kernels, and the wires to the
shell.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from p4sgd.build.fpga import kernel as kernels
from p4sgd.build.fpga.kernel import FREE_CLOCK, REFERENCE_CLOCK, TRANSCEIVERS, BusKind, Kernel, memory_bus
from p4sgd.build.generate.artifacts import header_comment
from p4sgd.build.generate.boards import Board, HbmMap, map_memories
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

_FIFO_DEPTH = 16  # depth in beats of the FIFO in a stream: with it no ready signal has to cross dies within one cycle

_EMULATED_WORKERS = 2
"""Workers in the emulator, if the board has the memory ports for them: the fewest whose sums need packets of others."""


@dataclass(frozen=True)
class Design:
    """Instances of kernels, and their connections."""

    kernels: tuple[Kernel, ...]
    summary: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)  # instances of kernels that have more than one, by name
    memories: Mapping[str, str] = field(default_factory=dict)  # v++'s names, by memory port, ``<instance>.<bus>``
    streams: tuple[tuple[str, str], ...] = ()  # source and sink
    wires: tuple[tuple[str, str], ...] = ()  # ``<instance>/<port>`` and a name in the shell, in either order
    dies: Mapping[str, int] = field(default_factory=dict)  # of instances that are placed on a single die
    debug: bool = False  # whether v++ adds debug cores at ports of kernels


@dataclass(frozen=True)
class Xclbin:
    """A device binary (xclbin) to be built: the bitstream for a board, or its counterpart for an emulator."""

    name: str  # that of its main kernel
    board: Board
    designs: Mapping[str, Design]  # by target of v++: ``hw`` is the board, ``hw_emu`` the emulator of the hardware
    aggregator: AggregatorConfig | None = None  # on the board, or beside the workers in the emulator
    worker: WorkerConfig | None = None  # the worker, or the one whose ports a self-test has
    memory: HbmMap | None = None  # of the worker

    @property
    def trains(self) -> bool:
        """Whether the design for the emulator is a cluster that can train."""
        return self.worker is not None and self.aggregator is not None

    @property
    def kernels(self) -> dict[str, Kernel]:
        """Kernels of all targets, by name."""
        return {kernel.name: kernel for design in self.designs.values() for kernel in design.kernels}


def bank(channels: range) -> str:
    """Pseudo channels in the notation of v++, which makes one memory of several."""
    return f"HBM[{channels[0]}]" if len(channels) == 1 else f"HBM[{channels[0]}:{channels[-1]}]"


def link_configuration(design: Design, board: Board, command: str) -> str:
    """A file for ``v++ --link --config``; its first line names ``command``."""
    lines = [
        header_comment("# {}", command),
        f"# What v++ links: {design.summary}.",
        "",
        f"platform={board.shell.platform}",
        f"kernel_frequency={1000 // CLOCK_NS}",
        "save-temps=1",
        *(["debug=1"] if design.debug else []),
        "",
        "[connectivity]",
        # Instances get the names that v++ chooses, <kernel>_1, <kernel>_2, …: between names of a list UG1393 has a dot
        # up to 2022.1 and a comma from 2023.1 on ("Creating Multiple Instances of a Kernel").
        *(f"nk={kernel.name}:{design.counts.get(kernel.name, 1)}" for kernel in design.kernels),
        *(f"sp={port}:{memory}" for port, memory in design.memories.items()),
        *(f"stream_connect={source}:{sink}:{_FIFO_DEPTH}" for source, sink in design.streams),
        *(f"connect={one}:{other}" for one, other in design.wires),
        *(f"slr={unit}:SLR{die}" for unit, die in design.dies.items()),
        *(_watched(design.kernels) if design.debug else ()),
    ]
    return "\n".join(lines) + "\n"


def _watched(kernels: Iterable[Kernel]) -> Iterator[str]:
    """The section of a configuration by which v++ adds debug cores at ports of kernels (UG1393, --debug Options).

    All memory ports have a protocol checker. A logic analyser, which takes some 20 block RAMs, records the first and
    the last of them, and streams.
    """
    yield from ("", "[debug]")
    for kernel in kernels:
        if kernel.ip:
            continue  # its streams are those of the others
        memories = [bus.name for bus in kernel.buses_of(BusKind.MEMORY)]
        streams = [bus.name for bus in kernel.buses_of(BusKind.STREAM)]
        yield from (f"protocol={kernel.unit}:{name}" for name in memories)
        recorded = dict.fromkeys([*memories[:1], *memories[-1:], *streams])
        yield from (f"chipscope={kernel.unit}:{name}" for name in recorded)


def worker_xclbin(config: WorkerConfig, board: Board, *, build_id: int = 0, debug: bool = False) -> Xclbin:
    """A worker behind the MAC of QSFP28 port 0; for ``debug`` its kernels have debug cores.

    A MAC cannot be emulated, nor several boards with cables between them. So the design for the emulator is a cluster
    of its own: workers, a stand-in for the MAC of each, and an aggregator. Memories of the workers are in the same
    channels, where XRT gives each its own buffers.

    ValueError if the worker has more memory ports than the board, or the board has no memory for the labels.
    """
    memory = _memory(config, board)
    worker, mac = kernels.worker(config, board, build_id, debug=debug), kernels.cmac(0, build_id, debug=debug)
    hw = Design(
        (worker, mac),
        "a worker and the MAC of QSFP28 port 0",
        memories=_memories([worker.unit], memory, board),
        streams=(_stream(worker, mac), _stream(mac, worker, "rx", "rx")),
        wires=tuple(wires(mac.unit, board, 0)),
        dies={mac.unit: board.network_die},
        debug=debug,
    )
    count = min(_EMULATED_WORKERS, max(1, board.hbm.channels // config.memories))
    stand_in = kernels.emulated_cmac(build_id)
    sizes = AggregatorConfig(slots=config.slots, jobs=2, ports=count)
    aggregator = kernels.aggregator(sizes, build_id)
    streams: list[tuple[str, str]] = []
    for index in range(count):
        one, line = worker.unit_at(index), stand_in.unit_at(index)
        streams += [
            (f"{one}.axis_tx", f"{line}.axis_tx"),
            (f"{line}.axis_line_tx", f"{aggregator.unit}.axis_rx{index}"),
            (f"{aggregator.unit}.axis_tx{index}", f"{line}.axis_line_rx"),
            (f"{line}.axis_rx", f"{one}.axis_rx"),
        ]
    emulated = Design(
        (worker, stand_in, aggregator),
        f"{count} worker{'s' * (count > 1)}, each behind a stand-in for its MAC, and an aggregator",
        {worker.name: count, stand_in.name: count},
        _memories([worker.unit_at(index) for index in range(count)], memory, board),
        tuple(streams),
    )
    return Xclbin(worker.name, board, {"hw": hw, "hw_emu": emulated}, sizes, config, memory)


def aggregator_xclbin(board: Board, *, build_id: int = 0, debug: bool = False) -> Xclbin:
    """An aggregator between the MACs of a board's QSFP28 ports; in the emulator every port is looped back."""
    config = AggregatorConfig(ports=len(board.cages))
    main = kernels.aggregator(config, build_id)
    macs = [kernels.cmac(port, build_id, debug=debug) for port in range(config.ports)]
    designs = _between_macs(
        main,
        macs,
        board,
        "an aggregator between the MACs of all QSFP28 ports",
        "an aggregator whose ports are looped back, as MACs cannot be emulated",
        dies={kernel.unit: board.network_die for kernel in (main, *macs)},
        debug=debug,
    )
    return Xclbin(main.name, board, designs, config)


def selftest_xclbin(config: WorkerConfig, board: Board, *, build_id: int = 0) -> Xclbin:
    """A self-test with the memory ports of a worker, and the MACs of all QSFP28 ports; raises as `worker_xclbin`."""
    memory = _memory(config, board)
    main = kernels.self_test(config, board, build_id)
    macs = [kernels.cmac(port, build_id) for port in range(len(board.cages))]
    designs = _between_macs(
        main,
        macs,
        board,
        "a self-test of the memory ports of a worker and the MACs of all QSFP28 ports",
        "a self-test whose Ethernet ports are looped back, as MACs cannot be emulated",
        memories=_memories([main.unit], memory, board),
        dies={mac.unit: board.network_die for mac in macs},
    )
    return Xclbin(main.name, board, designs, None, config, memory)


def _between_macs(
    main: Kernel,
    macs: list[Kernel],
    board: Board,
    summary: str,
    emulated: str,
    *,
    dies: Mapping[str, int],
    memories: Mapping[str, str] | None = None,
    debug: bool = False,
) -> dict[str, Design]:
    """A kernel that has a port for each MAC; in the emulator without MACs, each port to itself."""
    ports = range(len(macs))
    hw = Design(
        (main, *macs),
        summary,
        memories=memories or {},
        streams=(
            *(_stream(main, macs[port], f"tx{port}", "tx") for port in ports),
            *(_stream(macs[port], main, "rx", f"rx{port}") for port in ports),
        ),
        wires=tuple(wire for port in ports for wire in wires(macs[port].unit, board, port)),
        dies=dies,
        debug=debug,
    )
    looped = tuple(_stream(main, main, f"tx{port}", f"rx{port}") for port in ports)
    return {"hw": hw, "hw_emu": Design((main,), emulated, memories=hw.memories, streams=looped)}


def _memory(config: WorkerConfig, board: Board) -> HbmMap:
    memory = map_memories(config, board.hbm)
    if memory.labels_share and not board.shell.other_memory:
        raise ValueError(
            f"the engines take all {board.hbm.channels} channels of memory, and an {board.name} has no other memory "
            "for the labels: choose a configuration with fewer engines"
        )
    return memory


def _memories(units: Iterable[str], memory: HbmMap, board: Board) -> dict[str, str]:
    """Memory of each memory port of instances of a kernel, as in `Design`."""
    names = memory_names(memory, board)
    return {f"{unit}.{memory_bus(number)}": name for unit in units for number, name in enumerate(names)}


def memory_names(memory: HbmMap, board: Board) -> list[str]:
    """Memory of each memory port of a worker, as v++ calls it."""
    names = [bank(channels) for channels in memory.channels]
    if memory.labels_share:
        names[-1] = board.shell.other_memory
    return names


def _stream(source: Kernel, sink: Kernel, out: str = "tx", into: str = "tx") -> tuple[str, str]:
    return f"{source.unit}.axis_{out}", f"{sink.unit}.axis_{into}"


def wires(unit: str, board: Board, port: int) -> Iterator[tuple[str, str]]:
    """Connections of the MAC of a cage, an instance, to the shell, as in `Design`."""
    cage = board.cages[port]
    yield cage.reference_clock, f"{unit}/{REFERENCE_CLOCK}"
    yield f"{unit}/{TRANSCEIVERS}", cage.transceivers
    yield f"{unit}/{FREE_CLOCK}", board.shell.free_clock
