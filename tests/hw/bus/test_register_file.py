"""RegisterFile against words written anew here, with every kind of access; kernels have it on a foreign bus."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import LiteMaster
from support.bench import run_bench, start
from support.signals import drive, pulse

from p4sgd.hw.bus.register_file import RegisterFile, member_name
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access
from p4sgd.hw.spec.registers import worker_map

REGISTERS = list(worker_map(WorkerConfig.tiny()))
PLAIN = (Access.RO, Access.RW)
ACTING = [register for register in REGISTERS if any(field.access not in PLAIN for field in register.fields)]
FIELDS = {member_name(register, field): (register, field) for register in REGISTERS for field in register.fields}


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def every_kind_of_field(dut, stall):
    master = LiteMaster(dut, "bus", stall)
    word = {register.offset: register.reset for register in REGISTERS}
    strobes, expected_strobes = [], []
    for name, (register, field) in FIELDS.items():
        match field.access:
            case Access.RO:
                drive(dut, **{name: (value := random.getrandbits(field.bits))})
                word[register.offset] |= value << field.low
            case Access.W1C | Access.RC:
                drive(dut, **{name: 0})
            case Access.W1S:
                drive(dut, **{f"{name}_clear": 0})

    async def watch():
        while True:
            await RisingEdge(dut.clk)
            for name, (_, field) in FIELDS.items():
                if field.access is Access.STROBE and getattr(dut, f"{name}_strobe").value:
                    strobes.append((name, int(getattr(dut, name).value)))

    await start(dut)
    cocotb.start_soon(watch())
    for register in REGISTERS:
        assert await master.read(register.offset) == word[register.offset], register.name
    for _ in range(200):
        action, register = random.random(), random.choice(random.choice([REGISTERS, ACTING]))
        offset = register.offset
        if action < 0.4:
            assert await master.read(offset) == word[offset], register.name
            for field in register.fields:
                if field.access is Access.RC:
                    word[offset] &= ~field.mask
        elif action < 0.8:
            value, enabled = random.getrandbits(32), random.choice([0xF, random.getrandbits(4)])
            await master.write(offset, value, enabled)
            for field in register.fields:
                acts, written = enabled >> (field.low // 8) & 1, value & field.mask
                match field.access:
                    case Access.RW:
                        here = field.mask & sum(0xFF << 8 * byte for byte in range(4) if enabled >> byte & 1)
                        word[offset] = word[offset] & ~here | value & here
                    case Access.W1C if acts:
                        word[offset] &= ~written
                    case Access.W1S if acts:
                        word[offset] |= written
                    case Access.STROBE if acts:
                        expected_strobes.append((member_name(register, field), written >> field.low))
        else:  # the worker sets a flag, or takes a request
            register = random.choice(ACTING)
            field = random.choice(register.fields)
            name = member_name(register, field)
            if field.access in (Access.W1C, Access.RC):
                await pulse(dut, name)
                word[register.offset] |= field.mask
            elif field.access is Access.W1S:
                await pulse(dut, f"{name}_clear")
                word[register.offset] &= ~field.mask
        for name, (register, field) in FIELDS.items():
            if field.access is Access.RW:
                assert int(getattr(dut, name).value) == (word[register.offset] & field.mask) >> field.low, name
    await ClockCycles(dut.clk, 2)
    assert strobes == expected_strobes
    unmapped = next(offset for offset in range(0, 4096, 4) if offset not in word)
    await master.write(unmapped, 0xFFFFFFFF)
    assert await master.read(unmapped) == 0


@pytest.mark.rtl
def test_register_file():
    run_bench(RegisterFile(worker_map(WorkerConfig.tiny())), __file__, scrambled=True)
