"""Every order of events: the protocol's state machines over a network that may do anything, state by state.

The network is a set. What was sent stays in it, and any packet in it may arrive at any time: soon, late, again or
never. So nothing has to be said of loss, repetition, delay and order; a packet that is sent again is there already.

- No worker may ever be handed a wrong sum, or more sums than it asked for.
- No aggregator may begin a round of a slot before all have acknowledged the one before.
- From every state, if all packets under way are lost, resends must lead to the end over a network that loses no more.
"""

from collections import Counter, deque
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
from conformance.mutants import MUTANTS
from support.aggregator_model import Aggregator

from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import VALUES, PacketType
from p4sgd.sim.network.endpoint import Endpoint, SlotPhase

GROUP = 1 << 40


class WrongSumError(Exception):
    """A worker was handed what is no sum of all workers' partials."""


class BegunTooSoonError(Exception):
    """A round began before all had acknowledged the one before."""


class StuckError(Exception):
    """A state from which resends do not lead to the end."""


def value(shard, operation):
    """A bit of its own for each, so that no two sets of partials have the same sum."""
    return 1 << (4 * operation + shard)


def name(packet):
    """A packet in few words."""
    sender = f" of {packet.shard}" if packet.type in (PacketType.PARTIAL, PacketType.ACK) else ""
    return f"{packet.type.name}({packet.round}){sender}"


class Worker(Endpoint):
    """An endpoint that does ``operations`` operations and knows what must come of them: it is ``number`` of ``all``.

    With ``has_stand_in`` it stands in for the next one, too.
    """

    def __init__(self, operations, number, all_workers, **who):
        super().__init__(resend_after=0, **who)
        self.operations = operations
        self.number, self.all = number, range(all_workers)
        self.begun = self.ended = 0

    def begin(self):
        """Begin the next operation, if there is one and it may begin; returns the packet."""
        self.begun = self.next_operation
        if self.begun == self.operations or not self.can_submit:
            return None
        self.begun += 1
        return self.submit([value(self.number, self.begun - 1)] * VALUES, 0)

    def stand_in(self, phase=SlotPhase.PARTIAL, ahead=0):
        """The packets of the next worker's operations that it may send, as its own ones are in a phase."""
        other, packets = (self.number + 1) % len(self.all), []
        for index, slot in enumerate(self._slots):
            operation = slot.number + ahead * self.slots
            if self.has_stand_in and slot.phase is phase and operation < self.operations:
                who = {"shard": other, "bitmap": 1 << other, "values": (value(other, operation),) * VALUES}
                packet = replace(self._packet(index), type=PacketType.PARTIAL, round=self._round(slot, ahead), **who)
                packets.append(packet)
        return packets

    def take(self, packet):
        """A packet arrives; returns the answer."""
        answer = self.receive(packet, 0)
        while self.sums:
            right = sum(value(shard, self.ended) for shard in self.all)
            if self.ended == self.next_operation or self.sums.popleft() != (right,) * VALUES:
                raise WrongSumError(f"worker {self.number}, operation {self.ended}: {name(packet)}")
            self.ended += 1
        return answer

    def again(self):
        """Returns everything that waits for an answer."""
        return self.resend(0)

    @property
    def is_done(self):
        return self.ended == self.operations and not self.busy


@dataclass(frozen=True)
class Machines:
    """Aggregators and workers: frozen, and the same objects wherever they know the same."""

    switches: tuple
    workers: tuple

    @property
    def are_done(self):
        return all(worker.is_done for worker in self.workers)


