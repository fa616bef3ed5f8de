"""Models of the aggregator with one fault each: mistakes that people who write a switch make."""

from dataclasses import replace

from support import aggregator_model as model
from support.aggregator_model import Aggregator, SlotState
from support.forgetful import Forgetful

from conformance.frames import is_keyed, with_check
from p4sgd.hw.spec.packet import BROADCAST, VALUES, DropReason, EchoValue, KeyedDrop, Packet, PacketType

_ROUNDS = 1 << 16


class AddsTwice(Aggregator):
    """Adds a partial that comes again before the slot is complete."""

    def _partial(self, slot, packet, job):
        if packet.round == slot.round and slot.aggregated and slot.aggregated != job.everyone:
            slot.aggregated &= ~packet.bitmap
        return super()._partial(slot, packet, job)


class TellsFullOnce(Aggregator):
    """Sends FULL to all, and to nobody again."""

    def _partial(self, slot, packet, job):
        is_repeated = packet.round == slot.round and slot.aggregated & packet.bitmap
        return DropReason.DUPLICATE if is_repeated else super()._partial(slot, packet, job)


class TellsFullToAllAgain(Aggregator):
    """Sends FULL to all where one asks."""

    def _answer_one(self, kind, packet, slot, job):
        return (self._answer_all if kind is PacketType.FULL else super()._answer_one)(kind, packet, slot, job)


class TellsClearToAllAgain(Aggregator):
    """Sends CLEAR to all where one asks."""

    def _answer_one(self, kind, packet, slot, job):
        return (self._answer_all if kind is PacketType.CLEAR else super()._answer_one)(kind, packet, slot, job)


class TellsTheLastOnly(Aggregator):
    """Answers the last worker instead of all."""

    def _answer_all(self, kind, packet, slot, job):
        return super()._answer_one(kind, packet, slot, job)


class TellsThroughMembersPorts(Aggregator):
    """Takes the ports of a job's members for those of the job."""

    def _answer_all(self, kind, packet, slot, job):
        ports = sum({1 << member.port for member in job.members})
        return replace(super()._answer_all(kind, packet, slot, job), ports=ports)


class TellsEverywhere(Aggregator):
    """Answers to all leave through all ports."""

    def _answer_all(self, kind, packet, slot, job):
        return replace(super()._answer_all(kind, packet, slot, job), ports=0b1111)


class AddsToOldSums(Aggregator):
    """Does not overwrite the sums of the round before."""

    def _partial(self, slot, packet, job):
        if packet.round == (slot.round + 1) % _ROUNDS:
            old = slot.sums
            packet = replace(packet, values=tuple(map(lambda a, b: model._wrap(a + b), old, packet.values)))
        return super()._partial(slot, packet, job)


class KeepsAcknowledgements(Aggregator):
    """A new round does not forget who has acknowledged the last."""

    def _partial(self, slot, packet, job):
        before = slot.acknowledged
        outcome = super()._partial(slot, packet, job)
        slot.acknowledged = before
        return outcome


class WaitsForCompletion(Aggregator):
    """Begins a round only when the one before is complete."""

    def _partial(self, slot, packet, job):
        is_next = packet.round == (slot.round + 1) % _ROUNDS
        if is_next and slot.aggregated not in (0, job.everyone):
            return DropReason.STALE
        return super()._partial(slot, packet, job)


class WaitsForAcknowledgements(Aggregator):
    """Begins a round only when all have acknowledged the one before."""

    def _partial(self, slot, packet, job):
        is_next = packet.round == (slot.round + 1) % _ROUNDS
        if is_next and slot.aggregated and slot.acknowledged != job.everyone:
            return DropReason.STALE
        return super()._partial(slot, packet, job)


class TakesLaterRounds(Aggregator):
    """Begins any later round."""

    def _partial(self, slot, packet, job):
        if 1 < (packet.round - slot.round) % _ROUNDS < _ROUNDS // 2:
            slot.round = packet.round - 1
        return super()._partial(slot, packet, job)


