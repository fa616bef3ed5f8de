"""The P4 programs do as the vectors say, in an interpreter of the language."""

import pytest
from support.bench import default_seed, times
from support.p4_switch import InterpretedSwitch

from conformance.frames import MAC
from conformance.generate import committed
from conformance.random_sequences import random_cases
from conformance.runner import Abilities, run
from conformance.vectors import Geometry, read
from p4sgd.hw.spec.aggregator import AggregatorConfig

ABILITIES = {
    "v1model": Abilities(Geometry(parents=True), shortest=14, sees_other_protocols=False, looks=False),
    # TNA's ingress is not told how long a frame is.
    "tna": Abilities(Geometry(), shortest=64, longest=64, sees_other_protocols=False, looks=False),
}
"""Frames of other protocols are forwarded: these are switches for all traffic. Registers cannot be seen."""


class InterpretedSubject(InterpretedSwitch):
    """One of the programs, told of jobs by the entries of its tables."""

    def __init__(self, folder, architecture):
        self.abilities = ABILITIES[architecture]
        self._once = architecture == "tna"
        size = self.abilities.geometry
        config = AggregatorConfig(slots=size.slots, jobs=size.places, ports=size.ports)
        super().__init__(folder, architecture, config)
        self.set_mac(MAC)

    def receive(self, frame, port):
        answer = super().receive(frame, port)
        if self._once:
            assert len(set(self.program.touched)) == len(self.program.touched), "Tofino has one access to a register"
        return answer

    def exchange(self, frames, answers):
        left = [answer for port, frame in frames if (answer := self.receive(frame, port))]
        return [(port, frame) for frame, ports in left for port in range(ports.bit_length()) if ports >> port & 1]


@pytest.mark.parametrize("architecture", [pytest.param("tna", marks=pytest.mark.slow), "v1model"])
def test_committed_vectors(architecture, tmp_path):
    subject = InterpretedSubject(tmp_path / "program", architecture)
    size = subject.abilities.geometry
    for file in (file for file, its in committed().items() if its.version == size.version and size.holds(its)):
        done = run(subject, read(file))
        assert done.frames > done.left_out or file.name == "lengths.jsonl"


@pytest.mark.parametrize("frames", [1_500, pytest.param(times(6_000), marks=pytest.mark.slow)])
@pytest.mark.parametrize("architecture", sorted(ABILITIES))
def test_random_sequences(architecture, frames, tmp_path):
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    subject = InterpretedSubject(tmp_path / "program", architecture)
    run(subject, random_cases(subject.abilities.geometry, seed, frames))
