"""LinePosition against the lines of images with and without directories."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import run_sizes, start, worker_config
from support.line_sequences import begin_run, engine_config, line_sequence, make_sparse, pack_place
from support.signals import drive, pulse

from p4sgd.hw.datapath.lines import LinePosition
from p4sgd.hw.spec.image import ImageLayout


@cocotb.test()
async def follows_the_image(dut):
    config = worker_config()
    rng = np.random.default_rng(random.getrandbits(32))
    drive(dut, start=0, step=0, directory_taken=0, pass_over=0)
    await start(dut)

    async def wait():
        while random.random() < 0.3:
            await RisingEdge(dut.clk)
        await ReadOnly()

    for run in range(40):
        precision, of_mini_batch, micro_batches = (random.randint(1, most) for most in (8, 3, 8))
        chunks = 1 if run == 0 else random.randint(1, config.chunks)
        directory, unit_chunks = random.getrandbits(1), random.randint(0, (64 // config.lanes - 1).bit_length())
        shape = 8 * micro_batches, chunks * config.lanes
        layout = ImageLayout(config, shape[1], shape[0], precision, config.lanes, bool(directory))
        lines = line_sequence(layout, make_sparse(rng, rng.integers(0, 1 << precision, shape), config.lanes))
        drive(dut, precision=precision, chunks=chunks, micro_batches=of_mini_batch)
        drive(dut, directory=directory, unit_chunks=unit_chunks)
        await begin_run(dut)
        unit = None
        for line in lines[: random.randint(1, len(lines))]:  # a run may begin anywhere in the one before
            for _ in range(2):  # cycles until the line is known
                await ReadOnly()
                if dut.valid.value or dut.takes_directory.value:
                    break
                await RisingEdge(dut.clk)
            await RisingEdge(dut.clk)
            await wait()
            assert dut.takes_directory.value == (line.place is None)
            if line.place is None:
                await RisingEdge(dut.clk)
                drive(dut, directory_line=line.word)
                await pulse(dut, "directory_taken")
                drive(dut, directory_line=random.getrandbits(config.line_bits))
                continue
            assert dut.valid.value
            if line.place["first_plane"]:
                begins = line.place["first_chunk"] or line.place["chunk"] >> unit_chunks != unit
                unit = line.place["chunk"] >> unit_chunks
                assert (dut.plane.value, dut.begins_unit.value) == (line.plane, begins)
                for _ in range(line.absent):
                    assert dut.absent.value
                    await RisingEdge(dut.clk)
                    await pulse(dut, "pass_over")
                    await wait()
                assert not dut.absent.value
            assert int(dut.place.value) == pack_place(config, line), line.place
            number = line.micro_batch % of_mini_batch
            assert dut.first_micro_batch.value == (number == 0)
            assert dut.last_micro_batch.value == (number == of_mini_batch - 1)
            await RisingEdge(dut.clk)
            await pulse(dut, "step")


@pytest.mark.rtl
def test_line_position():
    configs = [engine_config(8, 8), engine_config(16, 32)]
    run_sizes({f"lanes{each.lanes}": (LinePosition(each), {"config": each}) for each in configs}, __file__)