class RoundsDoNotWrap(Aggregator):
    """Round 0 does not come after 65535."""

    def _partial(self, slot, packet, job):
        if packet.round == 0 and slot.round == _ROUNDS - 1:
            return DropReason.STALE
        return super()._partial(slot, packet, job)


class ComparesWithoutWrap(Aggregator):
    """Takes the smaller number for the earlier round."""

    def _acknowledge(self, slot, packet, job):
        if slot.aggregated and packet.round != slot.round:
            is_before = packet.round < slot.round
            return self._answer_one(PacketType.CLEAR, packet, slot, job) if is_before else DropReason.STALE
        return super()._acknowledge(slot, packet, job)


class ComparesOffByOne(Aggregator):
    """Takes the round at a distance of exactly 2^15 for a later one."""

    def _acknowledge(self, slot, packet, job):
        is_half = (packet.round - slot.round) % _ROUNDS == _ROUNDS // 2
        return DropReason.STALE if is_half else super()._acknowledge(slot, packet, job)


class IgnoresLateAcks(Aggregator):
    """Does not tell CLEAR to those that the others have left behind."""

    def _acknowledge(self, slot, packet, job):
        return super()._acknowledge(slot, packet, job) if packet.round == slot.round else DropReason.STALE


class CountsLateAcks(Aggregator):
    """Takes an ACK of any round for one of the slot's."""

    def _acknowledge(self, slot, packet, job):
        return super()._acknowledge(slot, replace(packet, round=slot.round), job)


class CountsEarlyAcks(Aggregator):
    """Takes an ACK while partials are missing."""

    def _acknowledge(self, slot, packet, job):
        if packet.round == slot.round and slot.aggregated not in (0, job.everyone):
            slot.acknowledged |= packet.bitmap
            return None
        return super()._acknowledge(slot, packet, job)


class CountsAcks(Aggregator):
    """Counts ACKs instead of who has sent them."""

    def _acknowledge(self, slot, packet, job):
        counted = bin(slot.acknowledged).count("1")
        if packet.round == slot.round and slot.aggregated == job.everyone and slot.acknowledged != job.everyone:
            packet = replace(packet, bitmap=1 << counted)
        return super()._acknowledge(slot, packet, job)


class FreshSlotsAnswer(Aggregator):
    """Tells CLEAR from a fresh slot."""

    def _acknowledge(self, slot, packet, job):
        if slot.aggregated == 0 and (packet.round - slot.round) % _ROUNDS >= _ROUNDS // 2:
            return self._answer_one(PacketType.CLEAR, packet, slot, job)
        return super()._acknowledge(slot, packet, job)


class FreshSlotsTakeTheirRound(Aggregator):
    """Adds a PARTIAL of the round before the first in a fresh slot."""

    def _partial(self, slot, packet, job):
        if slot.aggregated == 0 and packet.round == slot.round:
            slot.round = (packet.round - 1) % _ROUNDS
        return super()._partial(slot, packet, job)


class SlotsStay(Aggregator):
    """Slots of a job that is begun again are as they were left."""

    def begin(self, index, job, first_round=1):
        before = self.slots[index]
        super().begin(index, job, first_round)
        if any(slot.aggregated for slot in before):
            self.slots[index] = before


class JobsShareSlots(Aggregator):
    """All jobs have the same slots."""

    def begin(self, index, job, first_round=1):
        super().begin(index, job, first_round)
        self.slots = [self.slots[index]] * len(self.slots)


class EndsNothing(Aggregator):
    """Goes on to serve a job that has ended."""

    def end(self, index):
        pass


class Saturates(Aggregator):
    """Sums stop at the ends of int32."""

    def _partial(self, slot, packet, job):
        before = slot.sums
        joins = packet.round == slot.round and not slot.aggregated & packet.bitmap
        outcome = super()._partial(slot, packet, job)
        if joins and slot.aggregated:
            pairs = zip(before, packet.values, strict=True)
            slot.sums = tuple(max(-(1 << 31), min((1 << 31) - 1, a + b)) for a, b in pairs)
            if isinstance(outcome, model.Answer):
                outcome = replace(outcome, packet=replace(outcome.packet, values=slot.sums))
        return outcome


