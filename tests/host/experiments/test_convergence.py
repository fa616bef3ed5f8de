"""Comparisons with other solvers: that all minimise the same, and how the quickest fit is found."""

import warnings

import numpy as np
import pytest
import scipy.optimize
from scipy.sparse import csr_array

from p4sgd.host.experiments import convergence
from p4sgd.host.experiments.convergence import CLOSE, Measured, Reached, comparison, fewest_epochs, optimum, reach
from p4sgd.host.experiments.peers import OURS, PEERS, TUNED, Peer, Problem


def problem(*, sparse):
    """300 samples: correlated columns of several scales, or mostly zeros."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12)) * 10.0 ** np.arange(-3, 9)[:12] + 5.0
    if sparse:
        x = rng.random((300, 400)) * (rng.random((300, 400)) < 0.02)
    z = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9) @ rng.normal(size=x.shape[1])
    labels = (z + 3 * rng.normal(size=300) > 0).astype(np.int64)
    return Problem("made", csr_array(x) if sparse else x, labels)


def least(problem):
    """The least objective, by SciPy on standardised or raw columns."""
    x = problem.features.toarray() if problem.sparse else problem.features
    x = x if problem.sparse else (x - x.mean(axis=0)) / x.std(axis=0)
    sign = 2 * problem.labels - 1

    def objective(w):
        z = sign * (x @ w[:-1] + w[-1])
        residual = -sign / (1 + np.exp(z)) / sign.size
        value = np.logaddexp(0, -z).mean() + w[:-1] @ w[:-1] / (2 * sign.size)
        return value, np.append(x.T @ residual + w[:-1] / sign.size, residual.sum())

    start = np.zeros(x.shape[1] + 1)
    return scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-10}).fun


@pytest.mark.parametrize("sparse", [False, True])
def test_the_optimum(sparse):
    assert optimum(problem(sparse=sparse)) == pytest.approx(least(problem(sparse=sparse)), rel=1e-6)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("peer", [OURS, *TUNED, *PEERS], ids=lambda peer: peer.name)
def test_every_solver_comes_close_to_our_optimum(peer, sparse):
    given = problem(sparse=sparse)
    if not peer.suits(given) or peer.name == "Vowpal Wabbit":
        pytest.skip("not for such data, or without the penalty")
    if peer.missing():
        pytest.skip(peer.missing())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert reach(given, peer, CLOSE * least(given), 10.0) is not None


def test_the_quickest_setting_that_comes_close_counts(monkeypatch):
    """A clock that each fit moves on by budget times setting; fits of setting 1 never come close."""
    now, tried, given = [0.0], [], problem(sparse=False)
    monkeypatch.setattr("time.process_time", lambda: now[0])

    def solve(x, y, l2, budget, setting):
        tried.append((setting, budget))
        now[0] += budget * min(setting, 2)
        close = setting > 1 and budget >= 12 / setting
        return np.full(12, 0.0 if close else 1.0), 0.0

    def objective(self, fitted):
        return fitted[0].sum()

    monkeypatch.setattr(Problem, "objective", objective)
    peer = Peer("made", "numpy", solve, (1, 2, 3, 4, 6, 8), (1, 2, 3), scales=False)
    assert reach(given, peer, 0.5, 20.0) == Reached(8.0, 4, 3), "setting 2 took 12"
    tried.clear()
    assert reach(given, peer, 0.5, 3.0) is None
    assert tried == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2)], "4 seconds are more than 3"
    assert reach(given, Peer("made", "numpy", solve, (1, 2), (1,), scales=False), 0.5, 5.0) is None


def test_where_others_are_quicker_is_a_loss():
    ours, tuned, theirs = Reached(2.0, 3, {}), Reached(1.0, 4, {"rate": 16.0}), Reached(0.5, 8, None)
    behind = Measured(
        "narrow", 100, 4, {OURS.name: ours, TUNED[0].name: tuned, "lbfgs": theirs, "snapml": None}, ("no snapml",)
    )
    ahead = Measured("wide", 100, 9, {OURS.name: theirs, TUNED[0].name: None, "lbfgs": ours}, ())
    far = Measured("far", 100, 9, {OURS.name: None, "lbfgs": ours}, ())
    assert comparison([far]).losses == [
        "far: p4sgd does not come within 1% of the optimum by default, while lbfgs does."
    ]
    found = comparison([behind, ahead])
    assert found.losses == [
        "narrow: p4sgd takes 4 times the processor time of lbfgs; tuned it takes 2 times the time of lbfgs."
    ]
    assert [sentence.rpartition("solver ")[2] for sentence in found.sentences[:2]] == [
        "on 1 of 2 data sets, and takes at most twice as long on 1.",
        "on 0 of 2 data sets, and takes at most twice as long on 1.",
    ]
    assert found.sentences[2:] == ["no snapml"]
    (table,) = found.tables
    assert [row[1:3] for row in table.rows if row[-1] == "measured"] == [
        ["p4sgd", 2.0],
        ["p4sgd, tuned", 1.0],
        ["lbfgs", 0.5],
        ["snapml", None],
        ["p4sgd", 0.5],
        ["p4sgd, tuned", None],
        ["lbfgs", 2.0],
    ]


def test_fewest_epochs(monkeypatch):
    """Of fits whose objective is 12, or less by the rate, divided by the epochs."""

    def fit(x, y, l2, epochs, setting, *, batch, precision):
        return 12 / epochs / setting.get("rate", 1.0), 0.0

    monkeypatch.setattr(convergence, "fit_p4sgd", fit)
    monkeypatch.setattr(Problem, "objective", lambda self, fitted: fitted[0])
    given = problem(sparse=True)
    assert [fewest_epochs(given, goal, batch=16, planes=8) for goal in (12.0, 0.01, 1e-3)] == [1, 5, None]


def test_each_device_has_the_mini_batches_that_suit_it(monkeypatch):
    """20,242 samples are 1,266 mini-batches of 16."""
    made, epochs = problem(sparse=True), {(16, 4): 7, (16, 8): 4, (64, 4): 9, (64, 8): 7, (256, 4): 30, (256, 8): None}
    monkeypatch.setitem(convergence.LARGE, "rcv1", lambda: made)
    monkeypatch.setattr(convergence, "fewest_epochs", lambda problem, goal, *, batch, planes: epochs[batch, planes])
    finding = convergence.beside_gpu()
    rows = {(row[1], row[2]): row[5] for row in finding.tables[0].rows}
    assert rows[16, "fastest program on one H200"] == pytest.approx(4 * 1266 * 5.5e-3)
    assert rows[256, "CUDA graph on one H200"] is None
    ratio = rows[16, "fastest program on one H200"] / min(rows[batch, "8 U280"] for batch in (16, 64, 256))
    assert f"{ratio:.1f} times as fast as the fastest program on one H200" in finding.sentences[0]
