"""`p4sgd data synth` and `p4sgd data fetch`."""

import functools
import hashlib
import json

import numpy as np
import pytest
from support import command_line

from p4sgd.host.data import fetch, read_dataset

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


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A file under a URL, instead of the LIBSVM page."""
    source = tmp_path / "page" / "toy"
    source.parent.mkdir()
    source.write_text("1 1:1\n-1 2:1\n")
    monkeypatch.setitem(fetch.ORIGINALS, "toy", source.as_uri())
    return source


def test_fetch(tmp_path, page):
    out = tmp_path / "data"
    document = json.loads(run("fetch", "toy", "--out", out, "--json").stdout)
    checksum = hashlib.sha256(page.read_bytes()).hexdigest()
    assert document == {"name": "toy", "path": str(out / "toy"), "sha256": checksum, "downloaded": True, "pinned": True}
    np.testing.assert_array_equal(read_dataset(out / "toy").labels, [1, -1])
    assert "was there already; checksum correct" in run("fetch", "toy", "--out", out).stdout
    assert "SHA-256" in run("fetch", "toy", "--out", tmp_path / "other", "--sha256", "0" * 64, status=2).stderr
    assert not list((tmp_path / "other").iterdir())
