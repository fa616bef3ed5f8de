r"""Trainings on worker processes that are killed, cut off and started at random times: the weights must be exact.

    python tests/campaign/workers.py [--runs 100] [--seed 0] [--jobs 1] [--only SEED]

A seed stands for four workers, dense or sparse, and an aggregator in network namespaces (root, or `unshare -Urn` before
it), and a few trainings on them, one after the other, each of which loses one or two workers. Some of those are started
again, and take part again. All trainings must end by themselves with the weights of one process.
"""

import dataclasses
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from campaign.runner import Outcome, command_line, report
from support.lab import Lab

WORKERS = 4
TRAININGS = 5
"""Of each seed; to start workers takes as long as several."""

FIGURES = ("sparse workers", "killed", "cut off", "started again", "adoptions", "taken in", "untouched")
FIGURES += ("wrong weights", "lost")

_NETWORK = "resend_us = 20000\nresends = 5\ndoublings = 3"
_CONFIG = WorkerConfig.tiny()
_CONFIGS = ("tiny", f"--sparse --slots {_CONFIG.slots}")


def dataset() -> Dataset:
    """A few samples, so that an epoch takes some hundredths of a second."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 100)) * (rng.random((256, 100)) < 0.3)
    return Dataset(x, (x @ rng.normal(size=100) > 0).astype(float), "made")


class Breaker(threading.Thread):
    """Breaks some workers while a training runs, and may start one again; `mend` makes all good."""

    def __init__(self, lab: Lab, rng: random.Random, seconds: float) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._lab = lab
        self._ended = threading.Event()
        self._plan = [
            (rng.uniform(0, seconds), worker, rng.random() < 2 / 3, rng.random() < 1 / 2)
            for worker in rng.sample(range(WORKERS), rng.choice([1, 1, 2]))
        ]

    def run(self) -> None:
        """Break them, each in its time."""
        begin = time.monotonic()
        for after, worker, kill, start in sorted(self._plan):
            if self._ended.wait(max(0.0, begin + after - time.monotonic())):
                return
            if not kill:
                self._lab.set_link(worker, "down")
                self.counts["cut off"] += 1
                continue
            self._lab.kill(f"worker{worker}")
            self.counts["killed"] += 1
            if start:
                self._lab.start_worker(worker)
                self.counts["started again"] += 1

    def mend(self) -> None:
        """Undo what was done."""
        self._ended.set()
        self.join()
        for worker in range(WORKERS):
            self._lab.set_link(worker, "up")
            if f"worker{worker}" not in self._lab.processes:
                self._lab.start_worker(worker)


def run(seed: int) -> Outcome:
    """Trainings on one cluster, until one fails."""
    rng, counts, data = random.Random(seed), Counter[str](), dataset()
    alone = TrainingOptions(epochs=24, batch=32, scaling="maxabs")
    options = dataclasses.replace(alone, workers=WORKERS)
    expected = train(data, alone, open_device("emulator", _CONFIG, 1)).model.weights.tolist()
    with tempfile.TemporaryDirectory() as folder:
        configs = rng.choices(_CONFIGS, k=WORKERS)
        lab = Lab(Path(folder), WORKERS, config=configs, network=_NETWORK)
        try:
            seconds = 2.0
            for training in range(TRAININGS):
                breaker = Breaker(lab, rng, seconds)
                begin, failure = time.monotonic(), ""
                try:
                    device = ClusterDevice(None, WORKERS, cluster=read_cluster(Path(folder, "cluster.toml")))
                    breaker.start()
                    try:
                        result = train(data, options, device)
                    finally:
                        device.close()
                        breaker.mend()
                except (P4sgdError, UserError) as error:
                    failure = " ".join([str(error), *getattr(error, "__notes__", ())])
                    counts["lost"] += 1
                else:
                    told = " ".join(result.remarks)
                    counts["adoptions"] += told.count(" instead of ")
                    counts["taken in"] += told.count(" of them new")
                    if not breaker.counts:
                        counts["untouched"] += 1
                        seconds = time.monotonic() - begin
                    if result.model.weights.tolist() != expected:
                        failure = "wrong weights"
                        counts["wrong weights"] += 1
                counts += breaker.counts + Counter({"runs": 1, "sparse workers": WORKERS - configs.count("tiny")})
                if failure:
                    return Outcome(seed, counts, f"{failure}: training {training}, {dict(breaker.counts)}")
        finally:
            lab.close()
    return Outcome(seed, counts)


def main() -> int:
    """Run it and print one table."""
    options = command_line(__doc__, runs=100, jobs=1).parse_args()  # workers that wait for a core seem to be gone
    return report(run, options, "python tests/campaign/workers.py", FIGURES, batch=TRAININGS)


if __name__ == "__main__":
    sys.exit(main())
