"""Labels to y, to LABEL integers and back."""

import json

import numpy as np
import pytest

from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task
from p4sgd.host.losses.labels import LabelCoding
from p4sgd.hw.spec.fixed import LABEL

ONE = 1 << LABEL.fraction


def classes(*labels, positive=None):
    return LabelCoding.fit(Task.CLASSIFICATION, np.array(labels, float), positive)


@pytest.mark.parametrize("labels", [(0, 1, 1), (1, -1), (2, 1), (7.5, -3)])
def test_two_classes(labels):
    coding = classes(*labels)
    assert coding.classes == (min(labels), max(labels))
    y = np.array([min(labels), max(labels)], float)
    assert coding.real(y).tolist() == [-1, 1]
    assert coding.integers(y).tolist() == [-ONE, ONE]
    assert coding.predictions(np.array([-0.1, 0.0, 0.1])).tolist() == [min(labels), min(labels), max(labels)]


def test_one_against_the_rest():
    coding = classes(0, 1, 2, 3, positive=2)
    labels = np.array([2.0, 0.0, 9.0])
    assert coding.real(labels).tolist() == [1, -1, -1]
    assert coding.known(labels).tolist() == [1, 0, 0]
    assert coding.predictions(np.array([1.0, -1.0])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "positive", "message"),
    [
        ((3, 3, 3), None, "all labels are 3: a classifier needs samples of two classes"),
        ((3, 3), 3, "all labels are 3"),
        (range(10), None, r"10 values \(0, 1, 2, 3, 4, …\), a classifier needs two"),
        ((0, 1, 2), 7, r"no sample has the label 7; there are 0, 1, 2$"),
    ],
)
def test_labels_that_do_not_suit(labels, positive, message):
    with pytest.raises(UserError, match=message):
        classes(*labels, positive=positive)


def test_strange_label_in_test_data():
    with pytest.raises(UserError, match="the label 5 is neither 0 nor 1"):
        classes(0, 1).real(np.array([0.0, 5.0]))


def test_regression():
    labels = np.array([10.0, 20.0, 30.0, 1000.0])
    coding = LabelCoding.fit(Task.REGRESSION, labels)
    y = coding.real(labels)
    assert y.mean() == pytest.approx(0)
    assert y.std() == pytest.approx(1)
    assert coding.predictions(LABEL.to_real(coding.integers(labels))) == pytest.approx(labels, abs=0.01)


def test_regression_on_a_constant():
    coding = LabelCoding.fit(Task.REGRESSION, np.full(3, 7.0))
    assert coding.real(np.full(3, 7.0)).tolist() == [0, 0, 0]
    assert coding.predictions(np.zeros(1)).tolist() == [7]


def test_regression_has_no_positive_class():
    with pytest.raises(UserError, match="positive"):
        LabelCoding.fit(Task.REGRESSION, np.arange(3.0), 1.0)


@pytest.mark.parametrize(
    "coding", [classes(0, 1), classes(0, 1, 2, positive=1), LabelCoding.fit(Task.REGRESSION, np.arange(5.0))]
)
def test_plain_data_and_back(coding):
    assert LabelCoding.from_json(json.loads(json.dumps(coding.to_json()))) == coding
