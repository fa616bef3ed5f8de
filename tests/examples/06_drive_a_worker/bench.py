"""Trains two mini-batches on the Verilog of a worker, register by register, to the weights of ``p4sgd train``.

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
REGISTERS = json.loads((WORK / "verilog/registers.json").read_text())["registers"]
DONE = 1 << 1  # of CTRL
ZERO = 1  # of RUN.model_source
WEIGHTS = 0x1000  # byte address of the model, a page behind the lines


def arrays(path):
    """Arrays of a file by name: images and models are safetensors."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {name: content[begin:][slice(*header[name]["data_offsets"])] for name in header if name != "__metadata__"}


class Registers:
    """The registers of a worker by their names and those of their fields; fields that are not named become 0."""

    def __init__(self, bus):
        self._bus = bus
        self._offsets = {each["name"]: each["offset"] for each in REGISTERS}
        self._fields = {each["name"]: {field["name"]: field for field in each["fields"]} for each in REGISTERS}

    async def write(self, name, **values):
        word = 0
        for key, value in values.items():
            field = self._fields[name][key]
            word |= (value & (1 << field["bits"]) - 1) << field["low"]
        await self._bus.write(self._offsets[name], word.to_bytes(4, "little"))

    async def read(self, name):
        return int.from_bytes((await self._bus.read(self._offsets[name], 4)).data, "little")


async def aggregate(tx, rx):
    """Answer for a job of one worker, whose partials are the sums: PARTIAL comes back as FULL, ACK as CLEAR."""
    while True:
        frame = bytes((await tx.recv()).tdata)
        await rx.send(frame[6:12] + frame[:6] + frame[12:14] + bytes([frame[14] + 1]) + frame[15:])


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def trains(dut):
    """From reset to the weights, in the order of ``registers.md``."""
    logging.getLogger("cocotb.p4sgd_worker").setLevel(logging.WARNING)  # each transfer is logged otherwise
    image, model = arrays(WORK / "images/worker0.p4sgd"), arrays(WORK / "samples.model")
    ends = {"clock": dut.clk, "reset": dut.rst}
    registers = Registers(axi.AxiLiteMaster(axi.AxiLiteBus.from_prefix(dut, "s_axi_control"), **ends))
    memory = axi.AxiRam(axi.AxiBus.from_prefix(dut, "m_axi_0"), **ends, size=0x2000)
    labels = axi.AxiRamRead(axi.AxiReadBus.from_prefix(dut, "m_axi_1"), **ends, size=0x1000)
    tx = axi.AxiStreamSink(axi.AxiStreamBus.from_prefix(dut, "tx"), **ends)
    rx = axi.AxiStreamSource(axi.AxiStreamBus.from_prefix(dut, "rx"), **ends)
    cocotb.start_soon(Clock(dut.clk, 4, unit="ns").start())
    cocotb.start_soon(aggregate(tx, rx))
    dut.rst.value = 1
    await ClockCycles(dut.clk, 16)
    dut.rst.value = 0
    memory.write(0, image["lines0"])
    labels.write(0, image["labels"])

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
    await write("RATE", mantissa=128, gradient_shift=11 + 4 - 7)  # 1 / 16 is 128 · 2^-11, and P is 4
    await write("PARTIAL_LIMIT", value=(1 << 31) - 1)
    await write("RUN", model_source=ZERO, model_store=1)
    await write("JOB", job=1, shard=0, workers=1)
    await write("RESEND_CYCLES", value=1000)
    await write("RESEND", limit=10)
    await write("LOCAL_MAC_LOW", value=2)
    await write("PEER_MAC_LOW", value=1)
    await write("JOIN", round=1)

    await write("CTRL", start=1)
    while not await registers.read("CTRL") & DONE:
        await ClockCycles(dut.clk, 10)
    assert await registers.read("STATUS") == 0
    assert memory.read(WEIGHTS, len(model["weights"])) == model["weights"]


if __name__ == "__main__":
    simulator, top = os.environ.get("SIM", "icarus"), "p4sgd_worker"
    sources, options = [WORK / f"verilog/{top}.v"], ["-Wno-fatal", "--trace-fst"] * (simulator == "verilator")
    runner = get_runner(simulator)
    runner.build(sources=sources, hdl_toplevel=top, build_args=options, timescale=("1ns", "1ps"), waves=True)
    runner.test(test_module=Path(__file__).stem, hdl_toplevel=top, waves=True, extra_env={"WORK": str(WORK)})
