"""Labels to y, to LABEL integers and back."""

import functools

import numpy as np
import pytest

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Task
from p4sgd.hw.spec.fixed import LABEL

ONE = 1 << LABEL.fraction


def dataset(*labels, names=(), **more):
    return Dataset(np.zeros((len(labels), 1)), np.array(labels, float), "d.csv", names, **more)


def fit(task, *labels, positive=None, **more):
    return LabelCoding.fit(task, dataset(*labels, **more), positive, most=16.0)


classes = functools.partial(fit, Task.CLASSIFICATION)
regression = functools.partial(fit, Task.REGRESSION)


@pytest.mark.parametrize("labels", [(0, 1, 1), (1, -1), (2, 1), (7.5, -3)])
def test_two_classes(labels):
    coding = classes(*labels)
    low, high = min(labels), max(labels)
    assert coding.classes == (low, high)
    y = coding.labels_of(dataset(low, high))
    assert coding.real(y).tolist() == [-1, 1]
    assert LABEL.from_real(LOSSES["logistic"].label(coding.real(y))).tolist() == [-ONE, ONE]
    assert coding.predictions(np.array([-0.1, 0.0, 0.1])).tolist() == [low, low, high]
    assert str(coding.name(high)) == f"{high:g}"
    for label, shown in ((12345678.0, "12345678"), (-0.1234567, "-0.1234567"), (1e300, "1e+300"), (0.5, "0.5")):
        assert str(classes(label, -3).name(np.float64(label))) == shown
        with pytest.raises(UserError, match=f"all labels are {shown.replace('+', '.')}:"):
            classes(label, label)
    for positive in (2, 2.0, "2"):
        rest = classes(0, 1, 2, 3, positive=positive)
        y = rest.labels_of(dataset(2, 0, 9))
        assert (y.tolist(), rest.real(y).tolist()) == ([1, 0, 0], [1, -1, -1])
        assert rest.predictions(np.array([1.0, -1.0])).tolist() == [1, 0]


def test_texts_are_matched_by_name():
    coding = classes(0, 1, 1, names=("cat", "dog"))
    assert coding.labels_of(dataset(0, 0, names=("dog",))).tolist() == [1, 1]
    assert coding.labels_of(dataset(1, 1, names=("ant", "cat"))).tolist() == [0, 0]
    assert coding.name(1.0) == "dog"
    with pytest.raises(UserError, match=r"d.csv: the label eel is neither cat nor dog"):
        coding.labels_of(dataset(0, 1, names=("dog", "eel")))
    rest = classes(0, 1, 2, names=("cat", "dog", "eel"), positive="dog")
    assert rest.labels_of(dataset(0, 1, 2, names=("bat", "dog", "eel"))).tolist() == [0, 1, 0]
    assert rest.name(1.0) == 1


@pytest.mark.parametrize(
    ("task", "labels", "options", "message"),
    [
        (Task.CLASSIFICATION, (3, 3, 3), {}, "^d.csv: all labels are 3: a classifier needs samples of two"),
        (Task.CLASSIFICATION, (0, 0), {"names": ("cat",)}, "all labels are cat"),
        (Task.CLASSIFICATION, range(33), {}, r"33 values \(0, 1, 2, 3, 4, …\), which .*--loss squared.*--positive"),
        (Task.CLASSIFICATION, (0, 1, 0.5), {}, r"3 values \(0, 0.5, 1\), which seem to be no classes"),
        (Task.CLASSIFICATION, (0, 1, 2), {"positive": 7}, r"no sample has the label 7; there are 0, 1, 2$"),
        (Task.CLASSIFICATION, (0, 1), {"names": ("a", "b"), "positive": "c"}, "no sample has the label c; there are a"),
        (Task.REGRESSION, (0, 1), {"positive": 1.0}, "positive"),
        (Task.REGRESSION, (0, 1), {"names": ("a", "b")}, r"are texts \(a, b\), regression needs numbers.*--loss log"),
        (Task.REGRESSION, (0, 0), {"labelled": False}, "has no labels to train on"),
        (Task.REGRESSION, (0, 1e200), {}, "labels reach 1e.200, their squares no float64: change their unit"),
        (Task.REGRESSION, (0, 1e-200), {}, "labels reach 1e-200, their squares no float64"),
        (Task.NON_NEGATIVE, (1, -2.5), {}, "there is a label -2.5, this loss needs labels of at least 0$"),
        (Task.POSITIVE, (1, -2.5), {}, "there is a label -2.5, this loss needs labels above 0$"),
        (Task.POSITIVE, (1, 0), {}, "there is a label 0, .* above 0: choose --loss poisson"),
        (Task.NON_NEGATIVE, (0, 0), {}, "all labels are 0, .* nothing to train"),
        (Task.NON_NEGATIVE, (0, 1e200), {}, "labels reach 1e.200, their squares no float64"),
        (Task.POSITIVE, (1e-300, 2e-300), {}, "labels reach 2e-300, their squares no float64"),
    ],
)
def test_labels_that_do_not_suit(task, labels, options, message):
    with pytest.raises(UserError, match=message):
        fit(task, *labels, **options)


