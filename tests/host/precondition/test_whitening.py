"""Whitening: exact sums, the same bits for every division of the samples, and what is left as it is."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.data import Scaling
from p4sgd.host.data.quantization import steps
from p4sgd.host.data.scaling import REACH
from p4sgd.host.errors import UserError
from p4sgd.host.precondition import BLOCK, Moments, Whitening, fold_weights
from p4sgd.host.precondition.whitening import GRID_FRACTION, MAX_SAMPLES, factor, to_grid

KINDS = ("standard", "robust")
"""Scalings to the grid."""


def correlated(samples, features, seed, rho=0.9):
    """A chain of columns, each like the one before it, of very different sizes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features))
    for column in range(1, features):
        x[:, column] += rho / np.sqrt(1 - rho**2) * x[:, column - 1]
        x[:, column] *= np.sqrt(1 - rho**2)
    return (x + rng.normal(size=features)) * 10.0 ** rng.uniform(-6, 6, features)


def whiten(x, damping=0.01, planes=8, kind="standard"):
    scaling, moments = Scaling.fit(x, kind), Moments.empty(x.shape[1])
    moments.add(x, scaling)
    return Whitening.fit(moments, scaling, damping, planes)


@settings(max_examples=30)
@given(
    samples=st.integers(3, 60),
    features=st.sampled_from([1, 5, BLOCK, BLOCK + 3]),
    size=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    sparse=st.booleans(),
    planes=st.sampled_from([1, 2, 8]),
    seed=st.integers(0, 2**32),
)
def test_every_division_of_the_samples_gives_the_same_bits(samples, features, size, kind, sparse, planes, seed):
    """Exact moments, and whitened features that are exact sums."""
    x = correlated(samples, features, seed)
    x[np.random.default_rng(seed).random(x.shape) < 0.3] = 0
    x = scipy.sparse.csr_array(x) if sparse else x
    whitening = whiten(x, planes=planes, kind=kind)
    moments, rows = Moments.empty(features), []
    for part in np.array_split(np.arange(samples), size):
        if part.size:
            moments.add(x[part], whitening.scaling)
            rows.append(whitening.apply(x[part]))
    a = np.concatenate(rows)
    assert a.tobytes() == whitening.apply(x).tobytes()
    v = to_grid(whitening.scaling, x).astype(np.int64).astype(object)
    assert moments.sums.tolist() == v.sum(axis=0).tolist()
    for column in range(features):
        block = slice(column // BLOCK * BLOCK, column // BLOCK * BLOCK + BLOCK)
        products = (v[:, column] @ v[:, block]).tolist()
        assert moments.products[column].tolist() == products + [0] * (BLOCK - len(products))
        differences = v[0, block] - whitening.centre[block].astype(object)
        whole = sum(
            int(each) * int(difference) for each, difference in zip(whitening.matrix[column], differences, strict=False)
        )
        assert abs(whole) < 2**53
        exact = Fraction(whole) / 2 ** int(whitening.exponent[column]) + Fraction(whitening.shift[column])
        assert a[0, column] == float(exact)


@pytest.mark.parametrize("damping", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_features_are_whitened(damping, kind):
    """Against Cholesky factors of correlations in float64, but for the rounding of the grid."""
    x = correlated(500, BLOCK + 20, 1)
    whitening = whiten(x, damping, kind=kind)
    assert (whitening.told, whitening.signed) == ((), True)
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    expected = np.empty_like(x)
    for columns in (slice(0, BLOCK), slice(BLOCK, None)):
        part = standard[:, columns]
        lower = np.linalg.cholesky(part.T @ part / 500 + damping * np.eye(part.shape[1]))
        expected[:, columns] = np.linalg.solve(lower, part.T).T
    # Half a step of the grid is less than 2^-12 of a deviation, no row of an inverse factor has a larger norm than 3.
    assert np.abs(whitening.apply(x) * REACH[8] - expected).max() < 3e-3


def test_the_factor_does_not_depend_on_the_library():
    matrix = np.corrcoef(np.random.default_rng(3).normal(size=(20, 100)))
    inverse = factor(matrix, 0.1)
    assert np.array_equal(inverse, np.tril(inverse))
    assert inverse @ (matrix + 0.1 * np.eye(20)) @ inverse.T == pytest.approx(np.eye(20), abs=1e-12)
    assert [factor(np.ones((2, 2)), damping) is None for damping in (0.0, 1e-3)] == [True, False]


@pytest.mark.parametrize(("planes", "left_out"), [(1, [9, 11]), (4, [9, 11]), (8, [9])])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_whitened_is_left_and_told(planes, left_out, kind):
    rng = np.random.default_rng(5)
    x = correlated(400, 3 * BLOCK, 2)
    x[:, 7] = 3  # constant
    x[:, 9] = np.arange(400) < 2  # two values, one of them rare
    x[:, 11] = np.arange(400) % 2
    x[:, BLOCK + 5] = 2 * x[:, BLOCK + 1] - 3  # a linear combination
    x[:, 2 * BLOCK :] = 5  # a block without variance
    x = rng.permutation(x)
    whitening = whiten(x, 0.0, planes, kind)
    singular, binary = whitening.told
    assert "features 65–128 are not whitened" in singular
    assert "larger damping than 0" in singular
    assert f"left out of the whitening: {len(left_out)} of 192" in binary
    a = whitening.apply(x)
    assert not a[:, 7].any()
    assert not a[:, 2 * BLOCK :].any()
    for column in left_out:
        levels = a[:, column] * steps(planes, whitening.signed)
        assert np.abs(levels - np.rint(levels)).max() < 0.02, "neither value is rounded"
        assert np.unique(np.rint(levels)).size == 2, "nor are both the same"
        assert not np.delete(whitening.matrix[:BLOCK, column], column).any(), "it is not mixed into others"
    part = a[:, BLOCK : 2 * BLOCK]
    assert np.corrcoef(part.T) == pytest.approx(np.corrcoef(x[:, BLOCK : 2 * BLOCK].T), abs=1e-3), "only standardised"
    mixed = np.delete(a[:, :BLOCK], [7, *left_out], axis=1)
    assert np.corrcoef(mixed.T) == pytest.approx(np.eye(mixed.shape[1]), abs=1e-2)
    assert whiten(x, 0.1, planes, kind).told == (binary,)
    [few] = whiten(correlated(BLOCK, BLOCK + 5, 3)).told
    assert few.startswith("features 1–64 are not whitened, because a block has no more samples")
    assert not whiten(np.ones((1, 3))).apply(np.ones((1, 3))).any(), "all columns of a single sample are constant"


@pytest.mark.parametrize("planes", [1, 4, 8])
def test_features_that_are_mostly_zero_are_left_out(planes):
    """They keep the range that the scaling gives them, which leaves most of their values unclamped."""
    x, seldom = correlated(1000, 20, 7), np.arange(1000) % 150 == 0
    x[:, 4] = np.where(seldom, x[:, 4] / np.abs(x[:, 4]).max() + 9, 0)
    whitening = whiten(x, planes=planes)
    assert "left out of the whitening: 1 of 20" in whitening.told[0]
    a = whitening.apply(x)[:, 4]
    if planes > 1:
        assert a == pytest.approx(whitening.scaling.apply(x)[:, 4], abs=1e-3)
        assert np.abs(a[seldom]).max() < 1.1
    else:
        assert ((a > 0.5) == seldom).all()
    assert not np.delete(whitening.matrix[:20, 4], 4).any(), "it is not mixed into others"


def test_the_largest_sums_fit():
    """As many samples as are allowed, all at the edges of the grid, in sums that are written down."""
    moments = Moments.empty(2)
    n, edge = MAX_SAMPLES, 1 << 15
    moments.samples = n
    moments.sums[:] = n * edge // 2, -n * edge // 2  # 3 of 4 at one edge, 1 of 4 at the other
    moments.products[:, :2] = n * edge**2 * np.array([[1, -1], [-1, 1]])
    moments.low[:], moments.high[:] = -edge, edge
    mean, covariance = moments.covariance(slice(0, 2))
    assert mean.tolist() == [edge // 2, -edge // 2]
    assert covariance.tolist() == [[edge**2 * 0.75, -(edge**2) * 0.75], [-(edge**2) * 0.75, edge**2 * 0.75]]
    assert moments.two_valued(slice(0, 2)).all()
    moments.samples += 1
    with pytest.raises(UserError, match=r"2,147,483,648 samples exactly.* --precondition"):
        Whitening.fit(moments, Scaling.fit(np.eye(2)), 0.1, 8)


@pytest.mark.parametrize("planes", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_fold_back_through_the_map_that_was_applied(planes, kind):
    x = correlated(300, BLOCK + 9, 4)
    x[:, 3] = 1
    whitening = whiten(x, planes=planes, kind=kind)
    weights = np.random.default_rng(6).normal(size=BLOCK + 9)
    folded, constant = fold_weights(whitening.mixing, weights)
    on_grid = to_grid(whitening.scaling, x) / 2**GRID_FRACTION
    expected = whitening.apply(x) @ weights
    assert (on_grid - whitening.middle) @ folded + constant == pytest.approx(expected, abs=1e-9)
