"""Trains two mini-batches on two workers and an aggregator, register by register, to the weights of ``p4sgd train``.

The README beside this file explains the steps. Needs cocotb, cocotbext-axi and Icarus Verilog, or another simulator
that ``SIM`` names; writes waveforms.
"""

import json
import logging
import os
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotb_tools.runner import get_runner
from cocotbext import axi

WORK = Path(os.environ.get("WORK", ".")).resolve()  # where the commands of the README were given
VERILOG = WORK / "verilog"
PARTS = {"worker0": "p4sgd_worker", "worker1": "p4sgd_worker", "aggregator": "p4sgd_aggregator"}
ZERO = 1  # of RUN.model_source
WEIGHTS = 0x1000  # byte address of the model, a page behind the lines
JOB, GROUP, MACS = 7, 0x0300_0000_0001, {"worker0": 0x10, "worker1": 0x11, "aggregator": 1}


def top():
    """Verilog with an instance of each part, whose ports are those of the module, with its name in front of theirs."""
    tops = json.loads((VERILOG / "ports.json").read_text())["tops"]
    outside, inside = ["input clk", "input rst"], []
    for part, module in PARTS.items():
        pins = [".clk(clk)", ".rst(rst)"]
        for port in tops[module]["ports"][2:]:
            outside.append(f"{port['direction']} [{port['bits'] - 1}:0] {part}_{port['name']}")
            pins.append(f".{port['name']}({part}_{port['name']})")
        inside.append(f"  {module} {part} ({', '.join(pins)});\n")
    return f"module bench ({', '.join(outside)});\n{''.join(inside)}endmodule\n"


def arrays(path):
    """Arrays of a file by name: images and models are safetensors."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {name: content[begin:][slice(*header[name]["data_offsets"])] for name in header if name != "__metadata__"}


class Registers:
    """The registers of a part by their names and those of their fields; fields that are not named become 0."""

    def __init__(self, bus, document):
        registers = json.loads((VERILOG / document).read_text())["registers"]
        self._bus = bus
        self._offsets = {each["name"]: each["offset"] for each in registers}
        self._fields = {each["name"]: {field["name"]: field for field in each["fields"]} for each in registers}

    async def write(self, name, **values):
        word = 0
        for key, value in values.items():
            field = self._fields[name][key]
            word |= (value & (1 << field["bits"]) - 1) << field["low"]
        await self._bus.write(self._offsets[name], word.to_bytes(4, "little"))

    async def read(self, name, field=None):
        """A whole register, or a field of it."""
        word = int.from_bytes((await self._bus.read(self._offsets[name], 4)).data, "little")
        found = self._fields[name].get(field, {"low": 0, "bits": 32})
        return word >> found["low"] & (1 << found["bits"]) - 1


async def carry_up(number, tx, rx):
    """Carry the frames of a worker to a port of the aggregator."""
    while True:
        await rx.send(axi.AxiStreamFrame((await tx.recv()).tdata, tuser=number))


async def carry_down(tx, ends):
    """Carry the aggregator's frames to the workers at the ports of their bitmap."""
    while True:
        frame = await tx.recv(compact=False)
        for number, rx in enumerate(ends):
            if frame.tuser[0] >> number & 1:
                await rx.send(bytes(frame.tdata))


async def serve(registers):
    """Have the aggregator serve a job of both workers, in the order of ``aggregator_registers.md``."""
    await registers.write("MAC_LOW", value=MACS["aggregator"])
    await registers.write("JOB0", number=JOB, workers=2)
    await registers.write("JOB0_GROUP_MAC_LOW", value=GROUP & 0xFFFF_FFFF)
    await registers.write("JOB0_GROUP_MAC_HIGH", value=GROUP >> 32)
    await registers.write("JOB0_PORTS", value=0b11)
    for number in range(2):
        await registers.write("MEMBER_MAC_LOW", value=MACS[f"worker{number}"])
        await registers.write("MEMBER", place=0, shard=number, port=number)
    await registers.write("BEGIN", place=0, round=1)
    while await registers.read("JOBS", "clearing"):
        pass


