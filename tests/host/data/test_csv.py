"""CSV files: headers, delimiters, label columns, and every way to get one wrong."""

import io
import json
import shlex
import threading
from contextlib import nullcontext as nothing

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.data_files import encoded

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.data.encoding import space_from_json, space_to_json
from p4sgd.host.data.formats import csv_file
from p4sgd.host.data.formats.source import NotNumbersError
from p4sgd.host.data.notation import Notation, other_notations
from p4sgd.host.errors import UserError

HEADER = "age,height,label\n"
ROWS = "1,2.5,0\n3,-4e2,1\n5,6,1\n"


def write(tmp_path, text):
    path = tmp_path / "data.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("reader", ["numbers", "texts"])
@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROWS,
        ROWS,
        "\n\n" + HEADER + ROWS,
        (HEADER + ROWS).replace("\n", "\r\n"),
        ROWS.rstrip(),
        ROWS.replace("\n", "\n\n"),
        ROWS.replace("\n", '\n \t\n""\n'),
        (HEADER + ROWS).replace(",", ";"),
        (HEADER + ROWS).replace(",", "\t"),
        "\nsep=_\n" + (HEADER + ROWS).replace(",", "_"),
        (HEADER + ROWS).replace(",", " , "),
        '"age, years",height,label\n' + ROWS,
        '"1","2.5","0"\n3,-4e2,1\n5,6,"1"\n',
        "0,1,label\n" + ROWS,
    ],
)
def test_forms(tmp_path, monkeypatch, text, reader):
    def refuse(*_):
        raise NotNumbersError
        yield

    way = {"survey": None} if reader == "numbers" else {"_numbers": refuse}
    for name, made in way.items():
        monkeypatch.setattr(csv_file.CsvSource, name, made)
    data = read_dataset(write(tmp_path, text))
    assert data.features.tolist() == [[1, 2.5], [3, -400], [5, 6]]
    assert data.features.dtype == np.float64
    assert (data.labels.tolist(), data.label_names) == ([0, 1, 1], ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "utf-17"}, "--encoding must be .* such as .*cp1252, .* not 'utf-17'"),
        ({"decimal": "x"}, "--decimal must be one of '.' ',', not 'x'"),
        ({"thousands": "0"}, "--thousands must be one of ',' .* not '0'"),
        ({"decimal": ",", "thousands": ","}, "--decimal is ',', and so is --thousands: choose others"),
        *(({"delimiter": wrong}, "--delimiter must be one ASCII character and no") for wrong in ("||", "", "§", '"')),
    ],
)
def test_options_that_cannot_be(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        read_dataset(write(tmp_path, HEADER + ROWS), **options)


_FIELD = st.one_of(
    st.text('x"', max_size=4).map("t{}".format),
    st.builds(
        '"t{}"{}'.format,
        st.lists(st.sampled_from(["x", '""', ",", "\n", "\r\n"]), max_size=6).map("".join),
        st.sampled_from(["", "", "", 'x"']),
    ),
)
"""A field as it stands in a file; its text begins with t."""


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(_FIELD, _FIELD), min_size=1, max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    block=st.integers(1, 60),
)
def test_quotes_mean_the_same_in_all_blocks(tmp_path_factory, rows, end, last, block):
    """Line breaks in quotes do not end a line, wherever blocks end."""
    lines = [f"{place},{first},1,{second}{end}" for place, (first, second) in enumerate(rows)]
    text = "".join([f"n,a,label,b{end}", *lines])
    path = write(tmp_path_factory.mktemp("csv"), text if last else text.removesuffix(end))
    expected = pd.read_csv(path, dtype=str, keep_default_na=False)[["n", "a", "b"]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "_BLOCK_BYTES", block)
        data = read_dataset(path)
        ignored = read_dataset(path, ignore_columns=("a", "b"))
    found = [
        [str(int(n)), data.table.columns[1].values[int(a)], data.table.columns[2].values[int(b)]]
        for n, a, b in data.features
    ]
    assert found == [[text.strip() for text in row] for row in expected.to_numpy().tolist()]
    assert ignored.features[:, 0].tolist() == list(range(len(rows)))


QUOTED = "x,c,label\n" + '1,"p\nq",0\n' * 9


