"""Every loss is as good on samples that were not trained on as scikit-learn's estimator for it, at 8 and at 4 bits."""

import pytest
from support.loss_peers import ALLOWED, CASES, compare

QUICK = ("hinge, breast_cancer", "quantile 0.9, diabetes", "gamma, wine")
"""A few that are not among the long tests."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name.startswith(QUICK) else pytest.mark.slow) for case in CASES],
)
def test_test_metrics(case):
    scores = compare(case, splits=3)  # a benchmark takes five
    print(f"{case.name}: scikit-learn {scores.theirs:.5g}, bits {scores.ours}")
    for bits, allowed in ALLOWED.items():
        assert scores.worse(case, bits) <= allowed, f"{bits} bits"
