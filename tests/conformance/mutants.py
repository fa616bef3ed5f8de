r"""Models of the aggregator with one fault each: mistakes that people who write a switch make.

A fault is a change of one method of `support.aggregator_model.Aggregator`: the text after - is replaced by that after
+. Without - the method begins with the text after +.
"""

import ast
import inspect
import re
import textwrap

from support import aggregator_model as model
from support.aggregator_model import Aggregator

from conformance.frames import is_keyed, with_check
from p4sgd.hw.spec.packet import DropReason, Packet, PacketType

PLAIN = r"""
AddsTwice, in _partial: Adds a partial that comes again before the slot is complete.
- elif slot.aggregated & packet.bitmap:
+ elif slot.aggregated & packet.bitmap and slot.aggregated in (job.everyone, job.whole):
TellsFullOnce, in _partial: Sends FULL to all, and to nobody again.
- return self._answer_one(PacketType.FULL, packet, slot, job)
+ return DropReason.DUPLICATE
TellsFullToAllAgain, in _answer_one: Sends FULL to all where one asks.
+ if kind is PacketType.FULL:
+     return self._answer_all(kind, packet, slot, job)
TellsClearToAllAgain, in _answer_one: Sends CLEAR to all where one asks.
+ if kind is PacketType.CLEAR:
+     return self._answer_all(kind, packet, slot, job)
TellsTheLastOnly, in _answer_all: Answers the last worker instead of all.
+ return self._answer_one(kind, packet, slot, job)
TellsThroughMembersPorts, in _answer_all: Takes the ports of a job's members for those of the job.
- job.ports
+ sum({1 << member.port for member in job.members})
TellsEverywhere, in _answer_all: Answers to all leave through all ports.
- job.ports
+ 0b1111
AddsToOldSums, in _partial: Does not overwrite the sums of the round before.
- slot.sums = packet.values
+ slot.sums = _add(slot.sums, packet.values)
KeepsAcknowledgements, in _partial: A new round does not forget who has acknowledged the last.
- slot.acknowledged = 0
+ pass
WaitsForCompletion, in _partial: Begins a round only when the one before is complete.
+ if packet.round == (slot.round + 1) % _ROUNDS and slot.aggregated not in (0, job.everyone):
+     return DropReason.STALE
WaitsForAcknowledgements, in _partial: Begins a round only when all have acknowledged the one before.
+ if packet.round == (slot.round + 1) % _ROUNDS and slot.aggregated and slot.acknowledged != job.everyone:
+     return DropReason.STALE
TakesLaterRounds, in _partial: Begins any later round.
- if packet.round == (slot.round + 1) % _ROUNDS:
+ if 0 < (packet.round - slot.round) % _ROUNDS < _ROUNDS // 2:
RoundsDoNotWrap, in _partial: Round 0 does not come after 65535.
- (slot.round + 1) % _ROUNDS
+ slot.round + 1
ComparesWithoutWrap, in _acknowledge: Takes the smaller number for the earlier round.
- (packet.round - slot.round) % _ROUNDS >= _ROUNDS // 2
+ packet.round < slot.round
ComparesOffByOne, in _acknowledge: Takes the round at a distance of exactly 2^15 for a later one.
- >= _ROUNDS // 2
+ > _ROUNDS // 2
IgnoresLateAcks, in _acknowledge: Does not tell CLEAR to those that the others have left behind.
- (packet.round - slot.round) % _ROUNDS >= _ROUNDS // 2
+ False
CountsLateAcks, in _acknowledge: Takes an ACK of any round for one of the slot's.
+ packet = replace(packet, round=slot.round)
CountsEarlyAcks, in _acknowledge: Takes an ACK while partials are missing.
+ if packet.round == slot.round and slot.aggregated not in (0, job.everyone):
+     slot.acknowledged |= packet.bitmap
+     return None
CountsAcks, in _acknowledge: Counts ACKs instead of who has sent them.
+ packet = replace(packet, bitmap=1 << slot.acknowledged.bit_count())
FreshSlotsAnswer, in _acknowledge: Tells CLEAR from a fresh slot.
- if slot.aggregated == 0:
+ if False:
FreshSlotsTakeTheirRound, in _partial: Adds a PARTIAL of the round before the first in a fresh slot.
- elif packet.round != slot.round or slot.aggregated == 0:
+ elif packet.round != slot.round:
SlotsStay, in begin: Slots of a job that is begun again are as they were left.
- self.slots[index] = [SlotState(before, wraps) for _ in range(self._slots)]
+ if not any(slot.aggregated for slot in self.slots[index]):
+     self.slots[index] = [SlotState(before, wraps) for _ in range(self._slots)]
JobsShareSlots, in begin: All jobs have the same slots.
- self.slots[index] = [SlotState(before, wraps) for _ in range(self._slots)]
+ self.slots = [[SlotState(before, wraps) for _ in range(self._slots)]] * len(self.slots)
EndsNothing, in end: Goes on to serve a job that has ended.
+ return
Saturates, in _partial: Sums stop at the ends of int32.
- _add(slot.sums, packet.values)
+ tuple(max(-(1 << 31), min((1 << 31) - 1, a + b)) for a, b in zip(slot.sums, packet.values, strict=True))
OneVersion, in receive_frame: Drops probes of other versions.
+ if len(frame) == 64 and frame[12:14] == b"\x88\xb5" and frame[14] >> 4 != 1:
+     self.drops[DropReason.VERSION] += 1
+     return None
AnyPort, in _failed_checks: Looks at the address, not at the port.
- (packet.source, port) != (source.mac, source.port)
+ packet.source != source.mac
AnyAddress, in _failed_checks: Looks at the port, not at the address.
- (packet.source, port) != (source.mac, source.port)
+ port != source.port
SourceBeforeSlot, in _failed_checks: Looks at the source before the slot, and at the shard before the number of workers.
- return failed
+ return sorted(failed, key=(DropReason.SHARD, DropReason.SOURCE, DropReason.WORKERS, DropReason.SLOT).index)
FirstVerdictOnly, in _echo: Tells only the first of the checks that a probe fails.
+ failed = failed[:1]
EchoesToTheMember, in _echo: Sends ECHO to where the shard should be, not to where the probe came from.
- return Answer(reply, 1 << port)
+ if DropReason.SOURCE in failed:
+     reply, port = replace(reply, destination=mac), job.members[packet.shard].port
+ return Answer(reply, 1 << port)
ProbesAcknowledge, in _echo: A probe of a complete slot counts as an ACK.
- return Answer(reply, 1 << port)
+ if not failed and slot.aggregated == job.everyone:
+     slot.acknowledged |= packet.bitmap
+ return Answer(reply, 1 << port)
OneLaneTooFew, in _partial: Forgets the last value of partials that join.
- _add(slot.sums, packet.values)
+ _add(slot.sums, (*packet.values[:-1], 0))
DoesNotCountJobs, in receive: Does not count by job.
- self.job_accepted[place] += 1
+ pass
CountsStaleAsDuplicate, in _partial: Counts packets of other rounds as repeated ones.
- return DropReason.STALE
+ return DropReason.DUPLICATE
ClearCarriesSums, in _reply: Sends the sums with CLEAR.
- slot.sums if kind is PacketType.FULL else _no_values(job)
+ slot.sums
ClearsTheSlotsRound, in _reply: CLEAR names the slot's round, not the ACK's.
- packet.round
+ slot.round
TakesAllForAll, in receive: Takes broadcast PARTIALs and ACKs.
- packet.destination == BROADCAST if is_probe else
+ packet.destination == BROADCAST or
ProbesForAllAreLost, in receive: Does not answer broadcast probes.
- packet.destination == BROADCAST if is_probe
+ False if is_probe
AnyDestination, in receive: Does not look at the destination.
- if packet.destination != self.mac and not is_to_all:
+ if False:
TypeBeforeAddress, in receive: Looks at the type before the address.
+ if packet.type not in (PacketType.PARTIAL, PacketType.ACK, PacketType.PROBE):
+     packet = replace(packet, destination=self.mac)
AnyBitmap, in receive: Looks at the shard, not at the bitmap.
+ packet = replace(packet, bitmap=1 << packet.shard % 32)
ShardsOfFiveBits, in receive: Shard 32 is shard 0.
+ packet = replace(packet, shard=packet.shard % 32)
SlotsOfFewBits, in receive: Slot numbers wrap.
+ packet = replace(packet, slot=packet.slot % self._slots)
AnyVersion, in receive_frame: Does not look at the version.
+ frame = frame[:14] + bytes([0x10 | frame[14] & 15]) + frame[15:] if len(frame) > 14 else frame
AnyReserved, in receive_frame: Does not look at the reserved bytes.
+ frame = frame[:26] + bytes(6) + frame[32:] if len(frame) == 64 else frame
AnyEtherType, in receive_frame: Does not look at the EtherType.
+ frame = frame[:12] + b"\x88\xb5" + frame[14:] if len(frame) == 64 else frame
CutsLongFrames, in receive_frame: Takes the first 64 bytes of a longer frame.
+ frame = frame[:64]
PadsShortFrames, in receive_frame: Takes a frame of 60 bytes and more for one that was cut of its zeros.
+ frame = frame.ljust(64, b"\0") if len(frame) >= 60 else frame
AnyWorkers, in _failed_checks: Does not look at the number of workers.
- failed.append(DropReason.WORKERS)
+ pass
AnySource, in _failed_checks: Does not look at where a packet comes from.
- failed.append(DropReason.SOURCE)
+ pass
EchoesTheRound, in _echo: Tells the probe's round instead of the slot's.
- round=slot.round
+ round=packet.round
EchoesTheVersion, in _echo: Answers in the probe's version.
- version=KEYED_VERSION if is_keyed else VERSION
+ version=packet.version
EchoesNoAddress, in _echo: Tells no address that the shard should have.
- job.members[packet.shard].mac if job and known else 0
+ 0
"""

