"""Generated folders that several modules read. A test that changes one copies it first."""

from functools import cache

import pytest
from support.shared import make_once

from p4sgd.build.fpga import heartbeat, kernel, vitis, vivado
from p4sgd.build.generate import verilog
from p4sgd.hw.spec.config import NamedConfig

TINY = NamedConfig.of("tiny")

_KERNELS = {name: cache(getattr(kernel, name)) for name in ("worker", "cmac", "emulated_cmac", "aggregator")}
"""Functions that make kernels, each of which takes seconds, but only once in a process."""


@pytest.fixture(scope="module")
def kernels_made_once():
    """For modules that need the kernels of several folders, most of which are the same."""
    with pytest.MonkeyPatch.context() as patch:
        _make_once(patch)
        yield


def _make_once(patch):
    for name, made in _KERNELS.items():
        patch.setattr(kernel, name, made)
    for name in ("worker", "cmac"):
        patch.setattr(vivado, name, _KERNELS[name])


@pytest.fixture(scope="session")
def _vendor_folders(tmp_path_factory):
    """Folders of the smallest worker for Vitis, also to be watched, for Vivado, and of a self-test with the equaliser
    for copper. They have most kernels in common."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            _make_once(patch)
            vitis.build(TINY, folder / "vitis", board="u280")
            vitis.build(TINY, folder / "debug", board="u280", debug=True)
            vitis.build(TINY, folder / "selftest", board="u280", cable="copper", self_test=True)
            vivado.build(TINY, folder / "vivado", board="u280")

    return make_once(tmp_path_factory, "vendor_folders", make)


@pytest.fixture(scope="session")
def vitis_folder(_vendor_folders):
    return _vendor_folders / "vitis"


@pytest.fixture(scope="session")
def vivado_folder(_vendor_folders):
    return _vendor_folders / "vivado"


@pytest.fixture(scope="session")
def debug_folder(_vendor_folders):
    return _vendor_folders / "debug"


@pytest.fixture(scope="session")
def selftest_folder(_vendor_folders):
    return _vendor_folders / "selftest"


@pytest.fixture(scope="session")
def generated_folder(tmp_path_factory):
    """Of the smallest worker and an aggregator, without kernels."""
    return make_once(tmp_path_factory, "generated", lambda folder: verilog.generate(TINY, folder))


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory):
    return make_once(tmp_path_factory, "demo", heartbeat.generate)
