"""Waveforms, read by wellen, the library of the viewer Surfer."""

from pathlib import Path

import pytest

from p4sgd.sim.verilator import waves_problem

TICKS = 4000
"""Ticks of a waveform's time, picoseconds, in a cycle."""


def skip_without_headers() -> None:
    if problem := waves_problem():
        pytest.skip(problem)


def read_changes(path: Path) -> dict[str, list[tuple[int, int]]]:
    """By signal, named from the top module on: times in ticks and values from then on, at least the first."""
    from pywellen import Waveform

    return {
        signal.full_name: [(at, int(value)) for at, value in signal.tv] for signal in Waveform(str(path)).all_vars()
    }