@pytest.mark.parametrize("block", [1, 30, 1 << 22])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('x,label\n1,a\n2,"b\n1,a\n2,b\n', "3: a quoted field does not end: close its quote$"),
        ('x,c,label\n1,"p\nq",0\n2,"r,s",0\n3,"t\n",0\n4,"u\nv",0\n"5,w,1\n6,x,1\n', "9: a quoted field does not end"),
        ('x,c,label\n1,"p\nq","0\n1\n', "3: a quoted field does not end"),
        ('x,c,label\n1,5" pipe,"0\n1,6"",0\n', "2: a quoted field does not end"),
        ('x,label\n+1,a\n2,"a""', "3: a quoted field does not end"),
        (QUOTED + "1,p\n", "20: has 2 fields, line 1 has 3"),
        (QUOTED + "k,p,0\n", "20, column 1 .x.: 'k' is not a number"),
    ],
)
def test_mistakes_after_line_breaks_in_quotes(tmp_path, monkeypatch, text, message, block):
    """A quote that is not closed would hide all samples after it."""
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", block)
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=f"^{path}, line {message}"):
        read_dataset(path)


@pytest.mark.parametrize("last", ["1,2,0", "1,x,0"])
def test_files_are_read_by_no_other_thread(tmp_path, monkeypatch, last):
    """A thread of pyarrow that reads a Python file while the program ends aborts it, now and then."""
    threads = set()

    class Watched(io.BytesIO):
        def read(self, size=-1):
            threads.add(threading.get_ident())
            return super().read(size)

        def readline(self, size=-1):
            threads.add(threading.get_ident())
            return super().readline(size)

    path = write(tmp_path, "1,2,0\n3,4,1\n" * 1000 + last)
    monkeypatch.setattr(csv_file, "open_data", lambda *_: nothing(Watched(path.read_bytes())))
    with pytest.raises(UserError, match="line 2001") if "x" in last else nothing():
        read_dataset(path)
    assert threads == {threading.get_ident()}


HEADERS = {  # first lines, after a colon with the label column
    True: "a,b,c a,,3 1,2,target id,2,target 0,1,y ,0,1,2,y 2,a,b:a",
    False: "1,2,M M,1,2:1 1,2,3 1,,3 ?,NA,3 0,1,M",
    # The last ones are columns without names as pandas calls them, some after a column of row numbers.
    None: '2,a,b:2 id,2019,2020 1,x,0 M,1,2 1,2,y 0,1,2 "0","1","2" 0,1,2,kind ,0,1,2,kind ,0,1,2,3',
}


@pytest.mark.parametrize(("first", "header"), [(first, key) for key in HEADERS for first in HEADERS[key].split()])
def test_header_is_seen_or_asked_for(tmp_path, first, header):
    first, _, choice = first.partition(":")
    rows = [row[: 2 * first.count(",") + 1] for row in ("3,4,5,6,7", "6,7,8,9,1")]
    path, reading = write(tmp_path, "\n".join(["", first, *rows, ""])), {"label_column": choice or None}
    if header is None:
        with pytest.raises(UserError, match="line 2: may hold names or a sample: say --header or --no-header"):
            read_dataset(path, **reading)
        assert read_dataset(path, **reading, header=True).samples == 2
    elif header:
        assert read_dataset(path, **reading).samples == 2
    else:
        with pytest.raises(UserError, match=r"line [23], .*(missing|but .* before)") if first != "1,2,3" else nothing():
            assert read_dataset(path, **reading).samples == 3


@pytest.mark.parametrize("cell", ["31/12/2023", "1.234,5", "\N{MINUS SIGN}0,5", "12 %"])
def test_names_above_numbers_as_they_are_written_elsewhere(tmp_path, cell):
    lines = f"oui;{cell};x\n" * 3
    path = write(tmp_path, "réponse;valeur;fin\n" + lines)
    assert read_dataset(path, delimiter=";", categorical=["valeur"]).samples == 3
    with pytest.raises(UserError, match="line 1: may hold names or a sample"):
        read_dataset(write(tmp_path, lines), delimiter=";")


def test_minus_signs_of_typesetters(tmp_path):
    path = write(tmp_path, 'a,b,y\n\N{MINUS SIGN}1.5,"\N{MINUS SIGN}1.234,5",\N{MINUS SIGN}1\n-2,"3,25",1\n')
    with pytest.raises(UserError, match=r"say --decimal , --thousands \. if it is -1234\.5"):
        read_dataset(path)
    assert read_dataset(path, ignore_columns=["b"]).features[:, 0].tolist() == [-1.5, -2]
    german = read_dataset(path, ignore_columns=["a"], decimal=",", thousands=".")
    assert german.features[:, 0].tolist() == [-1234.5, 3.25]
    assert german.labels.tolist() == [-1, 1]