class OneVersion(Aggregator):
    """Drops probes of other versions."""

    def receive_frame(self, frame, port):
        if len(frame) == 64 and frame[12:14] == b"\x88\xb5" and frame[14] >> 4 != 1:
            self.drops[DropReason.VERSION] += 1
            return None
        return super().receive_frame(frame, port)


class AnyPort(Aggregator):
    """Looks at the address, not at the port."""

    def _failed_checks(self, packet, port, job):
        is_shard = job and packet.shard < len(job.members)
        return super()._failed_checks(packet, job.members[packet.shard].port if is_shard else port, job)


class AnyAddress(Aggregator):
    """Looks at the port, not at the address."""

    def _failed_checks(self, packet, port, job):
        if job and packet.shard < len(job.members):
            packet = replace(packet, source=job.members[packet.shard].mac)
        return super()._failed_checks(packet, port, job)


class SourceBeforeSlot(Aggregator):
    """Looks at the source before the slot, and at the shard before the number of workers."""

    order = (DropReason.JOB, DropReason.SHARD, DropReason.SOURCE, DropReason.WORKERS, DropReason.SLOT)

    def _failed_checks(self, packet, port, job):
        return sorted(super()._failed_checks(packet, port, job), key=self.order.index)


class FirstVerdictOnly(Aggregator):
    """Tells only the first of the checks that a probe fails."""

    def _echo(self, packet, port, job, slot, failed):
        return super()._echo(packet, port, job, slot, failed[:1])


class EchoesToTheMember(Aggregator):
    """Sends ECHO to where the shard should be, not to where the probe came from."""

    def _echo(self, packet, port, job, slot, failed):
        answer = super()._echo(packet, port, job, slot, failed)
        if DropReason.SOURCE not in failed:
            return answer
        member = job.members[packet.shard]
        return model.Answer(replace(answer.packet, destination=member.mac), 1 << member.port)


class ProbesAcknowledge(Aggregator):
    """A probe of a complete slot counts as an ACK."""

    def _echo(self, packet, port, job, slot, failed):
        answer = super()._echo(packet, port, job, slot, failed)
        if job and not failed and slot.aggregated == job.everyone:
            slot.acknowledged |= packet.bitmap
        return answer


class OneLaneTooFew(Aggregator):
    """Forgets the last value of partials that join."""

    def _partial(self, slot, packet, job):
        if packet.round == slot.round:
            packet = replace(packet, values=(*packet.values[: VALUES - 1], 0))
        return super()._partial(slot, packet, job)


class DoesNotCountJobs(Aggregator):
    """Does not count by job."""

    def receive(self, packet: Packet, port: int):
        answer = super().receive(packet, port)
        self.job_accepted.clear()
        return answer


class CountsStaleAsDuplicate(Aggregator):
    """Counts packets of other rounds as repeated ones."""

    def _partial(self, slot: SlotState, packet, job):
        outcome = super()._partial(slot, packet, job)
        return DropReason.DUPLICATE if outcome is DropReason.STALE else outcome


class _Keyed(Aggregator):
    """A fault in what is of version 2."""


class KeyBeforeSource(_Keyed):
    """Looks at the key before all that a job's packet must have."""

    def _act(self, packet, port, place):
        job = None if place is None else self.jobs[place]
        if job is not None and packet.type is not PacketType.PROBE and packet.key != job.key:
            return KeyedDrop.KEY
        return super()._act(packet, port, place)


class FirstMicroBatchOnly(_Keyed):
    """Adds up the first micro-batch of those that join."""

    def _partial(self, slot, packet, job):
        if packet.round == slot.round and len(packet.values) > VALUES:
            packet = replace(packet, values=packet.values[:VALUES] + (0,) * (len(packet.values) - VALUES))
        return super()._partial(slot, packet, job)


class ShortPartialsJoin(_Keyed):
    """Adds a PARTIAL that is shorter than the others of its round."""

    def _partial(self, slot, packet, job):
        missing = len(slot.sums) - len(packet.values)
        if packet.round == slot.round and missing > 0:
            packet = replace(packet, values=packet.values + (0,) * missing)
        return super()._partial(slot, packet, job)


