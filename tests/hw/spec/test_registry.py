"""Objects of other packages and files are found by name; what is broken is left out and told of."""

import os
import sys

import pytest

from p4sgd.hw.spec.registry import PLUGINS, Registry, load_files


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Declares objects of an installed package, with a module ``seasons``."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "seasons", raising=False)  # each test has another module of that name

    def declare(points, source):
        (tmp_path / "seasons.py").write_text(source)
        about = tmp_path / "seasons-1.5.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: seasons\nVersion: 1.5\n")
        (about / "entry_points.txt").write_text(f"[p4sgd.months]\n{points}\n")

    return declare


def whole_number(name, declared):
    if not isinstance(declared, int):
        raise TypeError(f"{name} is no number")
    return declared


def months(**own):
    return Registry("p4sgd.months", own, whole_number)


def test_ours_come_first_then_packages_then_files(package, tmp_path, monkeypatch):
    package("may = seasons:FIVE", "FIVE = 5")
    for name, text in {"june": "MONTHS = {'june': 6}", "other": "LOSSES = {'august': 8}"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLUGINS, os.pathsep.join(["june.py", "other.py"]))
    found = months(april=4)
    assert dict(found) == {"april": 4, "may": 5, "june": 6}
    assert [*found] == ["april", "may", "june"]
    assert (len(found), "august" in found) == (3, False)
    assert dict(found.sources) == {"may": "package seasons 1.5", "june": "file june.py"}
    assert (found.trouble, dict(found.own)) == ("", {"april": 4})


@pytest.mark.parametrize(
    ("points", "source", "says"),
    [
        (
            "may = seasons:FIVE",
            "import nowhere_to_be_found",
            "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("may = seasons:FIVE", "raise SystemExit(3)", "SystemExit: 3"),
        ("may = seasons:SIX", "FIVE = 5", "AttributeError: module 'seasons' has no attribute 'SIX'"),
        ("may = seasons:FIVE", "FIVE = 'five'", "TypeError: may is no number"),
        ("april = seasons:FIVE", "FIVE = 5", "ValueError: the name april is taken"),
    ],
)
def test_what_is_broken_stops_nobody_else(package, tmp_path, monkeypatch, points, source, says):
    package(points, source)
    (tmp_path / "june.py").write_text("MONTHS = {'june': 6}")
    monkeypatch.setenv(PLUGINS, os.pathsep.join([str(tmp_path / "away.py"), str(tmp_path / "june.py")]))
    found = months(april=4)
    assert dict(found) == {"april": 4, "june": 6}
    assert found.problems["package seasons 1.5"] == says
    assert (
        f"; package seasons 1.5 cannot be used: {says}; file {tmp_path / 'away.py'} cannot be used: " in found.trouble
    )


def test_ours_are_found_without_loading_others(package):
    """So a package that imports us does not keep itself out while it is half imported."""
    package("may = seasons:FIVE", "FIVE = 5")
    found = months(april=4)
    assert (found["april"], "april" in found) == (4, True)
    assert "seasons" not in sys.modules


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("MONTHS = {'april': 5}", "ValueError: the name april is taken"),
        ("MONTHS = ['may']", "TypeError: MONTHS is no dictionary"),
        ("MONTHS = {'may': 'five'}", "TypeError: may is no number"),
        ("months = {'may': 5}", "AttributeError: there is no MONTHS in it"),
    ],
)
def test_files_that_nothing_can_use_are_refused(tmp_path, monkeypatch, text, says):
    file = tmp_path / "may.py"
    file.write_text(text)
    monkeypatch.setenv(PLUGINS, str(file))
    with pytest.raises(ImportError, match=f"^{file}: {says}$"):
        load_files(months(april=4))
