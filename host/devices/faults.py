"""Names and rounding of the faults of ``--fault``, and the inputs of the simulated cluster (RTL) for them."""

import math
from collections.abc import Mapping

from p4sgd.host.errors import UserError

_CYCLE_BITS = {"memory_stall": 8, "link_stall": 8, "worker_pause": 16}
"""Resolution of chances per cycle, in bits."""

_LINK_BITS = 16
"""Resolution of chances per frame, in bits."""


def faults() -> tuple[str, ...]:
    """Names of all faults: see `p4sgd.host.devices.rtl.RtlDevice.inject_faults`."""
    from p4sgd.sim.cluster.protocol import DIRECTIONS, LINK_CHANCES

    return (*_CYCLE_BITS, *(f"{way}_{name}" for way in ("link", *DIRECTIONS) for name in LINK_CHANCES))


def fault_inputs(chances: Mapping[str, float]) -> dict[str, int]:
    """Inputs of the cluster for chances of faults. A chance for one direction overrides the one for both."""
    from p4sgd.sim.cluster.protocol import DIRECTIONS, LINK_CHANCES

    if unknown := chances.keys() - set(faults()):
        raise TypeError(f"no such chances: {sorted(unknown)}")
    steps = {name: round(math.ldexp(p, _bits(name))) for name, p in simulated_faults(chances).items()}
    ways = {f"{way}_{name}": steps.get(f"link_{name}", 0) for way in DIRECTIONS for name in LINK_CHANCES}
    inputs = dict.fromkeys(_CYCLE_BITS, 0) | ways
    return inputs | {name: step for name, step in steps.items() if name in inputs}


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
