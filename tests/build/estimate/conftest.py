"""yosys, compiled before the first test that synthesises something."""

import pytest
from support.yosys import prepare_yosys


@pytest.fixture(scope="session", autouse=True)
def _yosys():
    prepare_yosys()
