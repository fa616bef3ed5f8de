"""Parts of AMD's UltraScale+ FPGAs that Verilog for its tools has, and other tools lack or infer from plain logic."""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, Instance, Module, ResetSignal, Signal

from p4sgd.hw.dsp import DspAdder
from p4sgd.hw.primitives import KEEP
from p4sgd.hw.verilog import DebugCore

__all__ = ["MARK", "UltraScalePlus"]

MARK = {"ASYNC_REG": "TRUE"}  # of synchronizers: Vivado places these together and keeps them as they are (UG901)

_ADDER: dict[str, int | str] = {
    # One register each for A, B, C, P and the controls, none for what multiplication needs.
    **dict.fromkeys(("AREG", "ACASCREG", "BREG", "BCASCREG", "CREG", "PREG", "OPMODEREG", "ALUMODEREG"), 1),
    **dict.fromkeys(("ADREG", "DREG", "MREG", "INMODEREG", "CARRYINREG", "CARRYINSELREG"), 0),
    "USE_MULT": "NONE",
}
"""Parameters of a DSP48E2 that is an adder (UG579, table "DSP48E2 Attributes"); the others have their defaults."""

_ADDS = 0b11_11
"""Bits 0 to 3 of OPMODE: A:B and C are added (UG579, tables of the multiplexers X and Y)."""

_UNUSED = """
    D:27 ACIN:30 BCIN:18 CARRYIN:1 CARRYCASCIN:1 CARRYINSEL:3 MULTSIGNIN:1 INMODE:5 CEA1:1 CEB1:1 CED:1 CEAD:1 CEM:1
    CEINMODE:1 CECARRYIN:1 RSTD:1 RSTM:1 RSTP:1 RSTALLCARRYIN:1 RSTALUMODE:1 RSTCTRL:1 RSTINMODE:1
"""
"""Inputs of a DSP48E2 that is an adder which are tied to 0, and their widths."""

_ENABLES = ("CEA2", "CEB2", "CEC", "CEP", "CECTRL", "CEALUMODE")  # those of its registers


class UltraScalePlus:
    """Platform for ``to_verilog`` with synchronizers that have the attribute `MARK`, and adders in DSP slices.

    Amaranth's own synchronizers for this vendor instantiate cells that other tools lack. The first register of each is
    named ``stage0``; what it samples must be a register, and is kept: for constraints on the paths between them.
    ``debug_cores`` are those of the design, once it has been written; None if it shall have none.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self.debug_cores: list[DebugCore] | None = [] if debug else None

    def get_ff_sync(self, synchronizer: Any) -> Module:
        """Make the module of an `amaranth.lib.cdc.FFSynchronizer`."""
        m = Module()
        value = synchronizer.i
        value.attrs.update(KEEP)
        settings = {"init": synchronizer._init, "reset_less": synchronizer._reset_less, "attrs": MARK}
        for stage in range(synchronizer._stages):
            later = Signal(synchronizer.i.shape(), name=f"stage{stage}", **settings)
            m.d[synchronizer._o_domain] += later.eq(value)
            value = later
        m.d.comb += synchronizer.o.eq(value)
        return m

    def get_async_ff_sync(self, synchronizer: Any) -> Module:
        """Make the module of an `amaranth.lib.cdc.AsyncFFSynchronizer`."""
        m = Module()
        rises = synchronizer._edge == "pos"
        m.domains.async_ff = ClockDomain("async_ff", async_reset=True, local=True)
        m.d.comb += [
            ClockSignal("async_ff").eq(ClockSignal(synchronizer._o_domain)),
            ResetSignal("async_ff").eq(synchronizer.i if rises else ~synchronizer.i),
        ]
        stages = [Signal(init=1, name=f"stage{stage}", attrs=MARK) for stage in range(synchronizer._stages)]
        m.d.async_ff += Cat(stages).eq(Cat(Const(0, 1), stages[:-1]))
        m.d.comb += synchronizer.o.eq(stages[-1])
        return m

    def get_dsp_adder(self, adder: DspAdder) -> Module:
        """Make the module of a `DspAdder`: a DSP48E2."""
        m = Module()
        unused = (each.split(":") for each in _UNUSED.split())
        m.submodules.dsp = Instance(
            "DSP48E2",
            **{f"p_{name}": value for name, value in _ADDER.items()},
            i_CLK=ClockSignal(),
            i_A=adder.a[18:],
            i_B=adder.a[:18],
            i_C=adder.b,
            i_RSTA=adder.clear_a,
            i_RSTB=adder.clear_a,
            i_RSTC=adder.clear_b,
            i_OPMODE=Cat(Const(_ADDS, 4), adder.base),
            i_ALUMODE=Cat(adder.negative.replicate(2), Const(0, 2)),  # Z + W + X + Y, or Z − (W + X + Y)
            i_PCIN=adder.cascade_in,
            o_PCOUT=adder.cascade_out,
            o_P=adder.sum,
            **dict.fromkeys((f"i_{name}" for name in _ENABLES), Const(1, 1)),
            **{f"i_{name}": Const(0, int(bits)) for name, bits in unused},
        )
        return m
