"""Predicted time of sparse data on boards, with and without sparse workers for the cold columns.

    python tests/bench/bench_split.py [--boards 2] [--sparse-workers 1] [--samples 1000000] [--batch 64]

All figures are modelled. A board of the configuration u280 takes 4 ns for each plane of each chunk of a micro-batch,
and the time of the sums for each mini-batch, with 592 ns of network (`p4sgd.hw.spec.timing`): boards read all lines,
bench_zeros.py has splits with those that pass over zeros. A sparse worker takes `ENTRY_NS` for a nonzero, on one core,
and if it is a process of its own `PACKETS_NS` for the packets of a sample. Heat, the number of samples that have a
column, is that of the made data of these shapes, of up to so many samples; the last column has the split that the heat
of 8 % of them suggests.
"""

import argparse
import math

import numpy as np
from rich.console import Console
from rich.table import Table

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.synth import SHAPES, make_source
from p4sgd.host.image import Shard
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.dealing import deal_columns
from p4sgd.host.training.dealing.costs import ENTRY_NS
from p4sgd.host.training.dealing.split import Split
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import choose_unit

_NAMES = ("rcv1", "real-sim", "avazu", "criteo", "kdd12")
_SAMPLE = 0.08


def column_heat(name: str, samples: int) -> tuple[IntArray, IntArray, int]:
    """Samples that have each column: of up to ``samples``, and of the first 8 % of them; and the number of samples."""
    shape = SHAPES[name]
    source = make_source(name, samples=min(samples, shape.samples))
    part = int(source.samples * _SAMPLE)
    if isinstance(source, Dataset):
        features = source.features
        assert not isinstance(features, np.ndarray)
        counts = [np.bincount(each.indices, minlength=shape.features) for each in (features, features[:part])]
        return counts[0], counts[1], source.samples
    heat, sampled, seen = np.zeros(shape.features, np.int64), np.zeros(shape.features, np.int64), 0
    for columns, _ in source.blocks():
        heat += np.bincount(columns.reshape(-1), minlength=shape.features)
        few = columns[: max(0, part - seen)]
        sampled += np.bincount(few.reshape(-1), minlength=shape.features)
        seen += columns.shape[0]
    return heat, sampled, source.samples


def shards_of(features: int, boards: int, sparse: int) -> list[Shard]:
    """Shards of so many boards and sparse workers, before columns are dealt."""
    unit = choose_unit(features + 1)
    configs = [WorkerConfig.u280()] * boards + [WorkerConfig.sparse_worker()] * sparse
    return [Shard(worker, config, np.arange(1), unit, features + 1) for worker, config in enumerate(configs)]


def deal(
    shards: list[Shard], heat: IntArray, samples: int, options: TrainingOptions, *, network: bool = False
) -> tuple[list[Shard], Split]:
    """Shards and split for boards that read all lines."""
    scaling = Scaling("none", np.zeros(heat.size), np.ones(heat.size), signed=True, heat=heat)
    dealt = deal_columns(shards, scaling, options, samples=samples, values=NotImplemented, network=network)
    assert dealt.split is not None
    return dealt.shards, dealt.split


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=2)
    parser.add_argument("--sparse-workers", type=int, default=1, help="more where one does not hold the columns")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--precision", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shapes", nargs="+", choices=_NAMES, default=list(_NAMES))
    chosen = parser.parse_args()
    options = TrainingOptions(precision=chosen.precision, batch=chosen.batch, skip_zeros="never")
    table = Table(title=f"{chosen.boards} u280: modelled µs a sample")
    names = ("all dense", "all sparse", "split without packets", "hot", "nonzeros", "with", "hot", "nonzeros", "by 8 %")
    for column in ("", *names):
        table.add_column(column, justify="right" if column else "left")
    for name in chosen.shapes:
        features = SHAPES[name].features
        workers = max(chosen.sparse_workers, math.ceil(features / WorkerConfig.sparse_worker().features))
        heat, sampled, samples = column_heat(name, chosen.samples)
        shards, row = shards_of(features, chosen.boards, workers), [name]
        for network in (False, True):
            _, split = deal(shards, heat, samples, options, network=network)
            if not network:
                row += [_time(split.all_dense.sample_ns), _time(split.all_sparse.sample_ns)]
            row += [_time(split.sample_ns), f"{split.columns:,}", f"{split.nonzeros:.1%}"]
        table.add_row(*row, _sampled(shards, heat, sampled, samples, options))
    Console(width=150).print(table)


def _time(sample_ns: float | None) -> str:
    return "-" if sample_ns is None else f"{sample_ns / 1000:.3f}"


def _sampled(shards: list[Shard], heat: IntArray, sampled: IntArray, samples: int, options: TrainingOptions) -> str:
    """Time of the split that a part of the samples suggests, without packets, with the heat of all."""
    dealt, split = deal(shards, sampled, int(samples * _SAMPLE), options)
    everything = np.append(heat, samples)
    cold = max(everything[shard.columns].sum() / samples for shard in dealt if shard.config.sparse)
    return _time(max(cold * ENTRY_NS, *(worker.sample_ns for worker in split.workers if not worker.sparse)))


if __name__ == "__main__":
    main()
