"""Data as people have them, with default options beside scikit-learn: AUC, log loss and processor time.

    PYTHONPATH=tests python tests/bench/bench_people.py [--set table text classes one-hot]

- ``table``: 50,000 customers with categories, gaps, dates and lognormal incomes, of whom 3 % do something;
- ``text``: tf-idf of the words of docstrings, of NumPy or of SciPy;
- ``classes``: 100 classes in 64 columns;
- ``one-hot``: 677 columns, scaled by the user, of categories with many rare values.

scikit-learn gets what its guide advises: OneHotEncoder, SimpleImputer, StandardScaler, LogisticRegression.
"""

import importlib
import inspect
import pkgutil
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import make_classification
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.script import parser_of, show

from p4sgd import GLMClassifier


def _chances(z: Any, share: float, rng: np.random.Generator) -> Any:
    """Classes 0 and 1, the latter so often."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-z - middle))).mean() < share else (low, middle)
    return (rng.random(z.size) < 1 / (1 + np.exp(-z - low))).astype(int)


def customers(samples: int = 50_000) -> tuple[Any, Any, Any]:
    """A table, its classes, and scikit-learn's pipeline for it."""
    rng = np.random.default_rng(1)
    income, age = rng.lognormal(10.3, 0.9, samples), rng.integers(18, 91, samples).astype(float)
    region = rng.choice([f"{place:02d}" for place in range(1, 41)], samples, p=rng.dirichlet(np.full(40, 0.7)))
    channel = rng.choice(["web", "shop", "phone", "partner"], samples, p=[0.6, 0.25, 0.1, 0.05])
    visits, balance = rng.negative_binomial(1, 0.2, samples), rng.normal(0, 1, samples) * rng.lognormal(6, 1.2, samples)
    since = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3650, samples), unit="D")
    z = 0.8 * np.log(income) - 0.02 * age + 0.15 * visits + np.where(channel == "partner", 1.5, 0.0)
    z += rng.normal(0, 0.7, 40)[np.array(region, int) - 1] + 0.0003 * np.clip(balance, -3000, 3000)
    income[rng.random(samples) < 0.12] = np.nan
    age[rng.random(samples) < 0.03] = np.nan
    columns = {"income": income, "age": age, "region": region, "channel": channel, "visits": visits}
    table = pd.DataFrame(
        columns | {"balance": balance, "days": (since - pd.Timestamp("2015-01-01")).days.astype(float)}
    )
    table.loc[rng.random(samples) < 0.05, "channel"] = None
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    texts = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing"), OneHotEncoder(handle_unknown="ignore")
    )
    pick = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    encode = make_column_transformer((numbers, pick[0]), (texts, pick[1]))
    return table, _chances(z - z.mean(), 0.03, rng), make_pipeline(encode, LogisticRegression(max_iter=1000))


def docstrings() -> tuple[Any, Any, Any]:
    """Paragraphs of docstrings as tf-idf, and which package they are of."""
    found = []
    for label, package in enumerate(("numpy", "scipy")):
        seen = set()
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            name = f"{package}.{module.name}"
            if module.name.startswith("_") or module.name in ("conftest", "f2py", "distutils", "testing"):
                continue
            for member in vars(importlib.import_module(name)).values():
                for part in (inspect.getdoc(member) or "").split("\n\n"):
                    if len(part.split()) >= 8 and part not in seen:
                        seen.add(part)
                        found.append((part.replace(package, ""), label))
    texts, labels = zip(*found, strict=True)
    return TfidfVectorizer(sublinear_tf=True).fit_transform(texts), np.array(labels), LogisticRegression(max_iter=1000)


def many_classes() -> tuple[Any, Any, Any]:
    made = {"n_features": 64, "n_informative": 40, "n_redundant": 4, "n_classes": 100, "n_clusters_per_class": 1}
    x, y = make_classification(20_000, **made, class_sep=2.0, random_state=0)
    return x, y, make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def rare_categories(samples: int = 8_000) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    counts = (7, 20, 50, 100, 200, 300)
    x = np.hstack([np.eye(count)[rng.choice(count, samples, p=rng.dirichlet(np.full(count, 0.5)))] for count in counts])
    y = _chances(1.5 * x @ rng.normal(size=x.shape[1]), 0.3, rng)
    return StandardScaler().fit_transform(x), y, LogisticRegression(max_iter=1000)


SETS = {"table": customers, "text": docstrings, "classes": many_classes, "one-hot": rare_categories}

if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    rows = []
    for name in parser.parse_args().set:
        x, y, peer = SETS[name]()
        options = {"missing": "indicator"} if name == "table" else {}
        halves = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
        for title, model in (("scikit-learn", peer), ("p4sgd", GLMClassifier(**options))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.process_time()
                model.fit(halves[0], halves[2])
                took, p = time.process_time() - start, model.predict_proba(halves[1])
            auc = roc_auc_score(halves[3], p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr")
            shape = "{:,} × {:,}".format(*x.shape)
            rows.append([f"{name}, {shape}", title, f"{auc:.4f}", f"{log_loss(halves[3], p):.4f}", f"{took:.2f}"])
    show("", ("data", "", "AUC", "log loss", "CPU s"), rows)
