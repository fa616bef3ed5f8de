"""The search for the initial learning rate: against its definition, and on data that need other rates than most."""

import itertools

import numpy as np
import pytest
from support.bench import default_seed
from support.data_files import make_dataset
from support.prepared import features_read, prepare_for, train_golden
from support.targets import targets

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.epoch_metrics import fit_intercept, penalty
from p4sgd.host.training.rate import automatic_rate, choose_penalties, choose_rate
from p4sgd.host.training.search import Trials, best_rate, search_rate
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.model import sizes_of

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=64, line_fifo_depth=512, slots=4)


def dataset(task=Task.CLASSIFICATION, samples=100, features=20, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    z = x @ rng.normal(size=features) + rng.normal(size=samples)
    return Dataset(x, targets(task, z), "made")


def tried(prepared, options):
    """All rates, and their scores."""
    trials = Trials(prepared, options, LOSSES[options.loss])
    return trials.rates, *zip(*trials.run(range(len(trials.rates))), strict=True)


@pytest.mark.parametrize("samples", [37, 100, 1000], ids=["repeated", "overlapping", "held back"])
@pytest.mark.parametrize("name", LOSSES)
def test_scores_by_definition(name, samples, monkeypatch):
    """All trials again with the golden model, each from the start to every moment at which it is scored."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("p4sgd.host.training.search._UPDATES", (8, 8))
    monkeypatch.setattr("p4sgd.host.training.search._LOOKS", 2)
    loss = LOSSES[name]
    options = TrainingOptions(
        loss=name,
        batch=8,
        precision=int(rng.integers(1, 5)),
        planes=int(rng.integers(5, 9)),
        scaling=["minmax", "maxabs"][rng.integers(2)],
        bias=bool(rng.integers(2)),
        staleness=int(rng.integers(2)),
        l2=[0.0, 1e-3][rng.integers(2)],
        l1=[0.0, 1e-3][rng.integers(2)],
        workers=int(rng.integers(1, 4)),
    )
    data = dataset(loss.task, samples, seed=seed)
    prepared = prepare_for(data, options, CONFIG)
    rates, scores, first_scores = tried(prepared, options)
    assert sorted(rates) == rates
    q, fraction = features_read(prepared), 23 + prepared.features.fraction
    order = np.arange(64) % min(q.shape[0], 64)  # eight mini-batches, over and over where there are fewer
    first = {37: 0, 100: 36, 1000: 64}[samples]
    scored = slice(first, first + min(samples, 64))
    y = prepared.targets.coding.real(prepared.targets.labels[scored])
    epoch = {37: 5, 100: 6, 1000: 6}[samples]  # or the first moment, if that is before
    for rate, score, first_score in zip(rates, scores, first_scores, strict=True):
        expected = []
        for updates in (epoch, 6, 8):
            _, w = train_golden(prepared, options, rate, order[: 8 * updates], np.zeros(q.shape[1], np.int64))
            z = (q[scored] @ w) / 2.0**fraction
            if options.bias:
                z += fit_intercept(loss, z, y)
            lost = penalty(sizes_of(w[: data.feature_count]), *prepared.penalties(options))
            expected.append(loss.value(z, y).mean() + lost)
        for found, wanted in ((first_score, expected[0]), (score, np.mean(expected[1:]))):
            assert found == pytest.approx(wanted, rel=1e-12), rate


def found_and_formula(data, **options):
    options = TrainingOptions(**options)
    prepared, loss = prepare_for(data, options, CONFIG), LOSSES[options.loss]
    return search(prepared, options, loss), automatic_rate(loss, prepared.mean_square)


def search(prepared, options, loss):
    y = prepared.targets.coding.real(prepared.targets.labels)
    constant = fit_intercept(loss, np.zeros_like(y), y)
    return search_rate(prepared, options, loss, loss.value(np.full_like(y, constant), y).mean())


APART, AT_FIRST = [0.2, 0.034, 0.01, 0.001], [0.5, 0.4, 0.3, 0.03]
"""Scores of trials that separate the classes, and of some that may diverge in the first epoch."""


@pytest.mark.parametrize(
    ("loss", "scores", "first_scores", "chosen"),
    [
        # Twice the best rate if it is about as good; where there is no loss left, a larger rate is of no use.
        ("hinge", [3.0, 1.02, 1.0, 1.009, 1.011], None, 0.8),
        ("hinge", [3.0, 1.0, 1.009, 1.0095, 9.0], None, 0.4),
        ("hinge", [1.0, 1.0, 1.02, 9.0, 9.0], None, 0.2),
        ("hinge", [5.0, 4.0, 3.0, 2.0, 1.0], None, 1.6),
        ("hinge", [2.0, 0.0, 0.0, 0.0, 1e-9], None, 0.2),
        # The least rate that separates the classes.
        ("logistic", APART, None, 0.2),
        ("hinge", APART, None, 0.2),
        ("squared", APART, None, 0.8),
        # No rate that diverges in the first epoch, unless all do: 1.38 is twice the loss of a constant model.
        ("logistic", AT_FIRST, [0.6, 0.7, 1.3, 1.5], 0.4),
        ("logistic", AT_FIRST, [0.6, 0.7, 1.5, np.nan], 0.2),
        ("logistic", AT_FIRST, [1.5, 1.6, 1.7, np.nan], 0.8),
    ],
)
def test_the_choice_among_rates(loss, scores, first_scores, chosen):
    rates, constant = [0.1, 0.2, 0.4, 0.8, 1.6][: len(scores)], 1.0 if len(scores) == 5 else 0.69
    assert best_rate(rates, scores, first_scores or [constant] * len(scores), LOSSES[loss].task, constant) == chosen


class KnownTrials:
    """Stands for `Trials` whose results are known."""

    epoch = 1

    def __init__(self, rates, middle, scores, first_scores):
        self.rates, self.middle, self.tried = rates, middle, []
        self._results = list(zip(scores, first_scores, strict=True))

    def run(self, which):
        self.tried += which
        return [self._results[place] for place in which]


@pytest.mark.parametrize("name", ["logistic", "squared"])
@pytest.mark.parametrize("diverging", [0, 3, 11])
def test_trials_go_where_rates_are_better(name, diverging, monkeypatch):
    """Of scores that fall to the best rate and rise from there, the choice is that among all, by fewer trials."""
    rates, loss = [2.0**power for power in range(13)], LOSSES[name]
    for best, middle in itertools.product(range(13), repeat=2):
        scores = [0.01 + abs(place - best) * (0.03 if place > best else 0.02) for place in range(13)]
        first_scores = [1.0 + 9 * (place >= 13 - diverging) for place in range(13)]
        trials = KnownTrials(rates, middle, scores, first_scores)
        monkeypatch.setattr("p4sgd.host.training.search.Trials", lambda *given, trials=trials: trials)
        found = search_rate(None, None, loss, 1.0)
        assert found == best_rate(rates, scores, first_scores, loss.task, 1.0), (best, middle)
        assert len(trials.tried) == len(set(trials.tried)) <= 5 + abs(rates.index(found) - middle) + diverging


def test_few_sparse_samples_begin_with_a_rate_that_does_not_diverge():
    """In 32 epochs of trials 2,000 samples are learnt by heart, also with steps that are far too large at first."""
    data = make_dataset("avazu", samples=2000, features=1_000_000)
    options = TrainingOptions(batch=256, precision=4, epochs=1)
    result = train(data, options, open_device("emulator", WorkerConfig.sparse_worker(), 1))
    assert result.metrics["train_loss"] < 2 * np.log(2)
    assert not [remark for remark in result.remarks if "diverged" in remark]


def test_rates_suit_data_and_mini_batch():
    """Larger than the formula's where classes are apart, smaller where they overlap; where the norms of samples set the
    limit, a mean over many samples bears a larger rate."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(600, 20))
    z = x @ rng.normal(size=20)
    apart, formula = found_and_formula(Dataset(x, (z > 0) * 1.0, "apart"), scaling="maxabs", l2=0.0)
    assert apart > 2 * formula
    noise = rng.random(600) < 1 / (1 + np.exp(-0.1 * z))
    overlapping, formula = found_and_formula(Dataset(x, noise * 1.0, "overlapping"), scaling="maxabs")
    assert overlapping < formula / 2
    data = dataset(Task.REGRESSION, samples=2048, features=60)
    small, large = (found_and_formula(data, loss="squared", scaling="maxabs", batch=batch)[0] for batch in (8, 512))
    assert large >= 2 * small
    flat = Dataset(rng.random((16, 2)), np.full(16, 3.0), "flat")
    assert found_and_formula(flat, loss="squared")[0] > 0


@pytest.mark.parametrize(
    ("samples", "features", "batch", "penalties"),
    [
        (100, 20, 16, {"l2": 10.0}),
        (100, 20, 16, {"l1": 100.0}),
        (100, 20, 8192, {"l2": 10.0}),
        # Mini-batches of trials are smaller for wide data, and need not divide those of the run.
        (128, 9000, 64, {}),
        (1000, 3000, 128, {}),
    ],
)
def test_every_rate_has_its_registers_and_every_trial_its_samples(samples, features, batch, penalties):
    options = TrainingOptions(batch=batch, **penalties)
    prepared = prepare_for(dataset(samples=samples, features=features), options, WorkerConfig.u280())
    rates, scores, _ = tried(prepared, options)
    assert np.isfinite(scores).all()
    for rate in rates:
        choose_penalties(choose_rate(rate, options.batch, prepared.features).actual, *prepared.penalties(options))


@pytest.mark.parametrize(("loss", "batch"), [("logistic", 256), ("squared", 16)])
def test_wide_samples_take_smaller_mini_batches(loss, batch, monkeypatch):
    """The rate that few updates with few samples find is one with which all of them get far."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1000, 1)) + 0.5 * rng.normal(size=(1000, 60))
    z = x @ rng.normal(size=60) + rng.normal(size=1000)
    data = Dataset(x, z if loss == "squared" else (z > 0) * 1.0, "correlated")
    options = TrainingOptions(loss=loss, batch=batch)
    prepared = prepare_for(data, options, CONFIG)
    rates, scores, _ = tried(prepared, options)
    for name in ("_VALUES", "_KEPT_VALUES"):
        monkeypatch.setattr(f"p4sgd.host.training.search.{name}", 1)
    found = search(prepared, options, LOSSES[loss])
    updates = -(-prepared.samples // 8) / 64  # in an epoch, for each of a trial
    assert scores[np.argmin(np.abs(np.array(rates) - found * np.sqrt(updates)))] <= 3 * min(scores)
