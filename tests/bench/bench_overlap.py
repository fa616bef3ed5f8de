"""An epoch of MPI ranks with and without sums that travel while the ranks compute.

    PYTHONPATH=tests python tests/bench/bench_overlap.py [--ranks 4] [--batch 512] [--features 98304] [--rounds 5]

Every rank trains an emulated worker on random features. MPI adds the sums; on one machine that takes microseconds, so
each message is also kept back for a while, as a network would: messages occupy the channel one after another, for
--message-ms and --value-us for every value, and their sums are there --latency-ms later. Ranks that wait for this sleep
and leave the processor to others. So the times are those of a network that is chosen, with computing that is measured:
with fewer processors than ranks it takes longer than on a machine for each rank, and varies.

In each round every variant trains two epochs, of which the second is counted. The table has medians over the rounds:
of the slowest rank's epoch, and of the time of a mini-batch as it was measured and predicted. The script fails if not
all variants end with the same weights.

host/distributed/README.md has figures. The model has a processor for every rank. Where that is so, and `chrt -r 5`
keeps other programs away, it was right within 1 %.
"""

import os
import statistics
import time
from types import SimpleNamespace
from typing import Any

from support.mpi import run_as_ranks
from support.script import parser_of, show

from p4sgd.host.devices.session import Session
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.distributed import Communicator, open_communicator
from p4sgd.host.distributed.overlap import MergedSums, MessageTimes
from p4sgd.host.experiments.cycles import random_image
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers


class Delayed:
    """Ranks whose started sums are kept back."""

    def __init__(self, ranks: Communicator, options: Any) -> None:
        self._ranks = ranks
        self._message_s, self._latency_s = options.message_ms * 1e-3, options.latency_ms * 1e-3
        self._value_s = options.value_us * 1e-6
        self._free = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)

    def start_sum(self, values: Any, owner: int | None = None, *, interruptible: bool = False) -> Any:
        """As `Communicator.start_sum`."""
        started = self._ranks.start_sum(values, owner, interruptible=interruptible)
        self._free = max(self._free, time.perf_counter()) + self._message_s + self._value_s * values.size
        there = self._free + self._latency_s

        def wait() -> Any:
            time.sleep(max(0.0, there - time.perf_counter()))
            return started.wait()

        return SimpleNamespace(wait=wait, done=started.done)


def train(ranks: Communicator, image: WorkerImage, merge: str, options: Any) -> tuple[Any, ...]:
    """Seconds of the second epoch, what is known about messages, and the weights after it."""
    sums, config = MergedSums(Delayed(ranks, options), merge, ahead=options.stale), image.layout.config
    remote = RemoteWorkers(ranks.rank, ranks.size, sums.start, times=lambda: sums.times)
    session = Session(EmulatedDevice(config, 1, remote=remote), communicator=ranks)
    session.upload([image])
    loss = get_loss("logistic")
    session.load_table(loss.table())
    session.configure(
        RunSettings(
            features=FeatureFormat(8, 8, False),
            chunks=image.layout.chunks,
            micro_batches=options.batch // BANKS,
            mini_batches=options.mini_batches,
            label_mode=loss.label_mode,
            rate_mantissa=128,
            rate_exponent=20,
            workers=ranks.size,
            unit=image.layout.unit,
            stale=options.stale,
        )
    )
    session.run(ModelSource.ZERO)  # in which messages are planned
    begin = time.perf_counter()
    session.run(ModelSource.KEEP)
    return time.perf_counter() - begin, sums.times, session.read_weights()


def run(options: Any) -> None:
    """Measure, as a rank; rank 0 prints."""
    ranks = open_communicator("mpi")
    config, samples = WorkerConfig.u280_deep(), options.batch * options.mini_batches
    image = random_image(ImageLayout(config, options.features // ranks.size, samples, 8, 64), ranks.rank)
    merges = {"one message": str(options.batch // BANKS), "planned": "auto"}
    merges |= {f"{count} messages": str(-(-options.batch // BANKS // count)) for count in options.messages}
    found: dict[str, list[tuple[float, MessageTimes]]] = {name: [] for name in merges}
    weights = set()
    for _ in range(options.rounds):
        for name, merge in merges.items():
            seconds, times, trained = train(ranks, image, merge, options)
            found[name].append((max(ranks.all_gather(seconds)), times))
            weights.add(b"".join(own.tobytes() for engines in trained for own in engines))
    if len(weights) > 1:
        raise SystemExit("the weights differ")
    if ranks.rank:
        return
    rows = []
    for name, each in found.items():
        middle = sorted(each, key=lambda pair: pair[0])[len(each) // 2][1]
        numbers = [
            statistics.median(values) * 1e3
            for values in zip(*((seconds, times.measured_s, times.predicted_s) for seconds, times in each), strict=True)
        ]
        lengths = " ".join(map(str, middle.messages[:6])) + (" …" if len(middle.messages) > 6 else "")
        rows.append([name, lengths, f"{numbers[0]:.0f}", *(f"{number:.2f}" for number in numbers[1:])])
    title = f"{ranks.size} ranks, B = {options.batch:,}, {options.features:,} features, {os.cpu_count()} processors"
    show(title, ("", "micro-batches in each message", "epoch, ms", "mini-batch, ms", "predicted, ms"), rows)


def main() -> None:
    """Start the ranks, or be one."""
    numbers = {"batch": 512, "mini_batches": 16, "features": 98304, "rounds": 5, "messages": [2, 4, 16]}
    parser = parser_of(__doc__, message_ms=1.0, value_us=30.0, latency_ms=0.0, stale=False, **numbers)
    run_as_ranks(parser, run)


if __name__ == "__main__":
    main()
