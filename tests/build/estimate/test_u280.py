"""A worker for the U280 fits it, its paths are short, and hw/README.md has its size."""

from pathlib import Path

import pytest

from p4sgd.build.estimate.resources import measure
from p4sgd.build.generate.devices import DEVICES
from p4sgd.hw.spec.config import WorkerConfig

TOLERANCE = 0.02
"""Of the numbers in hw/README.md, as versions of yosys differ a little."""


def table():
    """Rows of the table of sizes in hw/README.md, by their first cell."""
    text = (Path(__file__).parents[3] / "hw" / "README.md").read_text().partition("**Size.**")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {name: [float(cell.replace(",", "")) for cell in cells] for name, *cells in rows[2:] if name}


@pytest.mark.slow
def test_u280_fits_and_its_paths_are_short():
    """Room for the vendor's shell and for routing is left, and for a clock of 300 MHz."""
    units, _ = measure(WorkerConfig.u280(), "worker")
    worker = units[-1].document(DEVICES["u280"])
    print({name: f"{share:.1%}" for name, share in worker["share"].items()})
    assert worker["share"].pop("lut") < 0.35
    assert max(worker["share"].values()) < 0.5
    for unit in units:
        assert unit.timing.ends > 10_000
        assert unit.timing.breaking == 0, unit.timing.paths[:3]
        assert unit.timing.paths[0].delay < 1000 / 300, unit.timing.paths[0]
    engine, whole = (unit.total for unit in units)
    parts = {part.name: part.resources for part in units[0].parts}
    rest = engine.plus(parts["model"], -1).plus(parts["backward"], -1).plus(parts["forward"], -1)
    assert table() == {
        name: pytest.approx([*resources.table().values()], rel=TOLERANCE)
        for name, resources in {
            "model and update": parts["model"],
            "backward": parts["backward"],
            "forward": parts["forward"],
            "rest of an engine": rest,
            "an engine": engine,
            "rest of the worker": whole.plus(engine, -WorkerConfig.u280().engines),
            "worker, E = 8": whole,
        }.items()
    } | {"of a U280": [getattr(DEVICES["u280"], name) for name in whole.table()]}
