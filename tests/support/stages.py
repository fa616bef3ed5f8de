"""Which number of a simulated job is the first to differ from the exact model's: by stage, worker, engine and place.

Weights at the end do not tell where they went wrong. So the cluster is built anew, with statements in its components
that print what they hand on. As that takes minutes, it is for jobs that have failed.
"""

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Cat, Format, Module, Print, Value

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.datapath.backward import GRADIENT_BITS, Gradient
from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, DELTA, WEIGHT, IntArray, round_half_up
from p4sgd.hw.spec.timing import RESET_CYCLES
from p4sgd.sim import verilator
from p4sgd.sim.cluster import cluster
from support.differences import assert_same
from support.jobs import Job, run_on
from support.streams import unpack


def _taken(stream: Any) -> Value:
    taken: Value = stream.valid & stream.ready
    return taken


def _writes(model: Any, m: Module) -> dict[str, Any]:
    [write] = m.submodules.w_next.write_ports
    return {"weight": (write.en & ~model.load_busy, Cat(write.data, write.addr))}


HANDED_ON: dict[Any, Any] = {
    DotProduct: lambda part, _: {"dot": (part.dots.valid, part.dots.payload)},
    PartialSum: lambda part, _: {"partial": (_taken(part.partials), part.partials.payload)},
    LossUnit: lambda part, _: {
        "sum": (_taken(part.sums), part.sums.payload),
        "delta": (part.deltas.valid, part.deltas.payload),
    },
    Gradient: lambda part, _: {"gradient": (part.gradients.valid, Cat(part.gradients.values, part.gradients.chunk))},
    Model: _writes,
}
"""Words that components hand on, by stage, and when. Above the numbers of a chunk, or of half a chunk, is its place."""


def _printing(own: Any, words: Any) -> Any:
    def elaborate(part: Any, platform: object) -> Module:
        m: Module = own(part, platform)
        for stage, (valid, word) in words(part, m).items():
            with m.If(valid):
                m.d.sync += Print(Format(f"@{stage} {{:x}}", Value.cast(word)))
        return m

    return elaborate


def _build(config: WorkerConfig, workers: int, **_: Any) -> verilator.Build:
    """The simulator of a cluster that prints ``@stage scope word``."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, words in HANDED_ON.items():
            patch.setattr(kind, "elaborate", _printing(kind.elaborate, words))
        text = cluster.cluster_verilog(config, workers)
    # Flags have any value in reset.
    told = rf"if ($time > {RESET_CYCLES * CLOCK_NS}) \1%m "
    return cluster.compile_cluster(re.sub(r'(\$write\("@\w+ )', told, text))


def _print_job(config: WorkerConfig, job: Job, runs: int, **options: Any) -> Iterator[tuple[str, int, int, int]]:
    """Run a job; returns what it prints: stage, worker, engine (0 if it is of none), and word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "build_cluster", _build)
        device = RtlDevice(config, len(job.stored), **options)
    with contextlib.closing(device):
        run_on(device, job, runs=runs)
        device._simulator.stop()
        log = (device._simulator.folder / "simulation.log").read_text()
    for stage, scope, word in re.findall(r"@(\w+) (\S+) ([0-9a-f]+)", log):
        engine = re.search(r"\bengine(\d+)", scope)
        yield stage, int(re.search(r"\bworker(\d+)", scope)[1]), int(engine[1]) if engine else 0, int(word, 16)  # type: ignore[index]


def _expected(job: Job, runs: int) -> dict[tuple[str, int], list[IntArray]]:
    """What the exact model makes of a job, by stage and worker, in a list by micro-batch.

    Dots are (engines, 8), partials, sums and deltas (8,), gradients and weights (engines, chunks, lanes).
    """
    made = defaultdict(list)

    def note(stage: str, worker: int, values: IntArray) -> None:
        layout = job.layout(worker)
        engines = layout.config.engines
        if stage == "dot":
            rounded = round_half_up(values, job.settings.features.forward_shift)
            values = np.stack([rounded[:, engine::engines].sum(axis=1) for engine in range(engines)])
        elif stage in ("gradient", "weight"):
            values = layout.scatter(layout.pad(values)).reshape(engines, layout.chunks, -1)
        made[stage, worker].append(values)

    job.golden(runs, note=note)
    return made


def check_stages(config: WorkerConfig, job: Job, runs: int, **options: Any) -> None:
    """Run a job on a simulated cluster with the options of `RtlDevice`; an `AssertionError` names the first number that
    is not the exact model's."""
    expected, came = _expected(job, runs), Counter[tuple[str, int, int]]()
    widths = {"dot": config.dot_bits, "partial": ACTIVATION.width, "sum": ACTIVATION.width, "delta": DELTA.width}
    for stage, worker, engine, word in _print_job(config, job, runs, **options):
        number = came[stage, worker, engine]
        wanted, where = expected[stage, worker][number], f"worker {worker}, engine {engine}"
        if stage in widths:
            places = [f"sample {BANKS * number + bank} (micro-batch {number}, bank {bank})" for bank in range(BANKS)]
            values, wanted = np.array(unpack(word, widths[stage], BANKS)), wanted[engine] if stage == "dot" else wanted
            values = values >> (job.settings.features.fraction if stage == "dot" else 0)
            came[stage, worker, engine] += 1
        else:
            lanes, bits = (config.lanes, GRADIENT_BITS) if stage == "gradient" else (config.lanes // 2, WEIGHT.width)
            chunk, half = divmod(word >> lanes * bits, config.lanes // lanes)
            own = range(half * lanes, half * lanes + lanes)
            places = [f"micro-batch {number}, chunk {chunk}, lane {lane}" for lane in own]
            values, wanted = np.array(unpack(word, bits, lanes)), wanted[engine, chunk, own.start : own.stop]
            came[stage, worker, engine] += chunk == job.layout(worker).chunks - 1 and own.stop == config.lanes
        assert_same(f"{where}: {stage}", values, wanted, places)
    for (stage, worker), numbers in expected.items():
        engines = range(1 if stage in ("partial", "sum", "delta") else config.engines)
        counts = [came[stage, worker, engine] for engine in engines]
        assert counts == [len(numbers)] * len(counts), f"worker {worker}: micro-batches with a {stage}, by engine"