OF_VERSION_2 = r"""
KeyBeforeSource, in _act: Looks at the key before all that a job's packet must have.
- if failed:
+ if job and packet.key != self._key(job, slot, packet.round):
+     return KeyedDrop.KEY
+ if failed:
FirstMicroBatchOnly, in _partial: Adds up the first micro-batch of those that join.
- _add(slot.sums, packet.values)
+ _add(slot.sums, packet.values[:VALUES] + (0,) * (len(packet.values) - VALUES))
ShortPartialsJoin, in _partial: Adds a PARTIAL that is shorter than the others of its round.
+ if packet.round == slot.round:
+     packet = replace(packet, values=packet.values + (0,) * (len(slot.sums) - len(packet.values)))
KeepsTheLength, in _partial: A slot has as many micro-batches as in its first round.
+ if packet.key is not None and slot.aggregated and len(packet.values) != len(slot.sums):
+     return DropReason.LONG
ClearIsAsLongAsFull, in _reply: CLEAR carries the sums, in version 2.
- return Packet(
+ return (Packet if kind is PacketType.FULL or packet.key is None else Padded)(
AnyCheck, in receive_frame: Does not look at the check.
+ frame = with_check(frame[:28] + bytes(4) + frame[32:]) if is_keyed(frame) else frame
EchoesVersion1, in _echo: Answers a probe of version 2 in version 1.
- bool(self.most) and packet.version >= KEYED_VERSION
+ False
EchoesVersion2, in _echo: Answers a probe of version 1 in version 2.
- bool(self.most) and packet.version >= KEYED_VERSION
+ True
KeepsTheKey, in _key: The key is the same in all rounds.
- key_in_round(job.key, round_near(sent, now))
+ job.key
AnyKey, in _act: Does not look at the key.
- packet.key != self._key(job, slot, packet.round)
+ packet.key is None and job.key is not None
HalfOfTheKey, in _act: Compares the lower half of the key.
- packet.key != self._key(job, slot, packet.round)
+ ((packet.key or 0) ^ (self._key(job, slot, packet.round) or 0)) & 0xFFFF_FFFF
KeysAreOptional, in _act: Takes packets of version 1 in a job with a key.
- if packet.key != self._key(job, slot, packet.round):
+ if job.key is not None and packet.key is None:
+     values = packet.values if packet.type is PacketType.PARTIAL else ()
+     packet = replace(packet, key=self._key(job, slot, packet.round), values=values)
+ if packet.key != self._key(job, slot, packet.round):
KeyOfAcksDoesNotMatter, in _act: Looks at the key of PARTIAL alone.
- packet.key != self._key(job, slot, packet.round)
+ packet.key != self._key(job, slot, packet.round) and (packet.type is PacketType.PARTIAL or packet.key is None)
"""

