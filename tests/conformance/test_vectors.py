"""The files keep to the schema, and the model agrees with every frame."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conformance.frames import Frame
from conformance.generate import COMMITTED, FRAMES, SEED, cases_of, committed, hand_written
from conformance.random_sequences import random_cases
from conformance.vectors import Geometry, Send, VectorError, from_text, read, to_text
from p4sgd.hw.spec.aggregator import PARENT_COUNTERS, AggregatorConfig, counters

SCHEMA = json.loads((COMMITTED.parent / "schema.json").read_text())
FILES = list(committed())


@pytest.mark.parametrize(("file", "geometry"), committed().items(), ids=lambda of: getattr(of, "name", ""))
def test_the_model_agrees_with_every_case(file, geometry):
    """With answers, counters and states, by hand and at random; so it may judge other sequences."""
    kept = to_text(read(file))
    assert to_text(cases_of(file, geometry)) == kept
    assert file.suffix == ".gz" or file.read_text() == kept, "run: python tests/conformance/generate.py"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_lines_keep_to_the_schema(file):
    validator = Draft202012Validator(SCHEMA)
    for line in to_text(read(file)).splitlines():
        validator.validate(json.loads(line))


def test_the_schema_is_one_and_refuses():
    Draft202012Validator.check_schema(SCHEMA)
    validator = Draft202012Validator(SCHEMA)
    good = json.loads((COMMITTED / "partials.jsonl").read_text().splitlines()[2])
    assert validator.is_valid(good)
    for wrong in ({"port": -1}, {"send": "0g"}, {"counts": ["NONE"]}, {"other": 1}, {"answer": {"ports": 1}}):
        assert not validator.is_valid(good | wrong), wrong


def test_the_schema_has_every_counter():
    names = set(SCHEMA["$defs"]["counter"]["enum"])
    known = set(counters(AggregatorConfig(slots=8, jobs=8))) - {"FRAMES", "OVERRUNS"}
    assert names == known | {"DROPPED_KEY", "DROPPED_CHECK"}


def test_names_are_unique():
    names = Counter((file.parent, case.name) for file in FILES for case in read(file))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_outcome_is_there():
    """Both in what is written by hand and in the random sequences: every counter, but answers that no way out took."""
    every = set(counters(AggregatorConfig(jobs=2))) - {"FRAMES", "OVERRUNS", *PARENT_COUNTERS}
    of_geometries = {
        Geometry(): set(),
        Geometry(version=2): {"DROPPED_KEY", "DROPPED_CHECK"},
        Geometry(parents=True): PARENT_COUNTERS,
        Geometry(version=2, parents=True, stand_ins=True): {"DROPPED_KEY", "DROPPED_CHECK", *PARENT_COUNTERS},
    }
    for geometry, further in of_geometries.items():
        for cases in (hand_written(geometry), random_cases(geometry, SEED, FRAMES)):
            moved = {name for case in cases for step in case.steps if isinstance(step, Send) for name in step.counts}
            assert moved >= every | set(further)


@given(st.binary(min_size=64, max_size=64))
def test_every_frame_is_taken_apart_and_put_together(frame):
    assert Frame.from_bytes(frame).to_bytes() == Frame.from_bytes(frame, keyed=True).to_bytes() == frame


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"look": 0}', "line 1: .*a step before the first case"),
        ('{"case": "x"}', "line 1: .*slots"),
        ("nonsense", "line 1: .*Expecting value"),
        (
            '{"case": "x", "why": "", "mac": "02:00:00:00:00:01", "slots": 8, "places": 1, "ports": 1}\n{"a": 1}',
            "line 2",
        ),
    ],
)
def test_what_is_no_vector_is_refused(text, message):
    with pytest.raises(VectorError, match=f"file, {message}"):
        list(from_text(text.splitlines(), "file"))
