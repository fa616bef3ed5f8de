"""The aggregator's state machine for many frames at a time, compiled.

``tests/support/aggregator_model.py`` is to be read first. This is the same on arrays, without an object for a packet or
a slot, and some fifty times as fast; tests compare the two frame by frame. Everything is int64 except bytes and
sums, because Numba computes with int64 and uint64 together in floating point.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.aggregator import OUTCOME_BITS, Outcome, counters_by_place
from p4sgd.hw.spec.job import JOB_NUMBERS, Job
from p4sgd.hw.spec.packet import (
    BROADCAST,
    ETHERTYPE,
    FRAME_BYTES,
    GROUP_BIT,
    KEYED_FIELDS,
    KEYED_VERSION,
    ROUND_BITS,
    VALUES,
    VERDICT,
    VERSION,
    DropReason,
    KeyedDrop,
    PacketType,
    frame_bytes,
    key_in_round,
    round_near,
)
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.sim.compiled import compiled
from p4sgd.sim.network.crc32 import crc32

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Sums = npt.NDArray[np.int32]

_AT = {field.name: field.offset_bits // 8 for field in KEYED_FIELDS}
_DESTINATION, _SOURCE, _ETHERTYPE, _TYPE = _AT["destination"], _AT["source"], _AT["ethertype"], _AT["type"]
_JOB, _SLOT, _ROUND, _SHARD, _WORKERS = _AT["job"], _AT["slot"], _AT["round"], _AT["shard"], _AT["workers"]
_BITMAP, _COUNT, _CHECK, _KEY = _AT["bitmap"], _AT["micro_batches"], _AT["check"], _AT["key"]
_KEYED_VALUES, _PLAIN_VALUES = frame_bytes(0), FRAME_BYTES - 4 * VALUES

_EVERYONE, _WHOLE, _GROUP, _PORTS, _KEYED, _KEY_OF, _WORKERS_OF = range(7)
_PARENT_WORKERS, _PARENT_SHARD, _PARENT_MAC, _PARENT_PORT = range(7, 11)
"""Columns of `_State.known`; without a parent its columns are 0."""

MEMBER_MAC, MEMBER_PORT, _STAND_IN_MAC, _STAND_IN_PORT = range(4)
"""Columns of `BatchAggregator.members`; the port of a stand-in is -1 if there is none."""

_PARTIAL, _FULL, _ACK, _CLEAR, _PROBE, _ECHO = (int(kind) for kind in PacketType)
_RUNT, _LONG, _WRONG_ETHERTYPE = int(DropReason.RUNT), int(DropReason.LONG), int(DropReason.ETHERTYPE)
_WRONG_VERSION, _WRONG_RESERVED = int(DropReason.VERSION), int(DropReason.RESERVED)
_WRONG_ADDRESS, _WRONG_TYPE = int(DropReason.ADDRESS), int(DropReason.TYPE)
_WRONG_KEY, _WRONG_CHECK = int(KeyedDrop.KEY), int(KeyedDrop.CHECK)
_STALE, _DUPLICATE = int(DropReason.STALE), int(DropReason.DUPLICATE)
_ADDED, _FULL_TO_ALL, _FULL_TO_ONE = int(Outcome.ADDED), int(Outcome.FULL_TO_ALL), int(Outcome.FULL_TO_ONE)
_ACKNOWLEDGED, _CLEAR_TO_ALL = int(Outcome.ACKNOWLEDGED), int(Outcome.CLEAR_TO_ALL)
_CLEAR_TO_ONE, _ECHOED = int(Outcome.CLEAR_TO_ONE), int(Outcome.ECHOED)
_PARTIAL_UP, _PARTIAL_UP_AGAIN = int(Outcome.PARTIAL_TO_PARENT), int(Outcome.PARTIAL_TO_PARENT_AGAIN)
_ACK_UP, _ACK_UP_AGAIN = int(Outcome.ACK_TO_PARENT), int(Outcome.ACK_TO_PARENT_AGAIN)
_FULL_PASSED_ON, _CLEAR_PASSED_ON = int(Outcome.FULL_PASSED_ON), int(Outcome.CLEAR_PASSED_ON)

_TO_NONE, _TO_ALL, _TO_ONE, _TO_PARENT = range(4)
_RECEIVERS = np.full(1 << OUTCOME_BITS, _TO_NONE, np.int64)
"""By outcome, whom the answer goes to."""
_RECEIVERS[[_FULL_TO_ALL, _CLEAR_TO_ALL, _FULL_PASSED_ON, _CLEAR_PASSED_ON]] = _TO_ALL
_RECEIVERS[[_FULL_TO_ONE, _CLEAR_TO_ONE]] = _TO_ONE
_RECEIVERS[[_PARTIAL_UP, _PARTIAL_UP_AGAIN, _ACK_UP, _ACK_UP_AGAIN]] = _TO_PARENT

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


PURPOSE = "the aggregator's loop"
"""What all compiled loops of an aggregator are for `compiled`, which so tells of them once."""


@compiled(PURPOSE)
def _load(frame: Bytes, at: int, size: int) -> Any:
    """A big-endian number of a frame; of eight bytes, as int64 has them."""
    value = np.int64(0)
    for byte in range(at, at + size):
        value = value << 8 | np.int64(frame[byte])
    return value


@compiled(PURPOSE)
def _store(frame: Bytes, at: int, size: int, value: Any) -> None:
    """Write a number into a frame, modulo its size."""
    for byte in range(size):
        frame[at + byte] = np.uint8(value >> 8 * (size - 1 - byte) & 0xFF)


_crc32 = compiled(PURPOSE)(crc32)
_round_near = compiled(PURPOSE)(round_near)
_key_in_round = compiled(PURPOSE)(key_in_round)


@compiled(PURPOSE)
def check_of_values(frame: Bytes, size: int) -> Any:
    """The first part of the check of a frame of version 2: of key and values. 0 for version 1, which has no check."""
    if np.int64(frame[_TYPE]) >> 4 != KEYED_VERSION:
        return np.int64(0)
    return _crc32(frame, _KEY, size, 0)


@compiled(PURPOSE)
def _check_of(frame: Bytes, of_values: Any) -> Any:
    return _crc32(frame, _TYPE, _CHECK, of_values)


@compiled(PURPOSE)
def put_check(frame: Bytes, of_values: Any) -> None:
    """Complete a frame by its check, of which `check_of_values` is given; one of version 1 has none."""
    if np.int64(frame[_TYPE]) >> 4 == KEYED_VERSION:
        _store(frame, _CHECK, 4, _check_of(frame, of_values))


@compiled(PURPOSE)
def _why_malformed(frame: Bytes, size: int, most: int) -> int:
    """The first check of its format that a frame fails, a Drop; -1 if none."""
    if size < FRAME_BYTES:
        return _RUNT
    version, kind = np.int64(frame[_TYPE]) >> 4, np.int64(frame[_TYPE]) & 15
    is_probe = kind in (_PROBE, _ECHO)
    is_keyed = most > 0 and version == KEYED_VERSION and not is_probe
    has_values = is_keyed and kind in (_PARTIAL, _FULL)
    count = _load(frame, _COUNT, 2)
    expected = FRAME_BYTES
    if has_values:
        expected = _KEYED_VALUES + 4 * VALUES * count if 1 <= count <= most else 0
    if size != expected:
        return _RUNT if size < expected else _LONG
    if _load(frame, _ETHERTYPE, 2) != ETHERTYPE:
        return _WRONG_ETHERTYPE
    if version != VERSION and not is_keyed and not is_probe:
        return _WRONG_VERSION
    has_most = most > 0 and kind == _ECHO and version >= KEYED_VERSION
    check = _load(frame, _CHECK, 4)
    if (check != 0 and not is_keyed) or (count != 0 and not has_most and not has_values):
        return _WRONG_RESERVED
    if is_keyed and check != _check_of(frame, check_of_values(frame, size)):
        return _WRONG_CHECK
    return -1


@compiled(PURPOSE)
def _failed_checks(frame: Bytes, port: int, place: int, slots: int, members: Numbers, known: Numbers) -> int:
    """Bitmap of the checks of `VERDICT` that a packet fails."""
    if place < 0:
        return _BAD_JOB
    failed = 0
    if np.int64(frame[_WORKERS]) != known[place, _WORKERS_OF]:
        failed |= _BAD_WORKERS
    shard = np.int64(frame[_SHARD])
    if shard >= known[place, _WORKERS_OF] or _load(frame, _BITMAP, 4) != np.int64(1) << shard:
        failed |= _BAD_SHARD
    elif not _is_from(frame, port, members[place, shard, :_STAND_IN_MAC]):
        is_partial = np.int64(frame[_TYPE]) & 15 == _PARTIAL
        if not is_partial or not _is_from(frame, port, members[place, shard, _STAND_IN_MAC:]):
            failed |= _BAD_SOURCE
    if _load(frame, _SLOT, 2) >= slots:
        failed |= _BAD_SLOT
    return failed


@compiled(PURPOSE)
def _is_from(frame: Bytes, port: int, source: Numbers) -> Any:
    """Whether a frame is from an address and port."""
    return _load(frame, _SOURCE, 6) == source[0] and port == source[1]


@compiled(PURPOSE)
def _failed_checks_of_parent(frame: Bytes, port: int, slots: int, known: Numbers) -> int:
    """The same of FULL or CLEAR in a job with a parent."""
    failed = 0
    if np.int64(frame[_WORKERS]) != known[_PARENT_WORKERS]:
        failed |= _BAD_WORKERS
    shard = 0 if frame[_DESTINATION] & 1 else known[_PARENT_SHARD]
    if np.int64(frame[_SHARD]) != shard or _load(frame, _BITMAP, 4) != (np.int64(1) << known[_PARENT_WORKERS]) - 1:
        failed |= _BAD_SHARD
    elif _load(frame, _SOURCE, 6) != known[_PARENT_MAC] or port != known[_PARENT_PORT]:
        failed |= _BAD_SOURCE
    if _load(frame, _SLOT, 2) >= slots:
        failed |= _BAD_SLOT
    return failed


@compiled(PURPOSE)
def _has_key(frame: Bytes, known: Numbers, round_: Any) -> bool:
    """Whether a packet has the key of job and round; one of version 1 has none."""
    is_keyed = np.int64(frame[_TYPE]) >> 4 == KEYED_VERSION
    if is_keyed != (known[_KEYED] != 0):
        return False
    return not is_keyed or _load(frame, _KEY, 8) == _key_in_round(known[_KEY_OF], round_)


@compiled(PURPOSE)
def _swapped(word: Any) -> Any:
    """A word of 32 bits with its bytes in the other order, as int32: loops over many words become vector code.

    All machines that Numba compiles for are little-endian.
    """
    high = (word & 0xFF) << 24 | (word & 0xFF00) << 8
    return np.int32(high | word >> 8 & 0xFF00 | word >> 24 & 0xFF)


@compiled(PURPOSE)
def _take_values(frame: Bytes, first: int, sums: Sums, count: int, begins: bool) -> None:
    """Set sums to the values of a frame, or add these, modulo 2^32."""
    words = frame[first : first + 4 * count].view(np.int32)
    if begins:
        for index in range(count):
            sums[index] = _swapped(words[index])
    else:
        for index in range(count):
            sums[index] += _swapped(words[index])


@compiled(PURPOSE)
def _put_values(frame: Bytes, first: int, sums: Sums, count: int) -> None:
    words = frame[first : first + 4 * count].view(np.int32)
    for index in range(count):
        words[index] = _swapped(sums[index])


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
    is_keyed = np.int64(frame[_TYPE]) >> 4 == KEYED_VERSION
    has_values = kind in (_FULL, _PARTIAL)
    destination, workers, bitmap, ports = known[_GROUP], known[_WORKERS_OF], known[_EVERYONE], known[_PORTS]
    if receiver == _TO_ALL:
        answer[_SHARD] = 0
    elif receiver == _TO_ONE:
        destination, ports = member[MEMBER_MAC], np.int64(1) << member[MEMBER_PORT]
    else:
        destination, ports = known[_PARENT_MAC], np.int64(1) << known[_PARENT_PORT]
        answer[_SHARD] = np.uint8(known[_PARENT_SHARD])
        workers, bitmap = known[_PARENT_WORKERS], np.int64(1) << known[_PARENT_SHARD]
    _store(answer, _DESTINATION, 6, destination)
    _store(answer, _SOURCE, 6, mac)
    answer[_TYPE] = np.uint8(np.int64(frame[_TYPE]) & 0xF0 | kind)
    answer[_WORKERS] = np.uint8(workers)
    _store(answer, _BITMAP, 4, bitmap)
    first = _KEYED_VALUES if is_keyed else _PLAIN_VALUES
    answer[first:FRAME_BYTES] = 0
    _store(answer, _COUNT, 2, length // VALUES if is_keyed and has_values else 0)
    size = FRAME_BYTES
    if has_values:
        _put_values(answer, first, sums, length)
        size = first + 4 * length
    put_check(answer, check_of_values(answer, size))
    return size, ports


@compiled(PURPOSE)
def _echo(frame: Bytes, answer: Bytes, mac: int, most: int, seen: Any, values: Any) -> None:
    """Write the answer to a probe: ``seen`` are round and aggregated shards, and ``values`` those after the first."""
    answer[:FRAME_BYTES] = frame[:FRAME_BYTES]  # job, slot, shard, workers and value 0 stay
    is_keyed = most > 0 and np.int64(frame[_TYPE]) >> 4 >= KEYED_VERSION
    answer[_DESTINATION : _DESTINATION + 6] = frame[_SOURCE : _SOURCE + 6]
    _store(answer, _SOURCE, 6, mac)
    answer[_TYPE] = np.uint8((KEYED_VERSION if is_keyed else VERSION) << 4 | _ECHO)
    _store(answer, _ROUND, 2, seen[0])
    _store(answer, _BITMAP, 4, seen[1])
    _store(answer, _COUNT, 2, most if is_keyed else 0)
    for index in range(len(values)):
        _store(answer, _PLAIN_VALUES + 4 * (1 + index), 4, values[index])


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
        drop = _why_malformed(frame, sizes[row], most)
        if drop >= 0:
            counts[0, drop] += 1
            continue
        kind = np.int64(frame[_TYPE]) & 15
        destination, place = _load(frame, _DESTINATION, 6), place_of[frame[_JOB]]
        is_answer = kind in (_FULL, _CLEAR)
        if is_answer:
            is_answer = place >= 0 and known[place, _PARENT_WORKERS] > 0
        if destination != mac:
            is_to_all = is_answer and destination >> GROUP_BIT & 1
            if not is_to_all and not (kind == _PROBE and destination == BROADCAST):
                counts[0, _WRONG_ADDRESS] += 1
                continue
        if kind not in (_PARTIAL, _ACK, _PROBE) and not is_answer:
            counts[0, _WRONG_TYPE] += 1
            continue
        if is_answer:
            failed = _failed_checks_of_parent(frame, port, slots, known[place])
        else:
            failed = _failed_checks(frame, port, place, slots, members, known)
        slot = _load(frame, _SLOT, 2)
        if kind == _PROBE and (not failed or echoes_left[0] > 0):
            echoes_left[0] -= failed != 0
            counts[1 + place, _ECHOED] += 1
            seen = (np.int64(0), np.int64(0), np.int64(0))
            workers = expected = np.int64(0)
            if place >= 0:
                workers = known[place, _WORKERS_OF]
                if not failed & _BAD_SLOT:
                    seen = (rounds[place, slot], aggregated[place, slot], acknowledged[place, slot])
                if not failed & _BAD_SHARD:
                    expected = members[place, np.int64(frame[_SHARD]), MEMBER_MAC]
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
        round_ = _round_near(_load(frame, _ROUND, 2), now)
        if not _has_key(frame, known[place], round_):
            counts[1 + place, _WRONG_KEY] += 1
            continue
        is_keyed = np.int64(frame[_TYPE]) >> 4 == KEYED_VERSION
        shard = np.int64(frame[_SHARD])
        bit, everyone, whole = np.int64(1) << shard, known[place, _EVERYONE], known[place, _WHOLE]
        outcome = _STALE
        reply: Any = kind
        length = VALUES * _load(frame, _COUNT, 2) if is_keyed else np.int64(VALUES)
        first = _KEYED_VALUES if is_keyed else _PLAIN_VALUES
        if kind == _PARTIAL:
            begins = round_ == now + 1
            joins = False
            if begins:
                rounds[place, slot] = round_
                aggregated[place, slot] = acknowledged[place, slot] = 0
                lengths[place, slot] = length
            elif round_ != now or aggregated[place, slot] == 0:
                outcome = _STALE
            elif aggregated[place, slot] & bit:
                outcome = _DUPLICATE
                if not _is_from(frame, port, members[place, shard, :_STAND_IN_MAC]):
                    pass  # a stand-in gets FULL as the worker that it is
                elif aggregated[place, slot] == whole:
                    outcome, reply = _FULL_TO_ONE, _FULL
                elif aggregated[place, slot] == everyone:
                    outcome = _PARTIAL_UP_AGAIN
            elif length != lengths[place, slot]:
                outcome = _RUNT if length < lengths[place, slot] else _LONG
            else:
                joins = True
            if begins or joins:
                aggregated[place, slot] |= bit
                _take_values(frame, first, sums[place, slot], length, begins)
                outcome = _ADDED
                if aggregated[place, slot] == whole:
                    outcome, reply = _FULL_TO_ALL, _FULL
                elif aggregated[place, slot] == everyone:
                    outcome = _PARTIAL_UP
        elif kind == _FULL:
            if round_ != now or aggregated[place, slot] not in (everyone, whole):
                outcome = _STALE
            elif aggregated[place, slot] == whole:
                outcome = _DUPLICATE
            elif length != lengths[place, slot]:
                outcome = _RUNT if length < lengths[place, slot] else _LONG
            else:
                aggregated[place, slot] = whole
                _take_values(frame, first, sums[place, slot], length, True)
                outcome = _FULL_PASSED_ON
        elif kind == _CLEAR:
            if round_ == now and acknowledged[place, slot] == everyone:
                acknowledged[place, slot] = whole
                outcome = _CLEAR_PASSED_ON
            elif round_ == now and acknowledged[place, slot] == whole:
                outcome = _DUPLICATE
        elif aggregated[place, slot] == 0:
            outcome = _STALE
        elif round_ != now:
            if round_ < now:
                outcome, reply = _CLEAR_TO_ONE, _CLEAR
        elif aggregated[place, slot] == whole:
            is_repeated = acknowledged[place, slot] & bit != 0
            if acknowledged[place, slot] == whole:
                outcome, reply = _CLEAR_TO_ONE, _CLEAR
            else:
                acknowledged[place, slot] |= bit
                outcome = _DUPLICATE if is_repeated else _ACKNOWLEDGED
                if acknowledged[place, slot] == whole:
                    outcome, reply = _CLEAR_TO_ALL, _CLEAR
                elif acknowledged[place, slot] == everyone:
                    outcome = _ACK_UP_AGAIN if is_repeated else _ACK_UP
        counts[1 + place, outcome] += 1
        receiver = _RECEIVERS[outcome]
        if receiver != _TO_NONE:
            its = (known[place], members[place, shard], sums[place, slot], lengths[place, slot])
            answer_sizes[written], ports[written] = _reply(frame, answer, reply, mac, *its, receiver)
            written += 1
    return written
