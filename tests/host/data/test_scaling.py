"""Scaling and quantisation: exact where they can be, within half a step everywhere."""

import itertools
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.skewed import DISTRIBUTIONS

from p4sgd.host.data import Scaling
from p4sgd.host.data.kernels import quantize_scaled, quantize_stored
from p4sgd.host.data.matrix import pick_columns
from p4sgd.host.data.quantization import feature_values, quantize, steps
from p4sgd.host.data.scaling import CENTRED, KINDS, REACH, bias_integer
from p4sgd.host.data.statistics import Statistics, compiles, find_extremes, order_statistics, scaled
from p4sgd.host.errors import UserError

FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e3, 1e3),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 2.3e-308]),
)
MATRIX = st.tuples(st.integers(1, 6), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=FINITE)
)
TINY = 2.0**-1012


@settings(max_examples=200)
@given(matrix=MATRIX, kind=st.sampled_from(["minmax", "maxabs"]), stored=st.integers(1, 8), sparse=st.booleans())
def test_quantised_within_half_a_step(matrix, kind, stored, sparse):
    """Of the definition in exact arithmetic."""
    features = scipy.sparse.csr_array(matrix) if sparse else matrix
    scaling = Scaling.fit(features, kind)
    a = scaling.apply(features)
    assert scaling.signed == (kind == "maxabs" and bool((matrix < 0).any()))
    assert -1 - 1e-14 <= a.min() <= a.max() <= 1 + 1e-14
    q, one = quantize(a, stored, scaling.signed), steps(stored, scaling.signed)
    low, high = (-(1 << stored - 1), (1 << stored - 1) - 1) if scaling.signed else (0, (1 << stored) - 1)
    assert low <= q.min() <= q.max() <= high
    for column, integers in zip(matrix.T.tolist(), q.T.tolist(), strict=True):
        values = list(map(Fraction, column))
        offset, magnitude = min(values) if kind == "minmax" else 0, max(map(abs, values))
        span, limit = max(value - offset for value in values), max(Fraction(TINY), magnitude / 2**40)
        span = magnitude if kind == "maxabs" else span
        if 0.99 * limit < span < 1.01 * limit:
            continue  # at the border below which a column counts as constant
        for value, integer in zip(values, integers, strict=True):
            exact = (value - offset) / span if span > limit else 0
            assert abs(integer - min(exact * one, high)) <= 0.5 + 1e-9  # one signed plane has no +1
    if kind == "maxabs":
        assert not a[matrix == 0].any(), "zero must stay exactly zero"
        assert not q[matrix == 0].any()


@pytest.mark.parametrize("value", [0.0, 3.5, -3.5, 1 / 3, 1e308, -1e308, 1e-290, -5e-324])
@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_constant_columns_and_rounding_noise_make_no_feature(value, form):
    noise = value * (1 + np.finfo(float).eps * np.array([[-3.0], [0], [5]])) if abs(value) < 1e308 else value
    for column in (np.full((5, 1), value), noise):
        for kind in ("minmax", "standard", "robust") if value and isinstance(column, np.ndarray) else ():
            scaling = Scaling.fit(form(column), kind)
            assert (scaling.scale.tolist(), scaling.apply(form(column)).any()) == ([0], False)
            assert scaling.remarks() == ("all features are constant: only the intercept is fitted",)
            beside = Scaling.fit(np.hstack([column, np.arange(len(column)).reshape(-1, 1)]), kind)
            said = "1 of 2 features (1 (a)) are constant in the training samples, and have no effect"
            assert beside.remarks("ab") == (said,)
    one = 0 if abs(value) < TINY else np.sign(value)
    features = form(np.full((5, 1), value))
    assert Scaling.fit(features, "maxabs").apply(features)[:, 0].tolist() == pytest.approx([one] * 5, rel=1e-14)
    if TINY < abs(value) < 1e308:
        spread = abs(value) * (1 + 2.0**-39 * np.array([[-1.0], [0], [1]]))
        assert Scaling.fit(spread, "minmax").apply(spread) == pytest.approx(np.array([[0], [0.5], [1]]), abs=1e-3)


