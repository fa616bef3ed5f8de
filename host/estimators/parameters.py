"""Parameters of the estimators: the options of training as they are declared, and a few others."""

import contextlib
import dataclasses
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args

import numpy as np

from p4sgd.host.errors import UserError, in_python
from p4sgd.host.losses import LOSSES, Loss, Task
from p4sgd.host.training.options import Declaration, TrainingOptions, declarations

OTHERS = {
    "device": ("emulator", "What trains: ``emulator``; ``rtl``, the simulated Verilog; or ``cluster``."),
    "cluster": (None, "For the device ``cluster`` its file, which also says how many workers there are."),
    "config": (None, "Name or TOML file of the workers' configuration; ``None`` chooses it by device and data."),
    "sparse_workers": (0, "How many of the emulator's workers are sparse, the last ones."),
    "warm_start": (
        False,
        "Whether `fit` starts from the weights that there are, with their scaling of features and their meaning of y.",
    ),
    "random_state": (
        0,
        "Seed of the shuffle and of the validation split: an int, for the same result every time, a "
        "`numpy.random.RandomState`, or ``None`` for another result every time.",
    ),
    "verbose": (
        0,
        "With 1, `fit` prints a line for every epoch, and remarks. It warns in any case, with a `UserWarning`, or if "
        "training has diverged or not converged with scikit-learn's `ConvergenceWarning`.",
    ),
}
"""Parameters that are not options of training, with their defaults and descriptions."""

_Estimator = TypeVar("_Estimator", bound=type)


def parameters_of(*, classifies: bool) -> dict[str, Declaration]:
    """The options of training that are parameters of the estimator for classes, or of that for numbers."""
    kinds = ("all", "classifiers") if classifies else ("all",)
    return {name: declared for name, declared in declarations().items() if declared.estimators in kinds}


def takes_options(loss: str) -> Callable[[_Estimator], _Estimator]:
    """Give an estimator a constructor with the options of training and their descriptions.

    scikit-learn takes the names of parameters from the constructor's signature, as do notebooks. ``loss`` is the
    default.
    """
    declared = parameters_of(classifies=classifies(LOSSES[loss]))
    defaults = {name: default_of(name) for name in declared} | {"loss": loss}
    defaults |= {name: default for name, (default, _) in OTHERS.items()}
    described = {name: each.for_parameter() for name, each in declared.items()}
    described |= {name: text for name, (_, text) in OTHERS.items()}
    entries = [f"{name}\n{textwrap.indent(textwrap.fill(text, 100), '    ')}" for name, text in described.items()]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    chosen = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each) for name, each in defaults.items()]
    signature = inspect.Signature([own, *chosen])

    def complete(cls: _Estimator) -> _Estimator:
        def __init__(self: Any, /, *arguments: Any, **parameters: Any) -> None:  # noqa: N807 - it becomes the class's
            given = signature.bind(self, *arguments, **parameters).arguments
            for name, default in defaults.items():
                setattr(self, name, given.get(name, default))

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        __init__.__qualname__ = f"{cls.__name__}.__init__"
        setattr(cls, "__init__", __init__)  # noqa: B010 - mypy refuses the assignment
        if cls.__doc__:  # python -OO has none
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{parameters}", "\n".join(entries))
        return cls

    return complete


_TEXTS = ("could not convert string to float", "dtype='numeric' is not compatible")
"""Beginnings of the messages for texts in place of numbers."""

_FIELDS = {field.name: field for field in dataclasses.fields(TrainingOptions)}


def plain_value(name: str, value: Any) -> Any:
    """An option as Python's own type, which NumPy's numbers are not; an int where floats are meant becomes one."""
    plain = value.item() if isinstance(value, np.generic) else value
    expected = _FIELDS[name].type
    return float(plain) if type(plain) is int and float in (expected, *get_args(expected)) else plain


def default_of(name: str) -> Any:
    """The default of an option of training."""
    return _FIELDS[name].default


def classifies(loss: Loss) -> bool:
    """Whether a loss is for classes."""
    return loss.task is Task.CLASSIFICATION


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn of something at the line that has called this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("p4sgd."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


@contextlib.contextmanager
def value_errors() -> Iterator[None]:
    """Turn errors that the user can correct into what scikit-learn raises for them, in words for Python."""
    try:
        with in_python():
            yield
    except UserError as error:
        raise ValueError(str(error)) from None  # it says all that the other does


@contextlib.contextmanager
def numbers_in(given: Any, name: str, remedy: str) -> Iterator[None]:
    """Name what is given if it holds texts, where NumPy and scikit-learn only say that something is no number."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(_TEXTS) and np.asarray(given).dtype.kind in "OSU":
            raise ValueError(f"{name} holds texts: {remedy}") from None
        raise
