"""Training sets that are prepared for emulated workers, what these read, and what the golden model makes of it."""

import numpy as np

from p4sgd.host.losses import LOSSES
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Placement
from p4sgd.host.training.rate import choose_penalties, choose_rate
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim import golden


def prepare_for(data, options, config):
    """A data set, prepared for workers of one configuration."""
    return prepare(data, options, Placement(deal_units(data.feature_count, options, [config] * options.workers)))


def features_read(prepared):
    """The features of all workers' images as a run reads them: int64 (samples, features), of `features.fraction`
    bits."""
    form = prepared.features
    q = np.empty((prepared.images[0].layout.samples, prepared.shards[0].total), np.int64)
    for image in prepared.images:
        lines = image.layout.unpack_lines(np.stack(image.port_lines), form.precision, form.signed)
        q[:, image.shard.columns] = image.layout.unpad(lines)
    return q


def train_golden(prepared, options, learning_rate, order, weights):
    """Train the golden model on samples in an order, whole mini-batches; returns the actual rate and the weights."""
    loss, image, form = LOSSES[options.loss], prepared.images[0], prepared.features
    rate = choose_rate(learning_rate, options.batch * prepared.mean_weight, form)
    penalties = choose_penalties(rate.actual, *prepared.penalties(options))
    settings = RunSettings(
        form,
        chunks=1,
        micro_batches=options.batch // 8,
        mini_batches=order.size // options.batch,
        label_mode=loss.label_mode,
        rate_mantissa=rate.mantissa,
        rate_exponent=rate.exponent,
        shrink=penalties.shrink,
        threshold=penalties.threshold,
        unit=prepared.unit,
        stale=bool(options.staleness),
        weighted=image.importances is not None,
    )
    labels, own = image.labels.astype(np.int64)[order], None
    if prepared.weighted:
        own = image.importances.astype(np.int64)[order]
    exempt = (0, prepared.space.count) if options.bias else None
    q = features_read(prepared)[order]
    [trained] = golden.train([q], labels, [weights], loss.table(), settings, own, exempt=exempt).weights
    return rate.actual, trained
