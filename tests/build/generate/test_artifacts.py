"""Folders of generated files appear whole or do not change."""

import hashlib
import json
from itertools import product
from pathlib import Path

import pytest

from p4sgd.build.generate import artifacts
from p4sgd.build.generate.artifacts import ForeignFolderError, read_manifest, write_folder

COMMAND = "p4sgd generate"


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_writes_files_and_checksums(tmp_path):
    out = tmp_path / "deep" / "out"
    paths = write_folder(out, COMMAND, {"b.txt": "zwei\n", "a.txt": "é"}, {"config": "tiny"})
    assert paths == [out / "b.txt", out / "a.txt", out / "manifest.json"]
    assert (out / "b.txt").read_bytes() == b"zwei\n"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest.pop("sha256") == hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    assert manifest == {
        "generated_by": COMMAND,
        "config": "tiny",
        "files": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("a.txt", "b.txt")},
    }
    assert list(tmp_path.joinpath("deep").iterdir()) == [out], "scratch files were left behind"


def test_replaces_its_own_output_by_a_link_and_drops_what_is_gone(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    write_folder(link, COMMAND, {"old.v": "1", "both.v": "2", "gone.v": "3"}, {})
    (real / "gone.v").unlink()
    write_folder(link, COMMAND, {"both.v": "3"}, {})
    assert link.is_symlink()
    assert set(_contents(real)) == {"both.v", "manifest.json"}
    assert (real / "both.v").read_text() == "3"
    assert read_manifest(real)["files"].keys() == {"both.v"}


def foreign(out):
    (out / "thesis.tex").write_text("years of work")


def changed(out):
    write_folder(out, COMMAND, {"a": "b"}, {})
    (out / "a").write_text("mended by hand")


def both(out):
    write_folder(out, COMMAND, {"a": "b"}, {})
    foreign(out)


def a_file(out):
    out.rmdir()
    out.write_text("x")


@pytest.mark.parametrize("make", [foreign, changed, both, a_file])
def test_leaves_alone_what_was_not_generated(tmp_path, make):
    out = tmp_path / "out"
    out.mkdir()
    make(out)
    before = _contents(out) if out.is_dir() else out.read_text()
    with pytest.raises(ForeignFolderError, match="name a"):
        write_folder(out, COMMAND, {"a": "c"}, {})
    assert (_contents(out) if out.is_dir() else out.read_text()) == before


@pytest.mark.parametrize(
    ("step", "earlier"),
    [*product(["a full disk", "new"], [True, False]), ("Ctrl-C in new", True), ("Ctrl-C behind old", True)],
)
def test_a_failure_or_interruption_changes_nothing(tmp_path, monkeypatch, step, earlier):
    """While files are written; in the renaming of the new folder; and between this and that of the old one."""
    out = tmp_path / "out"
    if earlier:
        write_folder(out, COMMAND, {"a": "old"}, {})
    before = _contents(out) if earlier else None
    error, rename = KeyboardInterrupt if "Ctrl-C" in step else OSError(28, "No space left on device"), Path.rename

    def full(_):
        raise error

    def moved(self, target):
        if step.endswith("new") and self.name == "new":
            raise error
        done = rename(self, target)
        if step.endswith("old") and Path(target).name == "old":
            raise error
        return done

    monkeypatch.setattr(Path, "rename", moved)
    if step == "a full disk":
        monkeypatch.setattr(artifacts.os, "fsync", full)
    with pytest.raises((OSError, KeyboardInterrupt)):
        write_folder(out, COMMAND, {"a": "new", "b": "new"}, {})
    assert list(tmp_path.iterdir()) == ([out] if earlier else [])
    if earlier:
        assert _contents(out) == before
