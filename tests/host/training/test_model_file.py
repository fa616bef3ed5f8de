"""Model files: round trip, predictions, and every way of not being one."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tensor_file import rewrite

from p4sgd.host.data import Dataset, FeatureSpace, Scaling
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.reading import TableColumn, TableReading
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task
from p4sgd.host.precondition import BLOCK, Whitening
from p4sgd.host.training import model_file
from p4sgd.host.training.model_file import Model, load_model, save_model
from p4sgd.hw.spec.run import FeatureFormat

RNG = np.random.default_rng(5)
NUMBERS = LabelCoding(Task.REGRESSION, mean=100.0, scale=10.0)
READING = TableReading(7, (TableColumn(7, "label"),), ignored=(TableColumn(1, "id"), TableColumn(6)))


def model(features=4, loss="logistic", labels=None, space=None, **more):
    return Model(
        coefficients=RNG.normal(size=features),
        intercept=0.25,
        weights=RNG.integers(-(1 << 31), 1 << 31, features + 1).astype(np.int32),
        slope=RNG.random(features),
        offset=RNG.random(features + 1),
        loss=loss,
        labels=labels or LabelCoding(Task.CLASSIFICATION, (2.0, 4.0)),
        features=FeatureFormat(8, 4, signed=True),
        space=FeatureSpace(features, **space or {}),
        training={"samples": 12, "seconds": 0.5, "name": "Größe"},
        **more,
    )


def rows(features=4, samples=20):
    dense = RNG.normal(size=(samples, features)) * (RNG.random((samples, features)) < 0.5)
    return dense, np.where(dense[:, 0] > 0, 4.0, 2.0)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"space": {"names": ("a", "b", "c", "Größe"), "reading": READING}},
        {"space": {"zero_based": True}},
        {"space": {"hash_bits": 2}},
        {"loss": "huber", "labels": NUMBERS, "loss_parameters": {"epsilon": 1.5}},
    ],
)
def test_round_trip(tmp_path, more):
    path = tmp_path / "m.safetensors"
    before = model(**more)
    save_model(before, path)
    after = load_model(path)
    for name in ("coefficients", "weights", "slope", "offset"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
        assert getattr(before, name).dtype == getattr(after, name).dtype
    for name in ("intercept", "loss", "loss_parameters", "labels", "features", "training", "space"):
        assert getattr(before, name) == getattr(after, name)
    assert after.space.reading == before.space.reading


@pytest.mark.parametrize("block", [model_file._BLOCK_VALUES, 12])
def test_dense_and_sparse_predict_the_same(monkeypatch, block):
    monkeypatch.setattr(model_file, "_BLOCK_VALUES", block)
    trained, numbers = model(), model(loss="squared", labels=NUMBERS)
    dense, labels = rows()
    expected = np.array([sum(c * x for c, x in zip(trained.coefficients, row, strict=True)) for row in dense]) + 0.25
    for make in (np.asarray, np.float32, scipy.sparse.csr_matrix, scipy.sparse.csr_array):
        data = Dataset(make(dense), labels, "rows")
        z = trained.decision_function(data)
        assert (z.shape, z.dtype) == ((20,), np.float64)
        assert z == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert trained.predict(data).tolist() == np.where(expected > 0, 4.0, 2.0).tolist()
        assert numbers.predict(data) == pytest.approx(100 + 10 * numbers.decision_function(data))
    wide = scipy.sparse.random_array((100_000, 1_000_000), density=1e-7, format="csr", rng=RNG)  # 800 GB if dense
    assert model(features=1_000_000).decision_function(Dataset(wide, np.zeros(100_000), "wide")).shape == (100_000,)


@pytest.mark.parametrize("features", [2, 7])
def test_other_features(features):
    """Sparse data may have another number of them; dense data must have the same, with the same names if any."""
    trained = model(space={"names": ("a", "b", "c", "d")})
    (dense, labels), (same, _) = rows(features), rows()
    shared = min(features, 4)
    expected = dense[:, :shared] @ trained.coefficients[:shared] + 0.25
    assert trained.decision_function(Dataset(scipy.sparse.csr_matrix(dense), labels, "s")) == pytest.approx(expected)
    with pytest.raises(UserError, match=f"d .*{features} features, .* 4"):
        trained.decision_function(Dataset(dense, labels, "d"))
    for names in ((), ("a", "b", "c", "d")):
        assert trained.decision_function(Dataset(same, labels, "rows", space=FeatureSpace(4, names))).shape == (20,)
    with pytest.raises(UserError, match=r"rows: .*features .*order"):
        trained.decision_function(Dataset(same, labels, "rows", space=FeatureSpace(4, ("b", "a", "c", "d"))))


WHITENED = {f"whitening_{name}": np.zeros(4) for name in ("matrix", "exponent", "centre")}


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "cubic"},
        {"loss": "squared"},
        {"loss_parameters": {"epsilon": 1}},
        {"loss_parameters": [1]},
        {"labels": 3},
        {"features__stored": 9},
        {"labels__classes": []},
        {"labels__classes": [4, 2]},
        {"labels__classes": [1, np.nan]},
        {"labels__names": ["a", "b"]},
        {"labels__scale": 0},
        {"labels__task": "regression"},
        {"replace": {"coefficients": np.array([1, 2, np.nan, 3])}},
        {"replace": {"coefficients": np.zeros((2, 2))}},
        {"replace": {"mixing": np.zeros((9, 64))}},
        {"replace": {"slope": np.zeros(9)}},
        {"replace": {"offset": np.full(5, np.inf)}},
        {"replace": {"intercept": np.array([np.nan])}},
        {"replace": {"intercept": np.zeros(2)}},
        {"replace": {"weights": np.zeros(6, np.int32)}},
        {"space__names": ["a"]},
        {"space__zero_based": 7},
        {"space__hash_bits": 7},
        {"space__hash_bits": []},
        {"space__count": 5},
        {"space__count": 3},
        {"drop": ("weights",)},
        {"scaling__kind": "cubic"},
        {"scaling__signed": 1},
        {"scaling__keeps_zeros": None},
        {"replace": {"scaling_scale": np.ones(3)}},
        {"replace": {"scaling_offset": np.array([np.nan])}},
        {"replace": {"whitening_matrix": np.zeros((2, BLOCK), np.int32)}},
        {"replace": WHITENED},
    ],
)
def test_damaged_files(tmp_path, changes):
    path = tmp_path / "m.safetensors"
    save_model(model(scaling=Scaling("none", np.zeros(4), np.ones(4), signed=True)), path)
    rewrite(path, **changes)
    with pytest.raises(UserError, match=f"^{path}: a damaged model file: .*: train again"):
        load_model(path)


NUMBERS_OF_COLUMNS = st.floats(-1e300, 1e300) | st.just(0.0)


@st.composite
def scalings(draw):
    features = draw(st.integers(1, 70))

    def column():
        alike = draw(st.booleans())
        values = draw(st.lists(NUMBERS_OF_COLUMNS, min_size=features, max_size=features))
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


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scaling=scalings())
def test_the_scaling_is_that_of_the_training(tmp_path, scaling):
    path = tmp_path / "m.safetensors"
    save_model(model(scaling.scale.size, scaling=scaling), path)
    again = load_model(path).scaling
    assert type(again) is type(scaling)
    assert (again.kind, again.signed) == (scaling.kind, scaling.signed)
    assert (again.offset == scaling.offset).all()
    assert (again.scale == scaling.scale).all()
    if isinstance(scaling, Whitening):
        for name in ("matrix", "exponent", "centre", "mixing"):
            assert (getattr(again, name) == getattr(scaling, name)).all()
    else:
        assert (again.heat is None) == (scaling.heat is None)
