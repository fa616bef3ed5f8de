"""Weights are a function of the data and of the options that describe the problem, and of nothing else.

The tables of `support.matrix` say which problems are tried, and by which other ways: workers, configurations, storage,
files, prepared folders, resumed runs, ranks, clusters and Verilog. That estimators lead to the same is in
`tests/host/test_estimators.py`.
"""

import os
import re
import subprocess
import sys

import pytest
from support.matrix import MATRIX, PROBLEMS, SLOW_WAYS, WAYS, Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    before = os.getcwd()
    yield Lab(tmp_path_factory.mktemp("lab"))
    os.chdir(before)


def pairs():
    names = "|".join(re.escape(way) for way in sorted(WAYS, key=len, reverse=True))  # of which some have commas
    for problem, ways in MATRIX.items():
        found = re.findall(names, ways)
        assert ", ".join(found) == ways, f"{problem}: not all of these are in WAYS"
        for way in found:
            means = WAYS[way].split()[0]
            marks = [pytest.mark.slow] * (means in SLOW_WAYS) + [pytest.mark.rtl] * (means == "rtl")
            yield pytest.param(problem, way, marks=marks, id=f"{problem}-{way}")


@pytest.mark.parametrize(("problem", "way"), list(pairs()))
def test_every_way_leads_to_the_same_weights(lab, problem, way):
    if WAYS[way].startswith("ranks"):
        found = subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, check=False)
        if found.returncode:
            pytest.skip("mpi4py finds no MPI library")
    assert lab.by(problem, way) == lab.train(problem)


@pytest.mark.parametrize("problem", sorted(PROBLEMS.keys() - MATRIX.keys()))
def test_workers_lead_to_the_same_weights(lab, problem):
    assert lab.by(problem, "2 workers") == lab.train(problem)
