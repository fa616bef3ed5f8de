"""Every loss is as good on samples that were not trained on as scikit-learn's estimator for it, at 8 and at 4 bits."""

import pytest
from support.loss_peers import ALLOWED, CASES, compare

QUICK = (
    *(
        "logistic, breast_cancer",
        "hinge, breast_cancer",
        "squared_hinge, breast_cancer, SGD",
        "modified_huber, breast_cancer",
    ),
    *("huber, diabetes", "epsilon_insensitive, diabetes", "quantile 0.9, diabetes"),
    *("poisson, wine", "tweedie, wine", "gamma, wine"),
)
"""One of each loss that is not among the long tests."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name.startswith(QUICK) else pytest.mark.slow) for case in CASES],
)
def test_test_metrics(case):
    scores = compare(case, splits=3)  # a benchmark takes five
    print(f"{case.name}: scikit-learn {scores.theirs:.5g}, bits {scores.ours}")
    for bits, allowed in ALLOWED.items():
        assert scores.worse(case, bits) <= allowed, f"{bits} bits"
