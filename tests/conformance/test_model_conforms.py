"""The compiled aggregator does as the vectors say; models with a fault do not."""

import functools
from dataclasses import replace

import pytest
from support.bench import default_seed, times

from conformance.generate import COMMITTED, committed, hand_written
from conformance.model_subject import BatchSubject, ModelSubject
from conformance.mutants import KEYED_MUTANTS, MUTANTS, PROGRAM_MUTANTS
from conformance.random_sequences import random_cases
from conformance.runner import NonconformanceError, UnfitError, run
from conformance.vectors import Geometry, Send, read
from p4sgd.hw.spec.aggregator import AggregatorConfig, counters

KEYED = Geometry(version=2)
PARENTS = Geometry(parents=True)
PROGRAM = replace(PARENTS, stand_ins=True)
ALL = replace(PROGRAM, version=2)
FILES = [file for file, geometry in committed().items() if geometry == Geometry()]
SMALL, MIDDLE, LARGE = Geometry(8, 2, 4), Geometry(1024, 8, 32), Geometry(65536, 2, 5)


@pytest.mark.parametrize("close", [False, True], ids=["apart", "close"])
@pytest.mark.parametrize(("file", "geometry"), committed().items(), ids=lambda of: getattr(of, "name", ""))
def test_committed_vectors(file, geometry, close):
    done = run(BatchSubject(geometry), read(file), close=close)
    assert done.cases
    assert not done.left_out


@pytest.mark.parametrize(
    "geometry",
    [SMALL, MIDDLE, KEYED, ALL, pytest.param(LARGE, marks=pytest.mark.slow)],
    ids=str,
)
def test_cases_of_other_sizes(geometry):
    """Those of version 1 too on who speaks version 2: a job without a key is served as ever."""
    run(BatchSubject(geometry), hand_written(geometry))


@pytest.mark.parametrize("frames", [5_000, pytest.param(times(40_000), marks=pytest.mark.slow)])
@pytest.mark.parametrize("geometry", [SMALL, Geometry(), MIDDLE, KEYED, ALL], ids=str)
def test_random_sequences(geometry, frames):
    """Each frame apart, and as many as there are in a row at once."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    for close in (False, True):
        assert run(BatchSubject(geometry), random_cases(geometry, seed, frames), close=close).frames == frames


def test_no_counter_is_missing():
    """The runner compares those that a subject has; the model has all but that of a hardware queue."""
    assert set(ModelSubject(SMALL).counters()) == set(counters(AggregatorConfig(jobs=2))) - {"OVERRUNS"}


@functools.cache
def written(geometry):
    return list(hand_written(geometry))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_caught(name):
    """A test of the test: by what is written by hand; a fault in version 2 by random sequences, too."""
    mutant, is_keyed = MUTANTS[name], name in KEYED_MUTANTS
    geometry = KEYED if is_keyed else PROGRAM if name in PROGRAM_MUTANTS else Geometry()
    seed = default_seed()
    print(f"{mutant.__doc__} P4SGD_SEED={seed}")
    for cases in [written(geometry)] + ([random_cases(KEYED, seed, 10_000)] if is_keyed else []):
        with pytest.raises((NonconformanceError, ValueError)):  # some stop at what they have done
            run(ModelSubject(geometry, mutant), cases)


class Wrapped(ModelSubject):
    """The model, and something done to what it says."""

    def __init__(self, change):
        super().__init__(Geometry())
        self._change = change

    def exchange(self, frames, answers):
        return self._change(super().exchange(frames, answers))


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda came: [], "does not send"),
        (lambda came: came * 2, "sends what it should not"),
        (lambda came: [(port ^ 1, frame) for port, frame in came[:1]] + came[1:], "port .* send"),
        (lambda came: [(port, frame[:-1] + bytes([frame[-1] ^ 1])) for port, frame in came], "not\n"),
        (lambda came: [(port, frame + b"\0") for port, frame in came], "65 bytes"),
    ],
)
def test_the_runner_sees_every_frame(change, message, close):
    with pytest.raises(NonconformanceError, match=message):
        run(Wrapped(change), read(COMMITTED / "partials.jsonl"), close=close)


def test_the_runner_sees_states_and_counters():
    class Blind(ModelSubject):
        def look(self, place, slot):
            return super().look(place, slot)._replace(acknowledged=0)

    with pytest.raises(NonconformanceError, match=r"the_last_ack.* step 5\b.*\nslot 0 of place 0 is"):
        run(Blind(Geometry()), read(COMMITTED / "acks.jsonl"))

    class Silent(ModelSubject):
        def counters(self):
            return dict.fromkeys(super().counters(), 0)

    with pytest.raises(NonconformanceError, match=r"counters moved by \{\}, not"):
        run(Silent(Geometry()), read(COMMITTED / "acks.jsonl"))


def test_a_case_for_another_size_is_refused():
    with pytest.raises(UnfitError, match="slots=64"):
        run(ModelSubject(SMALL), read(COMMITTED / "acks.jsonl"))


def test_what_cannot_reach_a_subject_is_left_out():
    """Short and long frames, and those of other protocols; all else is compared as ever."""
    subject = ModelSubject(Geometry())
    subject.abilities = replace(subject.abilities, shortest=14, longest=1514, sees_other_protocols=False)
    frames = [step.frame for file in FILES for case in read(file) for step in case.steps if isinstance(step, Send)]
    left_out = sum(not 14 <= len(frame) <= 1514 or frame[12:14] != bytes.fromhex("88b5") for frame in frames)
    done = [run(subject, read(file)) for file in FILES]
    assert sum(part.left_out for part in done) == left_out > 0
    assert sum(part.frames for part in done) == len(frames) - left_out
