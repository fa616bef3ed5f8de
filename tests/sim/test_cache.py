"""Simulators are kept where the user says, and apart where anything that made them differs."""

import os
from pathlib import Path

import pytest

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim import verilator
from p4sgd.sim.cache import cache_directory
from p4sgd.sim.cluster import build as cluster


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    return tmp_path


def test_a_relative_folder_is_made_absolute(tmp_path, monkeypatch):
    """The simulator runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("P4SGD_CACHE", "some/folder")
    assert cache_directory() == tmp_path / "some" / "folder"


def test_the_home_folder_otherwise(monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", "")
    assert cache_directory() == Path.home() / ".cache" / "p4sgd"


def test_other_versions_of_the_tools_make_other_simulators(cache, monkeypatch):
    monkeypatch.setattr(verilator, "environment", lambda: {"VERILATOR_ROOT": "/somewhere"})
    monkeypatch.setattr(verilator._Runner, "build", lambda *_, **__: None)
    versions = {"verilator": "5", "cocotb": "2"}
    monkeypatch.setattr(verilator, "version", versions.__getitem__)
    first = verilator.build("module m; endmodule", "m").directory
    assert verilator.build("module m; endmodule", "m").directory == first
    for tool in versions:
        versions[tool] += ".1"
        assert verilator.build("module m; endmodule", "m").directory != first


@pytest.mark.parametrize("disk", ["", "full"])
def test_verilog_is_kept_whole_or_not_at_all(cache, monkeypatch, disk):
    monkeypatch.setattr(cluster, "to_verilog", lambda *_: "module cluster; endmodule")
    monkeypatch.setattr(cluster, "Cluster", lambda *_, **__: None)
    if disk == "full":

        def replace(*_):
            raise OSError("full")

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(OSError, match="full"):
            cluster._verilog(WorkerConfig.tiny(), 1, "cluster")
        assert list((cache / "verilog").iterdir()) == []
    else:
        assert cluster._verilog(WorkerConfig.tiny(), 1, "cluster") == "module cluster; endmodule"
        (kept,) = (cache / "verilog").iterdir()
        assert kept.suffix == ".v"
