"""Real text: who wrote a paragraph of documentation, judged as well as by scikit-learn."""

import importlib
import inspect
import pkgutil
import re
import warnings

import numpy as np
import pytest
import scipy
import sklearn
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from p4sgd.host.data import Dataset
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.emulator import EmulatedDevice

NAMES = re.compile(r"(?i)\b(scikit|sklearn|scipy|numpy|np|sp)\b")


def paragraphs(package):
    """Paragraphs of the documentation of a package's functions and classes, without the names of packages."""
    found = set()
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if any(part.startswith("_") or part in ("tests", "conftest", "setup") for part in module.name.split(".")):
            continue
        try:
            members = vars(importlib.import_module(module.name)).values()
        except Exception:  # some need what is not installed
            continue
        for member in members:
            if inspect.isfunction(member) or inspect.isclass(member):
                for text in re.split(r"\n\s*\n", inspect.getdoc(member) or ""):
                    words = NAMES.sub(" ", " ".join(text.split()))
                    if len(words) > 60:
                        found.add(words)
    return found


@pytest.mark.slow
def test_text_is_classified_as_well_as_by_scikit_learn():
    """The area under the ROC curve is within 0.002 of the best of three strengths of regularisation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scientific, learning = paragraphs(scipy), paragraphs(sklearn)
    both = scientific & learning
    texts = np.array(sorted(scientific - both) + sorted(learning - both))
    labels = np.repeat([-1.0, 1.0], [len(scientific - both), len(learning - both)])
    order = np.random.default_rng(0).permutation(labels.size)
    train_rows, test_rows = np.split(order, [int(0.7 * labels.size)])
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True)
    features, test_features = vectorizer.fit_transform(texts[train_rows]), vectorizer.transform(texts[test_rows])
    assert features.shape[0] > 3000

    def area(scores):
        return roc_auc_score(labels[test_rows], scores)

    theirs = max(
        area(
            LogisticRegression(C=strength, max_iter=1000)
            .fit(features, labels[train_rows])
            .decision_function(test_features)
        )
        for strength in (1, 3, 10)
    )
    data = Dataset(features, labels[train_rows], "documentation")
    result = train(data, TrainingOptions(epochs=20), EmulatedDevice(WorkerConfig.sparse_worker(), 1))
    ours = area(result.model.decision_function(Dataset(test_features, labels[test_rows], "held out")))
    print(f"{features.shape[0]} paragraphs, {features.shape[1]} words: {ours:.4f}, scikit-learn {theirs:.4f}")
    assert ours > theirs - 0.002