def test_a_line_above_the_table_is_told(tmp_path):
    path = write(tmp_path, "# from the shop\na,b,y\n1,2,0\n3,4,1\n")
    with pytest.raises(UserError, match="line 1: has 1 field, the next line 3: leave out what stands above the table"):
        read_dataset(path)


def test_names_among_texts(tmp_path):
    """They are told by the numbers below them, by the name of a label, or by what a model knows."""
    path = write(tmp_path, "cap,smell,edible\nflat,none,yes\nround,foul,no\n")
    with pytest.raises(UserError, match="line 1: may hold names or a sample: say --header or --no-header"):
        read_dataset(path)
    data = read_dataset(path, header=True)
    assert (data.labels.tolist(), data.label_names) == ([1, 0], ("no", "yes"))
    assert read_dataset(path, header=False).samples == 3
    years = write(tmp_path, "id,2019,2020\n3,4,5\n6,7,8\n")
    assert read_dataset(years, like=FeatureSpace(2, ("id", "2019"))).samples == 2
    for text in ("cap,smell,class\nflat,none,yes\n", "cap,smell,edible\nflat,none,1\n"):
        assert read_dataset(write(tmp_path, text)).samples == 1


def test_a_label_column_that_is_guessed_is_told(tmp_path):
    """The last column of a table with names may well be a feature, from which there is nothing to learn."""
    for text, options, told in [
        ("a,b,c\n1,2,3\n4,5,6\n", {}, True),
        ("a,b,c\n1,x,3\n4,,6\n", {"missing": "mean"}, True),
        ("a,b,c\n1,2,3\n4,5,6\n", {"label_column": "c"}, False),
        ("a,b,Label\n1,2,3\n4,5,6\n", {}, False),
        ("y,b,c\n1,2,3\n4,5,6\n", {}, False),
        ("1,2,3\n4,5,6\n", {}, False),
    ]:
        remark = "labels are those of the last column, column 3 (c): --label-column NAME takes another"
        assert (remark in read_dataset(write(tmp_path, text), **options).remarks) == told


@pytest.mark.parametrize("end", ["1", "1,5", "1,5;2,5;3,5", '"1,5";x'])
@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_do_not_divide_fields(tmp_path, end, delimiter):
    path = write(tmp_path, f"6,4;-0,1;{end}\n2,7;-0,8;{end}\n".replace(";", delimiter))
    with pytest.raises(UserError, match=r"line 1, column 1: '6,4' is not a number: say --decimal , if it is 6.4, or"):
        read_dataset(path, header=False)
    data = read_dataset(path, header=False, decimal=",")
    assert data.features[:, :2].tolist() == [[6.4, -0.1], [2.7, -0.8]]
    assert read_dataset(write(tmp_path, '1,2,"3;4",0\n2,3,"4;5",1\n'), header=False).features.shape == (2, 3)
    for forced in "~ ":
        path = write(tmp_path, "1,2,0\n3,4,1\n".replace(",", forced))
        assert read_dataset(path, delimiter=forced).features.tolist() == [[1, 2], [3, 4]]


