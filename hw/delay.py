"""A value some cycles later."""

from typing import Any

from amaranth.hdl import Module, Signal

__all__ = ["delayed"]


def delayed(m: Module, value: Any, cycles: int, name: str, *, reset_less: bool = False) -> list[Any]:
    """Register a value ``cycles`` times.

    Parameters
    ----------
    m
        Module that gets the registers.
    value
        A value or a view.
    cycles
        How many registers.
    name
        Their name, behind which the number of cycles stands.
    reset_less
        Whether a reset leaves them alone, as something beside them says when they matter.

    Returns
    -------
    The value now, after one cycle, after two, and so on.
    """
    stages = [value]
    for cycle in range(1, cycles + 1):
        later: Any = Signal(value.shape(), name=f"{name}{cycle}", reset_less=reset_less)
        m.d.sync += later.eq(stages[-1])
        stages.append(later)
    return stages
