"""Mini-batches of MPI ranks with and without sums that travel while the ranks compute: the measured part of E13.

Every rank trains an emulated worker on random features. MPI adds the sums; on one machine that takes microseconds, so
each message is also kept back for a while, as a network would: messages occupy the channel one after another, for a
time each and a time for every value. Ranks that wait for this sleep and leave the processor to others. So the times are
those of a network that is chosen, with computing that is measured. The model has a processor for every rank.
"""

import json
import os
import statistics
import time
from types import SimpleNamespace
from typing import Any

from p4sgd.host.devices.session import Session
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.distributed import Communicator, open_communicator
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.cycles import random_image, settings_of
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table
from p4sgd.host.experiments.ranks import run_ranks, why_no_ranks
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers

_MESSAGE_S, _VALUE_S = 1e-3, 30e-6
_MINI_BATCHES = 16


class _Delayed:
    """Ranks whose started sums are kept back."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks
        self._free = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def start_sum(self, values: Any, owner: int | None = None, *, interruptible: bool = False) -> Any:
        """As `Communicator.start_sum`."""
        started = self._ranks.start_sum(values, owner, interruptible=interruptible)
        self._free = there = max(self._free, time.perf_counter()) + _MESSAGE_S + _VALUE_S * values.size

        def wait() -> Any:
            time.sleep(max(0.0, there - time.perf_counter()))
            return started.wait()

        return SimpleNamespace(wait=wait, done=started.done)


def _train(ranks: Communicator, image: WorkerImage, batch: int, merge: str, stale: bool) -> tuple[float, Any, bytes]:
    """Seconds of the second epoch by the slowest rank, what is known about messages, and this rank's weights."""
    delayed: Any = _Delayed(ranks)
    sums = MergedSums(delayed, merge, ahead=stale)
    remote = RemoteWorkers(ranks.rank, ranks.size, sums.start, times=lambda: sums.times)
    session = Session(EmulatedDevice(image.layout.config, 1, remote=remote), communicator=ranks)
    session.upload([image])
    session.load_table(get_loss("logistic").table())
    session.configure(settings_of(image.layout, batch, _MINI_BATCHES, ranks.size, stale=stale))
    session.run(ModelSource.ZERO)  # in which messages are planned
    begin = time.perf_counter()
    session.run(ModelSource.KEEP)
    seconds = max(ranks.all_gather(time.perf_counter() - begin))
    return seconds, sums.times, b"".join(own.tobytes() for engines in session.read_weights() for own in engines)


def epoch(batch: str, features: str, rounds: str, stale: str, *merges: str) -> None:
    """A rank's program: in each round it trains two epochs by each ``merge``, and the second is counted.

    Prints for each the lengths of messages, and medians of the ms of the epoch, and of a mini-batch as measured and
    predicted.
    """
    ranks = open_communicator("mpi")
    layout = ImageLayout(WorkerConfig.u280_deep(), int(features), int(batch) * _MINI_BATCHES, 8, 64)
    image, found, weights = random_image(layout, ranks.rank), {merge: list[Any]() for merge in merges}, set()
    for _ in range(int(rounds)):
        for merge, times in found.items():
            *one, trained = _train(ranks, image, int(batch), merge, stale == "1")
            times.append(one)
            weights.add(trained)
    assert len(weights) == 1, "messages do not change the weights"
    if ranks.rank == 0:
        rows = []
        for each in found.values():
            middle = sorted(each, key=lambda pair: pair[0])[len(each) // 2][1]
            medians = zip(*((took, times.measured_s, times.predicted_s) for took, times in each), strict=True)
            rows.append([list(middle.messages), *(1e3 * statistics.median(values) for values in medians)])
        print(json.dumps(rows))


def compare(quick: bool) -> Finding:
    """Messages of mini-batches over MPI ranks: their times as measured and as predicted."""
    if problem := why_no_ranks():
        return Finding(sentences=[f"Messages of ranks were not measured: {problem}."])
    processors = min(4, max(2, len(os.sched_getaffinity(0))))
    count, batch, features, rounds = (2, 128, 8192, 1) if quick else (processors, 512, 24576, 3)
    micro_batches = batch // BANKS
    merges = [str(micro_batches), "auto", *(str(micro_batches // parts) for parts in ((4,) if quick else (2, 4, 16)))]
    rows: list[list[Cell]] = []
    for stale, chosen in ((0, merges), (1, ["auto"])):
        output = run_ranks(count, epoch, batch, features, rounds, stale, *chosen)
        for merge, (lengths, took, measured, predicted) in zip(chosen, json.loads(output), strict=True):
            name = {"auto": "planned", str(micro_batches): "one message"}.get(merge, f"{merge} micro-batches each")
            shown = " ".join(map(str, lengths[:6])) + (" …" if len(lengths) > 6 else "")
            name += ", staleness 1" if stale else ""
            rows.append([name, shown, took, measured, predicted, Source.MEASURED])
    ratios = [float(row[4] or 0) / float(row[3] or 1) for row in rows]
    if min(ratios) <= 0:
        raise P4sgdError("ranks did not predict a mini-batch")
    return Finding(
        [
            Table(
                f"{count} ranks on this machine with {features:,} features each, B = {batch}",
                ("messages", "micro-batches", "epoch, ms", "mini-batch, ms", "predicted, ms", "source"),
                rows,
                [Chart("messages", "mini-batch, ms")],
                f"A message occupies a simulated network for {_MESSAGE_S * 1e3:g} ms, and {_VALUE_S * 1e6:g} µs a "
                f"value. Medians of {rounds} epochs. Predictions have a processor for each rank.",
            )
        ],
        [f"Predicted times of mini-batches were {min(ratios):.2f} to {max(ratios):.2f} of the measured ones."],
    )
