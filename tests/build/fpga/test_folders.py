"""Every kind of folder for AMD's tools: nothing is wrong with it, and the same command makes the same bytes."""

import pytest
from support.command_line import p4sgd
from support.vendor_folders import check_right

FOLDERS = {
    "vitis": ("p4sgd build vitis --config tiny --board u280 --out vitis", "p4sgd build check vitis"),
    "debug": ("p4sgd build vitis --config tiny --board u280 --debug --out debug", "p4sgd build check debug"),
    "selftest": (
        "p4sgd build selftest --config tiny --board u280 --cable copper --out selftest",
        "p4sgd build check selftest",
    ),
    "vivado": ("p4sgd build vivado --config tiny --board u280 --out vivado", "p4sgd build check vivado"),
}
"""Commands by the fixture with the folder; the first are those of build/README.md."""

NEXT = {"selftest": "p4sgd doctor --self-test out/hw/p4sgd_selftest.xclbin", "vivado": "make bitstream"}
"""What a command says besides that the folder can be checked."""


@pytest.fixture(params=FOLDERS)
def kind(request):
    return request.param


@pytest.fixture
def folder(request, kind):
    return request.getfixturevalue(f"{kind}_folder")


def test_nothing_is_wrong_with_it(kind, folder, vitis_folder):
    """Verilog of the folder for Vivado is that for Vitis, which Verilator reads; long tests have it read all."""
    if kind == "vivado":
        for name in ("p4sgd_worker_kernel.v", "p4sgd_cmac_kernel.v"):
            ours, theirs = ((each / name).read_text().partition("\n")[2] for each in (folder, vitis_folder))
            assert ours == theirs, name
    if skipped := check_right(folder, *(["verilog"] if kind != "vitis" else [])):
        pytest.skip(str(skipped))


def test_every_file_says_how_it_was_made(kind, folder):
    _, _, tool, *_ = FOLDERS[kind][0].split()
    option = {"debug": "--debug", "selftest": "--cable copper"}.get(kind, "--build-id 0")
    for path in folder.iterdir():
        begin = "".join(path.read_text().splitlines(keepends=True)[:4])
        assert f"p4sgd build {tool}" in begin, path.name
        assert option in begin or path.suffix in (".xml", ".json"), path.name


@pytest.mark.slow
def test_the_same_bytes_by_the_command_line(kind, folder, tmp_path, own_folder):
    """In another process, whose sets have another order."""
    make, check = (command.split()[1:] for command in FOLDERS[kind])
    done = p4sgd(*make, PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    for word in ("p4sgd build check", "make", NEXT.get(kind, "")):
        assert word in done.stdout
    ours = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / kind).iterdir()} == ours
    done = p4sgd(*check)
    assert done.returncode == 0, done.stderr
