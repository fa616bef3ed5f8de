"""`p4sgd data synth`."""

import functools
import json

import pytest
from support import command_line

from p4sgd.host.data import read_dataset

run = functools.partial(command_line.run, "data")


@pytest.mark.parametrize("suffix", ["libsvm", "npz"])
def test_synth_of_chosen_size(tmp_path, suffix):
    out = tmp_path / f"small.{suffix}"
    words = ("synth", "zipf", "--samples", 300, "--features", 1000, "--nonzeros", 5, "--out", out)
    assert run(*words).stdout == f"{out}: 300 samples, 1,000 features, 1,500 non-zero values\n"
    assert read_dataset(out).features.shape == (300, 1000)
    first = out.read_bytes()
    document = json.loads(run(*words, "--overwrite", "--json").stdout)
    assert document == {"name": "zipf", "out": str(out), "samples": 300, "features": 1000, "stored": 1500}
    assert out.read_bytes() == first
    run(*words, "--overwrite", "--seed", 1)
    assert out.read_bytes() != first
    run("synth", "rcv1", "--scale", 0.02, "--out", out, "--overwrite", "--quiet")
    assert read_dataset(out).features.shape == (405, 945)
