"""A worker for the U280 fits it, and its paths are short."""

import pytest

from p4sgd.build.estimate.resources import measure
from p4sgd.build.generate.devices import DEVICES
from p4sgd.hw.spec.config import WorkerConfig


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
