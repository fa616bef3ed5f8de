"""Link configurations for v++ (UG1393): a worker or an aggregator in the vendor's shell of a board.

A configuration names the kernels, the memory of every memory port, the streams between kernels, and the wires to the
shell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from p4sgd.build.fpga import kernel as kernels
from p4sgd.build.fpga.cmac import CMACS_U280, CmacPlace
from p4sgd.build.fpga.kernel import FREE_CLOCK, REFERENCE_CLOCK, TRANSCEIVERS, Kernel, memory_bus
from p4sgd.build.generate.artifacts import header_comment
from p4sgd.build.generate.devices import DEVICES, HBM_U280, Hbm, HbmMap, map_memories
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

__all__ = ["SHELLS", "Design", "Shell", "Xclbin", "aggregator_xclbin", "bank", "link_configuration", "worker_xclbin"]


@dataclass(frozen=True)
class Shell:
    """A Vitis platform. Its board must have HBM: a worker's memories are mapped to nothing else yet.

    Attributes
    ----------
    platform
        Name of the platform.
    part
        The FPGA.
    releases
        Releases of the tools that support the platform, oldest first.
    hbm
        The board's high-bandwidth memory; v++ calls its channels ``HBM[i]``.
    other_memory
        Memory for the labels if the banks take all ports of HBM.
    transceivers, reference_clocks
        Names of the platform's interfaces for each QSFP28 port.
    free_clock, free_megahertz
        Pin of the platform's free-running clock, and its frequency.
    macs
        Place of the MAC of each QSFP28 port.
    """

    platform: str
    part: str
    releases: tuple[str, ...]
    hbm: Hbm
    other_memory: str
    transceivers: tuple[str, ...]
    reference_clocks: tuple[str, ...]
    free_clock: str
    free_megahertz: int
    macs: tuple[CmacPlace, ...]


SHELLS = {
    "u280": Shell(
        "xilinx_u280_gen3x16_xdma_1_202211_1",
        "xcu280-fsvh2892-2L-e",
        ("2022.1", "2022.2", "2023.1"),
        HBM_U280,
        "DDR[0]",
        ("io_gt_qsfp0_00", "io_gt_qsfp1_00"),
        ("io_clk_qsfp0_refclka_00", "io_clk_qsfp1_refclka_00"),
        "ii_level0_wire/ulp_m_aclk_freerun_ref_00",
        100,
        CMACS_U280,
    )
}
"""Shells, by the name of the board in `p4sgd.build.generate.devices.DEVICES`.

Names of transceivers and clocks are taken from public designs for this shell: the post-link script of the vendor's
100G example (github.com/Xilinx/xup_vitis_network_example, Ethernet/post_sys_link.tcl) and the link configuration of
github.com/pc2/AuroraFlow (test/cfg/aurora_flow_test_hw.cfg). Reference clock ``a`` is the board's Si570, 156.25 MHz
after power-up; ``b`` is another oscillator, which can be set to 161.13 MHz (UG1314).

The free-running clock has 100 MHz: AuroraFlow makes its IP for that (tcl/create_aurora_ip.tcl, C_INIT_CLK), and the
vendor's script has 100 MHz for boards whose shells have a pin of this name. The 50 MHz that it has for the U280 are
those of another pin, ``clk_gt_freerun``, of an older shell (xilinx_u280_xdma_201920_3)."""


_FIFO_DEPTH = 16
"""Depth in beats of the FIFO in a stream: with it no ready signal has to cross dies within one cycle."""


@dataclass(frozen=True)
class Design:
    """Kernels, one instance of each, and their connections.

    Attributes
    ----------
    kernels
        The kernels.
    memories
        Memory of each memory port, as v++ names it; by the name of the port, ``<instance>.<bus>``.
    streams
        Streams, as pairs of source and sink.
    wires
        Other connections, as pairs of ``<instance>/<port>`` and a name in the shell, in either order.
    dies
        Die of each instance that is placed on a single one.
    """

    kernels: tuple[Kernel, ...]
    memories: dict[str, str] = field(default_factory=dict)
    streams: tuple[tuple[str, str], ...] = ()
    wires: tuple[tuple[str, str], ...] = ()
    dies: dict[str, int] = field(default_factory=dict)


def bank(channels: range, other: str) -> str:
    """Pseudo channels in the notation of v++, which makes one memory of several; the other memory if there are none."""
    if not channels:
        return other
    return f"HBM[{channels[0]}]" if len(channels) == 1 else f"HBM[{channels[0]}:{channels[-1]}]"


def link_configuration(design: Design, shell: Shell, summary: str, command: str) -> str:
    """A file for ``v++ --link --config``.

    Parameters
    ----------
    design
        The design to link.
    shell
        The shell of the board.
    summary
        Description of the design, for a comment.
    command
        Command that makes the file.
    """
    lines = [
        header_comment("# {}", command),
        f"# What v++ links: {summary}.",
        "",
        f"platform={shell.platform}",
        f"kernel_frequency={1000 // CLOCK_NS}",
        "save-temps=1",
        "",
        "[connectivity]",
        *(f"nk={kernel.name}:1:{kernel.unit}" for kernel in design.kernels),
        *(f"sp={port}:{memory}" for port, memory in design.memories.items()),
        *(f"stream_connect={source}:{sink}:{_FIFO_DEPTH}" for source, sink in design.streams),
        *(f"connect={one}:{other}" for one, other in design.wires),
        *(f"slr={unit}:SLR{die}" for unit, die in design.dies.items()),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Xclbin:
    """A device binary (xclbin) to be built: the bitstream for a board, or its counterpart for an emulator.

    Attributes
    ----------
    name
        Its name, that of its main kernel.
    board
        The board, one of `SHELLS`.
    designs
        Design by target of v++: ``hw`` is the board, ``hw_emu`` the emulator of the hardware.
    summaries
        Description of the design by target.
    aggregator
        Size of the aggregator, which is on the board, or beside a worker in the emulator.
    worker, memory
        Size of the worker, and its memories; None for an aggregator.
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
        """Kernels of all targets, by name."""
        return {kernel.name: kernel for design in self.designs.values() for kernel in design.kernels}


def worker_xclbin(config: WorkerConfig, board: str, *, build_id: int = 0) -> Xclbin:
    """A worker behind the MAC of QSFP28 port 0.

    A MAC cannot be emulated. In the emulator an aggregator takes its place, so that the worker can train alone.

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
    return Xclbin(
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


def aggregator_xclbin(board: str, *, udp: bool = False, build_id: int = 0) -> Xclbin:
    """An aggregator between the MACs of a board's QSFP28 ports; in the emulator every port is looped back.

    Parameters
    ----------
    board, build_id
        As in `worker_xclbin`.
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
    return Xclbin(
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
