"""Offsets of training samples: whether they suit a loss, and the labels that are left when they are taken out."""

import numpy as np

from p4sgd.host.data.dataset import Labelled, LabelledSamples
from p4sgd.host.data.sample_numbers import EXPOSURE, FARTHEST, average
from p4sgd.host.errors import UserError, option
from p4sgd.host.losses import LOSSES, Loss, Task, classification
from p4sgd.host.losses.loss import FloatArray


def without_offsets(data: Labelled, loss: Loss) -> Labelled:
    """Samples whose labels and weights are those of `Loss.without`; of classes the same, as are samples without offsets
    and labels that are none for the loss."""
    unsuitable = data.label_names or (loss.power is not None and data.labels.min() < 0)
    if data.offsets is None or unsuitable or loss.task is Task.CLASSIFICATION:
        return data
    labels, weights = loss.without(data.labels, data.sample_weights, data.offsets)
    return LabelledSamples(data.name, labels, (), data.target_names, data.labelled, weights)


def check_offsets(data: Labelled, loss: Loss, *, bias: bool) -> None:
    """Refuse offsets of samples that do not suit the loss, or are so large that the hardware could not have them."""
    if data.offsets is None:
        return
    if loss.power is None and data.offset_kind == EXPOSURE:
        known = " or ".join(option("loss", name) for name, each in LOSSES.items() if each.power is not None)
        remedy = f"choose {known}, or give offsets"
        raise UserError(f"{data.name}: exposures are for predictions of e^z, not for the loss {loss.name}: {remedy}")
    classes = loss.task is Task.CLASSIFICATION
    if loss.power is None and not classes:
        return
    most, centre = classification.FARTHEST if classes else FARTHEST, 0.0
    if classes and bias:  # the one that `centred` would take of all samples has all in reach, if any has
        centre = float(data.offsets.min() + data.offsets.max()) / 2
    far = np.flatnonzero(np.abs(data.offsets - centre) > most)
    if far.size:
        which = f"the offset of sample {far[0] + 1} is {data.offsets[far[0]]:.4g}"
        must = f"they may be at most {2 * most:g} apart" if centre else f"it must be -{most:g} to {most:g}"
        raise UserError(f"{data.name}: {which}: {must}")


def centred(offsets: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Offsets of classes less their weighted mean, or the nearest number with which all are as small as they must be.
    The intercept takes that number."""
    most = classification.FARTHEST
    return offsets - min(max(average(offsets, weights), float(offsets.max()) - most), float(offsets.min()) + most)
