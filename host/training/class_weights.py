"""Weights of classes, and of training samples: those in the data times those of their classes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p4sgd.host.data.dataset import Labelled
from p4sgd.host.data.labels import LabelCoding, TargetCoding, find_label, name_of_label
from p4sgd.host.data.sample_numbers import importances, relative
from p4sgd.host.errors import UserError, listed, option
from p4sgd.host.losses.loss import FloatArray
from p4sgd.hw.spec.fixed import IMPORTANCE

BALANCED = "balanced"
"""Weights of classes with which both count the same in total."""

_SHOWN = 10
"""Maximum number of classes in a message."""

_COARSE = 0.01
"""Part of the sum of weights that rounding may change without a remark."""


def class_weights_of(given: Any) -> str | dict[str, float]:
    """Weights of classes as `TrainingOptions` keeps them, ``balanced`` or weights by the text of the label, of
    ``balanced``, a text ``LABEL=W,LABEL=W``, or a mapping from labels to weights."""
    if isinstance(given, str) and given == BALANCED:
        return BALANCED
    pairs: list[tuple[Any, Any]] = []
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, str) and all(part.rpartition("=")[0].strip() for part in given.split(",")):
        pairs = [(label.strip(), weight) for label, _, weight in (part.rpartition("=") for part in given.split(","))]
    else:
        raise UserError(f"{option('class_weight')} must be {BALANCED} or LABEL=WEIGHT,LABEL=WEIGHT, not {given!r}")
    weights: dict[str, float] = {}
    for label, weight in pairs:
        plain = label.item() if isinstance(label, np.generic) else label
        text = str(int(plain)) if isinstance(plain, bool) else str(plain)
        if text in weights:
            raise UserError(f"{option('class_weight')} names a label twice: leave one of its weights out")
        try:
            weights[text] = float(weight)
        except (TypeError, ValueError):
            weights[text] = math.nan
        if not math.isfinite(weights[text]) or weights[text] < 0:
            raise UserError(f"{option('class_weight')} of {text} is {weight}: it must be a finite number of at least 0")
    return weights


def spell_class_weight(chosen: str | Mapping[str, float]) -> str:
    """Weights of classes as the command line has them."""
    return chosen if isinstance(chosen, str) else ",".join(f"{label}={weight!r}" for label, weight in chosen.items())


def check_class_weight(
    chosen: str | Mapping[str, float] | None, data: Labelled, coding: LabelCoding | TargetCoding
) -> tuple[str, ...]:
    """Refuse weights of 0, from `class_weights_of`, that leave one class. Returns remarks on labels that are of no
    sample and no class of the model, as of a class that only other folds have, or one that is spelt wrong."""
    if chosen is None or isinstance(chosen, str):
        return ()
    names, there = data.label_names, np.unique(data.labels).tolist()
    known = [str(name_of_label(label, names)) for label in there]
    if isinstance(coding, LabelCoding) and coding.classes and coding.positive is None:
        known += [name for name in coding.meanings if name not in known]  # of the model that training starts from
    absent = [text for text in chosen if text not in known and find_label(text, names) not in there]
    without = {find_label(text, names) for text, weight in chosen.items() if weight == 0}
    positive = coding.rows[0].positive if isinstance(coding, TargetCoding) else coding.positive
    classes = {label: label if positive is None else label == positive for label in there}
    left = {each for label, each in classes.items() if label not in without}
    if len(left) == 1 < len(set(classes.values())):
        raise UserError(
            f"{data.name}: {option('class_weight')} is 0 for all samples but those of one class: a classifier needs two"
        )
    if not absent:
        return ()
    what = f"names the label{'s' * (len(absent) > 1)} {listed(absent, _SHOWN)}, which no sample has"
    return (f"{data.name}: {option('class_weight')} {what}; there are {listed(known, _SHOWN)}",)


def weigh(
    parts: Sequence[Labelled], coding: LabelCoding, chosen: str | Mapping[str, float] | None
) -> list[FloatArray | None]:
    """Weights of the training samples, the first of the ``parts``, and of others whose classes weigh what theirs do.

    Weights of the classes are ``chosen`` by `class_weights_of`; the meaning of the labels is that of a single row.
    Returns for each part float64 (samples,), the largest of them 1, or ``None`` if all its samples weigh the same;
    raises `UserError` if they all weigh 0.
    """
    own = [relative(part.sample_weights, part.name) for part in parts]
    if chosen is None:
        return own
    factors = [np.ones(part.labels.size) for part in parts]
    if isinstance(chosen, str):  # as scikit-learn's, all samples / (classes · samples of the class)
        labels = coding.labels_of(parts[0])
        first = factors[0] if own[0] is None else own[0]
        totals = [float(first[labels == each].sum()) for each in coding.classes]
        balanced = [sum(totals) / (2 * total) if total else 0.0 for total in totals]
        factors = [np.where(coding.labels_of(part) == coding.classes[1], *balanced[::-1]) for part in parts]
    else:
        for part, factor in zip(parts, factors, strict=True):
            for text, weight in chosen.items():
                label = find_label(text, part.label_names)
                if label is not None:  # else it is a class that only others have
                    factor[part.labels == label] = weight
    return [
        relative(factor if weights is None else weights * factor, part.name)
        for weights, factor, part in zip(own, factors, parts, strict=True)
    ]


def rounding_remark(weights: FloatArray | None) -> str | None:
    """A remark on weights from `weigh` that the hardware rounds by more than 1 % of their sum."""
    rounded = importances(weights)
    if weights is None or rounded is None:
        return None
    error = float(np.abs(IMPORTANCE.to_real(rounded) - weights).sum() / weights.sum())
    if error <= _COARSE:
        return None
    return (
        f"weights of samples are rounded to steps of 1/{IMPORTANCE.one:,} of the largest, which changes {error:.2g} of "
        f"their sum: a few weigh too much beside the others"
    )
