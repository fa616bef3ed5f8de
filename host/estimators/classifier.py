"""The estimator for classes."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.estimators.glm import GLM
from p4sgd.host.estimators.parameters import takes_options, value_errors
from p4sgd.host.losses import LOSSES, Probabilistic, Task
from p4sgd.host.training.class_weights import BALANCED
from p4sgd.host.training.model_file import Model, ModelSet


def _has_probabilities(estimator: "GLMClassifier") -> bool:
    if not isinstance(LOSSES.get(estimator.loss), Probabilistic):
        known = " and ".join(name for name, each in LOSSES.items() if isinstance(each, Probabilistic))
        raise AttributeError(f"the loss {estimator.loss} gives no probabilities; {known} do")
    return True


@takes_options("logistic")
class GLMClassifier(ClassifierMixin, GLM):
    """A linear classifier, trained by SGD on FPGAs or on their exact emulation.

    Of more than two classes each is trained against the rest; a softmax fitted afterwards makes probabilities of them.
    Several labels, a matrix of zeros and ones, are trained one by one. Its weights are those of ``p4sgd train`` with
    the same options on the same data, bit for bit. They do not depend on workers, device or threads.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, ascending. Of several labels their numbers; but if a model from a file has other classes than 0
        and 1 for them, a list with the two of each.
    coef_, intercept_ : ndarrays of shape (1, n_features) and (1,), or (n_classes, n_features) and (n_classes,)
        Coefficients of the features as they are given, float64; with more than two classes, or with several labels, a
        row for each.
    n_features_in_, feature_names_in_
        As scikit-learn's.
    n_iter_ : int
        Number of epochs, the most of any class; `partial_fit` adds one in each call. Models from files lack this, and:
    history_, remarks_ : list of dict, list of str
        A record of each epoch: metrics, learning rate, times, saturations; and what the user should know about the run.
    model_ : p4sgd.host.training.model_file.Model
        The model of the best epoch, with the integers of the hardware; with more than two classes a `ModelSet`.

    Notes
    -----
    Errors that the user can correct are a `ValueError`. Ctrl-C in `fit` keeps the best model so far, and raises
    `KeyboardInterrupt`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.model_selection import train_test_split
    >>> from p4sgd import GLMClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    >>> classifier = GLMClassifier(precision=4, epochs=10).fit(X_train, y_train)
    >>> classifier.score(X_test, y_test) > 0.95
    True
    >>> classifier.predict_proba(X_test[:3]).shape
    (3, 2)
    """

    _classifies = True
    class_weight: str | dict[Any, float] | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = tags.target_tags.multi_output = True
        return tags

    classes_: Any

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        return np.atleast_2d(self.model_.linear()[0])

    @property
    def intercept_(self) -> npt.NDArray[np.float64]:
        return np.atleast_1d(self.model_.linear()[1])

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> Self:
        """Train from nothing, or with ``warm_start`` from the weights that there are.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Sparse samples become CSR, and are never made dense.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Classes, two or more, as numbers or texts; or a matrix of zeros and ones, whether a sample has each of
            several labels.
        sample_weight : array-like of shape (n_samples,), default=None
            At least 0. The hardware has steps of 1/65,536 of the largest. Samples of weight 0 count nowhere: without
            them the model is the same, to the bit.
        offset : array-like of shape (n_samples,), default=None
            What is known of the activation, of two classes the logarithm of their odds: it is added to X · coef_ +
            intercept_, by `predict`, which then needs it, too.
        """
        with self._all_or_nothing():
            warm = self.warm_start and hasattr(self, "model_")
            X, y, weights = self._checked(X, y, sample_weight, reset=not warm)
            if not warm:
                self.classes_ = _classes(_counted(y, weights)) if y.ndim == 1 else np.arange(y.shape[1])
            if y.ndim == 2:
                return self._fit(self._data(X, y.astype(np.float64), (), weights, offset))
            return self._fit(self._labelled(X, y, weights, offset))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for an epoch on these samples, from the weights that there are.

        The first call needs all ``classes``. Until there are 256 samples they are kept, and whenever they have doubled
        the model is made anew of all of them: features of a table, their scaling, learning rate and weights, with as
        many epochs as there were before and, up to ``epochs``, as few samples take. So single samples do, too. Then
        features and scaling stay; values beyond the range that the first samples have are clamped in training, and a
        `UserWarning` tells if most are. The schedule ``adaptive`` is ``constant`` here, and nothing is held out. The
        intercept is the bias as it was trained, where `fit` fits it to its samples.
        """
        if self.class_weight == BALANCED:
            raise ValueError("class_weight='balanced' needs all samples: give partial_fit weights by class")
        with self._all_or_nothing():
            first, given = not hasattr(self, "classes_"), X
            X, y, weights = self._checked(X, y, sample_weight, reset=first)
            if first and classes is None:
                raise ValueError("classes must be given in the first call of partial_fit")
            if classes is not None:
                known = _classes(classes)
                if first:
                    self.classes_ = known
                elif not np.array_equal(known, self.classes_):
                    raise ValueError(f"classes are {known}, those of earlier calls were {self.classes_}")
            if y.ndim == 2:
                raise ValueError("partial_fit takes one label a sample: fit takes several")
            data = self._labelled(X, y, weights)
            numbers = np.arange(self.classes_.size) if data.label_names else self.classes_
            values = tuple(numbers.astype(np.float64).tolist())
            coding = LabelCoding(Task.CLASSIFICATION, values, names=data.label_names)
            return self._partial_fit(given, data, coding)

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, npt.NDArray[Any], Any]:
        kind: Any = getattr(y, "dtype", None)
        if getattr(kind, "kind", "") in "biu" and hasattr(kind, "numpy_dtype") and not y.isna().any():
            y = y.to_numpy(kind.numpy_dtype)  # scikit-learn makes floats of pandas' integers that may have gaps
        X, y = self._validated(X, y, reset=reset, multi_output=True)
        check_classification_targets(y)
        if y.ndim == 2 and type_of_target(y) != "multilabel-indicator":
            y = column_or_1d(y, warn=True)  # raises if there are several columns
        return X, y if isinstance(y, np.ndarray) else y.toarray(), self._weights(X, sample_weight)

    def _labelled(self, X: Any, y: npt.NDArray[Any], *of_samples: Any) -> Dataset:
        """A data set with classes as in a file: numbers, or indices into texts."""
        if isinstance(self.classes_, list):
            raise ValueError(f"y has one column, the model has {len(self.classes_)} labels")
        counted = _counted(y, of_samples[0])
        unknown = counted[~np.isin(counted, self.classes_)]
        if unknown.size:
            raise ValueError(f"y has the class {unknown[0]}, which is not one of {self.classes_}")
        # Numbers of which float64 does not tell one from another go as texts.
        count = self.classes_.size
        if self.classes_.dtype.kind in "biuf" and np.unique(self.classes_.astype(np.float64)).size == count:
            return self._data(X, np.asarray(y, dtype=np.float64), (), *of_samples)
        places, names = np.searchsorted(self.classes_, y).astype(np.float64), list(map(str, self.classes_))
        return self._data(X, places, names, *of_samples)

    def decision_function(self, X: Any, *, offset: Any = None) -> npt.NDArray[np.float64]:
        """Activations, float64 (n_samples,), above 0 for the second class, or (n_samples, n_classes)."""
        samples = self._samples(X, offset)
        with value_errors():
            return self.model_.logits(self.model_.decision_function(samples))

    def predict(self, X: Any, *, offset: Any = None) -> npt.NDArray[Any]:
        """Predicted classes, those of ``p4sgd predict``: (n_samples,), of several labels (n_samples, n_labels)."""
        z, coding = self.decision_function(X, offset=offset), self.model_.labels
        if isinstance(coding, TargetCoding):
            each = [_values(row)[(z[:, place] > 0).astype(np.intp)] for place, row in enumerate(coding.rows)]
            return np.column_stack(each)
        places: npt.NDArray[np.intp] = (z > 0).astype(np.intp) if z.ndim == 1 else z.argmax(axis=1)
        classes: npt.NDArray[Any] = self.classes_
        return classes[places]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Accuracy; of several labels the part of the samples of which all are predicted."""
        return float(accuracy_score(y, self.predict(X, offset=offset), sample_weight=sample_weight))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any, *, offset: Any = None) -> npt.NDArray[np.float64]:
        """Logarithms of `predict_proba`, −∞ for 0."""
        with np.errstate(divide="ignore"):
            logarithms: npt.NDArray[np.float64] = np.log(self.predict_proba(X, offset=offset))
        return logarithms

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any, *, offset: Any = None) -> npt.NDArray[np.float64]:
        """Probabilities, float64 (n_samples, n_classes), of several labels those of having them; only with the losses
        ``logistic`` and ``modified_huber``. Of several classes they are the softmax of `decision_function` if one was
        fitted (``model_.softmax``), else those of each against the rest, divided by their sum.
        """
        samples = self._samples(X, offset)
        with value_errors():
            found = self.model_.probabilities(self.model_.decision_function(samples))
        assert found is not None
        return found

    def _load(self, model: Model | ModelSet) -> None:
        super()._load(model)
        if isinstance(model.labels, TargetCoding):
            each = list(map(_values, model.labels.rows))
            binary = all(values.tolist() == [0, 1] for values in each)
            self.classes_ = np.arange(len(each)) if binary else each
        else:
            self.classes_ = _values(model.labels)


def _values(coding: LabelCoding) -> npt.NDArray[Any]:
    """The classes, (n_classes,): texts or numbers, integers if all are."""
    return np.array(coding.named(np.array(coding.classes)))


def _counted(y: npt.NDArray[Any], weights: npt.NDArray[np.float64] | None) -> npt.NDArray[Any]:
    return y if weights is None else y[weights != 0]


def _classes(y: Any) -> npt.NDArray[Any]:
    """The classes of some labels, ascending; at least two, or none."""
    classes = np.unique(y)
    if classes.size == 1:
        raise ValueError(f"y has one class, {classes[0]}: a classifier needs samples of two")
    return classes