@pytest.mark.parametrize(
    ("task", "trained", "labels", "options", "message"),
    [
        (Task.CLASSIFICATION, (0, 1), (0, 0), {"labelled": False}, "has no labels to compare with"),
        (Task.CLASSIFICATION, (0, 1), (0, 5), {}, "the label 5 is neither 0 nor 1"),
        (Task.CLASSIFICATION, (0, 1), (0, 1), {"names": ("a", "b")}, "texts, those of the model are numbers: name its"),
        (Task.NON_NEGATIVE, (0, 1), (0, -1), {}, "there is a label -1,"),
        (Task.POSITIVE, (1, 2), (0, 1), {}, "there is a label 0,"),
    ],
)
def test_labels_that_do_not_suit_a_model(task, trained, labels, options, message):
    with pytest.raises(UserError, match=message):
        fit(task, *trained).labels_of(dataset(*labels, **options))


def test_several_classes_are_rows_of_one_against_the_rest():
    names = ("ant", "bee", "cat", "dog")
    coding = classes(3, 0, 1, 3, 1, names=names)
    assert coding.meanings == coding.row_names == ("ant", "bee", "dog")
    assert coding.rows == tuple(classes(3, 0, 1, 3, 1, names=names, positive=name) for name in coding.row_names)
    labels = coding.labels_of(dataset(1, 0, 1, names=("bee", "dog")))
    assert labels.tolist() == [3, 1, 3]
    for row, each in enumerate(coding.rows):
        assert coding.of_row(labels, row).tolist() == each.labels_of(dataset(3, 1, 3, names=names)).tolist()
    z = np.array([[0.0, -1, -2], [-5, -1, -3], [1, 2, 3]])
    assert [coding.name(label) for label in coding.predictions(z)] == ["ant", "bee", "dog"]
    with pytest.raises(UserError, match="the label cat is none of ant, bee, dog, the model's classes"):
        coding.labels_of(dataset(2, names=names))
    with pytest.raises(UserError, match="all samples of class bee are held out: hold out fewer"):
        LabelCoding.fit(Task.CLASSIFICATION, dataset(3, 0, names=names), whole=coding)
    binary = classes(0, 1)
    assert (binary.rows, binary.row_names) == ((binary,), ("",))
    assert len(classes(*[*range(33)] * 4).rows) == 33, "numbers are classes if there are enough of each"
    assert len(classes(*range(32)).rows) == 32
    assert classes(*range(100), names=tuple(f"{label:03}" for label in range(100))).rows[-1].positive == 99


@pytest.mark.parametrize(
    ("task", "labels", "y", "loss"),
    [
        (Task.REGRESSION, (10.0, 20.0, 30.0, 1000.0), None, "squared"),
        (Task.NON_NEGATIVE, (0.0, 10.0, 20.0, 170.0), [0.0, 0.2, 0.4, 3.4], "poisson"),
        (Task.NON_NEGATIVE, (*[0.0] * 999, 5.0), [*[0] * 999, 16.0], "poisson"),  # the most that suits its table
        (Task.POSITIVE, (1e-9, 0.5, 8.0), None, "gamma"),
    ],
)
def test_numbers_there_and_back(task, labels, y, loss):
    """Standardised, divided by their mean, or as logarithms; and predictions from what the hardware has of them."""
    coding, labels = fit(task, *labels), np.array(labels)
    real = coding.real(coding.labels_of(dataset(*labels)))
    if task is Task.REGRESSION:
        assert (real.mean(), real.std()) == (pytest.approx(0), pytest.approx(1))
    elif task is Task.POSITIVE:
        assert np.exp(real).mean() == pytest.approx(1)
    else:
        assert real.tolist() == y
        real = np.log(real[labels > 0])
    known = labels if task is not Task.NON_NEGATIVE else labels[labels > 0]
    assert coding.predictions(real) == pytest.approx(known)
    if task is not Task.NON_NEGATIVE:
        stored = LABEL.to_real(LABEL.from_real(LOSSES[loss].label(coding.real(labels))))
        assert coding.predictions(stored) == pytest.approx(labels, rel=1e-5, abs=0.01 if loss == "squared" else 0)


def test_numbers_at_the_edges():
    for label in (7, 0.3, 1e308):  # ten times 0.3 has a mean that is not 0.3
        coding = regression(*[label] * 10)
        assert (coding.scale, coding.real(np.full(3, float(label))).tolist()) == (1, [0, 0, 0])
        assert coding.predictions(np.zeros(1)).tolist() == [label]
    for found in fit(Task.POSITIVE, 1.0, 2.0).predictions(np.array([-1e4, 1e4])):
        assert 0 < found * found < np.inf
