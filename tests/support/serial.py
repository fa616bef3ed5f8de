"""Reading a serial line in a simulation by Amaranth."""

from amaranth.sim import Simulator


def levels(component, cycles, drive=None):
    """The level of a component's line in every cycle, while a testbench drives it."""
    seen = []

    async def record(ctx):
        for _ in range(cycles):
            seen.append(ctx.get(component.line))
            await ctx.tick()

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(record)
    if drive:
        simulator.add_testbench(drive, background=True)
    simulator.run()
    return seen


def characters(line, bit_cycles):
    """Characters on a line, each with the cycle in which its start bit begins; every bit is read in its middle."""
    found, cycle = [], 0
    while 0 in line[cycle:]:
        cycle = line.index(0, cycle)
        bits = line[cycle + bit_cycles // 2 : cycle + 10 * bit_cycles : bit_cycles]
        if len(bits) < 10:
            break  # the record ends within a character
        assert (bits[0], bits[9]) == (0, 1), f"start and stop bit of the character at cycle {cycle}"
        found.append((cycle, chr(sum(bit << index for index, bit in enumerate(bits[1:9])))))
        cycle += 9 * bit_cycles + bit_cycles // 2
    return found
