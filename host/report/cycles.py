"""Cycles of a run: those that the workers counted, and those that were to be expected."""

from collections.abc import Sequence

from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.result import ResultSet, TrainingResult
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout


def epoch_cycles(
    options: TrainingOptions,
    configs: Sequence[WorkerConfig],
    units: Sequence[int],
    samples: int,
    features: int,
    *,
    simulated: bool = False,
) -> dict[str, int]:
    """Predicted cycles of the fullest worker in an epoch, by counter ``CYCLES_…``.

    There are a configuration and a number of ``units`` for each dense worker; ``samples`` and ``features`` are those of
    the training data. Packets take the time of the ``simulated`` network, or of boards.
    """
    from p4sgd.hw.spec.timing import BOARDS_NETWORK
    from p4sgd.sim.cluster.prediction import network_cycles, predict_cycles

    unit = options.unit_of(features)
    chunks = [
        ImageLayout(config, count * unit, BANKS, options.stored, unit).chunks
        for config, count in zip(configs, units, strict=True)
        if count
    ]
    return predict_cycles(
        configs[0],
        batch=options.batch,
        chunks=max(chunks),
        precision=options.precision,
        mini_batches=-(-samples // options.batch),
        network=network_cycles(len(units)) if simulated else BOARDS_NETWORK,
        stale=bool(options.staleness),
    )


def cycles_of(result: TrainingResult | ResultSet) -> tuple[dict[str, dict[str, int]], str]:
    """Counters of each worker, added up over the epochs, after those ``predicted`` for the fullest one; and a note.

    Empty if nothing counts cycles. None are predicted if they depend on the data, because zeros are skipped, or if
    there is a sparse worker, a program. Epochs with other numbers of workers than the last one do not count.
    """
    counted = [record.counters for record in result.history if record.counters and "CYCLES" in record.counters[0]]
    counted = [counters for counters in counted if len(counters) == len(counted[-1])]
    if not counted:
        return {}, ""
    summary = result.summary
    names = summary.get("workers") or range(len(counted[0]))
    bars = {
        f"worker {name}": {counter: sum(epoch[counter] for epoch in one) for counter in one[0]}
        for name, one in zip(names, zip(*counted, strict=True), strict=True)
    }
    options, units, stated = TrainingOptions(**summary["options"]), summary["units"], summary["configuration"]
    configs = [WorkerConfig(**each) for each in ([stated] * len(units) if isinstance(stated, dict) else stated)]
    if summary["skips_zeros"] or any(config.sparse for config in configs):
        return bars, ""
    simulated = summary["device"] == "rtl"
    cycles = epoch_cycles(options, configs, units, summary["samples"], summary["features"], simulated=simulated)
    where = "the simulated network" if simulated else "boards, with error correction on the links"
    return (
        {"predicted": {name: count * len(counted) for name, count in cycles.items()}} | bars,
        f"The prediction is for {where}, for a memory that keeps up, and without faults; it leaves out what prepares a "
        f"run, loads and stores the model.",
    )