class KeepsTheLength(_Keyed):
    """A slot has as many micro-batches as in its first round."""

    def _partial(self, slot, packet, job):
        if packet.key is not None and slot.aggregated and len(packet.values) != len(slot.sums):
            return DropReason.LONG
        return super()._partial(slot, packet, job)


class ClearIsAsLongAsFull(_Keyed):
    """CLEAR carries the sums, in version 2."""

    def receive_frame(self, frame, port):
        answer = super().receive_frame(frame, port)
        if answer is not None and answer.packet.type is PacketType.CLEAR and answer.packet.key is not None:
            return replace(answer, packet=_Padded(**vars(answer.packet)))
        return answer


class _Padded(Packet):
    def to_bytes(self):
        return super().to_bytes() + bytes(8)


class _OfPrograms(Aggregator):
    """A fault in what an aggregator does with parents or stand-ins."""


class ClearsBeforeItsParent(_OfPrograms):
    """Sends CLEAR when its own workers have acknowledged."""

    def _ask(self, packet, slot, job):
        if packet.type is PacketType.PARTIAL:
            return super()._ask(packet, slot, job)
        slot.acknowledged = job.whole
        return self._answer_all(PacketType.CLEAR, packet, slot, job)


class AsksOnce(_OfPrograms):
    """Does not repeat its PARTIAL to the parent."""

    def _partial(self, slot, packet, job):
        is_repeated = packet.round == slot.round and slot.aggregated == job.everyone != job.whole
        return DropReason.DUPLICATE if is_repeated else super()._partial(slot, packet, job)


class AcknowledgesOnce(_OfPrograms):
    """Does not repeat its ACK to the parent."""

    def _acknowledge(self, slot, packet, job):
        is_repeated = packet.round == slot.round and slot.acknowledged == job.everyone != job.whole
        return DropReason.DUPLICATE if is_repeated else super()._acknowledge(slot, packet, job)


class TakesFullOfAnyRound(_OfPrograms):
    """Does not look at the round of the parent's FULL."""

    def _full(self, slot, packet, job):
        return super()._full(slot, replace(packet, round=slot.round), job)


class TakesClearOfAnyRound(_OfPrograms):
    """Does not look at the round of the parent's CLEAR."""

    def _clear(self, slot, packet, job):
        return super()._clear(slot, replace(packet, round=slot.round), job)


class AddsTheParentsSums(_OfPrograms):
    """Adds the parent's sums to its own."""

    def _full(self, slot, packet, job):
        if packet.round == slot.round and slot.aggregated == job.everyone:
            packet = replace(packet, values=tuple(map(lambda a, b: model._wrap(a + b), slot.sums, packet.values)))
        return super()._full(slot, packet, job)


class KeepsItsOwnSums(_OfPrograms):
    """Sends its own sums in FULL, not the parent's."""

    def _full(self, slot, packet, job):
        return super()._full(slot, replace(packet, values=slot.sums), job)


class TakesFullTooSoon(_OfPrograms):
    """Takes the parent's FULL while partials of its own workers are missing."""

    def _full(self, slot, packet, job):
        if packet.round == slot.round and slot.aggregated:
            slot.aggregated |= job.everyone
        return super()._full(slot, packet, job)


class PassesOnEveryFull(_OfPrograms):
    """Sends the parent's FULL to all each time that it comes."""

    def _full(self, slot, packet, job):
        if packet.round == slot.round and slot.aggregated == job.whole:
            slot.aggregated = job.everyone
        return super()._full(slot, packet, job)


class TellsItsWorkersUpward(_OfPrograms):
    """Names its own number of workers to the parent."""

    def _ask(self, packet, slot, job):
        answer = super()._ask(packet, slot, job)
        return replace(answer, packet=replace(answer.packet, workers=len(job.members)))


