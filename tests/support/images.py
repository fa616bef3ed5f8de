"""Images of made data, in all forms."""

import dataclasses

import numpy as np
import scipy.sparse

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.image import prepare_images
from p4sgd.host.training.dealing.units import partition
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import LABEL

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=16)
FORMS = ("lines", "directories", "entries")


def make(samples=37, features=60, *, density=0.1, sparse=True, negative=True, seed=3):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(samples, features)) * 10.0 ** rng.integers(-5, 5, features)
    dense *= rng.random((samples, features)) < density
    dense = dense if negative else np.abs(dense)
    return Dataset(scipy.sparse.csr_array(dense) if sparse else dense, rng.choice([-1.0, 1.0], samples), "made")


def deal(workers, features=60, *, form="lines", config=CONFIG, bias=True, unit=8):
    config = dataclasses.replace(config, engines=max(3, config.engines), sparse=True) if form == "entries" else config
    shards = partition(features, [config] * workers, bias=bias, unit=unit)
    return [dataclasses.replace(shard, directory=form == "directories") for shard in shards]


def prepare(data, shards, kind="maxabs", **options):
    scaling = Scaling.fit(data.features, kind)
    return prepare_images(data, LABEL.from_real(data.labels), scaling, shards, **options)


def check_same(images, others):
    """Compare images of the same workers."""
    for ours, theirs in zip(images, others, strict=True):
        for name in ("layout", "signed", "workers", "samples", "bias", "exempt"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in ("worker", "unit", "total", "directory"):
            assert getattr(ours.shard, name) == getattr(theirs.shard, name), name
        for name in ("labels", "offset", "scale", "starts"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        assert np.array_equal(ours.shard.units, theirs.shard.units)
        for here, there in zip(ours.port_lines, theirs.port_lines, strict=True):
            assert here.shape == there.shape
            assert np.array_equal(here, there)
