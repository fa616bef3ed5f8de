"""The switch's programs, interpreted, answer and count as the model does, whatever frames come in what order."""

import random
from collections import Counter

import pytest
from support.aggregator_model import Aggregator
from support.p4_stages import stages
from support.p4_switch import InterpretedSwitch

from p4sgd.hw.spec.aggregator import FLOOD_GROUP, AggregatorConfig, Outcome
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import BROADCAST, FRAME_BYTES, DropReason, Packet, PacketType

MAC = 0x0250_3453_47FF
CONFIG = AggregatorConfig(slots=4, jobs=2)
ARCHITECTURES = ("v1model", "tna")
SEED = 11


def random_job(rng, number):
    members = tuple(
        Member(0x0200_0000_0000 | number << 8 | shard, rng.randrange(32)) for shard in range(rng.randint(1, 4))
    )
    return Job(number, members, 0x0100_0000_0000 | number, sum(1 << port for port in {m.port for m in members}))


class Pair:
    """The model and the program, told the same."""

    def __init__(self, folder, architecture):
        self.model = Aggregator(CONFIG.slots, jobs=CONFIG.jobs, mac=MAC)
        self.program = InterpretedSwitch(folder, architecture, CONFIG)
        self.program.set_mac(MAC)
        self.jobs = {}

    def begin(self, place, job, first_round):
        self.model.begin(place, job, first_round)
        self.program.begin(place, job, first_round)
        self.jobs[place] = job

    def end(self, place):
        self.model.end(place)
        self.program.end(place)
        self.jobs.pop(place, None)

    def send(self, frame, port):
        answer = self.model.receive_frame(frame, port)
        expected = answer and (answer.packet.to_bytes(), answer.ports)
        got = self.program.receive(frame, port)
        assert got == expected, f"{frame.hex()} at port {port}"

    def check_counts(self):
        outcomes = self.program.outcomes()
        drops = {drop: outcomes[drop] for drop in DropReason if outcomes[drop]}
        assert drops == dict(self.model.drops)
        assert sum(outcomes[outcome] for outcome in Outcome) == self.model.accepted


def nearly_right(rng, pair):
    """A frame of a job, mostly right in all; in rounds about those that the slots carry."""
    place = rng.randrange(CONFIG.jobs)
    job = pair.jobs.get(place) or random_job(rng, rng.randrange(3))
    shard = rng.randrange(len(job.members))
    slot = rng.randrange(2)
    slots = pair.model.slots[place]  # none before its first job
    carried = slots[slot].round if slots else 0
    fields = {
        "type": rng.choice([PacketType.PARTIAL] * 4 + [PacketType.ACK] * 4 + [PacketType.PROBE]),
        "job": job.number,
        "slot": slot,
        "round": (carried + rng.choice([0, 0, 0, 1, 1, -1, 2, 0x7FFF, 0x8000])) % 65536,
        "shard": shard,
        "workers": len(job.members),
        "bitmap": 1 << shard,
        "values": tuple(rng.randrange(-(1 << 31), 1 << 31) for _ in range(8)),
        "destination": MAC,
        "source": job.members[shard].mac,
    }
    port = job.members[shard].port
    while rng.random() < 0.15:
        name = rng.choice(
            ["job", "slot", "shard", "workers", "bitmap", "destination", "source", "version", "type", "port"]
        )
        if name == "port":
            port = rng.randrange(32)
        else:
            ways = {
                "destination": [BROADCAST, MAC ^ 1 << rng.randrange(48)],
                "type": list(PacketType),
                "slot": [3, 4, 65535],
            }
            ways |= {"version": [0, 2], "bitmap": [0, 3, 1 << 31], "shard": [0, 1, 31, 255], "job": [0, 1, 2, 255]}
            fields[name] = rng.choice(ways.get(name, [0, 1, 2, 255]))
    frame = Packet(**fields).to_bytes()
    match rng.randrange(60):
        case 0:
            frame = frame[: rng.randrange(14, FRAME_BYTES)]
        case 1:
            frame += bytes(rng.randint(1, 40))
        case 2:
            at = rng.randrange(14 * 8, FRAME_BYTES * 8)
            frame = (int.from_bytes(frame, "big") ^ 1 << FRAME_BYTES * 8 - 1 - at).to_bytes(FRAME_BYTES, "big")
    return frame, port


def test_what_depends_on_one_another_fits_nine_stages(tmp_path):
    """Whether it does with all else that a chip has is for its compiler to say."""
    found = stages(InterpretedSwitch(tmp_path, "tna", CONFIG).program)
    print(found)
    assert found["jobs"] == found["members"] == 0
    assert found["admission"] > found["compare"] > found["members"], "what one writes the other reads"
    assert found["decision"] == max(found.values()) <= 8