OF_PROGRAMS = r"""
ClearsBeforeItsParent, in _ask: Sends CLEAR when its own workers have acknowledged.
+ if packet.type is PacketType.ACK:
+     slot.acknowledged = job.whole
+     return self._answer_all(PacketType.CLEAR, packet, slot, job)
AsksOnce, in _partial: Does not repeat its PARTIAL to the parent.
- return self._ask(packet, slot, job) if slot.aggregated == job.everyone else DropReason.DUPLICATE
+ return DropReason.DUPLICATE
AcknowledgesOnce, in _acknowledge: Does not repeat its ACK to the parent.
- if slot.acknowledged != job.everyone:
+ if is_repeated or slot.acknowledged != job.everyone:
TakesFullOfAnyRound, in _full: Does not look at the round of the parent's FULL.
+ packet = replace(packet, round=slot.round)
TakesClearOfAnyRound, in _clear: Does not look at the round of the parent's CLEAR.
+ packet = replace(packet, round=slot.round)
AddsTheParentsSums, in _full: Adds the parent's sums to its own.
- slot.sums = packet.values
+ slot.sums = _add(slot.sums, packet.values)
KeepsItsOwnSums, in _full: Sends its own sums in FULL, not the parent's.
- slot.sums = packet.values
+ pass
TakesFullTooSoon, in _full: Takes the parent's FULL while partials of its own workers are missing.
- slot.aggregated not in (job.everyone, job.whole)
+ slot.aggregated == 0
PassesOnEveryFull, in _full: Sends the parent's FULL to all each time that it comes.
- if slot.aggregated == job.whole:
+ if False:
TellsItsWorkersUpward, in _ask: Names its own number of workers to the parent.
- job.parent.workers
+ len(job.members)
AnyParent, in _failed_checks: Takes FULL and CLEAR from anybody.
- if all((
+ if not parent and all((
AnyShardOfTheParent, in _failed_checks: Takes FULL and CLEAR to other shards of the parent.
- else parent.shard
+ else packet.shard
ForgetsTheParent, in _echo: Tells nobody that the parent's answer has come.
+ slot = replace(slot, aggregated=slot.aggregated & job.everyone) if job else slot
NobodyStandsIn, in _failed_checks: Takes no PARTIAL of a stand-in.
- if packet.type is PacketType.PARTIAL and job.members[packet.shard].stand_in:
+ if False:
StandInsAcknowledge, in _failed_checks: Takes ACK of a stand-in.
- packet.type is PacketType.PARTIAL
+ packet.type in (PacketType.PARTIAL, PacketType.ACK)
StandInsProbe, in _failed_checks: Tells a stand-in that probes as another worker that all is well.
- packet.type is PacketType.PARTIAL
+ packet.type in (PacketType.PARTIAL, PacketType.PROBE)
AnswersStandIns, in _is_of_stand_in: Sends FULL to a worker because its stand-in repeats its PARTIAL.
+ return False
ForgetsTheOwner, in _partial: Does not answer a worker whose stand-in was first.
+ first = self.__dict__.setdefault("first", {})
+ if packet.round != slot.round or not slot.aggregated & packet.bitmap:
+     first[id(slot), packet.shard] = packet.source
+ elif first[id(slot), packet.shard] != packet.source:
+     return DropReason.DUPLICATE
AddsBoth, in _partial: Adds the PARTIAL of a worker and that of its stand-in.
- elif slot.aggregated & packet.bitmap:
+ elif slot.aggregated & packet.bitmap:
+     if job.members[packet.shard].stand_in and slot.aggregated not in (job.everyone, job.whole):
+         slot.sums = _add(slot.sums, packet.values)
StandsInInAnyRound, in _partial: Does not look at the round of a stand-in's PARTIAL.
+ if slot.aggregated and packet.source != job.members[packet.shard].mac:
+     packet = replace(packet, round=slot.round)
StandsInForAll, in _failed_checks: Takes PARTIALs of any worker from one that stands in for another.
- if packet.type is PacketType.PARTIAL and job.members[packet.shard].stand_in:
+ if packet.type is PacketType.PARTIAL:
+     sources += [member.stand_in for member in job.members if member.stand_in]
+ if False:
StandsInByAddress, in _failed_checks: Does not look at the port of a stand-in.
- sources.append(job.members[packet.shard].stand_in)
+ sources.append(replace(job.members[packet.shard].stand_in, port=port))
"""


