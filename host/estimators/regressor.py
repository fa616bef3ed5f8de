"""The estimator for numbers."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score, r2_score
from sklearn.utils.validation import check_is_fitted

from p4sgd.host.data import Dataset
from p4sgd.host.estimators.glm import GLM
from p4sgd.host.estimators.parameters import numbers_in, takes_options, value_errors
from p4sgd.host.losses import get_loss
from p4sgd.host.losses.log_link import LogLink


@takes_options("squared")
class GLMRegressor(RegressorMixin, GLM):
    """A linear regression, trained by SGD on FPGAs or on their exact emulation.

    Its weights are those of ``p4sgd train`` with the same options on the same data, bit for bit. They do not depend on
    workers, device or threads.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or, if y was a matrix, (n_targets, n_features)
        Coefficients of the features as they are given, float64, in the unit of the target; of its logarithm with the
        losses ``poisson``, ``gamma`` and ``tweedie``.
    intercept_ : float64 or, if y was a matrix, ndarray of shape (n_targets,)
        The intercept, in the same unit.

    For the others, and for errors, see `GLMClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from p4sgd import GLMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = GLMRegressor(epochs=10).fit(X, y)
    >>> round(regressor.score(X, y), 1)
    0.5
    >>> regressor.coef_.shape
    (10,)
    """

    _classifies = False
    _of_column = False
    """Whether y was a matrix of one column."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def coef_(self) -> npt.NDArray[np.float64]:
        coefficients = self.model_.linear()[0]
        return coefficients[np.newaxis] if self._of_column else coefficients

    @property
    def intercept_(self) -> Any:
        intercept = self.model_.linear()[1]
        return np.array([intercept]) if self._of_column else np.asarray(intercept)[()]  # a number of NumPy

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None, exposure: Any = None) -> float:
        """R², or with ``poisson``, ``gamma`` and ``tweedie`` D², the fraction of the deviance that is explained; of
        several targets the mean."""
        check_is_fitted(self, "model_")
        first, predicted = self.model_.rows[0], self.predict(X, offset=offset, exposure=exposure)
        loss = get_loss(first.loss, first.loss_parameters)
        if not isinstance(loss, LogLink):
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        how = {"sample_weight": sample_weight, "power": loss.power}
        columns = (np.asarray(each).reshape(len(each), -1).T for each in (y, predicted))
        return float(np.mean([d2_tweedie_score(*pair, **how) for pair in zip(*columns, strict=True)]))

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None, exposure: Any = None) -> Self:
        """Train from nothing, or with ``warm_start`` from the weights that there are.

        X and weights are as in `GLMClassifier.fit`, y is of shape (n_samples,) or (n_samples, n_targets).

        Parameters
        ----------
        offset : array-like of shape (n_samples,), default=None
            What is known of y: `predict`, which then needs it too, adds it. With the losses ``poisson``, ``gamma`` and
            ``tweedie`` it is added to the logarithm. `score` takes it, too, scorers of scikit-learn do not.
        exposure : array-like of shape (n_samples,), default=None
            What y is in proportion to, such as the time in which events were counted, above 0; for these losses.
        """
        with self._all_or_nothing():
            anew = not (self.warm_start and hasattr(self, "model_"))
            return self._fit(self._checked(X, y, sample_weight, offset, exposure, reset=anew))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for an epoch on these samples, from the weights that there are.

        The first call fixes the scaling of features and targets, by its samples; for all else see
        `GLMClassifier.partial_fit`.
        """
        with self._all_or_nothing():
            data = self._checked(X, y, sample_weight, reset=not hasattr(self, "model_"))
            return self._partial_fit(X, data, None)

    def _checked(self, X: Any, y: Any, sample_weight: Any, *addends: Any, reset: bool) -> Dataset:
        with numbers_in(y, "y", "a regression needs numbers"):
            X, y = self._validated(X, y, reset=reset, y_numeric=True, multi_output=True)
            self._of_column = y.ndim == 2 and y.shape[1] == 1
            y = y.reshape(-1) if self._of_column else y
            return self._data(X, y, (), self._weights(X, sample_weight), *addends)

    def predict(self, X: Any, *, offset: Any = None, exposure: Any = None) -> npt.NDArray[np.float64]:
        """Predicted targets, those of ``p4sgd predict``: float64 (n_samples,), of a matrix (n_samples, n_targets)."""
        samples = self._samples(X, offset, exposure)
        with value_errors():
            predicted = self.model_.predict(samples)
        return predicted[:, np.newaxis] if self._of_column else predicted
