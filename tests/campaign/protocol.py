r"""The AllReduce protocol in Python against networks and workers with random faults, many thousand times.

    python tests/campaign/protocol.py [--runs 100000] [--seed 0] [--jobs 2] [--variant Forgetful] [--only SEED]

Each run draws a cluster of one level or two, the version of its packets and all that goes wrong. It must finish, and
every worker must get every sum right.
Variants with a mistake must not survive this, which shows that the campaign would see one: the protocol without round
numbers (Forgetful), aggregators of tests/conformance/mutants.py, and a worker that takes packets with any key.
"""

import random
import sys
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

from p4sgd.host.aggregators.seats import seats_of
from p4sgd.hw.spec.packet import MOST_MICRO_BATCHES, ROUND_BITS, VALUES, round_near
from p4sgd.sim.network.endpoint import Endpoint

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from campaign.runner import Outcome, main, maybe
from conformance.mutants import MUTANTS, Forgetful
from support.aggregator_model import Aggregator
from support.faulty_cluster import FaultyCluster, Pauses, Restart, Schedule, StalledError
from support.lines import Faults


class AnyKeyAtWorkers(Endpoint):
    """Does not look at the key."""

    def _check(self, packet):
        right = self._key_in(round_near(packet.round, self._round(self._slots[packet.slot])))
        return super()._check(replace(packet, key=right))


VARIANTS: dict[str, tuple[type[Aggregator], type[Endpoint]]] = {
    **{name: (kind, Endpoint) for name, kind in {"Aggregator": Aggregator, **MUTANTS}.items()},
    "AnyKeyAtWorkers": (Aggregator, AnyKeyAtWorkers),
}
"""By name, the aggregator and the workers of a variant."""

FIGURES = (
    "version 2",
    "two levels",
    "with stand-ins",
    *("sums", "packets", "lost", "duplicated", "reordered", "resent", "pauses", "restarts", "given up", "stand-ins"),
    *("wrong sums", "stalls"),
)

PATIENCE = 200_000
"""Time without a sum that no faults drawn here explain: over a hundred resends, all of them lost."""


def random_bursts(rng: random.Random) -> dict[str, float]:
    """Bad for up to a tenth of all packets, two to five in a row on average."""
    share, end = rng.uniform(0, 0.1), rng.uniform(0.2, 0.5)
    return {"burst_begin": end * share / (1 - share), "burst_end": end, "burst_loss": rng.uniform(0.5, 0.95)}


def random_faults(rng: random.Random) -> Faults:
    """Of one direction."""
    return Faults(
        loss=maybe(rng, 0.1),
        **rng.choice([{}, random_bursts(rng)]),
        duplication=maybe(rng, 0.1),
        delay=rng.choice([(10, 10), (1, 30), (1, 100), (50, 300)]),
        straggle=maybe(rng, 0.02),
        straggle_delay=rng.randint(100, 3000),
    )


def random_schedule(rng: random.Random, workers: int) -> Schedule:
    """Pauses in a third of all runs, one restart or two in a fifth."""
    every, length = rng.randint(200, 2000), rng.randint(50, 1000)
    pauses = Pauses((every, 2 * every), (length, 2 * length))
    restarts = random_restarts(rng, workers, rng.randint(1, 2), 1000)
    return Schedule(
        up=random_faults(rng),
        down=random_faults(rng),
        pauses=pauses if rng.random() < 1 / 3 else None,
        restarts=restarts if rng.random() < 1 / 5 else (),
    )


def random_restarts(rng: random.Random, workers: int, count: int, notice: int) -> tuple[Restart, ...]:
    """So many, each noticed after some time, at most ``notice``."""
    times = sorted(rng.randint(50, 3000) for _ in range(count))
    return tuple(Restart(rng.randrange(workers), time, rng.randint(1, notice)) for time in times)


def random_timing(rng: random.Random) -> dict[str, int]:
    """When workers send again, and in a third of all runs give up too; the job then begins anew with more patience."""
    resend_after, doublings = rng.randint(50, 400), rng.randint(0, 2)
    resends = rng.randint(700, 2000) // resend_after if rng.random() < 1 / 3 else 0
    return {"resend_after": resend_after, "doublings": doublings, "resends": resends}


