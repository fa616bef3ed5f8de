"""Predicted time of a sample on boards with and without directories, which pass over lines of zeros.

    PYTHONPATH=tests python tests/bench/bench_zeros.py [--boards 2] [--batch 64] [--precision 8] [--shapes rcv1 …]

Data are made, scaled and rounded as for training, and lines are counted in them (hw/ZEROS.md). Chunks of 64 columns, in
the order of heat, are dealt to the engines of all boards in turn. Cycles with directories are those of
`support.directory_cycles`, without them those of `p4sgd.hw.spec.timing`: the simulated RTL is held to both, to the
cycle. Beside them is what training predicts by the first 512 samples, and by which it chooses the split. A sparse
worker is a core without packets, of 4 ns a nonzero; the split is chosen anew in each case.
"""

import bisect
import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.datasets
from support.directory_cycles import schedule
from support.script import parser_of, show

from p4sgd.host.configuration import named_config
from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.synth import SHAPES, make_source
from p4sgd.host.image import Shard
from p4sgd.host.image.contents import Values
from p4sgd.host.image.packing import quantized_values
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.dealing.columns import SAMPLED, heat_order
from p4sgd.host.training.dealing.costs import ENTRY_NS, ListedLines, lines_by_ones
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK, mini_batch_cycles


def load(name: str, samples: int, batch: int, precision: int) -> tuple[Values, int, int]:
    """Whole mini-batches of a data set with the bias, scaled and quantised as for training; samples and columns in all.

    Values have only the planes that are read.
    """
    if name == "digits":
        features = sklearn.datasets.load_digits().data
    else:
        source = make_source(name, samples=min(samples, SHAPES[name].samples))
        if not isinstance(source, Dataset):
            columns, labels = (np.concatenate(parts) for parts in zip(*source.blocks(), strict=True))
            source = source.dataset(columns, labels)
        features = source.features
    features = features[: features.shape[0] // batch * batch]
    scaling = Scaling.fit(features, "auto", planes=precision)
    values = quantized_values(features, scaling, precision, bias=True)
    planes = np.uint8((1 << precision) - 1)
    return values._replace(values=values.values & planes), features.shape[0], features.shape[1] + 1


class Estimate:
    """Times of a data set, in ns a sample."""

    def __init__(self, stored: Values, samples: int, total: int, config: WorkerConfig, options: Any) -> None:
        self._config, self._options, self._samples = config, options, samples
        heat = np.bincount(stored.columns[stored.values != 0], minlength=total)
        order = heat_order(heat[:-1], total)
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        values = stored.of(stored.rows < SAMPLED)
        training = TrainingOptions(precision=options.precision, batch=options.batch)
        self._listed = ListedLines(values, order, config.lanes, total, training)
        self._total, self.chunks = total, math.ceil(total / config.lanes)
        self._engines = options.boards * config.engines
        self._most = min(self.chunks, self._engines * config.chunks)
        nonzeros = np.cumsum(heat[order])
        ends = np.minimum(np.arange(1, self.chunks + 1) * config.lanes, total)
        self.core_ns = nonzeros[-1] / samples * ENTRY_NS
        self.sparse_ns = (nonzeros[-1] - nonzeros[ends - 1]) / samples * ENTRY_NS
        # Chunks that are not 0 by micro-batch, and the lines of each.
        keys = stored.rows // BANKS * self.chunks + places[stored.columns] // config.lanes
        by_key = np.argsort(keys, kind="stable")
        keys, begins = np.unique(keys[by_key], return_index=True)
        bits = np.bitwise_or.reduceat(stored.values[by_key], begins)
        there = bits != 0
        self._micro_batches, self._numbers = np.divmod(keys[there], self.chunks)
        self._lines, self._planes = lines_by_ones(options.precision)[bits[there]].T

    @property
    def fits(self) -> bool:
        """Whether boards hold all columns."""
        return self._most == self.chunks

    def without(self, chunks: int) -> float:
        """Boards with so many chunks that read all lines."""
        options = self._options
        each = math.ceil(chunks / self._engines)
        cycles = mini_batch_cycles(self._config, options.batch, each, options.precision, options.network)
        return cycles * CLOCK_NS / options.batch

    def with_directories(self, chunks: int) -> float:
        """Boards with so many chunks whose images have directories: the mean over all mini-batches but the last."""
        options, each = self._options, math.ceil(chunks / self._engines)
        count = self._samples // BANKS
        listed: list[list[list[tuple[int, int, int]]]] = [[[] for _ in range(count)] for _ in range(self._engines)]
        own = self._numbers < chunks
        numbers, engines = np.divmod(self._numbers[own], self._engines)
        found = (engines, self._micro_batches[own], numbers, self._lines[own], self._planes[own])
        for engine, micro_batch, *listed_chunk in zip(*(each.tolist() for each in found), strict=True):
            listed[engine][micro_batch].append(tuple(listed_chunk))
        for of_engine in listed:
            for micro_batch in of_engine:
                if not micro_batch or micro_batch[-1][0] != each - 1:
                    micro_batch.append((each - 1, 1, 1))
        step = options.batch // BANKS
        begins = schedule(listed, step, each, self._config, options.network).forward_begin.min(axis=0)[::step]
        return float((begins[-1] - begins[0]) / (begins.size - 1) * CLOCK_NS / options.batch)

    def split(self) -> int:
        """Chunks on boards that read all lines, if a sparse worker has the others."""
        hot = range(1, self._most + 1)
        return self._best(np.array([self.without(chunks) for chunks in hot]))

    def predicted(self, chunks: int) -> float:
        """Boards with so many chunks whose images have directories, as training predicts them by the first samples."""
        config, boards = self._config, self._options.boards
        shards = [
            Shard(board, config, np.arange(board, chunks, boards), config.lanes, self._total, directory=True)
            for board in range(min(boards, chunks))
        ]
        return self._listed.sample_ns(shards)

    def split_with_directories(self) -> int:
        """Chunks on boards whose images have directories, if a sparse worker has the others, as training chooses."""
        hot = range(1, self._most + 1)

        def times(chunks: int) -> tuple[float, float]:
            return self.predicted(chunks), float(self.sparse_ns[chunks - 1])

        longer = bisect.bisect_left(hot, True, key=lambda chunks: operator.ge(*times(chunks)))
        return min(hot[max(0, longer - 1) : longer + 1], key=lambda chunks: max(times(chunks)))

    def _best(self, board_ns: npt.NDArray[np.float64]) -> int:
        """The number of chunks on boards that makes the slower of boards and sparse worker fastest."""
        return int(np.argmin(np.maximum(board_ns, self.sparse_ns[: self._most]))) + 1

    def row(self) -> list[str]:
        """The cells of the table."""
        count, planes = self._lines.size, self._options.precision
        cells = [
            f"{count / (self._samples // BANKS * self.chunks):.1%}",
            f"{self._lines.sum() / planes / max(1, count):.0%}",
            f"{self.core_ns:,.0f}",
        ]
        if self.fits:
            times = self.without(self.chunks), self.with_directories(self.chunks)
            cells += [*(f"{each:.1f}" for each in (*times, self.predicted(self.chunks))), f"{times[0] / times[1]:.2f}"]
        else:
            cells += 4 * ["-"]
        before, after = self.split(), self.split_with_directories()
        times = (
            max(self.without(before), float(self.sparse_ns[before - 1])),
            max(self.with_directories(after), float(self.sparse_ns[after - 1])),
        )
        predicted = max(self.predicted(after), float(self.sparse_ns[after - 1]))
        hot = [f"{each * self._config.lanes:,}" for each in (before, after)]
        cells += [f"{times[0]:.1f}", hot[0], f"{times[1]:.1f}", f"{predicted:.1f}", hot[1]]
        return [*cells, f"{times[0] / times[1]:.2f}"]


def main() -> None:
    """Print the table."""
    names = ("rcv1", "real-sim", "avazu", "criteo", "kdd12", "digits")
    parser = parser_of(__doc__, boards=2, samples=16_384, batch=64, precision=8, network=BOARDS_NETWORK)
    parser.add_argument("--config", default="u280")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--shapes", nargs="+", choices=names, default=names)
    options, rows = parser.parse_args(), []
    config = named_config(options.config, options.set, hardware=True)
    for name in options.shapes:
        loaded = load(name, options.samples, options.batch, options.precision)
        rows.append([name, *Estimate(*loaded, config.config, options).row()])
    title = f"{options.boards} {config}, B = {options.batch}, P = {options.precision}: modelled ns a sample"
    columns = ("chunks not 0", "their lines", "a core", "boards", "directories", "predicted", "gain")
    show(title, ("", *columns, "split", "columns", "directories", "predicted", "columns", "gain"), rows)


if __name__ == "__main__":
    main()