class Search:
    """Breadth first from the beginning, over all that can happen; an error comes with the shortest way to it.

    ``cables`` lead from a number of an aggregator and its port to a worker, or to an aggregator and its port.
    """

    def __init__(self, switches, workers, cables):
        self._machines = {}
        self._steps = {}
        self._live = set()
        self._cables = cables
        self._homes = {end: start for start, end in cables.items() if isinstance(end, int)}
        self._start = Machines(tuple(map(self._unique, switches)), tuple(map(self._unique, workers)))

    def _unique(self, machine):
        for count in vars(machine).values():  # counts change nothing
            if isinstance(count, Counter):
                count.clear()
        machine.accepted = 0
        return self._machines.setdefault(repr(sorted(vars(machine).items())), machine)

    def _step(self, do, machine, *arguments):
        """The machine after it did something, and what came of it. Machines themselves never change."""
        key = do, machine, arguments
        if key not in self._steps:
            after = deepcopy(machine)
            outcome = do(after, *arguments)
            self._steps[key] = self._unique(after), outcome
        return self._steps[key]

    def _worker(self, do, machines, index, *packet):
        worker, outcome = self._step(do, machines.workers[index], *packet)
        workers = (*machines.workers[:index], worker, *machines.workers[index + 1 :])
        return replace(machines, workers=workers), outcome

    def _arrive(self, machines, end, packet):
        """Machines after a packet has come to the end of a cable, and what they send: (end, packet)."""
        if isinstance(end, int):
            after, answer = self._worker(Worker.take, machines, end, packet)
            return after, [(self._homes[end], answer)] if answer else []
        index, port = end
        switch, answer = self._step(Aggregator.receive, machines.switches[index], packet, port)
        for before, slot in zip(machines.switches[index].slots[0], switch.slots[0], strict=True):
            if slot.round != before.round and before.acknowledged != switch.jobs[0].whole and before.aggregated:
                raise BegunTooSoonError(f"{name(packet)} at {end}")
        switches = (*machines.switches[:index], switch, *machines.switches[index + 1 :])
        sent = []
        for port in range(answer.ports.bit_length()) if answer else ():
            if answer.ports >> port & 1:
                # Below it is the same whether a packet goes to all or to one alone; so it is kept as one.
                is_down = answer.packet.type in (PacketType.FULL, PacketType.CLEAR)
                kept = replace(answer.packet, shard=0, destination=GROUP) if is_down else answer.packet
                sent.append((self._cables[index, port], kept))
        return replace(machines, switches=switches), sent

    def _after(self, machines, network):
        """All that can happen next: what, and the state then."""
        for index in range(len(machines.workers)):
            after, packet = self._worker(Worker.begin, machines, index)
            if packet is not None:
                yield f"{name(packet)} sent", (after, network | {(self._homes[index], packet)})
            for packet in machines.workers[index].stand_in():
                yield f"{name(packet)} sent by {index}", (machines, network | {(self._homes[index], packet)})
        for end, packet in network:
            after, sent = self._arrive(machines, end, packet)
            yield f"{name(packet)} at {end}", (after, network.union(sent))

    def _lap(self, machines):
        """Every worker begins what it can and sends all again; nothing is lost."""
        for index in range(len(machines.workers)):
            machines, _ = self._worker(Worker.begin, machines, index)
            machines, packets = self._worker(Worker.again, machines, index)
            under_way = deque((self._homes[index], packet) for packet in packets)
            while under_way:
                machines, sent = self._arrive(machines, *under_way.popleft())
                under_way.extend(sent)
        return machines

    def _check_end(self, machines):
        path = []
        while not machines.are_done and machines not in self._live:
            if machines in path:
                slots = [switch.slots[0] for switch in machines.switches]
                raise StuckError([worker.ended for worker in machines.workers], slots)
            path.append(machines)
            machines = self._lap(machines)
        self._live.update(path)

    def run(self):
        """Visit every state; returns how many there are."""
        state = self._start, frozenset()
        way = {state: ()}
        queue = deque([state])
        try:
            while queue:
                state = queue.popleft()
                for event, after in self._after(*state):
                    if after not in way:
                        way[after] = state, event
                        queue.append(after)
            for state in way:
                self._check_end(state[0])
        except (BegunTooSoonError, StuckError, WrongSumError) as error:
            events = []
            while way[state]:
                state, event = way[state]
                events.insert(0, event)
            error.add_note("; ".join(["the way there", *events]))
            raise
        return len(way)


def search(*racks, operations, slots=1, first_round=1, switch=Aggregator, worker=Worker, stand_ins=False):
    """Search with so many workers behind one aggregator; if there are several, these are behind another one.

    With ``stand_ins`` each worker of the only aggregator stands in for the next.
    """
    switches, ends, cables = [], [], {}
    for rack, workers in enumerate(racks):
        parent = Parent(0, workers, rack, len(racks)) if len(racks) > 1 else None
        others = [Member(0, (port - 1) % workers) if stand_ins else None for port in range(workers)]
        members = tuple(Member(0, port, other) for port, other in enumerate(others))
        job = Job(0, members, GROUP, (1 << workers) - 1, parent=parent)
        switches.append(switch(slots))
        switches[-1].begin(0, job, first_round)
        for shard in range(workers):
            cables[rack, shard] = len(ends)
            who = {"shard": shard, "workers": workers, "slots": slots, "first_round": first_round}
            who["has_stand_in"] = stand_ins
            ends.append(worker(operations, len(ends), sum(racks), **who))
        if parent:
            cables[rack, workers], cables[len(racks), rack] = (len(racks), rack), (rack, workers)
    if len(racks) > 1:
        top = Job(0, tuple(Member(0, port) for port in range(len(racks))), GROUP, (1 << len(racks)) - 1)
        switches.append(switch(slots))
        switches[-1].begin(0, top, first_round)
    return Search(switches, ends, cables).run()


