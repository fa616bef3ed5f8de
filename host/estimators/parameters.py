"""Parameters of the estimators: the options of training, others, and what messages call them."""

import contextlib
import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_origin

import numpy as np

from p4sgd.host.data.encoding import FILLINGS
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.devices import DEVICES
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Loss, Task
from p4sgd.host.run.checks import with_parameters
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.options import PRECONDITIONS, SKIP_ZEROS
from p4sgd.host.training.schedule import SCHEDULES
from p4sgd.hw.spec.config import CONFIGURATIONS

__all__ = [
    "FIELDS",
    "LEFT_OUT",
    "OF_CLASSES",
    "OTHERS",
    "classifies",
    "default_of",
    "in_parameters",
    "plain_value",
    "takes_options",
    "value_errors",
]

LEFT_OUT = ("positive", "parallel", "seed")
"""Fields of `TrainingOptions` that estimators have not: y says what is 1, there is one process, and `random_state`."""

FIELDS = {field.name: field for field in dataclasses.fields(TrainingOptions) if field.name not in LEFT_OUT}

OF_CLASSES = ("class_weight",)
"""Those fields that only classifiers have."""

OTHERS = {
    "device": "emulator",
    "cluster": None,
    "config": None,
    "sparse_workers": 0,
    "warm_start": False,
    "random_state": 0,
    "verbose": 0,
}
"""Parameters that are not options of training, with their defaults."""

_OTHERS_TEXT = """
device
    What trains: ``emulator``; ``rtl``, the simulated Verilog; or ``cluster``.
cluster
    For the device ``cluster`` its file, which also says how many workers there are.
config
    Name of the workers' configuration; ``None`` chooses it by device and data.
sparse_workers
    How many of the emulator's workers are sparse, the last ones.
warm_start
    Whether `fit` starts from the weights that there are, with their scaling of features and their meaning of y.
random_state
    Seed of the shuffle and of the validation split: an int, for the same result every time, a
    `numpy.random.RandomState`, or ``None`` for another result every time.
verbose
    With 1, `fit` prints a line for every epoch, and remarks. Of lost and late workers it warns in any case.
"""
"""Their descriptions."""


_OF_FILES = (
    (r", give --label-column if this column is the label, or leave it out with --ignore-column", " or leave it out"),
    (r" with --ignore-column .+(?=, or give it fewer texts)", ""),
    (r"--ignore-column (.+ )?leaves (it|them) out", r"leave \2 out"),
    (r": name each with --label-column", ""),
)
"""What messages say of options that files have, as patterns, and what of the columns of X and y."""

_Estimator = TypeVar("_Estimator", bound=type)


def takes_options(loss: str) -> Callable[[_Estimator], _Estimator]:
    """Give an estimator a constructor with the fields of `TrainingOptions`, and their descriptions.

    scikit-learn takes the names of parameters from the constructor's signature, as do notebooks.

    Parameters
    ----------
    loss
        The default loss.
    """
    left_out = () if classifies(LOSSES[loss]) else OF_CLASSES
    fields = {name: field for name, field in FIELDS.items() if name not in left_out}
    defaults = {name: field.default for name, field in fields.items()} | {"loss": loss} | OTHERS
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    chosen = [inspect.Parameter(name, keyword, default=default) for name, default in defaults.items()]
    signature = inspect.Signature([own, *chosen])

    def complete(cls: _Estimator) -> _Estimator:
        def __init__(self: Any, /, *arguments: Any, **parameters: Any) -> None:  # noqa: N807 - it becomes the class's
            bound = signature.bind(self, *arguments, **parameters)
            bound.apply_defaults()
            for name in defaults:
                setattr(self, name, bound.arguments[name])

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        __init__.__qualname__ = f"{cls.__name__}.__init__"
        setattr(cls, "__init__", __init__)  # noqa: B010 - mypy refuses the assignment
        if cls.__doc__ and TrainingOptions.__doc__:  # python -OO has none
            options = _parameters_of(TrainingOptions.__doc__, fields)
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{parameters}", options + _OTHERS_TEXT.rstrip())
        return cls

    return complete


def _parameters_of(text: str, names: Mapping[str, object]) -> str:
    """Those entries of a docstring's list of parameters that have one of the names."""
    listed = inspect.cleandoc(text).partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    entries: list[list[str]] = []
    for line in listed.splitlines():
        if line[:1].isspace():
            entries[-1].append(line)
        else:
            entries.append([line])
    return "\n".join("\n".join(entry) for entry in entries if entry[0] in names)


def plain_value(name: str, value: Any, expected: Any) -> Any:
    """The value of an option as Python's own type, which NumPy's numbers are not.

    Raises
    ------
    ValueError
        If it is of another type.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    allowed = expected.__args__ if isinstance(expected, types.UnionType) else (expected,)
    allowed = tuple(get_origin(each) or each for each in allowed)
    if float in allowed and type(plain) is int:
        plain = float(plain)
    if allowed == (str,) and type(plain) is int:  # of --split and --merge, and of no others
        plain = str(plain)
    if type(plain) not in allowed:
        names = " or ".join("None" if each is types.NoneType else each.__name__ for each in allowed)
        raise ValueError(f"{name} must be {names}, not {value!r}")
    return plain


def default_of(name: str) -> Any:
    """The default of an option of training."""
    return FIELDS[name].default


def classifies(loss: Loss) -> bool:
    """Whether a loss is for classes."""
    return loss.task is Task.CLASSIFICATION


@contextlib.contextmanager
def value_errors() -> Iterator[None]:
    """Turn errors that the user can correct into what scikit-learn raises for them, with parameters for options."""
    try:
        yield
    except UserError as error:
        raise ValueError(in_parameters(str(error))) from None  # it says all that the other does


def in_parameters(text: str) -> str:
    """A message or a remark with the names of parameters, without options for files."""
    for of_files, ours in _OF_FILES:
        text = re.sub(of_files, ours, text)
    choices = (LOSSES, KINDS, SCHEDULES, PRECONDITIONS, FILLINGS, SKIP_ZEROS, DEVICES, CONFIGURATIONS)
    defaults = {name: field.default for name, field in FIELDS.items()} | OTHERS | {"overwrite": False}
    return with_parameters(text, defaults, set().union(*choices))
