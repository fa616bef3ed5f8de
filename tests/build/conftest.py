"""Generated folders that several modules read. A test that changes one copies it first."""

from functools import cache

import pytest
from support.shared import make_once

from p4sgd.build.fpga import kernel, vitis, vivado


@pytest.fixture(scope="session")
def _vendor_folders(tmp_path_factory):
    """Folders of the smallest worker for Vitis and for Vivado, which have most kernels in common."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("worker", "cmac"):
                made = cache(getattr(kernel, name))
                patch.setattr(kernel, name, made)
                patch.setattr(vivado, name, made)
            vitis.build("tiny", folder / "vitis", board="u280")
            vivado.build("tiny", folder / "vivado", board="u280")

    return make_once(tmp_path_factory, "vendor_folders", make)


@pytest.fixture(scope="session")
def vitis_folder(_vendor_folders):
    return _vendor_folders / "vitis"


@pytest.fixture(scope="session")
def vivado_folder(_vendor_folders):
    return _vendor_folders / "vivado"
