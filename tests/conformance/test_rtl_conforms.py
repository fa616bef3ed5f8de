"""The RTL aggregator does as the vectors say, with frames far apart and a frame in every cycle."""

from pathlib import Path

import cocotb
import pytest
from cocotb.task import bridge
from support.bench import default_seed, parameters, run_bench, times

from conformance.generate import committed, hand_written
from conformance.random_sequences import random_cases
from conformance.rtl_subject import RtlSubject
from conformance.runner import run
from conformance.vectors import Geometry, read, write
from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec.aggregator import AggregatorConfig

CONFIG = AggregatorConfig(slots=64, jobs=4, ports=32)
"""The size of the committed vectors, and ports to spare; another test builds the same."""


@cocotb.test()
async def conforms(dut):
    subject = RtlSubject(dut, AggregatorConfig(**parameters()["config"]))
    await subject.start()
    for file in parameters()["files"]:
        done = await bridge(run)(subject, read(Path(file)), close=parameters()["close"])
        dut._log.info("%s: %s", file, done)
        assert done.cases
        assert not done.left_out


def run_files(config, files, close):
    size = {"slots": config.slots, "jobs": config.jobs, "ports": config.ports}
    run_bench(Aggregator(config), __file__, config=size, files=[str(file) for file in files], close=close)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("close", [False, True], ids=["apart", "close"])
def test_committed_vectors(close):
    size = Geometry(parents=True)
    run_files(CONFIG, [file for file, of in committed().items() if of.version == 1 and size.holds(of)], close)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize(("slots", "jobs", "ports", "frames"), [(8, 2, 4, 4_000), (256, 8, 5, 2_000)])
def test_other_sizes(tmp_path, slots, jobs, ports, frames):
    geometry = Geometry(slots, jobs, ports, parents=True)
    hand, random = tmp_path / "hand.jsonl", tmp_path / "random.jsonl"
    write(hand, hand_written(geometry))
    write(random, random_cases(geometry, default_seed(), times(frames)))
    config = AggregatorConfig(slots, jobs, ports)
    run_files(config, [hand], False)
    run_files(config, [hand, random], True)