class Padded(Packet):
    """A packet with 8 bytes more."""

    def to_bytes(self) -> bytes:
        return super().to_bytes() + bytes(8)


def _made(name: str, method: str, says: str, change: str) -> type[Aggregator]:
    """A model with this change of its method."""
    source = textwrap.dedent(inspect.getsource(getattr(Aggregator, method)))
    old, new = ("\n".join(re.findall(rf"^\{sign} (.*)$", change, re.MULTILINE)) for sign in "-+")
    if not old:
        (function,) = ast.parse(source).body
        assert isinstance(function, ast.FunctionDef)
        statement = function.body[1 if ast.get_docstring(function) else 0]
        old = source.splitlines()[statement.lineno - 1].lstrip()
        new += "\n" + old
    before, after = source.split(old)
    line = before.rpartition("\n")[2]
    indent = line[: len(line) - len(line.lstrip())]
    found = {**vars(model), "Padded": Padded, "is_keyed": is_keyed, "with_check": with_check}
    exec(before + new.replace("\n", "\n" + indent) + after, found)
    return type(name, (Aggregator,), {"__doc__": says, method: found[method]})


def _all(faults: str) -> dict[str, type[Aggregator]]:
    """Those of a list, by name."""
    found = re.findall(r"^(\w+), in (\w+): (.*)\n((?:[-+] .*\n)+)", faults, re.MULTILINE)
    return {name: _made(name, method, says, change) for name, method, says, change in found}