class AnyParent(_OfPrograms):
    """Takes FULL and CLEAR from anybody."""

    def _failed_checks(self, packet, port, job):
        is_answer = packet.type in (PacketType.FULL, PacketType.CLEAR)
        failed = super()._failed_checks(packet, port, job)
        return [check for check in failed if not is_answer or check is not DropReason.SOURCE]


class AnyShardOfTheParent(_OfPrograms):
    """Takes FULL and CLEAR to other shards of the parent."""

    def _failed_checks(self, packet, port, job):
        if packet.type in (PacketType.FULL, PacketType.CLEAR) and job and packet.destination == self.mac:
            packet = replace(packet, shard=job.parent.shard)
        return super()._failed_checks(packet, port, job)


class ForgetsTheParent(_OfPrograms):
    """Tells nobody that the parent's answer has come."""

    def _echo(self, packet, port, job, slot, failed):
        seen = replace(slot, aggregated=slot.aggregated & job.everyone) if job else slot
        return super()._echo(packet, port, job, seen, failed)


class NobodyStandsIn(_OfPrograms):
    """Takes no PARTIAL of a stand-in."""

    def _failed_checks(self, packet, port, job):
        members = job and tuple(replace(member, stand_in=None) for member in job.members)
        return super()._failed_checks(packet, port, job and replace(job, members=members))


class StandInsAcknowledge(_OfPrograms):
    """Takes ACK of a stand-in."""

    kind = PacketType.ACK

    def _failed_checks(self, packet, port, job):
        return super()._failed_checks(
            replace(packet, type=PacketType.PARTIAL) if packet.type is self.kind else packet, port, job
        )


class StandInsProbe(StandInsAcknowledge):
    """Tells a stand-in that probes as another worker that all is well."""

    kind = PacketType.PROBE


class AnswersStandIns(_OfPrograms):
    """Sends FULL to a worker because its stand-in repeats its PARTIAL."""

    @staticmethod
    def _is_of_stand_in(packet, port, job):
        return False


class ForgetsTheOwner(_OfPrograms):
    """Does not answer a worker whose stand-in was first."""

    def _partial(self, slot, packet, job):
        is_known = packet.round == slot.round and slot.aggregated & packet.bitmap
        outcome = super()._partial(slot, packet, job)
        first = self.__dict__.setdefault("first", {})
        if not is_known:
            first[id(slot), packet.shard] = packet.source
        return DropReason.DUPLICATE if is_known and first[id(slot), packet.shard] != packet.source else outcome


class AddsBoth(_OfPrograms):
    """Adds the PARTIAL of a worker and that of its stand-in."""

    def _partial(self, slot, packet, job):
        is_known = packet.round == slot.round and slot.aggregated & packet.bitmap
        if is_known and job.members[packet.shard].stand_in and slot.aggregated not in (job.everyone, job.whole):
            slot.sums = model._add(slot.sums, packet.values)
        return super()._partial(slot, packet, job)


class StandsInInAnyRound(_OfPrograms):
    """Does not look at the round of a stand-in's PARTIAL."""

    def _partial(self, slot, packet, job):
        owner = job.members[packet.shard]
        if slot.aggregated and packet.source != owner.mac:
            packet = replace(packet, round=slot.round)
        return super()._partial(slot, packet, job)


class StandsInForAll(_OfPrograms):
    """Takes PARTIALs of any worker from one that stands in for another."""

    def _failed_checks(self, packet, port, job):
        if job and packet.type is PacketType.PARTIAL and packet.shard < len(job.members):
            for member in job.members:
                other = member.stand_in
                if other and (packet.source, port) == (other.mac, other.port):
                    owner = job.members[packet.shard]
                    packet, port = replace(packet, source=owner.mac), owner.port
        return super()._failed_checks(packet, port, job)


class StandsInByAddress(_OfPrograms):
    """Does not look at the port of a stand-in."""

    def _failed_checks(self, packet, port, job):
        if job and packet.type is PacketType.PARTIAL and packet.shard < len(job.members):
            other = job.members[packet.shard].stand_in
            port = other.port if other and packet.source == other.mac else port
        return super()._failed_checks(packet, port, job)


