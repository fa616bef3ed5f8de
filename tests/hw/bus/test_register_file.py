"""RegisterFile against the emulated registers, which are written from the same map by other means."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.axi import LiteMaster
from support.bench import run_bench, start

from p4sgd.hw.bus.register_file import RegisterFile, member_name
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access
from p4sgd.hw.spec.registers import worker_map

CONFIG = WorkerConfig.tiny()


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def every_kind_of_field(dut, stall):
    registers = list(worker_map(CONFIG))
    master = LiteMaster(dut, "bus", stall)
    word = {register.offset: register.reset for register in registers}
    strobes: list[tuple[str, int]] = []
    expected_strobes: list[tuple[str, int]] = []
    fields = {member_name(register, field): (register, field) for register in registers for field in register.fields}

    for name, (register, field) in fields.items():
        if field.access is Access.RO:
            value = random.getrandbits(field.bits)
            getattr(dut, name).value = value
            word[register.offset] |= value << field.low
        if field.access in (Access.W1C, Access.RC):
            getattr(dut, name).value = 0
        if field.access is Access.W1S:
            getattr(dut, f"{name}_clear").value = 0

    async def watch():
        names = [name for name, (_, field) in fields.items() if field.access is Access.STROBE]
        while True:
            await RisingEdge(dut.clk)
            for name in names:
                if getattr(dut, f"{name}_strobe").value:
                    strobes.append((name, int(getattr(dut, name).value)))

    await start(dut)
    cocotb.start_soon(watch())
    for register in registers:
        assert await master.read(register.offset) == word[register.offset], register.name
    for _ in range(200):
        action = random.random()
        register = random.choice(registers)
        if action < 0.4:
            assert await master.read(register.offset) == word[register.offset], register.name
            for field in register.fields:
                if field.access is Access.RC:
                    word[register.offset] &= ~field.mask
        elif action < 0.8:
            value, enabled = random.getrandbits(32), random.choice([0xF, random.getrandbits(4)])
            mask = sum(0xFF << 8 * byte for byte in range(4) if enabled >> byte & 1)
            await master.write(register.offset, value, enabled)
            for field in register.fields:
                acts = enabled >> (field.low // 8) & 1
                match field.access:
                    case Access.RW:
                        here = field.mask & mask
                        word[register.offset] = word[register.offset] & ~here | value & here
                    case Access.W1C if acts:
                        word[register.offset] &= ~(value & field.mask)
                    case Access.W1S if acts:
                        word[register.offset] |= value & field.mask
                    case Access.STROBE if acts:
                        expected_strobes.append((member_name(register, field), (value & field.mask) >> field.low))
        else:  # the worker sets a flag, or takes a request
            name, (register, field) = random.choice(list(fields.items()))
            if field.access in (Access.W1C, Access.RC):
                getattr(dut, name).value = 1
                await RisingEdge(dut.clk)
                getattr(dut, name).value = 0
                word[register.offset] |= field.mask
            elif field.access is Access.W1S:
                getattr(dut, f"{name}_clear").value = 1
                await RisingEdge(dut.clk)
                getattr(dut, f"{name}_clear").value = 0
                word[register.offset] &= ~field.mask
        for name, (_, field) in fields.items():
            if field.access is Access.RW:
                register = fields[name][0]
                got = int(getattr(dut, name).value)
                await RisingEdge(dut.clk) if random.random() < 0.01 else None
                assert got == (word[register.offset] & field.mask) >> field.low, name
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    assert strobes == expected_strobes
    unmapped = next(offset for offset in range(0, 4096, 4) if offset not in word)
    await master.write(unmapped, 0xFFFFFFFF)
    assert await master.read(unmapped) == 0


@pytest.mark.rtl
def test_register_file():
    run_bench(RegisterFile(worker_map(CONFIG)), __file__)
