"""Weights are a function of the data and of the options that describe the problem, and of nothing else.

The tables of `contract` say which problems are tried, and by which other ways: workers, configurations, storage, files,
prepared folders, resumed runs, ranks, clusters and Verilog.
"""

import json
import os

import pytest
from contract import FROZEN, PROBLEMS, SLOW_WAYS, WAYS, Lab, has_mpi, matrix

WEIGHTS = {
    name.removeprefix("train/"): case["weights_sha256"]
    for name, case in json.loads(FROZEN.read_text()).items()
    if name.startswith("train/")
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    before = os.getcwd()
    yield Lab(tmp_path_factory.mktemp("lab"))
    os.chdir(before)


def pairs():
    for problem, way in matrix(quick=False):
        means = WAYS[way].split()[0]
        marks = [pytest.mark.slow] * (means in SLOW_WAYS) + [pytest.mark.rtl] * (means == "rtl")
        yield pytest.param(problem, way, marks=marks, id=f"{problem}-{way}")


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_problem_has_its_frozen_weights(lab, problem):
    assert lab.train(problem)["weights_sha256"] == WEIGHTS[problem]


@pytest.mark.parametrize(("problem", "way"), list(pairs()))
def test_every_way_leads_to_the_same_weights(lab, problem, way):
    if WAYS[way].startswith("ranks") and not has_mpi():
        pytest.skip("mpi4py finds no MPI library")
    assert lab.by(problem, way) == WEIGHTS[problem]
