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

    for skip, what in (("never", "reads all lines"), ("always", "skips lines of zeros")):
        try:
            split = _dealt(made, TrainingOptions(skip_zeros=skip)).split
        except UserError:  # a board cannot hold its part
            continue
        assert split is not None
        if skip == "never":
            add("a program", split.all_sparse.sample_ns, 0)
        add(f"a U280 that {what}", split.all_dense.sample_ns, split.total)
        add(f"a U280 that {what}, and a program", split.sample_ns, split.columns)
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
    return Finding([*compared.tables, boards], compared.sentences, compared.losses)
