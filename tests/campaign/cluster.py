r"""Trainings on the RTL cluster with random faults of network, workers and memories: the weights must be exact.

    python tests/campaign/cluster.py [--runs 1000] [--seed 0] [--jobs 2] [--only SEED]

A seed stands for one simulated cluster and a few trainings on it, one after the other, each with faults of its own:
frames of one may still be under way in the next. All weights must be those of the golden model, bit for bit.
"""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import ROUND_BITS

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from campaign.runner import Outcome, main, maybe
from support.jobs import Job, random_job, run_on

CONFIG = WorkerConfig.tiny()
TRAININGS = 10
"""Of each seed; to start a simulator takes as long as several."""

FIGURES = (
    *("sums", "cycles", "packets", "resent", "dropped by workers", "dropped by aggregator"),
    *("with loss", "with bursts", "with duplication", "with reordering", "with pauses", "given up"),
    *("wrong weights", "stalls"),
)

_MOST_RESENDS = (1 << registers.RESEND["limit"].bits) - 1

LEAST = 2**-16
"""Least chance of a frame's fate that can be simulated."""


def random_direction(rng: random.Random) -> dict[str, float]:
    """Chances of frames in one direction; bursts are bad for up to a tenth of all frames."""
    chances = {"loss": maybe(rng, 0.1), "duplication": maybe(rng, 0.1), "reordering": maybe(rng, 0.2)}
    if rng.random() < 0.5:
        share, end = rng.uniform(0.01, 0.1), rng.uniform(0.2, 0.5)
        chances |= {"burst_begin": end * share / (1 - share), "burst_end": end, "burst_loss": rng.uniform(0.5, 0.95)}
    return {name: chance for name, chance in chances.items() if chance >= LEAST}


def random_chances(rng: random.Random) -> dict[str, float]:
    """Chances of all faults; pauses, of 2,000 cycles on average, in a third of all trainings."""
    chances = {f"{way}_{name}": chance for way in ("up", "down") for name, chance in random_direction(rng).items()}
    chances |= {name: rng.choice([0.0, rng.uniform(0.01, 0.3)]) for name in ("link_stall", "memory_stall")}
    if rng.random() < 1 / 3:
        chances["worker_pause"] = rng.uniform(1 / 10_000, 1 / 1_000)
    return chances


def train(
    device: RtlDevice, job: Job, numbers: Iterator[int], *, resends: int, **options: int
) -> tuple[Counter[str], str]:
    """One training: its figures, and in words what went wrong.

    Workers that give up begin it anew, as the next job, with twice the resends; ``resends`` 0 is any number. Only the
    last try is counted, because only its counters are whole.
    """
    given_up = 0
    while True:
        try:
            weights, status, counted = run_on(device, job, number=next(numbers), resends=resends, **options)
        except P4sgdError as error:
            return Counter({"stalls": 1, "given up": given_up}), str(error)
        gave_up = sum(worker["network_error"] for worker in status)
        if not gave_up:
            break
        if not 0 < resends <= _MOST_RESENDS // 2:
            problem = f"{gave_up} workers gave up with a limit of {resends} resends"
            return Counter({"stalls": 1, "given up": given_up}), problem
        given_up += gave_up
        resends *= 2
    wrong = sum(got.tolist() != wanted.tolist() for got, wanted in zip(weights, job.golden().weights, strict=True))
    counts = Counter(
        {
            "sums": job.settings.mini_batches * job.settings.micro_batches * len(weights),
            "cycles": max(worker["CYCLES"] for worker in counted),
            "packets": sum(worker["PACKETS_SENT"] for worker in counted),
            "resent": sum(worker["PACKETS_RESENT"] for worker in counted),
            "dropped by workers": sum(worker["PACKETS_DROPPED"] for worker in counted),
            "given up": given_up,
            "wrong weights": wrong,
        }
    )
    return counts, f"wrong weights of {wrong} workers" if wrong else ""


def faults_of(chances: dict[str, float]) -> Counter[str]:
    """Which faults a training has."""
    names = {"loss", "bursts", "duplication", "reordering", "pauses"}
    suffixes = {"bursts": "burst_begin", "pauses": "worker_pause"}
    return Counter(f"with {name}" for name in names if any(c.endswith(suffixes.get(name, f"_{name}")) for c in chances))


def run(seed: int) -> Outcome:
    """Trainings on one cluster, until one fails."""
    rng = random.Random(seed)
    workers, first = rng.randint(2, 3), rng.randrange(256)
    numbers = (number % 256 for number in itertools.count(first))  # of jobs
    counts: Counter[str] = Counter()
    device = RtlDevice(CONFIG, workers, seed=seed)
    try:
        for training in range(TRAININGS):
            chances = random_chances(rng)
            job = random_job(CONFIG, workers, seed=rng.getrandbits(32), stale=rng.random() < 0.3)
            options = {
                "first_round": rng.choice([1, (1 << ROUND_BITS) - rng.randint(1, 3)]),
                "resend_cycles": rng.randint(300, 2000),
                "resends": rng.randint(1, 6) if rng.random() < 1 / 3 else 0,
            }
            device.inject_faults(**chances)
            counted, failure = train(device, job, numbers, **options)
            counts += counted + faults_of(chances) + Counter(runs=1)
            if failure:
                what = f"training {training} of {workers} workers, {options}, {chances}"
                return Outcome(seed, counts, f"{failure}: {what}: {job.settings}")
        dropped = device.aggregator.counters()
        counts["dropped by aggregator"] += sum(n for name, n in dropped.items() if name.startswith("DROPPED_"))
    finally:
        device.close()
    return Outcome(seed, counts)


if __name__ == "__main__":
    sys.exit(main(__doc__, run, FIGURES, runs=1000, batch=TRAININGS))
