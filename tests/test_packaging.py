"""The distributions: sdist and wheel have the package ``p4sgd`` with the four rooms, and the wheel works on its own."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("hw", "sim", "host", "build")
OWN = {"p4sgd/__init__.py", "p4sgd/__main__.py", "p4sgd/py.typed"}
"""The package's files beside the rooms."""

REPOSITORY = "https://example.org/p4sgd"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """An sdist built from a copy of the sources in which a user has worked, and the wheel that pip builds from it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for name in (*ROOMS, ".packages", ".ci", ".github", "tests"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("out", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", ".pre-commit-config.yaml"):
        shutil.copy(ROOT / name, source / name)
    for left_behind in ("build/out/small/p4sgd_worker.v", "hw/__pycache__/verilog.cpython-311.pyc"):
        (source / left_behind).parent.mkdir(parents=True, exist_ok=True)
        (source / left_behind).write_text("left behind")

    def build(target, place):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder / "dist"]
        subprocess.run(
            command, cwd=place, check=True, capture_output=True, env=os.environ | {"P4SGD_REPOSITORY": REPOSITORY}
        )

    build("sdist", source)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build("wheel", folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def wheel(distributions):
    """Names in the wheel."""
    with zipfile.ZipFile(distributions[1]) as archive:
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


def test_an_sdist_can_be_installed_for_editing(distributions, tmp_path):
    """By `pip install -e`: the rooms are seen where they are."""
    sdist, _ = distributions
    source = sdist.parents[1] / sdist.name.removesuffix(".tar.gz")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable", "-d", tmp_path]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        path = archive.read("_p4sgd.pth").decode().strip()
    program = "from p4sgd.hw.spec import config; print(config.__file__)"
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).resolve() == (source / "hw/spec/config.py").resolve()


def test_an_index_can_show_it(distributions, tmp_path):
    """Its README leads to the repository, at the tag of the version, which the package knows, too."""
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *distributions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(distributions[1]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        archive.extractall(tmp_path)
    for words in (["-c", "import p4sgd; print(p4sgd.__version__)"], ["-m", "p4sgd", "--version"]):
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split()[-1] == metadata["Version"]
    at = f"{REPOSITORY}/blob/v{metadata['Version']}"
    assert f"Changelog, {at}/.github/CHANGELOG.md" in metadata.get_all("Project-URL")
    links = re.findall(r"\]\(([^)#]+)", metadata.get_payload())
    assert f"{at}/host/data/README.md" in links
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.slow
def test_the_wheel_works_on_its_own(distributions, tmp_path):
    """Away from the sources; libraries are those of this environment."""
    installed, here = tmp_path / "installed", tmp_path / "here"
    here.mkdir()
    with zipfile.ZipFile(distributions[1]) as archive:
        archive.extractall(installed)
    program = "import p4sgd.host.cli, sys; print(p4sgd.__file__); sys.exit(p4sgd.host.cli.main())"
    for words in (
        "generate --config tiny --out verilog",
        "build vitis --config tiny --board u280 --out vitis",
        "build check vitis",
    ):
        command, env = [sys.executable, "-c", program, *words.split()], os.environ | {"PYTHONPATH": str(installed)}
        done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(installed)), done.stdout


def test_a_tag_must_be_the_version():
    done = subprocess.run([ROOT / ".ci" / "release", "v9.9.9"], capture_output=True, text=True, check=False)
    assert (done.returncode, "the tag is v9.9.9" in done.stdout) == (1, True), done.stdout + done.stderr


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
        assert {*p4sgd.__all__, "__version__"} <= set(dir(p4sgd))
        assert p4sgd.__version__.count(".") == 2 and not {"numpy", "click"} & set(sys.modules)
        assert not hasattr(p4sgd, "SGD")
        from p4sgd import *
        assert GLMClassifier.__module__ == "p4sgd.host.estimators.classifier"
        assert GLMRegressor.__module__ == "p4sgd.host.estimators.regressor"
        assert load_model and save_model and "sklearn" in sys.modules"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