@pytest.mark.parametrize(("architecture", "global_rid"), [("v1model", 0), ("tna", 0), ("tna", 0xFFFF)])
def test_other_protocols_are_forwarded(tmp_path, architecture, global_rid):
    """To one port or flooded, but never back where it came from: there its station has seen it."""
    switch = InterpretedSwitch(tmp_path, architecture, CONFIG)
    switch.global_rid = global_rid
    switch.groups[FLOOD_GROUP] = {0, 3, 7, 40}
    table = switch.program.tables["forwarding"].entries
    table[(0x0200_0000_0001,)] = "forward", [7]
    table[(0x0200_0000_0002,)] = "drop", []
    for size in (20, 46, 1500):
        for port in (0, 3, 7, 40, 5):
            for destination, expected in ((1, {7} - {port}), (2, set()), (3, {0, 3, 7, 40} - {port})):
                frame = (0x0200_0000_0000 | destination).to_bytes(6, "big") + bytes(6) + b"\x08\x00"
                frame = (frame + bytes(range(250)) * 6)[: 14 + size]
                left = switch.receive(frame, port)
                assert left == ((frame, sum(1 << out for out in expected)) if expected else None)
    assert not switch.program.counts


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("port", [0, 5])
def test_answers_to_all_go_back_too(tmp_path, architecture, port):
    """To the port that the last packet came from: its worker needs the sums as the others do."""
    switch = InterpretedSwitch(tmp_path, architecture, CONFIG)
    switch.set_mac(MAC)
    job = Job(1, (Member(0x0200_0000_0000, 3), Member(0x0200_0000_0001, port)), 0x0100_0000_0001, 1 << 3 | 1 << port)
    switch.begin(0, job, 0)
    for kind, answer in ((PacketType.PARTIAL, PacketType.FULL), (PacketType.ACK, PacketType.CLEAR)):
        left = []
        for shard, member in enumerate(job.members):
            fields = {"job": 1, "slot": 0, "round": 0, "shard": shard, "workers": 2, "bitmap": 1 << shard}
            packet = Packet(type=kind, destination=MAC, source=member.mac, **fields)
            left.append(switch.receive(packet.to_bytes(), member.port))
        assert left[0] is None
        sent, ports = left[1]
        assert Packet.from_bytes(sent).type is answer
        assert ports == job.ports


@pytest.mark.parametrize(("architecture", "longer"), [("v1model", DropReason.LONG), ("tna", DropReason.VERSION)])
def test_version_2_is_dropped(tmp_path, architecture, longer):
    """Whatever it says, nothing of it is added; a probe is answered in version 1."""
    pair = Pair(tmp_path, architecture)
    job = Job(1, (Member(0x0200_0000_0000, 3),), 0x0100_0000_0001, 1 << 3)
    pair.begin(0, job, 0)
    fields = {"job": 1, "slot": 0, "round": 0, "shard": 0, "workers": 1, "bitmap": 1, "destination": MAC}
    fields |= {"source": job.members[0].mac, "version": 2}
    partials = [Packet(type=PacketType.PARTIAL, values=(1,) * 8 * n, key=0, **fields).to_bytes() for n in (1, 8, 46)]
    acknowledgement = Packet(type=PacketType.ACK, values=(), key=0, **fields).to_bytes()
    assert [len(frame) for frame in (*partials, acknowledgement)] == [72, 296, 1512, FRAME_BYTES]
    for frame in (*partials, acknowledgement):
        assert pair.program.receive(frame, 3) is None
    outcomes = pair.program.outcomes()
    drops = Counter([longer] * 3 + [DropReason.VERSION])
    assert {drop: outcomes[drop] for drop in DropReason if outcomes[drop]} == drops
    probe = Packet(type=PacketType.PROBE, **fields).to_bytes()
    pair.send(probe, 3)
    answer, _ = pair.program.receive(probe, 3)
    echo = Packet.from_bytes(answer)
    assert (echo.version, echo.round, echo.bitmap) == (1, 65535, 0), "the slot is fresh"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + more, marks=pytest.mark.slow) for more in (1, 2))])
def test_random_frames(tmp_path, architecture, seed):
    rng = random.Random(seed)
    pair = Pair(tmp_path, architecture)
    for _ in range(2500):
        if rng.random() < 0.01:
            place = rng.randrange(CONFIG.jobs)
            pair.end(place)
            if rng.random() < 0.8:
                number = rng.choice(
                    [number for number in range(3) if number not in {j.number for j in pair.jobs.values()}]
                )
                pair.begin(place, random_job(rng, number), rng.choice([0, 1, 65535, rng.randrange(65536)]))
        frame, port = nearly_right(rng, pair)
        if architecture == "tna" and len(frame) != FRAME_BYTES:
            continue  # the chip's parser does not know a frame's length
        pair.send(frame, port)
        touched = pair.program.program.touched
        assert architecture != "tna" or len(set(touched)) == len(touched), "Tofino has one access to a register"
    pair.check_counts()