def scattered(seed=0, samples=300, features=6):
    return np.random.default_rng(seed).normal(size=(samples, features)) * 3 + 50


def with_zeros(matrix):
    """A sparse matrix that stores all zeros."""
    rows, columns = matrix.shape
    pointers = np.arange(0, matrix.size + 1, columns)
    return scipy.sparse.csr_array((matrix.ravel(), np.tile(np.arange(columns), rows), pointers), shape=matrix.shape)


THIN = scipy.sparse.random_array((300, 40), density=0.02, rng=1, format="csr")
UNEVEN = (THIN * np.geomspace(1e-3, 1e3, 40)).tocsr()
WILD = scattered()
WILD[7] = 1e6


@pytest.mark.parametrize(
    ("data", "planes", "kind", "why"),
    [
        (scattered(), 8, "standard", "dense"),
        (scattered(), 1, "standard", "dense"),
        (scipy.sparse.csr_array(scattered()), 8, "standard", "dense"),
        (WILD, 8, "standard", "dense"),
        (THIN, 8, "none", "sparse"),
        (THIN, 4, "maxabs", "sparse"),
        (UNEVEN, 8, "maxabs", "sparse"),
        (THIN.toarray(), 8, "none", "sparse"),
        (UNEVEN.toarray(), 8, "maxabs", "sparse"),
        (with_zeros(THIN.toarray()), 8, "none", "sparse"),
    ],
)
def test_auto(data, planes, kind, why):
    """Data that may not be centred, because they store few values, are not, even if they should be."""
    scaling = Scaling.fit(data, planes=planes)
    assert (scaling.kind, why in scaling.reason) == (kind, True), scaling.reason
    given = find_extremes((data,), data.shape[1], 300), lambda: (data,), lambda _: data
    centrable = isinstance(data, np.ndarray) or data.nnz > THIN.nnz
    assert (Scaling.fit_blocks(*given, "auto", planes=planes, centred=True).kind in CENTRED) == centrable
    for chosen in CENTRED:
        if centrable:
            assert (Scaling.fit(data, chosen).kind, Scaling.fit(data, chosen).reason) == (chosen, "")
        else:
            with pytest.raises(UserError, match=rf"{chosen} .* 2\.00% .*choose maxabs, none or auto"):
                Scaling.fit(data, chosen)


@settings(max_examples=100, deadline=None)
@given(
    matrix=st.tuples(st.integers(2, 12), st.integers(1, 5)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=FINITE)
    ),
    zeros=st.sampled_from([0.0, 0.7, 0.9]),
    form=st.sampled_from([np.asarray, scipy.sparse.csr_array, with_zeros]),
    single=st.booleans(),
    kind=st.sampled_from(KINDS),
    planes=st.integers(1, 8),
    farthest=st.sampled_from([1.0, 2.5, np.inf]),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_formats_and_divisions_of_the_samples_give_the_same_bits(
    matrix, zeros, form, single, kind, planes, farthest, cuts
):
    matrix[np.random.default_rng(0).random(matrix.shape) < zeros] = 0
    with np.errstate(over="ignore"):
        narrow = matrix.astype(np.float32)
    matrix = narrow if single and np.isfinite(narrow).all() else matrix
    edges = [0, *sorted(min(cut, len(matrix)) for cut in cuts), len(matrix)]

    def bits(features, parts):
        try:
            statistics = find_extremes(parts, features.shape[1], features.shape[0])
            how = {"planes": planes, "farthest": farthest}
            scaling = Scaling.fit_blocks(statistics, lambda: parts, partial(pick_columns, features), kind, **how)
        except UserError as error:
            return str(error)
        about = scaling.kind, scaling.reason, scaling.signed, scaling.crowded
        return *about, scaling.offset.tobytes(), scaling.scale.tobytes()

    features = form(matrix)
    parts = [features[first:last] for first, last in itertools.pairwise(edges)]
    one = bits(features, (features,))
    assert bits(features, parts) == one
    if isinstance(one, str):
        return
    if kind not in CENTRED:
        assert bits(matrix, (matrix,)) == one
    scaling = Scaling.fit(features, kind, planes=planes, farthest=farthest)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        q = quantize(np.clip(scaling.apply(features), -2, 2), planes, scaling.signed)
    assert q.shape == matrix.shape
    assert np.isfinite(256 * scaling.scale).all()


