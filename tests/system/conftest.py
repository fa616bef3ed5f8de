"""Simulated clusters, and the seed of random tests."""

import contextlib

import pytest
from support.bench import default_seed

from p4sgd.host.devices.rtl import RtlDevice


@pytest.fixture
def seed():
    return default_seed()


@pytest.fixture
def rtl():
    """Opens simulated clusters, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(contextlib.closing(RtlDevice(*words, **options)))
