"""The aggregator's state machine for many frames at a time, compiled.

``tests/support/aggregator_model.py`` is to be read first. This is the same on arrays, without an object for a packet or
a slot, and some fifty times as fast; tests compare the two frame by frame.
"""

from typing import Any, NamedTuple

import numpy as np

from p4sgd.hw.spec.aggregator import OUTCOME_BITS, Outcome, counters_by_place
from p4sgd.hw.spec.job import JOB_NUMBERS, Job
from p4sgd.hw.spec.packet import (
    BROADCAST,
    FRAME_BYTES,
    GROUP_BIT,
    KEYED_VERSION,
    ROUND_BITS,
    VALUES,
    VERDICT,
    VERSION,
    DropReason,
    KeyedDrop,
    PacketType,
    key_in_round,
    round_near,
)
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.sim.compiled import compiled
from p4sgd.sim.network.frames import (
    BITMAP,
    COUNT,
    DESTINATION,
    JOB,
    KEY,
    KEYED_VALUES,
    PLAIN_VALUES,
    PURPOSE,
    ROUND,
    SHARD,
    SLOT,
    SOURCE,
    TYPE,
    WORKERS,
    Bytes,
    Numbers,
    Sums,
    check_of_values,
    load,
    put_check,
    put_values,
    store,
    take_values,
    type_of,
    version_of,
    why_malformed,
)

_EVERYONE, _WHOLE, _GROUP, _PORTS, _KEYED, _KEY_OF, _WORKERS_OF = range(7)
_PARENT_WORKERS, _PARENT_SHARD, _PARENT_MAC, _PARENT_PORT = range(7, 11)
"""Columns of `_State.known`; without a parent its columns are 0."""

MEMBER_MAC, MEMBER_PORT, _STAND_IN_MAC, _STAND_IN_PORT = range(4)
"""Columns of `BatchAggregator.members`; the port of a stand-in is -1 if there is none."""

_TO_NONE, _TO_ALL, _TO_ONE, _TO_PARENT = range(4)
_RECEIVERS = np.full(1 << OUTCOME_BITS, _TO_NONE, np.int64)
"""By outcome, whom the answer goes to."""
_RECEIVERS[[Outcome.FULL_TO_ALL, Outcome.CLEAR_TO_ALL, Outcome.FULL_PASSED_ON, Outcome.CLEAR_PASSED_ON]] = _TO_ALL
_RECEIVERS[[Outcome.FULL_TO_ONE, Outcome.CLEAR_TO_ONE]] = _TO_ONE
_RECEIVERS[
    [Outcome.PARTIAL_TO_PARENT, Outcome.PARTIAL_TO_PARENT_AGAIN, Outcome.ACK_TO_PARENT, Outcome.ACK_TO_PARENT_AGAIN]
] = _TO_PARENT

_CHECKS = np.array(VERDICT, np.int64)
_BAD_JOB, _BAD_WORKERS, _BAD_SHARD, _BAD_SLOT, _BAD_SOURCE = (1 << bit for bit in range(len(VERDICT)))

_ROUNDS = 1 << ROUND_BITS
_OUTCOMES = 1 << OUTCOME_BITS


class _State(NamedTuple):
    """State of an aggregator for the loops; slots are (jobs, slots)."""

    mac: int
    most: int
    place_of: Numbers  # place of the job of each number, or −1
    known: Numbers  # settings of the job in each place
    members: Numbers
    rounds: Numbers  # counted on past 2^16
    aggregated: Numbers
    acknowledged: Numbers
    lengths: Numbers  # number of sums of each slot
    sums: Sums
    counts: Numbers  # counts of outcomes without a job, and of each place: (1 + jobs, outcomes)
    echoes_left: Numbers