async def train(registers, number):
    """Have a worker train, in the order of ``registers.md``; returns STATUS."""
    write = registers.write
    assert await registers.read("MAGIC") == int.from_bytes(b"P4SG", "big")
    await write("MODEL0_ADDRESS_LOW", value=WEIGHTS)  # lines and labels are at 0
    await write("TABLE_SHIFT", value=16)
    await write("TABLE_INDEX", value=0)
    await write("TABLE_SLOPE", value=1 << 10)
    for _ in range(await registers.read("SEGMENTS")):  # of squared errors: psi(x) = x
        await write("TABLE_INTERCEPT", value=0)
    await write("FORMAT", precision=4, stored=4)
    await write("CHUNKS", value=1)
    await write("MICRO_BATCHES", value=2)
    await write("MINI_BATCHES", value=2)
    await write("LABEL_MODE", offset=1)
    await write("RATE", mantissa=128, gradient_shift=13 + 4 - 7)  # 1 / 64 is 128 · 2^-13, and P is 4
    await write("PARTIAL_LIMIT", value=((1 << 31) - 1) // 2)
    await write("RUN", model_source=ZERO, model_store=1)
    await write("JOB", job=JOB, shard=number, workers=2)
    await write("RESEND_CYCLES", value=1000)
    await write("RESEND", limit=10)
    await write("LOCAL_MAC_LOW", value=MACS[f"worker{number}"])
    await write("PEER_MAC_LOW", value=MACS["aggregator"])
    await write("JOIN", round=1)
    await write("CTRL", start=1)
    while not await registers.read("CTRL", "done"):
        pass
    return await registers.read("STATUS")


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def trains(dut):
    """From reset to the weights, of which each worker has those of its own columns."""
    logging.getLogger("cocotb.bench").setLevel(logging.WARNING)  # each transfer is logged otherwise
    ends = {"clock": dut.clk, "reset": dut.rst}

    def bus(kind, part, name):
        return kind.from_prefix(dut, f"{part}_{name}")

    cocotb.start_soon(Clock(dut.clk, 4, unit="ns").start())
    dut.rst.value = 1
    lite = {part: axi.AxiLiteMaster(bus(axi.AxiLiteBus, part, "s_axi_control"), **ends) for part in PARTS}
    tx = {part: axi.AxiStreamSink(bus(axi.AxiStreamBus, part, "tx"), **ends) for part in PARTS}
    rx = {part: axi.AxiStreamSource(bus(axi.AxiStreamBus, part, "rx"), **ends) for part in PARTS}
    memories = []
    for number, part in enumerate(("worker0", "worker1")):
        image = arrays(WORK / f"images/{part}.p4sgd")
        memories.append(axi.AxiRam(bus(axi.AxiBus, part, "m_axi_0"), **ends, size=0x2000))
        memories[-1].write(0, image["lines0"])
        axi.AxiRamRead(bus(axi.AxiReadBus, part, "m_axi_1"), **ends, size=0x1000).write(0, image["labels"])
        cocotb.start_soon(carry_up(number, tx[part], rx["aggregator"]))
    cocotb.start_soon(carry_down(tx["aggregator"], [rx["worker0"], rx["worker1"]]))
    await ClockCycles(dut.clk, 16)
    dut.rst.value = 0

    await serve(Registers(lite["aggregator"], "aggregator_registers.json"))
    workers = [Registers(lite[f"worker{number}"], "registers.json") for number in range(2)]
    runs = [cocotb.start_soon(train(each, number)) for number, each in enumerate(workers)]
    assert [await run for run in runs] == [0, 0]
    weights = arrays(WORK / "samples.model")["weights"]
    assert b"".join(memory.read(WEIGHTS, len(weights) // 2) for memory in memories) == weights


if __name__ == "__main__":
    simulator, verilog, ports = os.environ.get("SIM", "icarus"), WORK / "bench.v", WORK / "bench.vlt"
    verilog.write_text(top())
    ports.write_text('`verilator_config\npublic_flat_rw -module "bench" -port "*"\n')  # not all signals: see the README
    sources = [verilog, VERILOG / "p4sgd_worker.v", VERILOG / "p4sgd_aggregator.v"]
    options = ["-Wno-fatal", "--trace-fst", "--no-public-flat-rw", str(ports)] * (simulator == "verilator")
    runner = get_runner(simulator)
    runner.build(sources=sources, hdl_toplevel="bench", build_args=options, timescale=("1ns", "1ps"), waves=True)
    runner.test(test_module=Path(__file__).stem, hdl_toplevel="bench", waves=True, extra_env={"WORK": str(WORK)})
