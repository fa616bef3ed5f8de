"""What all tests of the command line share."""

import pytest
from click.testing import CliRunner

from p4sgd.host.cli.app import main


@pytest.fixture(scope="session", autouse=True)
def _compiled():
    """The first run of a new machine says that it compiles, which no test is to find in its output."""
    done = CliRunner().invoke(main, ["train", "iris:1", "--epochs", "1"])
    assert done.exit_code == 0, done.stderr
