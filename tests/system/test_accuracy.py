"""Training at a few bits with the default options against scikit-learn at full precision.

Test accuracy on splits of 70 : 30, averaged over splits (and, for the digits, over each digit against the rest). The
references are logistic regression and its SGD, each on standardised and on min-max scaled features; the best of the
four counts. Training sees the same 70 % and no more: the epoch is chosen by the training loss.

Measured when this was written (averages):

============= ======================= =============== ===============
data          scikit-learn, best of 4 4 bits          8 bits
                                      logistic, hinge logistic, hinge
============= ======================= =============== ===============
breast cancer 97.15 %                 97.15, 96.93 %  97.08, 97.15 %
digits        98.81 %                 98.75, 98.90 %  98.80, 98.95 %
============= ======================= =============== ===============
"""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from p4sgd.host.data import read_dataset
from p4sgd.host.devices import open_device
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig

LOSSES = ("logistic", "hinge")
ALLOWED = {4: 0.010, 8: 0.005}
"""Loss of accuracy that is allowed, by precision."""


def splits(data, positive, seeds):
    """Training and test samples; the same part of each class in both."""
    for seed in range(seeds):
        classes = data.labels if positive is None else data.labels == positive
        rows = train_test_split(np.arange(data.samples), test_size=0.3, random_state=seed, stratify=classes)
        yield seed, *(data.take(part) for part in rows)


def reference(train_set, test_set, positive):
    """Test accuracy of the four references."""

    def target(data):
        return data.labels if positive is None else data.labels == positive

    scores = []
    for scaler in (StandardScaler(), MinMaxScaler()):
        for model in (LogisticRegression(max_iter=5000), SGDClassifier(loss="log_loss", random_state=0)):
            fitted = make_pipeline(scaler, model).fit(train_set.features, target(train_set))
            scores.append(fitted.score(test_set.features, target(test_set)))
    return scores


def ours(train_set, test_set, positive, seed, **options):
    """Test accuracy of the model that training returns."""
    device = open_device("emulator", WorkerConfig.small(), 1)
    options = TrainingOptions(seed=seed, positive=positive, **options)
    return train(train_set, options, device, test=test_set).best.metrics["test_accuracy"]


@pytest.mark.parametrize(
    ("name", "positives", "seeds"),
    [("breast_cancer", [None], 8), pytest.param("digits", list(range(10)), 2, marks=pytest.mark.slow)],
)
def test_as_good_as_full_precision(name, positives, seeds):
    data = read_dataset(name)
    references = []
    found = {case: [] for case in itertools.product(LOSSES, ALLOWED)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for positive in positives:
            for seed, train_set, test_set in splits(data, positive, seeds):
                references.append(reference(train_set, test_set, positive))
                for (loss, precision), scores in found.items():
                    scores.append(ours(train_set, test_set, positive, seed, precision=precision, loss=loss))
    best = np.mean(references, axis=0).max()
    for (loss, precision), scores in found.items():
        print(f"{name}, {loss}, {precision} bits: {np.mean(scores):.4f}, scikit-learn {best:.4f}")
        assert np.mean(scores) >= best - ALLOWED[precision], f"{loss}, {precision} bits"
