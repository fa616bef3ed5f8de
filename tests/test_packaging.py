"""The wheel holds the package ``p4sgd`` with the four rooms in it, and nothing else."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("hw", "sim", "host", "build")
OWN = {"p4sgd/__init__.py", "p4sgd/py.typed"}
"""The package's files beside the rooms."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names in a wheel built from a copy of the sources in which a user has worked."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for name in (*ROOMS, ".packages", "tests"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("out"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source / name)
    for left_behind in ("build/out/small/p4sgd_worker.v", "hw/__pycache__/verilog.cpython-311.pyc"):
        (source / left_behind).parent.mkdir(parents=True, exist_ok=True)
        (source / left_behind).write_text("left behind")
    # With the build back-end at hand no network is needed; else pip fetches it.
    offline = ["--no-build-isolation", "--no-index"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", *offline]
    subprocess.run([*command, "-w", folder / "dist", source], check=True)
    (built,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_every_file_of_a_room_is_in_its_place(wheel):
    """Not the modules alone: templates, schemas and scripts are read when the program runs."""
    for room in ROOMS:
        expected = {
            f"p4sgd/{path.relative_to(ROOT)}"
            for path in (ROOT / room).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(ROOT / "build" / "out")
        }
        assert f"p4sgd/{room}/py.typed" in expected
        assert expected - set(wheel) == set()


def test_what_only_simulators_read_is_in(wheel):
    assert {"p4sgd/sim/cluster/sim_storage.sv", "p4sgd/sim/cluster/sim_trace.sv"} <= set(wheel)


def test_nothing_else_is_in(wheel):
    strangers = [
        name
        for name in wheel
        if not (name.startswith(tuple(f"p4sgd/{room}/" for room in ROOMS)) or name in OWN or ".dist-info/" in name)
    ]
    assert strangers == []
    assert [name for name in wheel if "__pycache__" in name or "/out/" in name or name.endswith(".pyc")] == []
    assert set(wheel) >= OWN
    assert "p4sgd/build/__init__.py" not in wheel


def test_nothing_is_imported_until_a_name_is_used():
    """Neither libraries nor modules of ours, whose imports the names bring."""
    program = """if True:
        import sys
        import p4sgd
        assert {name for name in sys.modules if name.startswith("p4sgd")} == {"p4sgd"}
        assert not {"numpy", "numba", "sklearn", "click"} & set(sys.modules)
        assert set(p4sgd.__all__) <= set(dir(p4sgd))
        assert not hasattr(p4sgd, "SGD")
        from p4sgd import *
        assert GLMClassifier.__module__ == "p4sgd.host.estimators.classifier"
        assert GLMRegressor.__module__ == "p4sgd.host.estimators.regressor"
        assert load_model and save_model and "sklearn" in sys.modules"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
