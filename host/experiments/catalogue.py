"""All experiments by id."""

from p4sgd.host.experiments import (
    allreduce,
    area,
    columns,
    convergence,
    cycles,
    factors,
    messages,
    precision,
    scaling,
    stragglers,
    zeros,
)
from p4sgd.host.experiments.experiment import Experiment

_MODULES = (allreduce, scaling, area, cycles, messages, factors, columns, precision, convergence, stragglers, zeros)

EXPERIMENTS: dict[str, Experiment] = {
    each.id: each
    for each in sorted(
        (each for module in _MODULES for each in vars(module).values() if isinstance(each, Experiment)),
        key=lambda each: int(each.id[1:]),
    )
}
