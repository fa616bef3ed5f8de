"""The software aggregator does as the vectors say, over pairs of virtual Ethernet interfaces."""

import contextlib
from dataclasses import replace

import pytest
from support.bench import default_seed, times
from support.namespace import Namespace
from support.switch import serving

from conformance.controlled_subject import ControlledSubject, abilities_of, cables
from conformance.generate import KEYED, hand_written
from conformance.random_sequences import random_cases
from conformance.runner import NonconformanceError, run
from conformance.vectors import Geometry, read


@contextlib.contextmanager
def switch_of(geometry, folder):
    """A namespace in which `p4sgd switch serve` has its ends of cables, and the subject behind the others."""
    with contextlib.ExitStack() as stack:
        space = stack.enter_context(contextlib.closing(Namespace()))
        far, near = cables(space, geometry.ports)
        options = ("--slots", geometry.slots, "--jobs", geometry.places, "--quiet")
        _, controller = stack.enter_context(serving(space, folder, near, *options))
        subject = space.call(ControlledSubject, controller, far, abilities_of(geometry), settle_s=0.0005)
        stack.callback(subject.close)
        yield space, subject


SPEAKS_2 = Geometry(version=2, parents=True, stand_ins=True)


def test_committed_vectors(tmp_path):
    """The topics of version 1 and of programs, as they are for one of version 2: probes of other versions differ."""
    with switch_of(SPEAKS_2, tmp_path) as (space, subject):
        for cases in (hand_written(SPEAKS_2), read(KEYED / "random.jsonl.gz")):
            done = space.call(run, subject, cases)
            print(done)
            assert done.cases
            assert done.left_out < done.frames
        assert space.call(subject.exchange, [], 0) == []


def test_the_wire_tells_a_wrong_switch(tmp_path):
    """One that is told of other ports answers elsewhere."""
    with switch_of(SPEAKS_2, tmp_path) as (space, subject):
        cases = list(hand_written(SPEAKS_2))
        begin = subject.begin
        subject.begin = lambda place, job, first: begin(place, replace(job, ports=job.ports << 1), first)
        with pytest.raises(NonconformanceError, match=r"port . (does not send|sends what it should not)"):
            space.call(run, subject, cases)


@pytest.mark.slow
def test_long_random_sequences(tmp_path):
    geometry = Geometry(4096, 8, 6, 2, parents=True, stand_ins=True)
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    with switch_of(geometry, tmp_path) as (space, subject):
        space.call(run, subject, hand_written(geometry))
        space.call(run, subject, random_cases(geometry, seed, times(4_000)))
        assert space.call(subject.exchange, [], 0) == []
