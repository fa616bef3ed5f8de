"""Tables with texts and gaps: the features made of them, whatever the format, the blocks and the ranks."""

import csv
import itertools
import json
import re
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
from support.data_files import encoded, read_in_blocks

from p4sgd.host.data import FeatureSpace, read_dataset, survey
from p4sgd.host.data.encoding import TableEncoding, fit_encoding, space_from_json, space_to_json
from p4sgd.host.data.identity import identify
from p4sgd.host.data.survey import Survey
from p4sgd.host.data.table import NumberColumn, Table
from p4sgd.host.errors import UserError
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.preparation import encode, encode_table

HEADER = "size,colour,weight,label\n"
ROWS = "1,red,0.5,0\n2,blue,1.5,1\n3,red,2,0\n4,green,1,1\n"
NAMES = ("size", "colour=blue", "colour=green", "colour=red", "weight")


def write(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def store(folder, columns, name="data.parquet"):
    """Write columns, by name, as CSV or Parquet."""
    path = folder / name
    (pa.csv.write_csv if name.endswith("csv") else pq.write_table)(pa.table(columns), path)
    return path


GAPS = "a,b,c,d,y\n1,x,5,p,0\n,y,6,?,1\nNA,,7,q,0\n5, x ,6,,1\n"
MADE = [  # text, filling, names of the features, and the features
    (HEADER + ROWS, "error", NAMES, [[1, 0, 0, 1, 0.5], [2, 1, 0, 0, 1.5], [3, 0, 0, 1, 2], [4, 0, 1, 0, 1]]),
    ("sex,x,b,y\nm,x,1,0\nf,x,2,1\nm,x,3,1\n", "error", ("sex=m", "x=x", "b"), [[1, 1, 1], [0, 1, 2], [1, 1, 3]]),
    ("a,b,y\n1,true,0\n2,FALSE,1\n3,,0\n", "mean", ("a", "b"), [[1, 1], [2, 0], [3, 0.5]]),
    ('a,b,y\n"1","x\n1",0\n2,"p, q",1\n+3,"p, q",1\n', "error", ("a", "b=x\n1"), [[1, 1], [2, 0], [3, 0]]),
    (GAPS, "mean", ("a", "b=y", "c", "d=q"), [[1, 0, 5, 0], [3, 1, 6, 0], [3, 0, 7, 1], [5, 0, 6, 0]]),
    (
        GAPS,
        "indicator",
        ("a", "a=missing", "b=x", "b=y", "b=missing", "c", "d=p", "d=q", "d=missing"),
        [
            [1, 0, 1, 0, 0, 5, 1, 0, 0],
            [3, 1, 0, 1, 0, 6, 0, 0, 1],
            [3, 1, 0, 0, 1, 7, 0, 1, 0],
            [5, 0, 1, 0, 0, 6, 0, 0, 1],
        ],
    ),
    ("a,b,y\n1,,0\n2,,1\n", "mean", ("a",), [[1], [2]]),
    ("a,b,y\n1,,0\n2,,1\n", "indicator", ("a", "b=missing"), [[1, 1], [2, 1]]),
    ("a,b,y\n" + "7,1,0\n" * 2 + "A1,1,1\n" * 3, "error", ("a=A1", "b"), [[0, 1]] * 2 + [[1, 1]] * 3),
]


@pytest.mark.parametrize(("text", "missing", "names", "features"), MADE)
def test_features(tmp_path, text, missing, names, features):
    path = write(tmp_path, text)
    data = encoded(path, missing)
    assert data.space.names == names
    assert data.features.tolist() == features
    assert data.space.column_names == tuple(text.split("\n")[0].split(",")[:-1])
    assert read_dataset(path, like=data.space).features.tolist() == features
    assert space_from_json(json.loads(json.dumps(space_to_json(data.space)))) == data.space
    part, rest = data.split(0.5, seed=0, stratified=False)
    for each in (data.take(np.arange(2)), data.reordered(np.arange(data.samples)[::-1]), part, rest):
        assert (each.space.encoding, each.remarks, each.space) == (data.space.encoding, data.remarks, data.space)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_same_as_scikit_learn(tmp_path_factory, data):
    """Numbers with gaps, and texts without: what `SimpleImputer` and `OneHotEncoder` make of them."""
    rows = data.draw(st.integers(2, 12))
    numbers = st.one_of(st.none(), st.floats(-1e6, 1e6).map(lambda x: round(x, 3)))
    x = data.draw(st.lists(numbers, min_size=rows, max_size=rows).filter(lambda each: any(v is not None for v in each)))
    texts = data.draw(st.lists(st.sampled_from(["a", "b", "C c", "é"]), min_size=rows, max_size=rows))
    columns = {"x": pa.array(x, pa.float64()), "t": texts, "label": list(range(rows))}
    made = encoded(store(tmp_path_factory.mktemp("table"), columns), "indicator")
    known = np.array([[np.nan if value is None else value] for value in x])
    filled = SimpleImputer(add_indicator=True).fit_transform(known)
    hot = OneHotEncoder(drop="if_binary", sparse_output=False).fit_transform(np.array(texts)[:, None])
    assert np.allclose(made.features, np.hstack([filled, hot]), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    columns=st.integers(1, 3).flatmap(
        lambda count: st.lists(
            st.lists(st.text('ab1.,-+e "\né', max_size=4), min_size=count, max_size=count), min_size=1, max_size=8
        )
    ),
    missing=st.sampled_from(["error", "mean", "indicator"]),
)
@example(columns=[[""]], missing="mean")
def test_any_texts_are_the_same_in_every_format(tmp_path_factory, columns, missing):
    """Or the same cell is refused in all of them. Texts of a format with types are categories."""
    folder = tmp_path_factory.mktemp("table")
    names = [*(f"c{place}" for place in range(len(columns[0]))), "label"]
    rows = [[*row, place % 2] for place, row in enumerate(columns)]
    with open(folder / "data.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    typed = [[*(text if text.strip() else None for text in row[:-1]), row[-1]] for row in rows]
    store(folder, dict(zip(names, map(list, zip(*typed, strict=True)), strict=True)))

    def outcome(name):
        try:
            csv_only = {"header": True, "categorical": names[:-1]} if name == "data.csv" else {}
            data = encoded(folder / name, missing, **csv_only)
        except UserError as error:
            return str(error).replace(str(folder / name), "").split(", ")[-1].split(" or leave")[0]
        return identify(data).sha256, data.space.names, data.space.encoding

    assert outcome("data.csv") == outcome("data.parquet")


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    parts=st.lists(st.integers(0, 30), max_size=3),
)
def test_means_are_exact_however_rows_are_divided(values, parts):
    rows = np.array(values)[:, None]
    edges = sorted({0, *(min(part, len(values)) for part in parts), len(values)})
    blocks = (rows[first:last] for first, last in itertools.pairwise(edges))
    fitted = fit_encoding(Table((NumberColumn("x"),)), blocks, "mean")
    assert fitted.columns[0].mean == float(sum(map(Fraction, values)) / len(values))


def test_wide_tables_are_sparse(tmp_path):
    """Whichever rows they have; the values are those of the dense ones."""
    towns = np.random.default_rng(1).integers(0, 300, 2000)
    lines = [f"{place % 9 or ''},town {town},{place % 2}\n" for place, town in enumerate(towns)]
    data = encoded(write(tmp_path, "a,town,y\n" + "".join(lines)), "mean")
    assert data.sparse
    assert data.features.has_canonical_format
    values = data.features.toarray()
    assert np.array_equal(values[:, 1:].argmax(axis=1), [sorted(set(map(str, towns))).index(str(t)) for t in towns])
    assert (values[:, 1:].sum(axis=1) == 1).all()
    assert np.allclose(values[:9, 0], [values[1:9, 0].mean(), *range(1, 9)], atol=0.01)


def test_what_typed_columns_hold(tmp_path):
    """Nulls and NaN are gaps. A model knows the texts of its training rows also where they would mean a gap."""
    typed = encoded(store(tmp_path, {"a": [1, 2, 3], "b": [True, False, None], "y": [0, 1, 0]}), "mean")
    assert identify(encoded(write(tmp_path, "a,b,y\n1,True,0\n2,False,1\n3,,0\n"), "mean")) == identify(typed)
    texts = ["NA", "DE", None, "nan", "", "NA"]
    path = store(tmp_path, {"c": texts, "x": [1.0, np.nan, 3, 4, 5, 6], "y": [0, 1] * 3})
    data = encoded(path, "indicator")
    assert data.space.names == ("c=", "c=DE", "c=NA", "c=nan", "c=missing", "x", "x=missing")
    assert data.features[:, :5].tolist() == np.eye(5)[[2, 1, 4, 3, 0, 2]].tolist()
    assert data.features[:, 6].tolist() == [0, 1, 0, 0, 0, 0]
    other = write(tmp_path, "c,x,y\nNA,1,0\nDE,?,1\nnull,3,0\nnan,4,1\n,5,0\n NA ,6,1\n")
    for source in (other, path):
        again = read_dataset(source, like=data.space)
        assert (again.features.tolist(), again.remarks) == (data.features.tolist(), ())
    with pytest.raises(UserError, match=r"row 3, column 1 \(c\): the value is missing: fill it in"):
        read_dataset(path, ignore_columns=("x",))
    numbers = store(tmp_path, {"c": [2.0, np.nan, 0.5, 10.0], "n": [3, None, 3, 1], "y": [0, 1] * 2})
    data = encoded(numbers, "indicator", categorical=["c", "n"])
    assert data.space.names == ("c=0.5", "c=10", "c=2", "c=missing", "n=1", "n=3", "n=missing")
    assert (read_dataset(numbers, like=data.space).features == data.features).all()
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        texts = pa.array(["x", None, "z", " x"]).cast(kind)
        path = store(tmp_path, {"a": texts, "b": [1, 2, 3, 4], "label": texts.fill_null("v")})
        data = encoded(path, "indicator")
        assert data.features[:, 0:3].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
        assert (data.labels.tolist(), data.label_names) == ([1, 0, 2, 1], ("v", "x", "z"))


def test_columns_without_any_value(tmp_path):
    """In training, or in the few rows of another table, where they have no type."""
    path = write(tmp_path, "a,b,y\n1,,0\n2,,1\n")
    for value, missing in itertools.product("x5", ("mean", "indicator")):
        again = read_dataset(
            write(tmp_path, f"a,b,y\n3,,0\n4,{value},1\n", "other.csv"), like=encoded(path, missing).space
        )
        assert again.features.tolist() == ([[3], [4]] if missing == "mean" else [[3, 1], [4, 0]])
        assert f"b: 1 value that the model does not know, such as '{value}'" in str(again.remarks)
    for kind, features in ((pa.null(), [[1, 1], [2, 1]]), (pa.float64(), [[1, 0, 1], [2, 0, 1]])):
        stored = store(tmp_path, {"a": [1, 2], "b": pa.nulls(2, kind), "y": [0, 1]})
        assert encoded(stored, "indicator").features.tolist() == features
    data = encoded(write(tmp_path, "size,colour,y\n1,red,0\n3,,1\n,blue,1\n"), "indicator")
    one = store(tmp_path, {"size": pa.nulls(1), "colour": pa.nulls(1)})
    found = read_dataset(one, like=data.space, labels_needed=False)
    assert (found.features.tolist(), found.remarks) == ([[2, 1, 0, 0, 1]], ())


@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_what_only_held_out_samples_have_is_unknown(tmp_path, missing):
    """Neither their texts nor their numbers nor their gaps shape the features."""
    data = read_dataset(write(tmp_path, "a,b,y\n1,x,0\n3,y,1\n,z,0\n100,,1\n5,x,0\n6,q,1\n"), missing=missing)
    trained = np.array([True, True, False, False, True, True])
    made = encode(data, trained, missing)
    assert made.space.names == ("a", "b=q", "b=x", "b=y")
    assert made.features.tolist()[2:4] == [[3.75, 0, 0, 0], [100, 0, 0, 0]]
    assert encode(data.take(np.flatnonzero(trained)), np.ones(4, bool), missing).space.encoding == made.space.encoding
    options = TrainingOptions(missing=missing, validation_fraction=0.34, seed=5)
    rest, _ = data.split(0.34, seed=5, stratified=True)
    assert encode_table(data, options).space.encoding == encode(rest, np.ones(4, bool), missing).space.encoding


def test_a_model_reads_other_tables(tmp_path):
    data = encoded(write(tmp_path, HEADER + ROWS))
    path = write(tmp_path, "weight,label,colour,size\n1,1,red,2\n2,0,pink,3\n3,0,pink,4\n", "other.csv")
    other = read_dataset(path, like=data.space)
    assert other.features.tolist() == [[2, 0, 0, 1, 1], [3, 0, 0, 0, 2], [4, 0, 0, 0, 3]]
    assert other.space == data.space
    remark = "colour: 2 values that the model does not know, such as 'pink': taken for none of those that it knows"
    assert other.remarks == (remark,)
    assert not read_dataset(path, like=data.space, labels_needed=False).labelled
    for name in ("numbers.csv", "numbers.parquet"):
        numbers = store(tmp_path, {"size": [1], "colour": [7], "weight": [2.0], "y": [0]}, name)
        assert read_dataset(numbers, like=data.space).features.tolist() == [[1, 0, 0, 0, 2]]
    bare = encoded(write(tmp_path, "1,red,0\n2,blue,1\n3,red,1\n"), header=False)
    assert bare.space.names == ("feature 1", "feature 2=red")
    same = read_dataset(write(tmp_path, "7,red\n", "other.csv"), header=False, labels_needed=False, like=bare.space)
    assert same.features.tolist() == [[7, 1]]
    plain = encoded(write(tmp_path, "a,b,y\n1,2,0\n3,4,1\n"))
    assert (plain.table, plain.space.encoding, plain.space) == (None, None, FeatureSpace(2, ("a", "b")))
    assert "encoding" not in space_to_json(plain.space)
    filled = encoded(tmp_path / "data.csv", "mean")
    assert filled.features.tolist() == plain.features.tolist()
    assert read_dataset(write(tmp_path, "a,b,y\n,7,0\n"), like=filled.space).features.tolist() == [[2, 7]]


MISTAKES = [  # rows of another table for a model
    ("1,red,0.5,0\ntwo,red,1,0\n", "line 3, column 1 .size.: 'two' is not a number: correct it"),
    ("1,,0.5,0\n", "line 2, column 2 .colour.: the value is missing: fill it in or leave the line out, or train"),
    ("1,red,1e999,0\n", "line 2, column 3 .weight.: the value is 1e999: it must be finite"),
    ("1,red,1,NA\n", "line 2, column 4 .label.: the label is missing"),
    ("1,red\n", "line 2: has 2 fields, line 1 has 4"),
]


def test_mistakes(tmp_path, monkeypatch):
    """A text among numbers is one, so is a decimal comma; a gap of a weight is never filled."""
    data = encoded(write(tmp_path, HEADER + ROWS))
    for rows, message in MISTAKES:
        path = write(tmp_path, HEADER + rows, "other.csv")
        with pytest.raises(UserError, match=f"^{path}, {message}"):
            read_dataset(path, like=data.space)
    with pytest.raises(UserError, match=r", line 2, column 2 .colour.: 'red' is not a number"):
        read_dataset(tmp_path / "data.csv", like=FeatureSpace(3, ("size", "colour", "weight")))
    columns = {"x": [1, 2, 3], "z": ["3,9", "-0,4", "2"], "w": [1.0, None, 1], "y": [0, 1, 1]}
    for name, place in {"data.csv": "line 3", "data.parquet": "row 2"}.items():
        with pytest.raises(UserError, match=f", {place}, column 3 .w.: the value is missing: .* out$"):
            read_dataset(store(tmp_path, columns, name), missing="mean", weight_column="w", ignore_columns=["z"])
        path = store(tmp_path, columns | {"z": ["3,9", "x", "1,2,3"], "w": [1, 1, 1]}, name)
        assert read_dataset(path).table.columns[1].values == ("1,2,3", "3,9", "x")
    for most in (1000, 1):
        monkeypatch.setattr(survey, "MOST_TEXTS", most)
        with pytest.raises(UserError, match=r"line 2, column 2 \(z\): '3,9' is not .*: say --decimal , if it is 3.9"):
            read_dataset(store(tmp_path, columns | {"w": [1, 1, 1]}, "data.csv"))


def test_files_that_are_hardly_meant(tmp_path, monkeypatch):
    """A column of too many texts is refused, and one of a text a sample is told."""
    lines = [f"Person {place},{place},{place % 2}\n" for place in range(40)]
    (told,) = encoded(write(tmp_path, "name,a,y\n" + "".join(lines))).remarks
    assert (told.startswith("name: nearly every"), told.endswith("--ignore-column leaves it out")) == (True, True)
    many = write(tmp_path, "a b,y\n" + "".join(f"n{place},{place % 2}\n" for place in range(1100)), "many.csv")
    with pytest.raises(UserError, match=r"leave it out with --ignore-column 'a b'$"):
        read_dataset(many)
    wide = Survey(("name",), 1)
    for first in range(0, 50_000, 5_000):
        wide.add([pa.array([f"n{place}" for place in range(first, first + 5_000)])], first)
    assert (wide._found[0].values, wide._found[0].counts["texts"]) == (None, 50_000), "they are not kept"
    monkeypatch.setattr(survey, "MOST_TEXTS", 5)
    with pytest.raises(UserError, match=r"data.csv: name has more than 5 different texts, .*leave it out with"):
        read_dataset(tmp_path / "data.csv")
    assert encoded(tmp_path / "data.csv", ignore_columns=["name"]).space.names == ("a",)


def test_a_column_without_values_is_told(tmp_path):
    found = encoded(write(tmp_path, "a,none,y\n" + "1,,0\n2,,1\n" * 5), missing="mean")
    assert (found.space.names, found.remarks) == (("a",), ("none: no training sample has a value: left out",))


@pytest.mark.parametrize("written", ["{}%", "{},5 %", "${}.00", "-€{}", "{},75 EUR", "1.{}\N{NO-BREAK SPACE}€"])
def test_numbers_with_a_unit_are_texts_which_is_told(tmp_path, monkeypatch, written):
    lines = [f'"{written.format(place)}",{place},A{place},{place % 2}\n' for place in range(100, 112)]
    path = write(tmp_path, "paid,a,code,y\n" + "".join(lines))
    (told,) = encoded(path).remarks
    assert re.fullmatch("paid: each text such as .* is a feature of its own: write numbers without a unit", told)
    monkeypatch.setattr(survey, "MOST_TEXTS", 5)
    with pytest.raises(UserError, match=r"paid has more than .*: write numbers such as .* without a unit, or leave it"):
        read_dataset(path)


def test_columns_with_the_numbers_of_the_rows_are_told(tmp_path):
    def remarks(header, first, count=12, **reading):
        lines = [f"{place},{place * place},{place % 2}\n" for place in range(first, first + count)]
        return read_dataset(write(tmp_path, header + "\n" + "".join(lines)), header=True, **reading).remarks

    text = "has the numbers of the rows and is taken for a feature: --ignore-column 1 leaves it out"
    for header, first in (("Unnamed: 0", 0), ("index", 1), ("PassengerId", 100_001)):
        assert remarks(f"{header},b,label", first) == (f"column 1 ({header}) {text}",)
    assert remarks("year,b,label", 1) == remarks(",b,label", 5) == remarks("id,b,label", 1, 4) == ()
    assert remarks("id,b,label", 1, ignore_columns=["1"]) == ()
    assert remarks("id,b,label", 10, categorical=["id"]) == (), "texts in order are no numbers"
    told = remarks(",b,label", 0, 40)
    assert told == (f"column 1 {text}",)
    assert read_in_blocks(tmp_path / "data.csv")[0].remarks == told


DAMAGED = [{"name": "a", "values": ["b", "a"]}, {"name": "a"}, {"mean": None}, {"mean": float("inf")}]


@pytest.mark.parametrize("change", [{"missing": "nothing"}, {"columns": 5}, *DAMAGED])
def test_damage_is_seen(change):
    good = TableEncoding((NumberColumn("a", mean=1.0),), "mean").to_json()
    assert TableEncoding.from_json(good).count == 1
    if change in DAMAGED:
        change = {"columns": [change if len(change) == 1 and "name" in change else good["columns"][0] | change]}
    with pytest.raises((KeyError, TypeError, ValueError)):
        TableEncoding.from_json(good | change)