@pytest.mark.parametrize("kind", ["standard", "robust"])
@pytest.mark.parametrize("planes", range(1, 9))
@pytest.mark.parametrize("ones", [1, 3, 50, 100, 197])
def test_a_column_of_two_values_is_neither_rounded_nor_clamped(kind, planes, ones):
    """What training reads is exactly what the model makes of the raw value, however rare it is."""
    column = np.full((200, 1), -7.25)
    column[:ones] = 5.5
    scaling = Scaling.fit(column, kind, planes=planes)
    q = quantize(scaling.apply(column), planes, scaling.signed)
    slope, constant = feature_values(scaling.scale, scaling.offset, planes, scaling.signed)
    read = q / 2.0 ** (planes - scaling.signed)
    assert np.unique(q).size == 2
    assert read == pytest.approx(slope * column + constant, abs=1e-12)
    if planes == 8 and 3 <= ones <= 100:
        assert abs(read.mean()) < 0.05


@pytest.mark.parametrize("kind", ["standard", "robust"])
@pytest.mark.parametrize("planes", range(1, 9))
def test_rare_values_are_not_clamped(kind, planes):
    """Of a column that is mostly zero, deviations are small beside its other values."""
    column = np.zeros((1000, 1))
    column[:60, 0] = np.linspace(5, 3, 60)
    scaling = Scaling.fit(column, kind, planes=planes)
    inside = column[10:]  # all but the largest 1 %
    assert np.abs(scaling.apply(inside)).max() <= 1 + 1e-12
    q = quantize(scaling.apply(inside), planes, scaling.signed)
    slope, constant = feature_values(scaling.scale, scaling.offset, planes, scaling.signed)
    unit = 2.0 ** (planes - scaling.signed)
    assert np.abs(q / unit - (slope * inside + constant)).max() <= 0.5 / unit + 1e-12


@pytest.mark.parametrize(("planes", "deviations"), [(4, 8), (6, 8), (7, 12), (8, 12)])
def test_the_range_of_mostly_equal_values_reaches_the_others(planes, deviations):
    """It ends at the farthest value, or so many deviations from the mean if that is farther away."""
    column = np.zeros((1000, 1))
    column[:40, 0] = np.linspace(3, 2, 40)
    mean, deviation = column.mean(), column.std()
    column[0] = mean + (deviations - 1.5) * deviation  # the mean and the deviation change a little
    scaling = Scaling.fit(column, "standard", planes=planes)
    assert scaling.apply(column).max() == pytest.approx(1, abs=1e-12)
    column[0] = 1000
    scaling = Scaling.fit(column, "standard", planes=planes)
    assert scaling.offset == pytest.approx(column.mean(), rel=1e-6)
    assert 1 / scaling.scale == pytest.approx(deviations * column.std(), rel=1e-6)


@given(
    matrix=arrays(np.float64, (5, 3), elements=st.integers(-99, 99)), planes=st.integers(2, 8), power=st.integers(-9, 9)
)
def test_none_is_one_power_of_two(matrix, planes, power):
    matrix = matrix * 2.0**power
    scaling = Scaling.fit(matrix, "none", planes=planes)
    slope, constant = feature_values(scaling.scale, scaling.offset, planes, scaling.signed)
    largest = np.abs(matrix).max()
    if largest == 0:
        assert not slope.any()
        return
    assert not constant.any()
    assert slope == pytest.approx(2.0 ** np.round(np.log2(slope)), rel=1e-15)
    fraction = planes - scaling.signed
    q = quantize(scaling.apply(matrix), planes, scaling.signed)
    assert np.abs(q - matrix * slope * 2.0**fraction).max() <= 0.5 + 1e-9
    assert (largest * 2 * slope[0]) >= 1 - 2.0**-fraction, "a smaller power would do"
    exact = matrix * slope * 2.0**fraction
    assert (q == exact)[exact == np.round(exact)].all()