class Forgetful(Aggregator):
    """The aggregator of the published prototypes: two kinds of round, told apart by nothing."""

    def _partial(self, slot, packet, job):
        if slot.acknowledged == job.everyone or slot.aggregated == 0:
            slot.aggregated = slot.acknowledged = 0
            slot.sums = (0,) * 8
        slot.round = packet.round
        if slot.aggregated & packet.bitmap:
            complete = slot.aggregated == job.everyone
            return self._answer_one(PacketType.FULL, packet, slot, job) if complete else DropReason.DUPLICATE
        slot.aggregated |= packet.bitmap
        slot.sums = tuple(a + b for a, b in zip(slot.sums, packet.values, strict=True))
        return self._answer_all(PacketType.FULL, packet, slot, job) if slot.aggregated == job.everyone else None

    def _acknowledge(self, slot, packet, job):
        slot.acknowledged |= packet.bitmap
        return self._answer_all(PacketType.CLEAR, packet, slot, job) if slot.acknowledged == job.everyone else None


KEYED_MUTANTS = _all(OF_VERSION_2)
"""Those that only cases of version 2 can catch."""

PROGRAM_MUTANTS = _all(OF_PROGRAMS)
"""Those that only cases with a parent or stand-ins can catch."""

MUTANTS = {**_all(PLAIN), **KEYED_MUTANTS, **PROGRAM_MUTANTS, "Forgetful": Forgetful}
"""All of them by name."""
