"""What holds for all tests."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with the slow ones: a slow test that begins last is waited for by all processes but one."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