@given(values=arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(1, 5)), elements=FINITE))
@settings(deadline=None)
def test_order_statistics(values):
    last = len(values) - 1
    expected = np.sort(values, axis=0)
    places = [place for p in (0.5, 0.25, 0.1, 0.05, 0.01) for place in (int(p * last), last - int(p * last))]
    found = order_statistics(values)
    assert np.array_equal(found, expected[places])
    assert not np.signbit(found[found == 0]).any()


def test_numbers_at_the_edges():
    scaling = Scaling.fit(np.array([[0.0, -1.0], [1.0, 1.0]]), "maxabs")
    a = scaling.apply(np.array([[1e300, -7.0]]))
    assert (a.tolist(), quantize(a, 4, True).tolist()) == ([[1e300, -7.0]], [[7, -8]]), "other data are clamped"
    tiny = Scaling.fit(np.array([[1e-300]]), "maxabs").apply(np.array([[1e300]]))
    assert quantize(tiny, 4, False).tolist() == [[15]]
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]) / 7
    assert quantize(halves, 4, True).tolist() == [-2, -1, 0, 1, 2, 3]
    for column in ([0.0, -0.0, 1.0], [-0.0, 0.0, 1.0]):
        assert not np.signbit(Scaling.fit(np.array(column).reshape(-1, 1), "minmax").offset)
    for stored in range(1, 9):
        read = [(bias_integer(stored, True) >> stored - planes) / 2 ** (planes - 1) for planes in range(1, stored)]
        assert read == [-1.0] * (stored - 1)
    assert [bias_integer(8, True), bias_integer(1, True), bias_integer(4, False)] == [-127, -1, 15]
    for stored, signed in ((1, False), (4, True), (8, True)):
        found = quantize(np.broadcast_to(np.float64(0.3), 1000), stored, signed)
        assert (found.strides, found.tolist()) == ((0,), quantize(np.full(1000, 0.3), stored, signed).tolist())
    for form, value in itertools.product((np.asarray, scipy.sparse.csr_array), (np.nan, np.inf)):
        matrix = np.ones((3, 4))
        matrix[1, 2] = value
        with pytest.raises(UserError, match=f"sample 2, feature 3 is {value}"):
            Scaling.fit(form(matrix))
    for kind, span in itertools.product(("minmax", "maxabs"), (3e-308, TINY, 1e-304)):
        scale = Scaling.fit(np.array([[0.0], [span]]), kind).scale
        assert np.isfinite(256 * scale).all(), "no coefficient overflows"
        assert scale.any() == (span > TINY)


@given(seed=st.integers(0, 1 << 30), planes=st.integers(1, 8), samples=st.integers(8, 40), spread=st.integers(-99, 99))
def test_standard_is_mean_and_deviation(seed, planes, samples, spread):
    """All columns reach equally many of their deviations; one plane divides at the centre."""
    columns = np.random.default_rng(seed).normal(3, 1, size=(samples, 3)) * 10.0**spread
    scaling = Scaling.fit(columns, "standard", planes=planes)
    if scaling.signed:
        assert scaling.offset == pytest.approx(columns.mean(axis=0), rel=1e-7)
        assert 1 / scaling.scale == pytest.approx(REACH[planes] * columns.std(axis=0), rel=1e-7)
    skewed = np.random.default_rng(3).lognormal(size=(999, 1))
    for kind, centre in (("standard", skewed.mean()), ("robust", np.median(skewed))):
        scaling = Scaling.fit(skewed, kind, planes=1)
        assert not scaling.signed
        assert (quantize(scaling.apply(skewed), 1, False) == (skewed >= centre)).all()


