"""The scaling in a model file is that of the training, to the bit."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.data import Scaling
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.precondition import BLOCK, Whitening
from p4sgd.host.training.kept_scaling import scaling_facts, scaling_of, scaling_tensors

NUMBERS = st.floats(-1e300, 1e300) | st.just(0.0)


@st.composite
def scalings(draw):
    features = draw(st.integers(1, 70))

    def column():
        alike = draw(st.booleans())
        values = draw(st.lists(NUMBERS, min_size=features, max_size=features))
        return np.full(features, values[0]) if alike else np.array(values)

    signed, sparse, whitened = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    kind = draw(st.sampled_from(KINDS[1:]))
    heat = np.arange(features) if sparse and not whitened else None
    scaling = Scaling(kind, column(), column(), signed or whitened, heat=heat)
    if not whitened:
        return scaling
    rng = np.random.default_rng(features)
    matrix = rng.integers(-(1 << 29), 1 << 29, (features, BLOCK)).astype(np.int32)
    centre, exponent = rng.integers(-(1 << 16), 1 << 16, features), rng.integers(0, 60, features)
    return Whitening(scaling, centre, matrix, exponent, signed)


@given(scalings())
def test_what_is_kept_scales_alike(scaling):
    features = scaling.scale.size
    facts = json.loads(json.dumps(scaling_facts(scaling)))
    again = scaling_of(scaling_tensors(scaling), facts, features)
    assert type(again) is type(scaling)
    assert (again.kind, again.signed) == (scaling.kind, scaling.signed)
    assert (again.offset == scaling.offset).all()
    assert (again.scale == scaling.scale).all()
    if isinstance(scaling, Whitening):
        for name in ("matrix", "exponent", "centre"):
            assert (getattr(again, name) == getattr(scaling, name)).all()
        assert (again.mixing == scaling.mixing).all()
    else:
        assert (again.heat is None) == (scaling.heat is None)


@pytest.mark.parametrize(
    ("tensors", "facts"),
    [
        ({}, {}),
        ({}, {"kind": "cubic"}),
        ({}, {"signed": 1}),
        ({"scaling_scale": np.ones(3)}, {}),
        ({"scaling_offset": np.array([np.nan])}, {}),
        ({"whitening_matrix": np.zeros((2, BLOCK), np.int32)}, {}),
        ({"whitening_matrix": np.zeros((2, 7)), "whitening_exponent": 0, "whitening_centre": 0}, {}),
        ({}, {"keeps_zeros": None}),
    ],
)
def test_damage(tensors, facts):
    scaling = Scaling("none", np.zeros(2), np.ones(2), signed=True)
    good, told = scaling_tensors(scaling), scaling_facts(scaling)
    if not tensors and not facts:
        del good["scaling_scale"]
    tensors = {name: np.asarray(values) for name, values in tensors.items()}
    with pytest.raises((KeyError, TypeError, ValueError)):
        scaling_of(good | tensors, told | facts, 2)
