"""Folders with what Vivado needs to make a design that tries out a card alone.

The smallest design that shows that a card, its clock and its serial port work.

Folders with what Vivado needs to make a design that tries out a card alone.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import io, wiring
from amaranth.lib.wiring import Out

from p4sgd.build.demos.loopback import FREE_MEGAHERTZ, LoopbackDemonstration
from p4sgd.build.demos.serial import BAUD, Report
from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform, program_script
from p4sgd.build.fpga.cmac import CMACS_U280, crossing_constraints, ip_script
from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
from p4sgd.hw.kernel.verilog import CMAC_IP, CMAC_KERNEL, cmac_kernel

__all__ = [
    "DEMONSTRATIONS",
    "PROGRAM",
    "Demonstration",
    "Heartbeat",
    "HeartbeatDemonstration",
    "demonstration_files",
    "generate",
]


class Heartbeat(wiring.Component):
    """Tells every second by a serial line how many seconds there have been since reset.

    Parameters
    ----------
    clock_hz
        Frequency of the domain ``sync``.
    baud
        Bits a second on the line.

    Members
    -------
    line : Out(1)
        8 bits, no parity, one stop bit: ``p4sgd heartbeat 0000002a``, carriage return, new line.
    """

    line: Signal

    def __init__(self, clock_hz: int, baud: int = BAUD) -> None:
        self._clock_hz = clock_hz
        self._baud = baud
        super().__init__({"line": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.report = report = Report(
            "p4sgd heartbeat {seconds}",
            {"seconds": 32},
            period_cycles=self._clock_hz,
            bit_cycles=round(self._clock_hz / self._baud),
        )
        cycle = Signal(range(self._clock_hz))
        seconds = Signal(32)
        with m.If(cycle == self._clock_hz - 1):
            m.d.sync += [cycle.eq(0), seconds.eq(seconds + 1)]
        with m.Else():
            m.d.sync += cycle.eq(cycle + 1)
        m.d.comb += [report.numbers.seconds.eq(seconds), self.line.eq(report.line)]
        return m


class HeartbeatDemonstration(Elaboratable):
    """`Heartbeat` at the serial port of a board with a default clock and a resource ``uart``."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.heartbeat = heartbeat = Heartbeat(int(platform.default_clk_frequency))
        m.submodules.tx = tx = io.Buffer(io.Direction.Output, platform.request("uart", dir="-").tx)
        m.d.comb += tx.o.eq(heartbeat.line)
        return m


PROGRAM = "program.tcl"
"""Loads the bitstream into the card."""

_KERNEL = f"{CMAC_KERNEL}.v"
_IP = f"{CMAC_IP}.tcl"
_CROSSINGS = f"{CMAC_KERNEL}.xdc"


def _no_files(command: str) -> dict[str, str]:
    return {}


def _cmac_files(command: str) -> dict[str, str]:
    return {
        _KERNEL: f"{header_comment('// {}', command)}\n{cmac_kernel().text}",
        _IP: ip_script(CMAC_IP, CMACS_U280[0], FREE_MEGAHERTZ, command),
        _CROSSINGS: crossing_constraints(command),
    }


@dataclass(frozen=True)
class Demonstration:
    """A design, and what Vivado has to be told of it.

    Attributes
    ----------
    design
        Makes the design.
    files
        More files by name, made with the command for their first lines.
    script
        Tcl before synthesis.
    """

    design: Callable[[], Elaboratable]
    files: Callable[[str], dict[str, str]] = _no_files
    script: str = ""


DEMONSTRATIONS = {
    "heartbeat": Demonstration(HeartbeatDemonstration),
    "loopback": Demonstration(
        LoopbackDemonstration,
        _cmac_files,
        # The MAC is synthesised with the rest, so that its clocks are there when constraints are read.
        f"add_files {_KERNEL}\n"
        f"source {_IP}\n"
        f"set_property generate_synth_checkpoint false [get_files [get_property IP_FILE [get_ips {CMAC_IP}]]]\n"
        f"read_xdc -ref {CMAC_KERNEL} {_CROSSINGS}",
    ),
}
"""By the names that the command line takes."""


def demonstration_files(name: str, command: str) -> dict[str, str]:
    """All files by name; the same name gives the same bytes.

    Parameters
    ----------
    name
        Of `DEMONSTRATIONS`; the design's files have it too.
    command
        Command that makes the files, for their first lines.

    Raises
    ------
    KeyError
        If there is no such demonstration.
    """
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    demonstration = DEMONSTRATIONS[name]
    options = {"script_after_read": demonstration.script} if demonstration.script else {}
    plan = AlveoU280Platform().build(demonstration.design(), name, do_build=False, emit_src=False, **options)
    automatic = f"Automatically generated by Amaranth {version('amaranth')}. Do not edit."
    files = {
        file: text.replace(automatic, header_comment("{}", command))
        for file, text in plan.files.items()
        if file != f"{name}.debug.v"  # says only that it is not asked for
    }
    return {
        **files,
        **demonstration.files(command),
        PROGRAM: f"{header_comment('# {}', command)}\n{program_script(f'{name}.bit')}",
    }


def generate(name: str, folder: Path) -> list[Path]:
    """Write a demonstration to a folder, whole or not at all; returns the files.

    Parameters
    ----------
    name
        Of `DEMONSTRATIONS`.
    folder
        Where; an earlier output is replaced, anything else is refused.

    Raises
    ------
    KeyError
        If there is no such demonstration.
    ForeignFolderError
        If the folder holds files that were not generated.
    OSError
        If the folder cannot be written.
    """
    check_folder(folder)  # before the work
    command = f"p4sgd build demo {name} --out DIR"
    return write_folder(folder, demonstration_files(name, command), {"generated_by": command, "demonstration": name})