def spelt(value, decimal, thousands):
    return f"{value:,.3f}".translate({ord(","): thousands, ord("."): decimal})


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(*[st.integers(-(10**12), 10**12)] * 3), min_size=2, max_size=6),
    decimal=st.sampled_from(".,"),
    thousands=st.sampled_from(["", ",", ".", " ", "\u00a0", "'", "_"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"]),
    delimiter=st.sampled_from("|;\t"),
)
def test_other_spellings_are_the_same_numbers(tmp_path_factory, rows, decimal, thousands, encoding, delimiter):
    """Of features and labels, in any encoding, and what is remembered of them reads the next file."""
    assume(decimal != thousands)
    values = [[value / 1000 for value in row] for row in rows]
    lines = [["fläche", "b", "y"], *([spelt(value, decimal, thousands) for value in row] for row in values)]
    path = tmp_path_factory.mktemp("spelt") / "data.csv"
    path.write_text("".join(delimiter.join(line) + "\n" for line in lines), encoding=encoding)
    how = {"decimal": decimal, "thousands": " " if thousands == "\u00a0" else thousands or None}
    data = read_dataset(path, **how)
    assert np.column_stack([data.features, data.labels]).tolist() == [
        [float(f"{v:.3f}") for v in row] for row in values
    ]
    assert data.space.names == ("fläche", "b")
    assert any("cp1252" in remark for remark in data.remarks) == (encoding == "cp1252")
    assert read_dataset(path, like=data.space).features.tolist() == data.features.tolist()


def test_strict_groups_of_digits_and_ways_to_read_a_number():
    """Followed advice reads the number that it tells."""
    for text in ("1,5", "1,00", "12,3456", "1,000,00", ",000", "1,,000", "0,126"):
        assert Notation(thousands=",").number(text) is None
    for text in ("1,000", "3,5", "1.234,5", "1,234.5", "1 000", "1'000.5", "12,34,567", "-,5", "1\u00a0000,5e3"):
        ways = other_notations(text)
        assert ways
        for value, words in ways.items():
            chosen = dict(zip(*[iter(shlex.split(words.replace("--", "")))] * 2, strict=True))
            assert Notation(**chosen).number(text) == value
    assert not any(map(other_notations, ["x", "1-5", "12:30", "1.2.3", "2024-01-05", "31.12.2024", "1,2,3", ""]))


def test_digits_in_quotes_after_a_0_are_texts(tmp_path, monkeypatch):
    """Wherever in the file such digits are, and only in columns that have them."""
    codes = ['"94016"'] * 40 + ['"01001"'] + ['"60601"'] * 40
    lines = [f'{code},"{place}",{place % 2}\n' for place, code in enumerate(codes)]
    quoted = write(tmp_path, "zip,n,y\n" + "".join(lines))
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", 100)
    table = read_dataset(quoted).table
    assert [column.to_json()["values"] for column in table.columns] == [("01001", "60601", "94016"), None]
    plain = write(tmp_path, "zip,n,y\n" + "".join(lines[40:] + lines[:40]).replace('"', ""))
    told = "zip has digits after a 0, such as 01, which are taken for numbers: --categorical zip makes texts of them"
    for categorical, first, remarks in (([], 1001, (told,)), (["zip"], 0, ())):
        read = read_dataset(plain, categorical=categorical)
        assert (read.features[0, 0], read.remarks) == (first, remarks)


def test_the_end_of_a_field_is_not_looked_for_without_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(csv_file, "_MAX_FIELD", 100)
    path = write(tmp_path, 'x,label\n1,a\n2,"b\n' + "3,a\n" * 100 + '4,b"\n')
    with pytest.raises(UserError, match=", line 3: a quoted field does not end"):
        read_dataset(path)


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3), min_size=1, max_size=6))
def test_numbers_are_read_exactly(tmp_path_factory, rows):
    path = write(tmp_path_factory.mktemp("csv"), "".join(",".join(map(repr, row)) + "\n" for row in rows))
    data = read_dataset(path)
    assert np.array_equal(np.column_stack([data.features, data.labels]), np.array(rows))


@pytest.mark.parametrize(
    ("name", "text", "how"),
    [
        ("a.csv", "1,a,0\n2,b,1\n", {"header": False}),
        ("a.csv", "yes,1,y\nno,1,n\n", {"header": False}),
        ("a.csv", "0,1,2\n1,5,0\n2,6,1\n", {"header": True}),
        ("a.csv", "a^t^y\n1^x,y^0\n2^z,y^1\n", {"delimiter": "^"}),
        ("a.csv", "a,t,y\n1,Köln,0\n2,Ulm,1\n", {"encoding": "cp850"}),
        ("a.data", "a^t^y\n1^x^0\n2^z^1\n", {"delimiter": "^", "file_format": "csv"}),
        ("a.csv", "a;y\n1.234,5;0\n-;1\n", {"decimal": ",", "thousands": ".", "missing_values": ["-"]}),
    ],
)
def test_a_model_remembers_how_its_training_file_was_read(tmp_path, name, text, how):
    path = tmp_path / name
    path.write_text(text, encoding=how.get("encoding"))
    data = encoded(path, "mean", **how)
    again = read_dataset(path, like=space_from_json(json.loads(json.dumps(space_to_json(data.space)))))
    assert (again.features.tolist(), again.labels.tolist()) == (data.features.tolist(), data.labels.tolist())
    assert again.space.reading == data.space.reading
    assert not again.remarks
    if "delimiter" in how:
        path.write_text(text.replace("^", ";"))
        assert read_dataset(path, like=data.space, delimiter=";").features.tolist() == data.features.tolist()
