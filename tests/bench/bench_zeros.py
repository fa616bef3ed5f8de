"""Predicted time of a sample if boards passed over lines without a 1, beside what there is.

    PYTHONPATH=tests python tests/bench/bench_zeros.py [--boards 2] [--batch 256] [--precision 8] [--shapes rcv1 …]

No hardware does so; hw/ZEROS.md has the design that is estimated here. A chunk of a micro-batch, 8 samples of 64
columns in the order of heat, takes P cycles unless it is 0 (*chunks*), or a cycle for each plane that has a 1
(*lines*), and its part of the directory. All figures are modelled, on made data: lines are counted in them after
scaling and rounding, mini-batch by mini-batch (`support.zero_lines`). Boards that pass over nothing take the cycles of
the simulated RTL (`p4sgd.hw.spec.timing`). A sparse worker is a core without packets, as in bench_split.py. The split
is chosen anew in each case, by the same times; gains are over the split without skipping.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import sklearn.datasets
from rich.console import Console
from rich.table import Table
from support.zero_lines import Lines, engines_of, expected_chunks, fixed_cycles, nonzero_lines, skipping_cycles

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.kernels import quantize_stored
from p4sgd.host.data.quantization import quantize
from p4sgd.host.data.synth import SHAPES, make_source
from p4sgd.host.training.heat import ENTRY_NS, heat_order
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, PRESETS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.timing import mini_batch_cycles

ENTRIES = 32, 21
"""Chunks that a line of the directory lists: of 16 bits each, or of 24 with a bit for each plane."""


@dataclass(frozen=True)
class Stored:
    """Stored values of a data set, with the bias: samples, columns and quantised values; samples and columns in all."""

    rows: IntArray
    columns: IntArray
    values: npt.NDArray[np.uint8]
    samples: int
    total: int


def load(name: str, samples: int, batch: int, precision: int) -> Stored:
    """Whole mini-batches of a data set, scaled and quantised as for training."""
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
    count, width = features.shape
    if isinstance(features, np.ndarray):
        dense = quantize(scaling.apply(features), precision, scaling.signed).astype(np.uint8)
        rows, columns = np.nonzero(dense)
        values = dense[rows, columns]
    else:
        rows, columns = np.repeat(np.arange(count), np.diff(features.indptr)), features.indices.astype(np.int64)
        values = quantize_stored(features, scaling.offset, scaling.scale, precision, scaling.signed)
    values &= np.uint8((1 << precision) - 1)
    bias = np.full(count, (1 << precision) - 1, np.uint8)
    return Stored(
        np.append(rows, np.arange(count)),
        np.append(columns, np.full(count, width)),
        np.append(values, bias),
        count,
        width + 1,
    )


class Estimate:
    """Times of a data set, in ns a sample."""

    def __init__(self, stored: Stored, config: WorkerConfig, options: argparse.Namespace) -> None:
        self._config, self._options, self._samples = config, options, stored.samples
        self._heat = np.bincount(stored.columns[stored.values != 0], minlength=stored.total)
        order = heat_order(self._heat[:-1], stored.total)
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        self.sorted_heat = self._heat[order]
        self.lines: Lines = nonzero_lines(stored.rows, places[stored.columns], stored.values, config.lanes)
        self.chunks = math.ceil(stored.total / config.lanes)
        self._engines = options.boards * config.engines
        self._most = min(self.chunks, self._engines * config.chunks)
        nonzeros = np.cumsum(self.sorted_heat)
        ends = np.minimum(np.arange(1, self.chunks + 1) * config.lanes, stored.total)
        self.sparse_ns = (nonzeros[-1] - nonzeros[ends - 1]) / stored.samples * ENTRY_NS

    @property
    def fits(self) -> bool:
        """Whether boards hold all columns."""
        return self._most == self.chunks

    @property
    def fastest_core(self) -> float:
        """All columns on a sparse worker."""
        return float(self.sorted_heat.sum() / self._samples * ENTRY_NS)

    def dense(self, chunks: int) -> float:
        """Boards with so many chunks."""
        options = self._options
        each = math.ceil(chunks / self._engines)
        cycles = mini_batch_cycles(self._config, options.batch, each, options.precision, options.network)
        return cycles * CLOCK_NS / options.batch

    def skipping(self, chunks: int, costs: npt.NDArray[np.float64]) -> float:
        """Boards with so many chunks that pass over zeros."""
        options = self._options
        cycles = skipping_cycles(
            self.lines,
            costs,
            engines_of(chunks, self._engines),
            self._config,
            batch=options.batch,
            mini_batches=self._samples // options.batch,
            precision=options.precision,
            network=options.network,
        )
        return cycles * CLOCK_NS / options.batch

    def split(self) -> int:
        """Chunks on boards if nothing is skipped."""
        hot = range(1, self._most + 1)
        return self._best(np.array([self.dense(chunks) for chunks in hot]))

    def skipping_split(self, costs: npt.NDArray[np.float64]) -> int:
        """Chunks on boards if zeros are skipped, by mean loads of engines that are alike."""
        options, hot = self._options, np.arange(1, self._most + 1)
        present, work = (
            np.cumsum(np.bincount(self.lines.chunks, weights, self.chunks)[: self._most]) / self._engines
            for weights in (None, costs)
        )
        micro_batches = self._samples // BANKS
        cycles = np.maximum(work / micro_batches, Model.UPDATE_SPACING) * (options.batch // BANKS)
        cycles += hot / self._engines - present / micro_batches
        cycles += fixed_cycles(self._config, options.batch, options.precision, options.network)
        return self._best(cycles * CLOCK_NS / options.batch)

    def _best(self, board_ns: npt.NDArray[np.float64]) -> int:
        """The number of chunks on boards that makes the slower of boards and sparse worker fastest."""
        return int(np.argmin(np.maximum(board_ns, self.sparse_ns[: self._most]))) + 1

    def row(self) -> list[str]:
        """The cells of the table."""
        options = self._options
        count = self.lines.chunks.size
        whole = np.full(count, options.precision * (1 + 1 / ENTRIES[0]))  # a directory has the planes of a chunk
        granules = whole, self.lines.planes + 1 / ENTRIES[1]
        by_heat = expected_chunks(self.sorted_heat, self._samples, self._config.lanes).mean()
        cells = [
            f"{count / (self._samples // BANKS * self.chunks):.1%}",
            f"{by_heat:.1%}",
            f"{self.lines.planes.mean() / options.precision:.0%}",
            f"{self.fastest_core:,.0f}",
            f"{self.dense(self.chunks):.1f}" if self.fits else "-",
            *(f"{self.skipping(self.chunks, costs):.1f}" if self.fits else "-" for costs in granules),
        ]
        hot = self.split()
        before = max(self.dense(hot), float(self.sparse_ns[hot - 1]))
        cells += [f"{before:.1f}", f"{hot * self._config.lanes:,}"]
        for costs in granules:
            hot = self.skipping_split(costs)
            after = max(self.skipping(hot, costs), float(self.sparse_ns[hot - 1]))
            cells += [f"{after:.1f}", f"{hot * self._config.lanes:,}", f"{before / after:.2f}"]
        return cells


def main() -> None:
    """Print the table."""
    names = ("rcv1", "real-sim", "avazu", "criteo", "kdd12", "digits")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=2)
    parser.add_argument("--config", choices=list(PRESETS), default="u280")
    parser.add_argument("--samples", type=int, default=65_536, help="most samples of a data set")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", type=int, default=8)
    parser.add_argument("--network", type=int, default=50, help="cycles from PARTIAL to FULL")
    parser.add_argument("--shapes", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    title = f"{options.boards} {options.config}, B = {options.batch}, P = {options.precision}: modelled ns a sample"
    table = Table(title=title)
    skipping = ("chunks", "columns", "gain", "lines", "columns", "gain")
    for column in (
        "",
        "chunks not 0",
        "by heat",
        "their lines",
        "a core",
        "boards",
        *skipping[::3],
        "split",
        "columns",
        *skipping,
    ):
        table.add_column(column, justify="right" if column else "left")
    for name in options.shapes:
        stored = load(name, options.samples, options.batch, options.precision)
        table.add_row(name, *Estimate(stored, PRESETS[options.config](), options).row())
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