def random_racks(rng: random.Random, workers: int) -> list[int | None]:
    """The rack of each worker, from 0 on, or None behind the top aggregator; in half of all runs there are no racks."""
    if rng.random() < 0.5:
        return [None] * workers
    drawn = [rng.choice((0, 0, 1, 1, 2, 2, None)) for _ in range(workers)]
    numbers = {rack: number for number, rack in enumerate(sorted({rack for rack in drawn if rack is not None}))}
    return [None if rack is None else numbers[rack] for rack in drawn]


def random_partials(rng: random.Random, size: int) -> list[int]:
    """So many integers of 21 bits."""
    return [value >> 11 for value in array("i", rng.randbytes(4 * size))]


def run(seed: int, variant: str = "Aggregator") -> Outcome:
    """One run of 20 to 30 operations; in version 2 each of several micro-batches."""
    aggregator_kind, endpoint_kind = VARIANTS[variant]
    rng, of_version = random.Random(seed), random.Random(~seed)  # the faults are the same whatever the version is
    most = of_version.choice((1, 3, MOST_MICRO_BATCHES)) if of_version.random() < 0.5 else 0
    if aggregator_kind is Forgetful:  # which is older than version 2
        most = 0
    workers, slots, count = rng.randint(2, 8), rng.randint(1, 8), rng.randint(20, 30)
    schedule = random_schedule(rng, workers)
    if most and of_version.random() < 0.5:  # soon enough for packets under way, which the key alone tells apart
        schedule = replace(schedule, restarts=random_restarts(of_version, workers, of_version.randint(1, 6), 10))
    timing = random_timing(rng)
    behind = [None] * workers if aggregator_kind is Forgetful else random_racks(random.Random(f"racks {seed}"), workers)
    racks = [aggregator_kind(slots, most=most) for _ in {rack for rack in behind if rack is not None}]
    ends = [
        endpoint_kind(slots, shard=seat.shard, workers=seat.workers, most=most, **timing) for seat in seats_of(behind)
    ]
    of_stand_ins = random.Random(f"stand-ins {seed}")
    stand_ins = not racks and aggregator_kind is not Forgetful and of_stand_ins.random() < 0.5
    for end in ends:  # who does not know that it has one begins every operation itself
        end.has_stand_in = stand_ins and of_stand_ins.random() < 0.5
    sizes = [VALUES * of_version.randint(1, max(1, most)) for _ in range(count)]
    partials = [[random_partials(rng, size) for size in sizes] for _ in ends]
    expected = [tuple(map(sum, zip(*operation, strict=True))) for operation in zip(*partials, strict=True)]
    aggregator = aggregator_kind(slots, most=most)
    levels = {"racks": racks, "behind": behind}
    cluster = FaultyCluster(
        ends, aggregator, schedule, rng.getrandbits(32), keyed=most > 0, stand_ins=stand_ins, **levels
    )
    near_wrap = (1 << ROUND_BITS) - rng.randint(1, 1 + count // slots)
    cluster.begin_job(rng.randrange(1, 256), rng.choice([1, near_wrap]))
    stall = ""
    try:
        cluster.all_reduce(partials, time_limit=PATIENCE)
    except StalledError as error:
        stall = str(error)
    checked = [*cluster.discarded, *(pair for got in cluster.got for pair in enumerate(got))]
    wrong = sum(sums != expected[operation] for operation, sums in checked)
    counts = cluster.counts + Counter(
        {
            "runs": 1,
            "version 2": int(most > 0),
            "two levels": int(bool(racks)),
            "with stand-ins": int(stand_ins),
            "sums": len(checked),
            "wrong sums": wrong,
            "stalls": int(bool(stall)),
        }
    )
    if not wrong and not stall:
        return Outcome(seed, counts)
    return Outcome(
        seed, counts, f"{wrong} wrong sums, {stall or 'no stall'}: workers behind {behind}, {slots} slots, {schedule}"
    )


if __name__ == "__main__":
    sys.exit(main(__doc__, run, FIGURES, runs=100_000, variants=VARIANTS))