class _Sees(Aggregator):
    """Takes a packet for another, which `seen` gives."""

    def receive(self, packet, port):
        return super().receive(self.seen(packet), port)


class _Reads(Aggregator):
    """Takes a frame for another, which `read` gives."""

    def receive_frame(self, frame, port):
        return super().receive_frame(self.read(frame), port)


class _ReadsKeyed(_Reads, _Keyed):
    """Of version 2."""


class _Replies(Aggregator):
    """Sends an answer about a slot with `other` fields."""

    def _reply(self, kind, packet, slot, job, *, shard, destination):
        reply = super()._reply(kind, packet, slot, job, shard=shard, destination=destination)
        return replace(reply, **self.other(slot))


class _Echoes(Aggregator):
    """Sends an ECHO with `other` fields."""

    def _echo(self, packet, port, job, slot, failed):
        answer = super()._echo(packet, port, job, slot, failed)
        return replace(answer, packet=replace(answer.packet, **self.other(packet, answer.packet)))


class _EchoesKeyed(_Echoes, _Keyed):
    """Of version 2."""


class _Unchecked(Aggregator):
    """Leaves out the check ``unchecked``."""

    def _failed_checks(self, packet, port, job):
        return [check for check in super()._failed_checks(packet, port, job) if check is not self.unchecked]


class _SeesOfJob(_Keyed):
    """A job takes a packet of its number for another, which `seen_by` gives; the job has the key of the round."""

    def _act(self, packet, port, place):
        if place is not None and packet.slot < self._slots:
            key = self._key(self.jobs[place], self.slots[place][packet.slot], packet.round)
            packet = self.seen_by(replace(self.jobs[place], key=key), packet)
        return super()._act(packet, port, place)


class KeepsTheKey(_Keyed):
    """The key is the same in all rounds."""

    @staticmethod
    def _key(job, slot, sent):
        return job.key


def _blind(where, right):
    """Reads frames of 64 bytes as if some of them were right."""
    return lambda self, frame: frame[: where.start] + right + frame[where.stop :] if len(frame) == 64 else frame


def _without_address(values):
    return (
        *values[: EchoValue.MAC_HIGH],
        *[0] * (EchoValue.MAC_LOW + 1 - EchoValue.MAC_HIGH),
        *values[EchoValue.MAC_LOW + 1 :],
    )


def _plain_with_key(packet, job):
    return replace(packet, key=job.key, values=packet.values if packet.type is PacketType.PARTIAL else ())


_ASKS = (PacketType.PARTIAL, PacketType.ACK, PacketType.PROBE)

