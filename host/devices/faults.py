"""Faults of the simulated cluster (RTL) by the names of ``--fault``: rounding of chances, and the inputs for them."""

import math
from collections.abc import Mapping

from p4sgd.host.errors import UserError
from p4sgd.sim.network.faults import DIRECTIONS, LINK_FAULTS, chances_of

_CYCLE_BITS = {"memory_stall": 8, "memory_gap": 16, "link_stall": 8, "worker_pause": 16}
"""Resolution of chances per cycle, in bits."""

_LINK_BITS = 16
"""Resolution of chances per frame, in bits."""

FAULTS = (*_CYCLE_BITS, *LINK_FAULTS)
"""Names of all faults: see `p4sgd.host.devices.rtl.RtlDevice.inject_faults`."""


def fault_inputs(chances: Mapping[str, float]) -> dict[str, int]:
    """Inputs of the cluster for chances of faults."""
    if unknown := chances.keys() - set(FAULTS):
        raise TypeError(f"no such chances: {sorted(unknown)}")
    rounded = simulated_faults(chances)
    ways = {f"{way}_{name}": each for way in DIRECTIONS for name, each in chances_of(way, rounded).items()}
    cycles = {name: rounded.get(name, 0.0) for name in _CYCLE_BITS}
    return {name: round(math.ldexp(chance, _bits(name))) for name, chance in (cycles | ways).items()}


def _bits(chance: str) -> int:
    return _CYCLE_BITS.get(chance, _LINK_BITS)


def simulated_faults(wanted: Mapping[str, float]) -> dict[str, float]:
    """Round chances to the nearest ones that can be simulated: a `UserError` if one is not 0 but would be rounded to
    it, or is not below 1."""
    result = {}
    for name, chance in wanted.items():
        bits = _bits(name)
        if not 0 <= chance < 1:
            raise UserError(f"{name.replace('_', ' ')} must be 0 to below 1, not {chance:g}")
        steps = min(round(math.ldexp(chance, bits)), (1 << bits) - 1)
        if chance > 0 and steps == 0:
            smallest = math.ldexp(1, -bits)
            raise UserError(f"{name.replace('_', ' ')} must be 0 or at least {smallest:.3g}, not {chance:g}")
        result[name] = math.ldexp(steps, -bits)
    return result
