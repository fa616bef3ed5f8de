"""A heartbeat's lines come once a second, at the speed of the serial line, and count the seconds."""

import gc
import random

import pytest
from support.serial import characters, levels

from p4sgd.build.demos.demonstrations import Heartbeat
from p4sgd.build.demos.serial import Report, Transmitter


def test_a_line_every_second_with_the_seconds():
    """5,000 Hz and 500 baud: a bit is 10 cycles, a second 5,000."""
    found = characters(levels(Heartbeat(5_000, 500), 14_000), 10)
    lines = [f"p4sgd heartbeat {second:08x}\r\n" for second in range(3)]
    assert "".join(character for _, character in found) == "".join(lines)
    begins = [cycle for cycle, _ in found[:: len(lines[0])]]
    assert [cycle - begins[0] for cycle in begins] == [0, 5_000, 10_000]


@pytest.mark.parametrize("bit_cycles", [1, 2, 7])
def test_any_character_at_any_speed(bit_cycles):
    transmitter = Transmitter(bit_cycles)
    sent = [*range(256), *random.Random(1).choices(range(256), k=20)]

    async def send(ctx):
        for character in sent:
            ctx.set(transmitter.characters.payload, character)
            ctx.set(transmitter.characters.valid, 1)
            await ctx.tick().until(transmitter.characters.ready)
        ctx.set(transmitter.characters.valid, 0)
        await ctx.tick()

    line = levels(transmitter, len(sent) * (10 * bit_cycles + 1) + 20, send)
    assert line[0] == line[-1] == 1, "the line rests high"
    assert [ord(character) for _, character in characters(line, bit_cycles)] == sent


def test_numbers_of_any_width_are_taken_when_the_line_begins():
    report = Report("{a}:{b}:{c}", {"a": 1, "b": 5, "c": 32}, period_cycles=400, bit_cycles=2)

    async def change(ctx):
        ctx.set(report.numbers, {"a": 1, "b": 0x1F, "c": 0xABCD_0123})
        await ctx.tick().repeat(30)
        ctx.set(report.numbers, {"a": 0, "b": 0x0A, "c": 9})
        await ctx.tick()

    found = characters(levels(report, 800, change), 2)
    assert "".join(character for _, character in found) == "1:1f:abcd0123\r\n0:0a:00000009\r\n"


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="3 characters does not fit into 30 cycles"):
        Report("{a}", {"a": 4}, period_cycles=30, bit_cycles=1)
    with pytest.raises(KeyError):
        Report("{b}", {"a": 4}, period_cycles=1_000, bit_cycles=1)
    with pytest.raises(ValueError, match="bit_cycles must be 1 or more, not 0"):
        Transmitter(0)
    gc.collect()  # the warning comes as the three go
