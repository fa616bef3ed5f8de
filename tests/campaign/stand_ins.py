r"""Emulated workers that stand in for each other, pause at random and are lost: the weights must be exact.

    python tests/campaign/stand_ins.py [--runs 100000] [--seed 0] [--jobs 2] [--variant AddsBoth] [--only SEED]

Each run trains a small job over a network that loses, repeats and delays. In half of all runs a worker is gone from
some moment on, and its stand-in takes its place. Weights are compared with the golden model's, bit for bit.
Variants are aggregators with a mistake, which must not survive this.
"""

import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.stand_in import StandInWorker
from p4sgd.hw.spec.config import WorkerConfig

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from campaign.runner import Outcome, main
from conformance.mutants import PROGRAM_MUTANTS
from support.aggregator_model import Aggregator
from support.jobs import collect, configure, random_job, start
from support.lines import Faults
from support.packet_cluster import PacketCluster

CONFIGS = (
    replace(WorkerConfig.tiny(), table_segments=16),
    WorkerConfig(engines=3, lanes=8, chunks=16, slots=4, sparse=True, table_segments=16),
)
FIGURES = ("packets", "lost", "duplicated", "reordered", "with pauses", "with a worker lost", "wrong weights", "stalls")
VARIANTS = {"Aggregator": Aggregator, **PROGRAM_MUTANTS}
MAC = 0x0250_3453_47FF


def random_faults(rng: random.Random) -> Faults:
    """Of one direction."""
    chances = {"loss": rng.choice((0.0, 0.2)), "duplication": rng.choice((0.0, 0.2))}
    return Faults(**chances, delay=rng.choice(((10, 10), (1, 300))))


def run(seed: int, variant: str = "Aggregator") -> Outcome:
    """One training of up to six mini-batches in each of one or two runs; of which the last may lose a worker."""
    rng = random.Random(seed)
    config, workers, stale = rng.choice(CONFIGS), rng.randint(2, 4), rng.random() < 0.5
    job = random_job(config, workers, seed=rng.getrandbits(32), stale=stale, max_mini_batches=6)
    if rng.random() < 0.5:
        values = np.random.default_rng(seed)
        for stored in job.stored:
            stored[values.random(stored.shape) < 0.8] = 0
    faults = {"up": random_faults(rng), "down": random_faults(rng), "pause": rng.choice((0, 500, 20_000))}
    cluster = PacketCluster(job.configs, seed=rng.getrandbits(32), **faults, stand_ins=True, switch=VARIANTS[variant])
    merge, runs = rng.choice((0, 1, 3, 46)), rng.randint(1, 2)
    lost = rng.randrange(workers) if rng.random() < 0.5 else None
    clients = configure(cluster.workers, job, aggregator_mac=MAC, merge=merge, resend_cycles=500, stand_ins=True)
    others = [StandInWorker(worker) for worker in cluster.workers]
    problem = ""
    try:
        for index in range(runs):
            start([*map(client_of, others), *clients], job, first=index == 0, last=index == runs - 1)
            if lost is not None and index == runs - 1:
                cluster.run(rng.randint(0, 5000))
                if cluster.workers[lost - 1].inner.idle:  # all sums have come
                    lost = None
                else:
                    cluster.lose_worker(lost, rng.choice((1, 1000, 20_000)))
            cluster.wait()
    except AssertionError as error:
        problem = str(error)
    workers_of = [others[shard - 1] if shard == lost else each for shard, each in enumerate(cluster.workers)]
    weights, wrong = [], 0
    if not problem:
        weights, _, _ = collect(workers_of, [*map(client_of, workers_of)], job)
        wrong = sum(
            got.tolist() != wanted.tolist() for got, wanted in zip(weights, job.golden(runs).weights, strict=True)
        )
    counts = cluster.counts + Counter(
        {
            "runs": 1,
            "with pauses": int(faults["pause"] > 0),
            "with a worker lost": int(lost is not None),
            "wrong weights": wrong,
            "stalls": int(bool(problem)),
        }
    )
    failed = problem or (f"wrong weights of {wrong} workers" if wrong else "")
    return Outcome(seed, counts, failed and f"{failed}: {job.settings}, {faults}, merge {merge}, lost {lost}")


if __name__ == "__main__":
    sys.exit(main(__doc__, run, FIGURES, runs=100_000, variants=VARIANTS))