class BatchAggregator:
    """Sums up partials and answers, as `p4sgd.hw.aggregator.aggregator.Aggregator` does, many frames at a time.

    It has ``slots`` for each of the ``jobs`` that it can serve at a time, drops packets to other addresses than
    ``mac``, and takes packets of version 2 with up to ``most`` micro-batches; with 0 it speaks version 1 only. The
    attribute ``jobs`` has the jobs served, by place.
    """

    def __init__(self, slots: int, *, jobs: int = 1, mac: int = 0, most: int = 0) -> None:
        self.jobs: dict[int, Job] = {}
        self.most = most
        rounds, aggregated, acknowledged, lengths = np.zeros((4, jobs, slots), np.int64)
        self._state = _State(
            mac,
            most,
            place_of=np.full(JOB_NUMBERS, -1, np.int64),
            known=np.zeros((jobs, 11), np.int64),
            members=np.zeros((jobs, MAX_WORKERS, 4), np.int64),
            rounds=rounds,
            aggregated=aggregated,
            acknowledged=acknowledged,
            lengths=lengths,
            sums=np.zeros((jobs, slots, VALUES * max(1, most)), np.int32),
            counts=np.zeros((1 + jobs, _OUTCOMES), np.int64),
            echoes_left=np.array([np.iinfo(np.int64).max]),
        )

    def limit_echoes(self, most: int) -> None:
        """Answer so many more probes that fail a check, and until the next call drop the others for it."""
        self._state.echoes_left[0] = most

    @property
    def mac(self) -> int:
        """Own MAC address."""
        return self._state.mac

    @mac.setter
    def mac(self, mac: int) -> None:
        self._state = self._state._replace(mac=mac)

    @property
    def members(self) -> Numbers:
        """Addresses and ports of the workers of the current or last job in each place: (jobs, `MAX_WORKERS`, 4)."""
        return self._state.members

    def begin(self, index: int, job: Job, first_round: int = 1) -> None:
        """Serve a job in place ``index`` from round ``first_round`` on, with all slots unused.

        ValueError if another place serves a job of this number.
        """
        state = self._state
        if state.place_of[job.number] not in (-1, index):
            raise ValueError(f"job {job.number} is being served already")
        self.end(index)
        state.rounds[index] = first_round - 1
        for each in (state.aggregated, state.acknowledged, state.lengths, state.members):
            each[index] = 0
        key = np.uint64(job.key or 0).astype(np.int64)
        workers = len(job.members)
        settings = (job.everyone, job.whole, job.group_mac, job.ports, job.key is not None)
        up = job.parent
        of_parent = (up.workers, up.shard, up.mac, up.port) if up else (0, 0, 0, 0)
        state.known[index] = (*settings, key, workers, *of_parent)
        sources = [(own.mac, own.port, own.stand_in) for own in job.members]
        state.members[index, :workers] = [
            (mac, port, *((other.mac, other.port) if other else (0, -1))) for mac, port, other in sources
        ]
        self.jobs[index] = job
        state.place_of[job.number] = index

    def promote(self, index: int, shard: int) -> None:
        """See `Job.promote`."""
        job = self.jobs[index] = self.jobs[index].promote(shard)
        self._state.members[index, shard] = (job.members[shard].mac, job.members[shard].port, 0, -1)

    def end(self, index: int) -> None:
        """End the job in place ``index``, if there is one."""
        job = self.jobs.pop(index, None)
        if job is not None:
            self._state.place_of[job.number] = -1

    def counters(self) -> dict[str, int]:
        """All counters but OVERRUNS, by the names of :func:`p4sgd.hw.spec.aggregator.counters`, and programs' own."""
        counts = self._state.counts
        at = np.argwhere(counts)
        frames = {int(owner) * _OUTCOMES + int(outcome): int(counts[owner, outcome]) for owner, outcome in at}
        found = counters_by_place(frames, len(counts) - 1, parents=True)
        further = (DropReason.ETHERTYPE, *(KeyedDrop if self._state.most else ()))
        return found | {f"DROPPED_{drop.name}": int(counts[:, drop].sum()) for drop in further}

    def read_slots(self, place: int, slots: range) -> list[list[int]]:
        """Round, and bitmaps of the shards that are in the sums and that have acknowledged these, of slots of a place.

        No shard is in the sums only if the slot is unused.
        """
        columns = (self._state.rounds % _ROUNDS, self._state.aggregated, self._state.acknowledged)
        states: list[list[int]] = np.stack([column[place, slots] for column in columns], axis=1).tolist()
        return states

    def receive_batch(
        self,
        frames: Bytes,
        sizes: Numbers,
        count: int,
        port: int,
        answers: Bytes,
        answer_sizes: Numbers,
        ports: Numbers,
    ) -> int:
        """Process ``count`` frames from a port, one after the other; returns the number of answers.

        ``frames``, uint8 (rows, room), have the sizes int64 (rows,) and room for more than `MOST_BYTES`, so that a
        frame that is cut is still too long. Answers are written to arrays of the same shapes, and the bitmap of the
        ports to send each through to ``ports``, int64 (rows,).
        """
        # One by one: to pass a tuple with names takes a microsecond more.
        return int(_receive(frames, sizes, count, port, answers, answer_sizes, ports, *self._state))


