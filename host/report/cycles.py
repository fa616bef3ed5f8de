"""Cycles of a run: those that the workers counted, and those that were to be expected."""

from collections.abc import Sequence

from p4sgd.host.training.events import EpochRecord
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.result import ResultSet, TrainingResult
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout


def _counted_epochs(result: TrainingResult | ResultSet) -> list[EpochRecord]:
    """The epochs with counted cycles and as many workers as the last one; some may have been lost or have come."""
    counted = [record for record in result.history if record.counters and "CYCLES" in record.counters[0]]
    return [record for record in counted if len(record.counters) == len(counted[-1].counters)]


def counted_cycles(result: TrainingResult | ResultSet) -> dict[str, dict[str, int]]:
    """The counters of each worker, added up over the epochs; empty if nothing counts cycles."""
    epochs = _counted_epochs(result)
    if not epochs:
        return {}
    names = result.summary.get("workers") or range(len(epochs[0].counters))
    workers = zip(*(record.counters for record in epochs), strict=True)
    return {
        f"worker {name}": {counter: sum(epoch[counter] for epoch in one) for counter in one[0]}
        for name, one in zip(names, workers, strict=True)
    }


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


def predicted_cycles(result: TrainingResult | ResultSet) -> tuple[dict[str, int], str]:
    """The cycles of the fullest worker in the same epochs, by counter, and a note on what is assumed.

    There are none if they depend on the data, because it skips zeros, or if there is a sparse worker, a program.
    """
    summary = result.summary
    options, units = TrainingOptions(**summary["options"]), summary["units"]
    stated = summary["configuration"]
    configs = [WorkerConfig(**each) for each in ([stated] * len(units) if isinstance(stated, dict) else stated)]
    if summary["skips_zeros"] or any(config.sparse for config in configs):
        return {}, ""
    simulated = summary["device"] == "rtl"
    cycles = epoch_cycles(options, configs, units, summary["samples"], summary["features"], simulated=simulated)
    epochs = len(_counted_epochs(result))
    where = "the simulated network" if simulated else "boards, with error correction on the links"
    return (
        {name: count * epochs for name, count in cycles.items()},
        f"The prediction is for {where}, for a memory that keeps up, and without faults; it leaves out what prepares a "
        f"run, loads and stores the model.",
    )