@pytest.mark.parametrize("first_round", [1, 65534])
@pytest.mark.parametrize(
    ("racks", "operations", "slots"),
    [
        *(((1,), 4, 1), ((2,), 5, 1), ((3,), 3, 1), ((2,), 5, 2)),
        *(((1, 1), 4, 1), ((2, 1), 3, 1), ((1, 1, 1), 2, 1)),
        pytest.param((3,), 3, 2, marks=pytest.mark.slow),
        pytest.param((1, 1), 3, 2, marks=pytest.mark.slow),
        pytest.param((2, 2), 5, 1, marks=pytest.mark.slow),
        pytest.param((3, 2), 3, 1, marks=pytest.mark.slow),
    ],
)
def test_no_order_gives_a_wrong_sum_or_puts_the_end_out_of_reach(racks, operations, slots, first_round):
    print(search(*racks, operations=operations, slots=slots, first_round=first_round), "states")


@pytest.mark.parametrize("first_round", [1, 65534])
@pytest.mark.parametrize(
    ("workers", "operations", "slots"),
    [
        (2, 2, 1),
        (3, 1, 1),
        pytest.param(2, 3, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 2, marks=pytest.mark.slow),
        pytest.param(3, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_no_order_of_stand_ins_gives_a_wrong_sum_or_puts_the_end_out_of_reach(workers, operations, slots, first_round):
    shape = {"operations": operations, "slots": slots, "first_round": first_round}
    print(search(workers, **shape, stand_ins=True), "states")


class TakesAny(Worker):
    """Does not look at the round of what it waits for."""

    kind = PacketType.FULL

    def receive(self, packet, now):
        if packet.type is self.kind:
            packet = replace(packet, round=self._round(self._slots[packet.slot]))
        return super().receive(packet, now)


class TakesAnyClear(TakesAny):
    kind = PacketType.CLEAR


class DoesNotWaitForClear(Worker):
    """Begins the next operation of a slot when it has acknowledged the last one."""

    def receive(self, packet, now):
        acknowledgement = super().receive(packet, now)
        if acknowledgement is not None:
            self._slots[packet.slot].phase = SlotPhase.IDLE
        return acknowledgement


class SendsAckOnce(Worker):
    """Does not repeat its ACK."""

    def resend(self, now):
        return [packet for packet in super().resend(now) if packet.type is PacketType.PARTIAL]


@pytest.mark.parametrize(
    ("machine", "error"),
    [
        ({"switch": MUTANTS["Forgetful"]}, BegunTooSoonError),
        ({"switch": MUTANTS["AddsTwice"]}, WrongSumError),
        ({"switch": MUTANTS["TellsFullOnce"]}, StuckError),
        ({"switch": MUTANTS["IgnoresLateAcks"]}, StuckError),
        ({"switch": MUTANTS["CountsLateAcks"]}, StuckError),
        ({"worker": TakesAny}, WrongSumError),
        ({"worker": TakesAnyClear}, BegunTooSoonError),
        ({"worker": SendsAckOnce}, StuckError),
        ({"worker": DoesNotWaitForClear}, BegunTooSoonError),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_a_fault_is_found(machine, error):
    """A test of the test: one rule less, and there is an order that it fails in."""
    with pytest.raises(error) as found:
        search(3, operations=3, **machine)
    print(found.value, *found.value.__notes__)


class TakesAnyFullEarly(Worker):
    """Does not look at the round of a FULL that comes before its operation."""

    def receive(self, packet, now):
        slot = self._slots[packet.slot]
        if packet.type is PacketType.FULL and slot.phase is SlotPhase.IDLE:
            packet = replace(packet, round=self._round(slot, 1))
        return super().receive(packet, now)


class StandsInTooSoon(Worker):
    """Sends the other worker's PARTIAL of the next operation before its own has ended."""

    def stand_in(self, phase=SlotPhase.PARTIAL, ahead=0):
        return super().stand_in() + super().stand_in(SlotPhase.ACK, 1)


@pytest.mark.parametrize(
    ("machine", "error"),
    [
        ({"switch": MUTANTS["AddsBoth"]}, WrongSumError),
        ({"worker": TakesAnyFullEarly}, WrongSumError),
        ({"worker": StandsInTooSoon}, BegunTooSoonError),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_a_fault_of_stand_ins_is_found(machine, error):
    """So too with stand-ins."""
    with pytest.raises(error) as found:
        search(2, operations=2, stand_ins=True, **machine)
    print(found.value, *found.value.__notes__)


@pytest.mark.parametrize(
    ("switch", "error"),
    [
        ("AddsTheParentsSums", WrongSumError),
        ("KeepsItsOwnSums", WrongSumError),
        ("TakesFullOfAnyRound", WrongSumError),
        ("TakesClearOfAnyRound", BegunTooSoonError),
        ("ClearsBeforeItsParent", BegunTooSoonError),
        ("AsksOnce", StuckError),
        ("AcknowledgesOnce", StuckError),
        ("TellsItsWorkersUpward", StuckError),
    ],
)
def test_a_fault_between_levels_is_found(switch, error):
    """So too of an aggregator with a parent."""
    with pytest.raises(error) as found:
        search(1, 1, operations=3, switch=MUTANTS[switch])
    print(found.value, *found.value.__notes__)