_round_near = compiled(PURPOSE)(round_near)
_key_in_round = compiled(PURPOSE)(key_in_round)


@compiled(PURPOSE)
def _failed_checks(frame: Bytes, port: int, place: int, slots: int, members: Numbers, known: Numbers) -> int:
    """Bitmap of the checks of `VERDICT` that a packet fails."""
    if place < 0:
        return _BAD_JOB
    failed = 0
    if load(frame, WORKERS) != known[place, _WORKERS_OF]:
        failed |= _BAD_WORKERS
    shard = load(frame, SHARD)
    if shard >= known[place, _WORKERS_OF] or load(frame, BITMAP) != np.int64(1) << shard:
        failed |= _BAD_SHARD
    elif not _is_from(frame, port, members[place, shard, :_STAND_IN_MAC]):
        is_partial = type_of(frame) == PacketType.PARTIAL
        if not is_partial or not _is_from(frame, port, members[place, shard, _STAND_IN_MAC:]):
            failed |= _BAD_SOURCE
    if load(frame, SLOT) >= slots:
        failed |= _BAD_SLOT
    return failed


@compiled(PURPOSE)
def _is_from(frame: Bytes, port: int, source: Numbers) -> Any:
    """Whether a frame is from an address and port."""
    return load(frame, SOURCE) == source[0] and port == source[1]


@compiled(PURPOSE)
def _failed_checks_of_parent(frame: Bytes, port: int, slots: int, known: Numbers) -> int:
    """The same of FULL or CLEAR in a job with a parent."""
    failed = 0
    if load(frame, WORKERS) != known[_PARENT_WORKERS]:
        failed |= _BAD_WORKERS
    shard = 0 if load(frame, DESTINATION) >> GROUP_BIT & 1 else known[_PARENT_SHARD]
    if load(frame, SHARD) != shard or load(frame, BITMAP) != (np.int64(1) << known[_PARENT_WORKERS]) - 1:
        failed |= _BAD_SHARD
    elif load(frame, SOURCE) != known[_PARENT_MAC] or port != known[_PARENT_PORT]:
        failed |= _BAD_SOURCE
    if load(frame, SLOT) >= slots:
        failed |= _BAD_SLOT
    return failed


@compiled(PURPOSE)
def _has_key(frame: Bytes, known: Numbers, round_: Any) -> bool:
    """Whether a packet has the key of job and round; one of version 1 has none."""
    is_keyed = version_of(frame) == KEYED_VERSION
    if is_keyed != (known[_KEYED] != 0):
        return False
    return not is_keyed or load(frame, KEY) == _key_in_round(known[_KEY_OF], round_)