def test_of_sparse_data_columns_with_few_zeros_that_use_few_levels_are_told():
    rng = np.random.default_rng(4)
    income, year = rng.lognormal(10, 2, 3000), rng.integers(2020, 2024, 3000)
    texts = np.eye(200)[rng.integers(0, 200, 3000)]
    for first, second, told in ((income, year, (0, 1)), (np.log(income), year - 2021, ())):
        columns = np.column_stack([first, second, texts])
        sparse = scipy.sparse.csr_array(columns)
        assert Scaling.fit(sparse, "maxabs").crowded == told
        assert Scaling.fit(sparse).crowded == told[:1]
        assert Scaling.fit(sparse, farthest=np.inf).crowded == ()
        for kind, advised in (("auto", False), ("maxabs", True)):
            remarks = Scaling.fit(sparse, kind).remarks()
            assert ["the scaling auto" in remark for remark in remarks] == [advised] * (told != ())


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array, with_zeros])
def test_numbers_among_texts_are_scaled_as_those_of_dense_data(form):
    """Those with many zeros keep these, and so do texts, even if one is frequent."""
    rng = np.random.default_rng(5)
    numbers = np.column_stack([rng.normal(50, 5, 4000), rng.poisson(2, 4000) - 3.0, rng.poisson(0.3, 4000)])
    texts = np.eye(200)[np.maximum(0, rng.integers(-250, 200, 4000))]
    scaling, dense = Scaling.fit(form(np.hstack([numbers, texts]))), Scaling.fit(numbers)
    assert (scaling.kind, scaling.signed, scaling.filled.tolist()) == ("none", True, [0, 1])
    assert np.array_equal(scaling.scale[:2], dense.scale[:2])
    assert scaling.scale[2] == pytest.approx(1 / numbers[:, 2].max()), "from 0, not from the mean"
    assert np.array_equal(scaling.offset[:2], dense.offset[:2])
    assert not scaling.zero[2:].any()
    assert np.array_equal(scaling.scale[3:], Scaling.fit(np.hstack([-numbers[:, :1] / 1e6, texts]), "none").scale[1:])
    assert scaling.heat.tolist() == [4000, 4000, *np.count_nonzero(numbers[:, 2:], axis=0), *texts.sum(axis=0)]
    assert Scaling.fit(form(texts)).offset.strides == (0,)


@pytest.mark.parametrize("planes", [3, 4, 8])
def test_numbers_with_many_zeros_are_not_clamped_for_a_lack_of_an_offset(planes):
    rng = np.random.default_rng(6)
    columns = [rng.normal(9, 1, 4000) * (rng.random(4000) < 0.3), rng.integers(2019, 2021, 4000)]
    columns = np.column_stack([*columns, np.eye(200)[rng.integers(0, 200, 4000)]])
    scaling = Scaling.fit(columns, planes=planes)
    assert scaling.filled.tolist() == [1], "two values without a zero are a number"
    assert np.unique(quantize(scaling.apply(columns), planes, True)[:, 1]).size == 2
    assert np.quantile(scaling.apply(columns)[:, 0], 0.98) <= 1


def test_frequent_words_are_no_numbers():
    """Unless they are in almost every text; then all words that are often not 0 are."""
    rng = np.random.default_rng(7)
    counts = np.minimum(rng.poisson(np.append(np.geomspace(2.5, 0.1, 40), [0.005] * 999), size=(1000, 1039)), 9)
    for words in (counts, np.sqrt(counts), counts * np.geomspace(1e-3, 1, 1039)):
        found = Scaling.fit(scipy.sparse.csr_array(words))
        assert (found.filled.size, found.signed) == (0, False)
        beside = Scaling.fit(scipy.sparse.csr_array(np.hstack([words, rng.integers(1, 99, (1000, 1))])))
        assert beside.filled.size == np.count_nonzero(np.count_nonzero(words, axis=0) > 500) + 1 > 9