_TABLE = {
    (_Replies, "other"): {
        "ClearCarriesSums": ("Sends the sums with CLEAR.", lambda self, slot: {"values": slot.sums}),
        "ClearsTheSlotsRound": (
            "CLEAR names the slot's round, not the ACK's.",
            lambda self, slot: {"round": slot.round},
        ),
    },
    (_Sees, "seen"): {
        "TakesAllForAll": (
            "Takes broadcast PARTIALs and ACKs.",
            lambda self, packet: replace(packet, destination=self.mac) if packet.destination == BROADCAST else packet,
        ),
        "ProbesForAllAreLost": (
            "Does not answer broadcast probes.",
            lambda self, packet: replace(packet, destination=1) if packet.destination == BROADCAST else packet,
        ),
        "AnyDestination": (
            "Does not look at the destination.",
            lambda self, packet: replace(packet, destination=self.mac),
        ),
        "TypeBeforeAddress": (
            "Looks at the type before the address.",
            lambda self, packet: packet if packet.type in _ASKS else replace(packet, destination=self.mac),
        ),
        "AnyBitmap": (
            "Looks at the shard, not at the bitmap.",
            lambda self, packet: replace(packet, bitmap=1 << packet.shard % 32),
        ),
        "ShardsOfFiveBits": ("Shard 32 is shard 0.", lambda self, packet: replace(packet, shard=packet.shard % 32)),
        "SlotsOfFewBits": ("Slot numbers wrap.", lambda self, packet: replace(packet, slot=packet.slot % self._slots)),
    },
    (_Reads, "read"): {
        "AnyVersion": (
            "Does not look at the version.",
            lambda self, frame: frame[:14] + bytes([0x10 | frame[14] & 15]) + frame[15:] if len(frame) > 14 else frame,
        ),
        "AnyReserved": ("Does not look at the reserved bytes.", _blind(slice(26, 32), bytes(6))),
        "AnyEtherType": ("Does not look at the EtherType.", _blind(slice(12, 14), b"\x88\xb5")),
        "CutsLongFrames": ("Takes the first 64 bytes of a longer frame.", lambda self, frame: frame[:64]),
        "PadsShortFrames": (
            "Takes a frame of 60 bytes and more for one that was cut of its zeros.",
            lambda self, frame: frame.ljust(64, b"\0") if len(frame) >= 60 else frame,
        ),
    },
    (_ReadsKeyed, "read"): {
        "AnyCheck": (
            "Does not look at the check.",
            lambda self, frame: with_check(frame[:28] + bytes(4) + frame[32:]) if is_keyed(frame) else frame,
        ),
    },
    (_Unchecked, "unchecked"): {
        "AnyWorkers": ("Does not look at the number of workers.", DropReason.WORKERS),
        "AnySource": ("Does not look at where a packet comes from.", DropReason.SOURCE),
    },
    (_Echoes, "other"): {
        "EchoesTheRound": (
            "Tells the probe's round instead of the slot's.",
            lambda self, probe, echo: {"round": probe.round},
        ),
        "EchoesTheVersion": ("Answers in the probe's version.", lambda self, probe, echo: {"version": probe.version}),
        "EchoesNoAddress": (
            "Tells no address that the shard should have.",
            lambda self, probe, echo: {"values": _without_address(echo.values)},
        ),
    },
    (_EchoesKeyed, "other"): {
        "EchoesVersion1": (
            "Answers a probe of version 2 in version 1.",
            lambda self, probe, echo: {"version": 1, "most": 0},
        ),
        "EchoesVersion2": (
            "Answers a probe of version 1 in version 2.",
            lambda self, probe, echo: {"version": 2, "most": self.most},
        ),
    },
    (_SeesOfJob, "seen_by"): {
        "AnyKey": (
            "Does not look at the key.",
            lambda self, job, packet: packet if packet.key is None else replace(packet, key=job.key),
        ),
        "HalfOfTheKey": (
            "Compares the lower half of the key.",
            lambda self, job, packet: (
                packet
                if None in (job.key, packet.key)
                else replace(packet, key=packet.key & 0xFFFF_FFFF | job.key >> 32 << 32)
            ),
        ),
        "KeysAreOptional": (
            "Takes packets of version 1 in a job with a key.",
            lambda self, job, packet: (
                packet
                if job.key is None or packet.version != 1 or packet.type is PacketType.PROBE
                else _plain_with_key(packet, job)
            ),
        ),
        "KeyOfAcksDoesNotMatter": (
            "Looks at the key of PARTIAL alone.",
            lambda self, job, packet: (
                packet
                if None in (job.key, packet.key) or packet.type is not PacketType.ACK
                else replace(packet, key=job.key)
            ),
        ),
    },
}
"""Faults that are a method or setting of one of these classes: by name, what is wrong, and the wrong one."""

MUTANTS = [
    type(name, (base,), {"__doc__": says, wrong: how})
    for (base, wrong), faults in _TABLE.items()
    for name, (says, how) in faults.items()
]
MUTANTS += [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Aggregator) and kind is not Aggregator and kind.__name__[0] != "_"
]
"""All of them, and `Forgetful`."""
assert Forgetful in MUTANTS

PROGRAM_MUTANTS = [kind for kind in MUTANTS if issubclass(kind, _OfPrograms)]
"""Those that only cases with a parent or stand-ins can catch."""

KEYED_MUTANTS = {kind.__name__ for kind in MUTANTS if issubclass(kind, _Keyed)}
"""Names of those that only cases of version 2 can catch."""
