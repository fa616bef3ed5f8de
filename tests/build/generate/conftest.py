"""A folder that several modules read."""

import pytest
from support.own_top import TWO_ENGINES
from support.shared import make_once

from p4sgd.build.generate.verilog import generate


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """Folder of the smallest worker with two engines."""
    return make_once(tmp_path_factory, "two_engines", lambda folder: generate(TWO_ENGINES, folder))