@compiled(PURPOSE)
def _reply(
    frame: Bytes,
    answer: Bytes,
    kind: int,
    mac: int,
    known: Numbers,
    member: Numbers,
    sums: Sums,
    length: int,
    receiver: int,
) -> tuple[int, Any]:
    """Write a packet to all, to one or to the parent; returns its size and the ports to send it through."""
    answer[:FRAME_BYTES] = frame[:FRAME_BYTES]  # job, slot, round, version and key stay, and to one its shard
    is_keyed = version_of(frame) == KEYED_VERSION
    has_values = kind in (PacketType.FULL, PacketType.PARTIAL)
    destination, workers, bitmap, ports = known[_GROUP], known[_WORKERS_OF], known[_EVERYONE], known[_PORTS]
    if receiver == _TO_ALL:
        store(answer, SHARD, 0)
    elif receiver == _TO_ONE:
        destination, ports = member[MEMBER_MAC], np.int64(1) << member[MEMBER_PORT]
    else:
        destination, ports = known[_PARENT_MAC], np.int64(1) << known[_PARENT_PORT]
        store(answer, SHARD, known[_PARENT_SHARD])
        workers, bitmap = known[_PARENT_WORKERS], np.int64(1) << known[_PARENT_SHARD]
    store(answer, DESTINATION, destination)
    store(answer, SOURCE, mac)
    store(answer, TYPE, load(frame, TYPE) & 0xF0 | kind)
    store(answer, WORKERS, workers)
    store(answer, BITMAP, bitmap)
    first = KEYED_VALUES if is_keyed else PLAIN_VALUES
    answer[first:FRAME_BYTES] = 0
    store(answer, COUNT, length // VALUES if is_keyed and has_values else 0)
    size = FRAME_BYTES
    if has_values:
        put_values(answer, first, sums, length)
        size = first + 4 * length
    put_check(answer, check_of_values(answer, size))
    return size, ports


@compiled(PURPOSE)
def _echo(frame: Bytes, answer: Bytes, mac: int, most: int, seen: Any, values: Any) -> None:
    """Write the answer to a probe: ``seen`` are round and aggregated shards, and ``values`` those after the first."""
    answer[:FRAME_BYTES] = frame[:FRAME_BYTES]  # job, slot, shard, workers and value 0 stay
    is_keyed = most > 0 and version_of(frame) >= KEYED_VERSION
    store(answer, DESTINATION, load(frame, SOURCE))
    store(answer, SOURCE, mac)
    store(answer, TYPE, (KEYED_VERSION if is_keyed else VERSION) << 4 | PacketType.ECHO)
    store(answer, ROUND, seen[0])
    store(answer, BITMAP, seen[1])
    store(answer, COUNT, most if is_keyed else 0)
    for index in range(len(values)):
        store(answer, (PLAIN_VALUES + 4 * (1 + index), 4), values[index])


@compiled(PURPOSE)
def _receive(
    frames: Bytes,
    sizes: Numbers,
    count: int,
    port: int,
    answers: Bytes,
    answer_sizes: Numbers,
    ports: Numbers,
    *fields: Any,
) -> int:
    state = _State(*fields)
    mac, most, place_of, known, members = state.mac, state.most, state.place_of, state.known, state.members
    rounds, aggregated, acknowledged, lengths = state.rounds, state.aggregated, state.acknowledged, state.lengths
    sums, counts, echoes_left = state.sums, state.counts, state.echoes_left
    slots = rounds.shape[1]
    written = 0
    for row in range(count):
        frame, answer = frames[row], answers[written]
        drop = why_malformed(frame, sizes[row], most)
        if drop >= 0:
            counts[0, drop] += 1
            continue
        kind = type_of(frame)
        destination, place = load(frame, DESTINATION), place_of[load(frame, JOB)]
        is_answer = kind in (PacketType.FULL, PacketType.CLEAR)
        if is_answer:
            is_answer = place >= 0 and known[place, _PARENT_WORKERS] > 0
        if destination != mac:
            is_to_all = is_answer and destination >> GROUP_BIT & 1
            if not is_to_all and not (kind == PacketType.PROBE and destination == BROADCAST):
                counts[0, DropReason.ADDRESS.value] += 1
                continue
        if kind not in (PacketType.PARTIAL, PacketType.ACK, PacketType.PROBE) and not is_answer:
            counts[0, DropReason.TYPE.value] += 1
            continue
        if is_answer:
            failed = _failed_checks_of_parent(frame, port, slots, known[place])
        else:
            failed = _failed_checks(frame, port, place, slots, members, known)
        slot = load(frame, SLOT)
        if kind == PacketType.PROBE and (not failed or echoes_left[0] > 0):
            echoes_left[0] -= failed != 0
            counts[1 + place, Outcome.ECHOED.value] += 1
            seen = (np.int64(0), np.int64(0), np.int64(0))
            workers = expected = np.int64(0)
            if place >= 0:
                workers = known[place, _WORKERS_OF]
                if not failed & _BAD_SLOT:
                    seen = (rounds[place, slot], aggregated[place, slot], acknowledged[place, slot])
                if not failed & _BAD_SHARD:
                    expected = members[place, load(frame, SHARD), MEMBER_MAC]
            values = (np.int64(failed), np.int64(port), seen[2], workers, np.int64(slots), expected >> 32, expected)
            _echo(frame, answer, mac, most, seen, values)
            answer_sizes[written], ports[written] = FRAME_BYTES, np.int64(1) << port
            written += 1
            continue
        if failed:
            for check in range(len(_CHECKS)):
                if failed >> check & 1:
                    counts[1 + place, _CHECKS[check]] += 1
                    break
            continue
        now = rounds[place, slot]
        round_ = _round_near(load(frame, ROUND), now)
        if not _has_key(frame, known[place], round_):
            counts[1 + place, KeyedDrop.KEY.value] += 1
            continue
        is_keyed = version_of(frame) == KEYED_VERSION
        shard = load(frame, SHARD)
        bit, everyone, whole = np.int64(1) << shard, known[place, _EVERYONE], known[place, _WHOLE]
        outcome = DropReason.STALE.value
        reply: Any = kind
        length = VALUES * load(frame, COUNT) if is_keyed else np.int64(VALUES)
        first = KEYED_VALUES if is_keyed else PLAIN_VALUES
        if kind == PacketType.PARTIAL:
            begins = round_ == now + 1
            joins = False
            if begins:
                rounds[place, slot] = round_
                aggregated[place, slot] = acknowledged[place, slot] = 0
                lengths[place, slot] = length
            elif round_ != now or aggregated[place, slot] == 0:
                outcome = DropReason.STALE.value
            elif aggregated[place, slot] & bit:
                outcome = DropReason.DUPLICATE.value
                if not _is_from(frame, port, members[place, shard, :_STAND_IN_MAC]):
                    pass  # a stand-in gets FULL as the worker that it is
                elif aggregated[place, slot] == whole:
                    outcome, reply = Outcome.FULL_TO_ONE.value, PacketType.FULL
                elif aggregated[place, slot] == everyone:
                    outcome = Outcome.PARTIAL_TO_PARENT_AGAIN.value
            elif length != lengths[place, slot]:
                outcome = DropReason.RUNT.value if length < lengths[place, slot] else DropReason.LONG.value
            else:
                joins = True
            if begins or joins:
                aggregated[place, slot] |= bit
                take_values(frame, first, sums[place, slot], length, begins)
                outcome = Outcome.ADDED.value
                if aggregated[place, slot] == whole:
                    outcome, reply = Outcome.FULL_TO_ALL.value, PacketType.FULL
                elif aggregated[place, slot] == everyone:
                    outcome = Outcome.PARTIAL_TO_PARENT.value
        elif kind == PacketType.FULL:
            if round_ != now or aggregated[place, slot] not in (everyone, whole):
                outcome = DropReason.STALE.value
            elif aggregated[place, slot] == whole:
                outcome = DropReason.DUPLICATE.value
            elif length != lengths[place, slot]:
                outcome = DropReason.RUNT.value if length < lengths[place, slot] else DropReason.LONG.value
            else:
                aggregated[place, slot] = whole
                take_values(frame, first, sums[place, slot], length, True)
                outcome = Outcome.FULL_PASSED_ON.value
        elif kind == PacketType.CLEAR:
            if round_ == now and acknowledged[place, slot] == everyone:
                acknowledged[place, slot] = whole
                outcome = Outcome.CLEAR_PASSED_ON.value
            elif round_ == now and acknowledged[place, slot] == whole:
                outcome = DropReason.DUPLICATE.value
        elif aggregated[place, slot] == 0:
            outcome = DropReason.STALE.value
        elif round_ != now:
            if round_ < now:
                outcome, reply = Outcome.CLEAR_TO_ONE.value, PacketType.CLEAR
        elif aggregated[place, slot] == whole:
            is_repeated = acknowledged[place, slot] & bit != 0
            if acknowledged[place, slot] == whole:
                outcome, reply = Outcome.CLEAR_TO_ONE.value, PacketType.CLEAR
            else:
                acknowledged[place, slot] |= bit
                outcome = DropReason.DUPLICATE.value if is_repeated else Outcome.ACKNOWLEDGED.value
                if acknowledged[place, slot] == whole:
                    outcome, reply = Outcome.CLEAR_TO_ALL.value, PacketType.CLEAR
                elif acknowledged[place, slot] == everyone:
                    outcome = Outcome.ACK_TO_PARENT_AGAIN.value if is_repeated else Outcome.ACK_TO_PARENT.value
        counts[1 + place, outcome] += 1
        receiver = _RECEIVERS[outcome]
        if receiver != _TO_NONE:
            its = (known[place], members[place, shard], sums[place, slot], lengths[place, slot])
            answer_sizes[written], ports[written] = _reply(frame, answer, reply, mac, *its, receiver)
            written += 1
    return written