@pytest.mark.parametrize("planes", [2, 4, 6, 8])
def test_a_range_is_as_wide_as_costs_least(planes):
    """Clamping and rounding together; it is never narrower than usual, or wider than it may be."""
    rng = np.random.default_rng(planes)
    columns = np.column_stack([make(rng, 3000) for make in DISTRIBUTIONS.values()])
    half = slice(0, 1500), slice(1500, None)
    statistics = find_extremes([columns[part] for part in half], columns.shape[1], 3000)
    blocks = lambda: (columns[part] for part in half)  # noqa: E731
    scaling = Scaling.fit_blocks(statistics, blocks, lambda _: columns, "auto", planes=planes, farthest=np.inf)
    narrow, one = Scaling.fit(columns, "standard", planes=planes), steps(planes, True)
    assert (scaling.kind, scaling.crowded) == ("standard", ())
    wider = np.flatnonzero(scaling.scale < narrow.scale)
    assert (scaling.scale <= narrow.scale).all()
    if planes >= 4:
        assert scaling.scale[0] == narrow.scale[0], "that of normal numbers is wide enough"
        assert wider.size > 9
    for column in wider:
        distance = np.abs(columns[:, column] - scaling.offset[column])
        candidates = np.geomspace(1 / narrow.scale[column], distance.max(), 400)
        costs = [
            (reach / one) ** 2 / 12 + (np.maximum(distance - reach, 0) ** 2).mean()
            for reach in (1 / scaling.scale[column], *candidates)
        ]
        assert costs[0] <= 1.02 * min(costs[1:])
    limited = Scaling.fit(columns, "standard", planes=planes, farthest=2)
    alike = limited.scale == narrow.scale  # such as columns of mostly one value, whose usual ranges are wider
    expected = np.maximum(scaling.scale, narrow.scale / 2)
    assert limited.scale[~alike] == pytest.approx(expected[~alike])
    assert (limited.scale < narrow.scale).sum() > 5 * (planes >= 4)


def test_robust_does_not_mind_few_wild_values():
    """Nor do columns escape that hardly use any levels: a remark names them."""
    calm = scattered(samples=1000)
    wild = calm.copy()
    wild[::200] = -1e12
    one = Scaling.fit(calm, "robust")
    for other, close in ((Scaling.fit(wild, "robust"), 0.2), (Scaling.fit(calm, "standard"), 0.2)):
        assert other.offset == pytest.approx(one.offset, rel=0.01)
        assert other.scale == pytest.approx(one.scale, rel=close)
    data = scattered(samples=1000, features=9)
    data[0, [2, 8]] = 1e5
    [remark] = Scaling.fit(data, "minmax").remarks([f"column{j}" for j in range(9)])
    assert all(text in remark for text in ("2 of 9 features", "3 (column2), 9 (column8)", "scaling auto"))
    [remark] = Scaling.fit(data).remarks()
    assert "2 of 9 features (3, 9) lie within" in remark
    assert "choose the scaling robust" in remark
    assert Scaling.fit(data, "robust").remarks() == Scaling.fit(scattered()).remarks() == ()
    [remark] = Scaling.fit(data, "robust", farthest=np.inf).remarks()
    assert "of 2 of 9 features (3, 9)" in remark
    assert "choose the scaling auto" in remark
    assert Scaling.fit(data, farthest=np.inf).remarks() == Scaling.fit(calm, "robust", farthest=np.inf).remarks() == ()


def test_heat_counts_samples_and_a_scaling_without_it_still_keeps_zeros():
    features = scipy.sparse.csr_array(np.eye(40))
    fitted = Scaling.fit(features, "none")
    bare = fitted.without_heat()
    assert (fitted.heat.tolist(), bare.heat.strides) == ([1] * 40, (0,))
    assert bare.for_samples(features[:10]).heat.tolist() == [1] * 10 + [0] * 30
    assert Scaling.fit(np.eye(4), "minmax").without_heat().heat is None


