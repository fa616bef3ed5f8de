"""E8: sparse data. Time to 1 % of the optimum beside other solvers, and what boards would take for as many epochs if
they read all lines, skip lines of zeros, or share the columns with a program that reads only what is not 0."""

from functools import partial

import numpy as np

from p4sgd.host.data import Scaling
from p4sgd.host.errors import UserError
from p4sgd.host.experiments.convergence import Measured, comparison, measure_all
from p4sgd.host.experiments.experiment import Cell, Finding, Source, Table, experiment
from p4sgd.host.experiments.sets import LabelledSet, sets_of
from p4sgd.host.image.contents import Values
from p4sgd.host.image.packing import quantized_values
from p4sgd.host.training.dealing.columns import deal_columns
from p4sgd.host.training.dealing.split import Dealt
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig

_COLUMNS = ("data", "values not 0", "workers", "ns a sample", "columns on boards", "ms to 1 %", "source")


_PROGRAM, _BOARD, _SKIPS = "a program", "a U280 that reads all lines", "a U280 that skips lines of zeros"


def _dealt(made: LabelledSet, options: TrainingOptions) -> Dealt:
    """How columns are dealt to a U280 and a sparse worker; `UserError` if the board cannot hold its part."""
    configs = [WorkerConfig.u280(), WorkerConfig.sparse_worker()]
    samples, features = made.features.shape
    scaling = Scaling.fit(made.features, "none", planes=options.stored)
    values = partial(_first_values, made, scaling, options)
    return deal_columns(deal_units(features, options, configs), scaling, options, samples=samples, values=values)


def _first_values(made: LabelledSet, scaling: Scaling, options: TrainingOptions, samples: int) -> Values:
    which = np.arange(min(samples, made.labels.size))
    return Values.join(quantized_values(made.features, which, scaling, options.stored, bias=options.bias))


def _rows(measured: Measured, made: LabelledSet) -> list[list[Cell]]:
    samples, features = made.features.shape
    title, density = f"{measured.name}, {samples:,} × {features:,}", made.features.nnz / (samples * features)
    rows: list[list[Cell]] = []

    def add(workers: str, sample_ns: float | None, hot: int | None) -> None:
        if sample_ns is not None:
            ms = sample_ns * samples * measured.ours.budget * 1e-6 if measured.ours else None
            rows.append(
                [title, f"{density:.3%}", workers, round(sample_ns, 1), hot, ms and round(ms, 2), Source.MODELLED]
            )

    for skip, board in (("never", _BOARD), ("always", _SKIPS)):
        try:
            split = _dealt(made, TrainingOptions(skip_zeros=skip)).split
        except UserError:  # a board cannot hold its part
            continue
        assert split is not None
        if skip == "never":
            add(_PROGRAM, split.all_sparse.sample_ns, 0)
        add(board, split.all_dense.sample_ns, split.total)
        add(f"{board}, and a program", split.sample_ns, split.columns)
    return rows


@experiment(
    "E8",
    "Sparse data",
    "How much time does sparse data take, and what do boards gain by skipping zeros or by sharing the columns?",
)
def sparse_data(quick: bool) -> Finding:
    """The finding of E8."""
    found = measure_all(quick, sparse=True)
    rows = [row for each in found if each.reached for row in _rows(each, sets_of(quick)[each.name]())]
    note = "Predicted for 250 MHz, 8 planes and mini-batches of 16 by the functions with which training deals columns."
    boards = Table("Boards on sparse data", _COLUMNS, rows, note=note)
    compared = comparison(found)
    times = {(str(row[0]), str(row[2])): float(row[3] or 0) for row in rows}
    sentences, losses = list(compared.sentences), list(compared.losses)
    for name in dict.fromkeys(name for name, _ in times):
        program, board, skips = (times.get((name, each), 0.0) for each in (_PROGRAM, _BOARD, _SKIPS))
        if skips:
            sentences.append(f"{name}: skipping lines of zeros makes a U280 {board / skips:.2f} times as fast.")
        if board and program < min(board, skips or board):
            slower = min(board, skips or board) / program
            losses.append(
                f"{name}: a U280 takes {slower:.1f} times as long as a program that reads only what is not 0."
            )
    return Finding([*compared.tables, boards], sentences, losses)
