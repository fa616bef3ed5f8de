"""`p4sgd info` says what is here, what is missing and how to get it."""

import json
import shutil

from support.command_line import run

from p4sgd.host.cli import info as machine
from p4sgd.hw.spec.config import PRESETS


def test_what_is_here_and_what_is_missing(monkeypatch, tmp_path):
    (tmp_path / "verilated" / "model").mkdir(parents=True)
    (tmp_path / "verilated" / "model" / "code").write_bytes(bytes(3_000_000))
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    done = run("info", "--json")
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert document["configurations"] == {name: make().table() for name, make in PRESETS.items()}
    assert [*document["devices"]] == ["emulator", "rtl", "cluster"]
    assert document["devices"]["emulator"]["available"] is True
    assert {"p4sgd", "python", "amaranth", "numpy"} <= set(document["versions"])
    assert document["cache"] == {"path": str(tmp_path), "bytes": 3_000_000}
    shown = run("info").stdout
    for text in (*PRESETS, "262,144", *document["devices"], "verilator", f"simulators in {tmp_path}: 3 MB"):
        assert text in shown
    assert "True" not in shown
    assert all(each.purpose and each.remedy for each in machine.REQUIREMENTS)

    real = shutil.which
    monkeypatch.setattr(machine.shutil, "which", lambda name: None if name == "g++" else real(name))
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("P4SGD_CACHE", str(blocker / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocker / "numba"))
    monkeypatch.delenv("XILINX_XRT", raising=False)
    document = json.loads(run("info", "--json").stdout)
    missing = {entry["name"]: entry for entry in document["missing"]}
    for name in ("onnx", "lz4, zlib"):  # whose tests are skipped where they are missing
        missing.pop(name, None)
    assert set(missing) == {"g++", "cache folder", "kernel cache", "XRT"}
    assert missing["g++"]["remedy"] == "apt-get install g++"
    assert str(blocker) in missing["cache folder"]["problem"]
    available = {name: (each["available"], each["lacks"]) for name, each in document["devices"].items()}
    assert available["rtl"] == (False, ["g++", "cache folder"])
    assert available["emulator"] == (True, [])
    assert "apt-get install g++" in run("info").stdout
