"""What `generate` writes elaborates in Verilator and in yosys, and comes out the same twice."""

import re

import pytest
from support.command_line import p4sgd
from support.own_top import TWO_ENGINES

from p4sgd.build.generate.verilog import FILE_LIST, generate, tops_of
from p4sgd.hw.spec.config import NamedConfig
from p4sgd.hw.worker.worker import ENGINE, WORKER, worker_verilog

TOPS = tops_of("")

COMMAND = "p4sgd generate --config small --out verilog"
"""That of two READMEs."""


def test_files_are_complete_and_marked(generated):
    listed = (generated / FILE_LIST).read_text().splitlines()
    assert listed == [f"{top}.v" for top in TOPS]
    assert {path.name for path in generated.iterdir()} == {
        *listed,
        FILE_LIST,
        "README.md",
        "p4sgd.vlt",
        "p4sgd.core",
        "ports.json",
        "registers.md",
        "registers.json",
        "registers.rdl",
        "p4sgd_registers.h",
        "aggregator_registers.md",
        "aggregator_registers.json",
        "aggregator_registers.rdl",
        "p4sgd_aggregator_registers.h",
        "packet.md",
        "packet.json",
        "p4sgd_packet.h",
        "manifest.json",
    }
    for path in generated.iterdir():
        if path.name != FILE_LIST:
            first = "".join(path.read_text().splitlines()[:3])
            assert "p4sgd generate --config tiny --set engines=2" in first, path.name


@pytest.mark.slow
def test_same_bytes_in_another_process(tmp_path, own_folder):
    """Nothing depends on the folder, on the order of sets or dictionaries, or on the clock."""
    done = p4sgd(*COMMAND.split()[1:], PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    for path in generate(NamedConfig.of("small"), tmp_path / "again"):
        assert path.read_bytes() == (tmp_path / "verilog" / path.name).read_bytes(), path.name


def test_modules(generated):
    """Those of the two tops do not clash, and an engine is one, with an instance for each."""
    texts = [(generated / f"{top}.v").read_text() for top in TOPS]
    names = re.findall(r"^module +(\S+?) ?\(", "".join(texts), re.MULTILINE)
    assert len(names) == len(set(names))
    assert {*TOPS, ENGINE} <= set(names)
    assert re.findall(rf"^  {ENGINE} +(\w+) \($", texts[TOPS.index(WORKER)], re.MULTILINE) == ["engine0", "engine1"]


@pytest.mark.slow
def test_the_worker_has_its_build_id(generated):
    """An engine knows none."""
    text = (generated / f"{WORKER}.v").read_text()
    worker, engine = worker_verilog(TWO_ENGINES.config, build_id=5)
    assert worker not in text
    assert engine in text


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"ports": 0}, {"ports": 33}, {"build_id": -1}, {"build_id": 1 << 32}])
def test_bad_numbers_write_nothing(tmp_path, arguments):
    with pytest.raises(ValueError, match="must be"):
        generate(NamedConfig.of("tiny"), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()