# -- compiled kernels, against what they compute in NumPy --------------------------------------------------------------

DTYPES = st.sampled_from([np.float32, np.float64])


def any_samples(seed, dtype, spread):
    """Columns of very different sizes, one of them constant, in the memory order of one of three arrays."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 20, size=2)
    x = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-spread, spread + 1, columns)
    x[:, 0] = 3
    x = np.minimum(np.maximum(x, np.finfo(dtype).min), np.finfo(dtype).max).astype(dtype)
    return [x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]][rng.integers(3)]


@given(
    seed=st.integers(0, 1 << 30),
    dtype=DTYPES,
    spread=st.sampled_from([1, 30, 300]),
    stored=st.integers(1, 8),
    signed=st.booleans(),
    bias=st.integers(0, 1),
)
def test_quantised_as_defined(seed, dtype, spread, stored, signed, bias):
    x, rng = any_samples(seed, dtype, spread), np.random.default_rng(seed)
    offset = rng.choice(x, axis=0).astype(np.float64)
    largest = np.abs(x.astype(np.float64)).max(axis=0)
    scale = rng.choice([0.0, 0.1, 1.0, 1e3], size=offset.size) / np.maximum(largest, 1e-300)
    out = np.full((x.shape[0], x.shape[1] + bias), 77, np.uint8)
    which = rng.permutation(x.shape[0])
    quantize_scaled(x, which, offset, scale, stored, signed, out)
    expected = quantize(scaled(x[which], offset, scale), stored, signed).astype(np.uint8)
    assert np.array_equal(out[:, : x.shape[1]], expected)
    rows, columns, found = quantize_stored(scipy.sparse.csr_array(x), which, offset, scale, stored, signed)
    assert np.array_equal(np.stack((rows, columns)), np.nonzero(x[which]))
    assert np.array_equal(found, expected[rows, columns])
    assert (out[:, x.shape[1] :] == 77).all()


@given(seed=st.integers(0, 1 << 30), dtype=DTYPES, spread=st.sampled_from([1, 30, 300]))
def test_sums_as_defined(seed, dtype, spread):
    x = any_samples(seed, dtype, spread)
    sums = []
    for least in (0, 1 << 60):
        statistics = find_extremes((x,), x.shape[1], x.shape[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("p4sgd.host.data.statistics.COMPILED_VALUES", least)
            statistics.add_sums(x)
        sums.append(statistics.sums.tolist())
    assert sums[0] == sums[1]


def test_loops_are_loaded_once_all_data_have_so_many_values(monkeypatch):
    """Each set counts once, in however many passes it is read."""
    monkeypatch.setattr("p4sgd.host.data.statistics.COMPILED_VALUES", 30)
    assert compiles(30)
    for loaded in (False, False, True):
        Scaling.fit(np.arange(10.0).reshape(5, 2), "standard")
        assert compiles(29) is loaded


@given(seed=st.integers(0, 1 << 30), dtype=DTYPES, strange=st.booleans())
def test_extremes_by_kernels_as_by_numpy(seed, dtype, strange):
    x, rng = any_samples(seed, dtype, 1).copy(), np.random.default_rng(seed)
    x[rng.random(x.shape) < 0.5] = 0
    if strange:
        x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    rows = scipy.sparse.csr_array(x)
    rows.data[rng.random(rows.data.size) < 0.1] = 0  # stored zeros
    expected, *found = (Statistics(x.shape[1], 1) for _ in range(3))
    for first in range(0, x.shape[0], 3):
        dense = rows.toarray()[first : first + 3]
        found[0].add(rows[first : first + 3])
        for least, statistics in ((1 << 60, expected), (0, found[1])):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("p4sgd.host.data.statistics.COMPILED_VALUES", least)
                statistics.add(dense)
    for each in found:
        for one, other in zip((*each.range(), each.nonzero), (*expected.range(), expected.nonzero), strict=True):
            np.testing.assert_array_equal(one, other)
