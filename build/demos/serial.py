"""Text output over a serial line, for designs on a card without LEDs."""

from collections.abc import Mapping
from string import Formatter

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["BAUD", "Report", "Transmitter"]


BAUD = 115_200
"""Bits per second, the usual default of terminal programs."""

_FRAME_BITS = 10
"""Bits of a character on the line: start bit, eight data bits, stop bit."""


class Transmitter(wiring.Component):
    """UART transmitter: 8 data bits, no parity, one stop bit.

    Parameters
    ----------
    bit_cycles
        Clock cycles per bit.

    Members
    -------
    characters : In(stream.Signature(8))
    line : Out(1)
        High while idle.

    Raises
    ------
    ValueError
        If ``bit_cycles`` is below 1.
    """

    characters: stream.Interface
    line: Signal

    def __init__(self, bit_cycles: int) -> None:
        if bit_cycles < 1:
            raise ValueError(f"bit_cycles must be 1 or more, not {bit_cycles}")
        self._bit_cycles = bit_cycles
        super().__init__({"characters": In(stream.Signature(8)), "line": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        level = Signal(init=1)
        rest = Signal(_FRAME_BITS)  # bits still to send, with a marking one above them
        cycle = Signal(range(self._bit_cycles))
        m.d.comb += [self.line.eq(level), self.characters.ready.eq(rest == 0)]
        with m.If(rest == 0):
            m.d.sync += cycle.eq(0)
            with m.If(self.characters.valid):
                m.d.sync += [level.eq(0), rest.eq(Cat(self.characters.payload, 1, 1))]
        with m.Elif(cycle == self._bit_cycles - 1):
            m.d.sync += [cycle.eq(0), rest.eq(rest >> 1)]
            with m.If(rest != 1):
                m.d.sync += level.eq(rest[0])
        with m.Else():
            m.d.sync += cycle.eq(cycle + 1)
        return m


class Report(wiring.Component):
    r"""Periodic line of text with numbers.

    All numbers are sampled in the same cycle, when the line begins.

    Parameters
    ----------
    template
        Text of the line, with numbers as ``{name}``; ``\r\n`` is appended.
    fields
        Width of each number in bits. Numbers are written in hexadecimal, with leading zeros.
    period_cycles
        Clock cycles from the beginning of one line to the beginning of the next.
    bit_cycles
        Clock cycles per bit.

    Members
    -------
    numbers : In(data.StructLayout(fields))
    line : Out(1)
        As in `Transmitter`.

    Raises
    ------
    ValueError
        If the line takes longer than ``period_cycles``.
    KeyError
        If the template names a number that is not in ``fields``.
    """

    numbers: data.View
    line: Signal

    def __init__(self, template: str, fields: Mapping[str, int], *, period_cycles: int, bit_cycles: int) -> None:
        self._template = [(text, name) for text, name, _, _ in Formatter().parse(f"{template}\r\n")]
        length = sum(len(text) + (-(-fields[name] // 4) if name else 0) for text, name in self._template)
        if period_cycles <= length * _FRAME_BITS * bit_cycles + length:
            raise ValueError(f"a line of {length} characters does not fit into {period_cycles} cycles")
        self._period_cycles = period_cycles
        self._bit_cycles = bit_cycles
        super().__init__({"numbers": In(data.StructLayout(dict(fields))), "line": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.transmitter = transmitter = Transmitter(self._bit_cycles)
        m.d.comb += self.line.eq(transmitter.line)

        taken = Signal.like(self.numbers)
        characters: list[Value] = []
        for text, name in self._template:
            characters += [Const(ord(character), 8) for character in text]
            if name:
                characters += _hexadecimal(Value.cast(taken[name]))

        cycle = Signal(range(self._period_cycles))
        position = Signal(range(len(characters) + 1), init=len(characters))
        m.d.sync += cycle.eq(Mux(cycle == self._period_cycles - 1, 0, cycle + 1))
        with m.If(cycle == 0):
            m.d.sync += [taken.eq(self.numbers), position.eq(0)]
        with m.Elif(transmitter.characters.valid & transmitter.characters.ready):
            m.d.sync += position.eq(position + 1)
        m.d.comb += transmitter.characters.valid.eq(position != len(characters))
        with m.Switch(position):
            for index, character in enumerate(characters):
                with m.Case(index):
                    m.d.comb += transmitter.characters.payload.eq(character)
        return m


def _hexadecimal(number: Value) -> list[Value]:
    """Characters of a number, most significant digit first."""
    digits = [number[low : low + 4] for low in range(0, len(number), 4)]
    return [Mux(digit < 10, ord("0") + digit, ord("a") - 10 + digit) for digit in reversed(digits)]
