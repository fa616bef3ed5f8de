"""Dates in tables: the days since 1970, or the parts of the calendar."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data_files import encoded

from p4sgd.host.data import read_dataset
from p4sgd.host.data.dates import dates_of
from p4sgd.host.data.encoding import space_from_json, space_to_json
from p4sgd.host.data.identity import identify
from p4sgd.host.errors import UserError

MOMENTS = st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(9999, 12, 31))


def write(folder, dates, name="dates.csv"):
    path = folder / name
    path.write_text("day,y\n" + "".join(f"{date},{place % 2}\n" for place, date in enumerate(dates)))
    return path


@given(moment=MOMENTS)
def test_every_form_of_a_date_is_the_same_day(moment):
    expected = (moment.replace(microsecond=0) - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1)
    clock = moment.strftime(" %H:%M:%S.%f")
    for order, form in {"ymd": "%Y-%m-%d", "dmy": "%d.%m.%Y", "mdy": "%m/%d/%Y"}.items():
        text = moment.strftime(form).rjust(10, "0") + clock
        assert dates_of(text)[order] == pytest.approx(expected, abs=1e-9)
    assert dates_of(moment.isoformat() + "Z") == dates_of(moment.isoformat() + "+02:00")
    assert ("mdy" in dates_of(moment.strftime("%d/%m/%Y").rjust(10, "0"))) == (moment.day <= 12)


@pytest.mark.parametrize(
    "text", ["2024-02-30", "2024-13-01", "24-01-05", "2024-1", "2024.5", "5", "x", "", "2024-01/05"]
)
def test_other_texts_are_no_dates(text):
    assert not dates_of(text)


@given(moments=st.lists(MOMENTS, min_size=2, max_size=8))
def test_parts_are_those_of_the_calendar(tmp_path_factory, moments):
    data = encoded(write(tmp_path_factory.mktemp("dates"), moments), dates="parts")
    found = [dict(zip(data.space.names, row, strict=True)) for row in data.features.tolist()]
    kinds = {"month": "%-m", "weekday": "%a", "hour": "%-H"}
    for moment, features in zip(moments, found, strict=True):
        expected = {"day.year": float(moment.year)}
        for kind, form in kinds.items():
            if len({each.strftime(form) for each in moments}) > 1:  # what all have in common tells nothing
                expected |= {
                    f"day.{kind}={each.strftime(form)}": float(each.strftime(form) == moment.strftime(form))
                    for each in moments
                }
        assert features == expected


@pytest.mark.parametrize("dates", ["text", "days", "parts"])
@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_formats_and_ranks_make_the_same(tmp_path, dates, missing):
    """A column of type date, of texts in any order, or of a type with a time zone, whose clock is read."""
    days = [datetime.date(2024, 1 + place % 7, 13 + place) for place in range(15)]
    path = write(tmp_path, ["", *days])
    whole = encoded(path, missing, dates=dates)
    assert whole.samples == 16
    columns = {"date": pa.array([None, *days]), "clock": pa.array([None, *days]).cast(pa.timestamp("ns", "Asia/Tokyo"))}
    for name, column in columns.items():
        if name == "clock":
            column = pa.array([None, *(datetime.datetime.combine(day, datetime.time()) for day in days)])
            column = pa.compute.assume_timezone(column, "Asia/Tokyo")
        pq.write_table(pa.table({"day": column, "y": [place % 2 for place in range(16)]}), tmp_path / f"{name}.parquet")
        assert identify(encoded(tmp_path / f"{name}.parquet", missing, dates=dates)) == identify(whole)
    if dates != "text":
        other = write(tmp_path, ["", *(day.strftime("%d/%m/%Y") for day in days)], "other.csv")
        by_day = encoded(other, missing, dates=dates)
        assert identify(by_day).sha256 == identify(whole).sha256
        assert np.array_equal(read_dataset(path, like=by_day.space).features, whole.features)
    assert space_from_json(space_to_json(whole.space)) == whole.space
    again = read_dataset(path, like=whole.space)
    assert np.array_equal(again.features, whole.features)


def test_what_users_are_told(tmp_path):
    path = write(tmp_path, [datetime.date(2024, 1, 1) + datetime.timedelta(place) for place in range(30)])
    (told,) = encoded(path).remarks
    assert told == "day: each date is a feature of its own: --dates days or --dates parts makes numbers or few features"
    for way, count in (("days", 1), ("parts", 8)):
        made = encoded(path, dates=way)
        assert (made.space.count, made.remarks) == (count, ())
    for other in (["3 Mar 2024", "4 Mar 2024"], [20240303, 20240304]):
        (told,) = encoded(write(tmp_path, other, "other.csv"), dates="days").remarks
        assert told.startswith("no column has dates such as 2024-03-31")
    with pytest.raises(UserError, match=r"dates.csv: day has dates whose day and month may be either way round: write"):
        read_dataset(write(tmp_path, ["03/04/2024", "05/06/2024"]), dates="days")
    path = write(tmp_path, [datetime.date(2000, 1, 1) + datetime.timedelta(place) for place in range(1001)])
    with pytest.raises(
        UserError, match=r"different texts, .*make numbers of dates with --dates days or --dates parts, or"
    ):
        read_dataset(path)
    assert read_dataset(path, dates="days").features[-1] == 10957 + 1000
    known = encoded(path, dates="days").space
    forms = ["2024-03-31", "31.03.2024", "03.04.2024", "31/03/2024", "05/05/2024"]
    assert read_dataset(write(tmp_path, forms), like=known).features.ravel().tolist() == [
        19813,
        19813,
        19816,
        19813,
        19848,
    ]
    with pytest.raises(
        UserError, match=r"line 2, .*: day and month of 03/04/2024 may be either way round: write the year"
    ):
        read_dataset(write(tmp_path, ["03/04/2024", "31/03/2024"]), like=known)
    american = encoded(write(tmp_path, ["03/31/2024", "01.04.2024", "2024-04-02"]), dates="days")
    assert american.features.ravel().tolist() == [19813, 19814, 19815]
    with pytest.raises(UserError, match="'31/03/2024' is not a date such as 03-31-2024"):
        read_dataset(write(tmp_path, ["31/03/2024"]), like=american.space)
    parts = encoded(write(tmp_path, ["2024-01-01", "2024-02-01"]), dates="parts").space
    other = read_dataset(write(tmp_path, ["2024-02-01", "2023-03-31", "2022-01-03"]), like=parts)
    assert other.features.tolist() == [[2024, 0, 1, 0, 1], [2023, 0, 0, 0, 0], [2022, 1, 0, 1, 0]]
    assert other.remarks[0].startswith(
        "day: 1 value that the model does not know, such as '2023-03-31': taken for none"
    )
    with pytest.raises(
        UserError, match=r"line 4, column 1 .day.: '24-1-1' is not a date such as 2024-03-31: correct it"
    ):
        read_dataset(write(tmp_path, ["2024-01-01", "2024-01-02", "24-1-1"]), dates="parts")
    with pytest.raises(UserError, match=r"line 3, column 1 .day.: 'soon' is not a date such as 2024-03-31: correct it"):
        read_dataset(write(tmp_path, ["2024-01-01", "soon"]), like=known)
