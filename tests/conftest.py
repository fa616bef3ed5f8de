"""What all tests share: Hypothesis' settings, and the order of the tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does: no test is to fail for that.
settings.register_profile("p4sgd", deadline=None, print_blob=True)
settings.load_profile("p4sgd")

LONGEST = ("system", "conformance", "formal", "build", "hw")
"""Folders with the longest tests, these first.

A process that has no tests left takes over some that another would have come to last. Those should be short.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest tests begin first."""
    order = {Path(__file__).with_name(name): index for index, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: min((order[folder] for folder in item.path.parents if folder in order), default=len(order))
    )
