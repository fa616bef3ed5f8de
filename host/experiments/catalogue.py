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
    zeros,
)
from p4sgd.host.experiments.experiment import Experiment

_MODULES = (allreduce, scaling, area, cycles, messages, factors, columns, precision, convergence, zeros)

EXPERIMENTS: dict[str, Experiment] = {
    each.id: each
    for each in sorted((e for module in _MODULES for e in module.EXPERIMENTS), key=lambda e: int(e.id[1:]))
}
