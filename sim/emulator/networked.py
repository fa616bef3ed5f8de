"""Emulated worker that takes part in AllReduce by packets, as a board does."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import (
    BROADCAST,
    KEYED_VERSION,
    MOST_MICRO_BATCHES,
    VERSION,
    DropReason,
    EchoValue,
    KeyedDrop,
    Packet,
    PacketType,
)
from p4sgd.hw.spec.register_map import STAND_IN, Field, Register
from p4sgd.sim.emulator.progress import Later, Pace, Progress, StandIn, at_once
from p4sgd.sim.emulator.worker import EmulatedWorker, EmulatorError, Run
from p4sgd.sim.model import Features
from p4sgd.sim.network.endpoint import Endpoint, SlotPhase

_PROBE_NUMBERS = 1 << spec.PROBE["number"].bits
_STAND_IN_PROBE = 1 << 30  # number of a stand-in's probes, which the host's do not have
_LOOK_CYCLES = 50_000  # time after which to look again whether another thread has computed something
_COUNTERS = spec.COUNTERS | spec.KEYED_COUNTERS


class KeepingWorker(EmulatedWorker):
    """An emulated worker that keeps the features of its last run for the next one, until their memory changes."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config, 0)
        self._features: Features | None = None
        self._regions: list[tuple[int, int, int]] = []  # where they are: memory, address, bytes

    def run(self) -> Run:
        """The run that registers and memory describe."""
        inputs = self.inputs()
        run = Run([inputs])
        self._features, self._regions = run.features, inputs.regions
        return run

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to a bank. The array is kept, not copied: it must not be changed afterwards."""
        self._release_features(bank, address, data.nbytes)
        super().write_memory(bank, address, data)

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        """Release bytes of a bank, as if they had never been written; a run under way still reads them."""
        self._release_features(bank, address, size)
        super().forget_memory(bank, address, size)

    def _release_features(self, bank: int, address: int, size: int) -> None:
        """Keep the features of the last run no longer once some of their bytes change, all of which they hold."""
        for memory, start, length in self._regions:
            if memory == bank and address < start + length and start < address + size:
                self._features, self._regions = None, []
                return


class NetworkedWorker(KeepingWorker):
    """An emulated worker that sends and receives packets as the RTL does.

    Its cycles are those of ``clock``: CYCLES_BUSY while it computes, CYCLES_NETWORK at all other times of a run.

    It has neither thread nor timer: its owner passes frames to `receive` and calls `work` after every frame, after
    every register write, and at the time `next_work`. One call computes at most one mini-batch.

    ``send`` sends a frame, which may get lost, and ``clock`` returns the time in cycles (`p4sgd.hw.spec.config`). It
    computes with at most ``speed`` values in a second (`Pace`), and so does ``later``. ``most`` are the micro-batches
    in a packet of version 2, for MERGE_MOST; 0 to speak version 1 only.

    It may stand in for another worker of its job: registers of that one's shard are `STAND_IN` behind its own, and its
    memories come behind its own; it is started first. JOIN there, written during a run, says that the other worker is
    gone and that answers to it come here. ``later`` computes what is for it: `at_once`, or ``submit`` of an executor
    with one thread.
    """

    def __init__(
        self,
        config: WorkerConfig,
        send: Callable[[bytes], None],
        clock: Callable[[], int],
        *,
        speed: float = math.inf,
        most: int = MOST_MICRO_BATCHES,
        later: Later = at_once,
    ) -> None:
        super().__init__(config)
        self._other = KeepingWorker(config)
        self._later = later
        self._stand_in: StandIn | None = None
        self._operations = 0  # that runs have done since the join
        self._most = most
        self.registers.set(spec.MERGE_MOST, "value", most)
        self._send_frame = send
        self._clock = clock
        self._endpoint = Endpoint(config.slots, shard=0, workers=1, most=most)
        self._endpoint.leave()  # after power-up a worker is in no job
        self._progress: Progress | None = None
        self._has_more = False  # whether `work` has something to do now
        self._resend_at: int | None = None
        self._probe = 0, 0  # number of the last probe, and when it was sent
        self._paces = Pace(speed, clock, self._count_busy), Pace(speed, clock)
        self._counted = Counter[str]()  # since power-up
        self._before = self._counts()  # counters when the run began

    # -- for the owner -------------------------------------------------------------------------------------------

    def read_register(self, offset: int) -> int:
        """Read a word."""
        return super().read_register(offset) if offset < STAND_IN else self._other.read_register(offset - STAND_IN)

    def write_register(self, offset: int, word: int) -> None:
        """Write a word; an `EmulatorError` if this would start a run that the worker cannot do."""
        if offset >= STAND_IN:
            if self.idle:
                self._other.write_register(offset - STAND_IN, word)
            elif offset == STAND_IN + spec.JOIN.offset:
                self._take_over()
            return
        super().write_register(offset, word)
        if offset == spec.PROBE.offset:
            self._configure()
            question = spec.PROBE.decode(word)
            destination = BROADCAST if question["broadcast"] else self._endpoint.peer_mac
            self._send_probe(question["slot"], question["number"], destination)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """See `KeepingWorker.write_memory`."""
        if (other := bank - self.config.memories) >= 0:
            self._other.write_memory(other, address, data)
        else:
            super().write_memory(bank, address, data)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """See `EmulatedWorker.read_memory`."""
        if (other := bank - self.config.memories) >= 0:
            return self._other.read_memory(other, address, size)
        return super().read_memory(bank, address, size)

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        """See `KeepingWorker.forget_memory`."""
        if (other := bank - self.config.memories) >= 0:
            self._other.forget_memory(other, address, size)
        else:
            super().forget_memory(bank, address, size)

    @property
    def memory_bytes(self) -> int:
        """Bytes kept in all banks."""
        return super().memory_bytes + self._other.memory_bytes

    def receive(self, frame: bytes) -> None:
        """Process a frame of any length."""
        now = self._clock()
        self._counted["PACKETS_RECEIVED"] += 1
        acknowledgement = self._endpoint.receive_frame(frame, now)
        if acknowledgement is not None:
            self._send(acknowledgement, now)
        if (echo := self._endpoint.echo) is not None:
            self._endpoint.echo = None
            if echo.values[EchoValue.NUMBER] == _STAND_IN_PROBE:
                self._hear(echo)
            else:
                self._show_echo(echo, now)

    def work(self) -> None:
        """Resend packets that are due, continue the run, and start one that was requested during another."""
        now = self._clock()
        if self._resend_at is not None and now >= self._resend_at:
            self._resend(now)
        if self._progress is not None:
            self._advance(self._progress)
        if self._progress is None and self.registers.get(spec.CTRL, "start"):
            try:
                super()._strobe(spec.CTRL, spec.CTRL["start"], 1)
                self._start()
            except EmulatorError:  # too late to fail the write that requested it: set a flag
                self._end("refused")

    @property
    def next_work(self) -> int | None:
        """Time at which to call `work` even if no frame comes; None for never."""
        if self._has_more:
            return self._clock()
        if self._awaits_stand_in():
            soon = self._clock() + _LOOK_CYCLES
            return soon if self._resend_at is None else min(soon, self._resend_at)
        return self._resend_at

    @property
    def idle(self) -> bool:
        """Whether no run is under way, as CTRL.idle."""
        return self._progress is None

    # -- a run ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._configure()
        merged = self.registers.get(spec.MERGE)
        try:
            if merged > self._most:
                raise EmulatorError(f"MERGE is {merged}, more than {self._most}, which is MERGE_MOST")
            runs = [worker.run() for worker in (self, self._other) if worker.started]
        except BaseException:
            self.stop()
            self._other.stop()
            raise
        self._before = self._counts()
        if self._endpoint.joined:
            shape = merged or 1, self._operations
            own, others = self._paces
            self._progress = Progress(runs[0], self.index, own, *shape)
            self._endpoint.has_stand_in = len(runs) > 1  # where one stands in for another, all do
            self._endpoint.adapts = len(runs) == 1  # its stand-in asks for who pauses after a fixed time
            if len(runs) > 1:
                self._stand_in = StandIn(runs[1], self._other.index, others, *shape, self._later)
            return
        self._end("not_joined")
        if self._endpoint.given_up is not None:
            self.registers.set(spec.STATUS, "network_error", 1)

    def _advance(self, progress: Progress) -> None:
        endpoint, stand_in = self._endpoint, self._stand_in
        if endpoint.given_up is not None:
            self._end("network_error")
            return
        self._has_more = False
        while endpoint.sums:
            sums = endpoint.sums.popleft()
            if stand_in is not None:
                stand_in.take(sums)  # first: it goes on meanwhile
            if progress.take(sums) and stand_in is not None:  # sums of the next mini-batch may have come, too
                self._has_more = True
                return
        begun = []
        if endpoint.next_operation in progress.operations:
            if stand_in is not None:
                stand_in.begin()
            progress.compute()
            while endpoint.next_operation in progress.operations and endpoint.can_submit:
                begun.append(endpoint.next_operation)
                now = self._clock()
                self._send(endpoint.submit(progress.partials(begun[-1]).tolist(), now), now)
        if stand_in is not None:
            has_told = not stand_in.tells()
            if stand_in.is_gone and stand_in.has_partials:
                self._stand_in_now(begun if has_told else self._waiting())
            elif not has_told:
                self._ask()
        if progress.is_over and not endpoint.busy and (stand_in is None or not stand_in.is_busy):
            self._progress = self._stand_in = None
            self._operations = progress.operations.start
            self._show_counters()
            try:
                for each in filter(None, (progress, stand_in)):
                    each.run.finish()
            except EmulatorError:
                self._end("memory_error")
                endpoint.leave()

    def _count_busy(self, cycles: int) -> None:
        self._counted["CYCLES_BUSY"] += cycles

    def _end(self, flag: str) -> None:
        """End the run as void, with a flag of STATUS."""
        self._progress = self._stand_in = None
        self._has_more = False
        self._other.stop()
        self.registers.set(spec.STATUS, flag, 1)
        self.registers.set(spec.CTRL, "done", 1)
        self.stop()
        self._show_counters()

    # -- standing in for another worker --------------------------------------------------------------------------

    def _awaits_stand_in(self) -> bool:
        """Whether something goes on when another thread has computed what it does."""
        if self._stand_in is None or self._progress is None:
            return False
        return self._stand_in.is_busy if self._progress.is_over else self._stand_in.is_awaited

    def _waiting(self) -> list[int]:
        """Operations of this mini-batch that wait for sums."""
        assert self._progress is not None
        return [each for each in self._progress.operations if self._endpoint.waits_for(each)]

    def _ask(self) -> None:
        """Ask the aggregator who is missing in the first operation that waits."""
        if waiting := self._waiting():
            slot = waiting[0] % self.config.slots
            self._transmit(
                self._endpoint.probe(slot, _STAND_IN_PROBE, version=KEYED_VERSION if self._most else VERSION)
            )

    def _hear(self, echo: Packet) -> None:
        """Stand in for the other worker if it is missing, or have its partials computed."""
        if (stand_in := self._stand_in) is None:
            return
        waiting = self._waiting()
        if echo.slot not in [each % self.config.slots for each in waiting]:
            return
        if echo.bitmap >> stand_in.shard & 1 or echo.round != self._endpoint.round_of(echo.slot):
            return
        stand_in.is_missing = True
        stand_in.compute()
        if stand_in.has_partials:
            self._stand_in_now(waiting)

    def _take_over(self) -> None:
        """Be the other worker, too, which is gone: send all that it has not."""
        if (stand_in := self._stand_in) is None:
            return
        stand_in.is_gone = True
        self._endpoint.also = stand_in.shard
        for packet in self._endpoint.unanswered():
            self._acknowledge_too(packet)
        if waiting := self._waiting():
            stand_in.compute()
            if stand_in.has_partials:
                self._stand_in_now(waiting)

    def _stand_in_now(self, operations: Sequence[int]) -> None:
        """Send the other worker's partials in some operations that wait for sums."""
        stand_in = self._stand_in
        assert stand_in is not None
        stand_in.has_sent = True
        for operation in operations:
            values = tuple(stand_in.partials(operation).tolist())
            self._transmit(self._endpoint.packet_of(operation, stand_in.shard, values))

    # -- packets -------------------------------------------------------------------------------------------------

    def _send(self, packet: Packet, now: int) -> None:
        self._transmit(packet)
        self._acknowledge_too(packet)
        due = now + self._endpoint.first_wait
        self._resend_at = due if self._resend_at is None else min(due, self._resend_at)

    def _transmit(self, packet: Packet) -> None:
        self._counted["PACKETS_SENT"] += 1
        self._send_frame(packet.to_bytes())

    def _acknowledge_too(self, packet: Packet) -> None:
        """If a packet acknowledges sums, do so for another worker that is gone, too."""
        if (other := self._endpoint.also) is not None and packet.type is PacketType.ACK:
            self._transmit(replace(packet, shard=other, bitmap=1 << other))

    def _resend(self, now: int) -> None:
        had_given_up = self._endpoint.given_up is not None
        due = self._endpoint.resend(now)
        for packet in due:
            self._counted["PACKETS_RESENT"] += 1
            self._transmit(packet)
            self._acknowledge_too(packet)
        if self._stand_in is not None and any(packet.type is PacketType.PARTIAL for packet in due):
            self._ask()
        self._resend_at = self._endpoint.next_resend()
        given_up = self._endpoint.given_up
        if given_up is not None and not had_given_up:
            values = {"slot": given_up.slot, "partial": given_up.phase is SlotPhase.PARTIAL, "round": given_up.round}
            self._show(spec.GIVEN_UP, given_up=1, **values)
            self._send_probe(given_up.slot, 0, self._endpoint.peer_mac)

    def _send_probe(self, slot: int, number: int, destination: int) -> None:
        self._probe = number, self._clock()
        self.registers.set(spec.ECHO, "came", 0)
        version = KEYED_VERSION if self._most else VERSION
        self._transmit(self._endpoint.probe(slot, number, destination, version=version))

    def _show_echo(self, echo: Packet, now: int) -> None:
        number, asked_at = self._probe
        values = echo.values
        if values[EchoValue.NUMBER] % _PROBE_NUMBERS != number or self.registers.get(spec.ECHO, "came"):
            return
        verdict, port = values[EchoValue.VERDICT], values[EchoValue.PORT]
        self._show(spec.ECHO, number=number, verdict=verdict, port=port, version=echo.version, came=1)
        self._show(spec.ECHO_JOB, round=echo.round, workers=values[EchoValue.WORKERS])
        self._show_pair(spec.ECHO_SOURCE, echo.source)
        shown = {
            spec.ECHO_AGGREGATED: echo.bitmap,
            spec.ECHO_ACKNOWLEDGED: values[EchoValue.ACKNOWLEDGED],
            spec.ECHO_SLOTS: values[EchoValue.SLOTS],
            spec.ECHO_EXPECTED[0]: values[EchoValue.MAC_LOW],
            spec.ECHO_EXPECTED[1]: values[EchoValue.MAC_HIGH],
            spec.ECHO_CYCLES: now - asked_at,
            spec.ECHO_MOST: echo.most,
        }
        for register, value in shown.items():
            self._show(register, value=value)

    # -- registers -----------------------------------------------------------------------------------------------

    def _strobe(self, register: Register, field: Field, value: int) -> None:
        if register is spec.CTRL and not self.idle:
            return  # start stays set until the current run ends
        super()._strobe(register, field, value)
        if register is spec.CTRL:
            self._start()
        elif register is spec.JOIN and self.idle:
            self._endpoint.join(value)
            self._other.stop()
            self._operations = 0
            self._show(spec.GIVEN_UP, slot=0, partial=0, round=0, given_up=0)
        elif register is spec.ABORT and not self.idle:
            self._end("aborted")
            self._endpoint.leave()
        elif register is spec.SNAPSHOT and not self.idle:
            self._show_counters()

    def _configure(self) -> None:
        """Copy settings from the registers to the endpoint, before a run or a probe: they change only between runs."""
        get, get_pair, endpoint = self.registers.get, self.registers.get_pair, self._endpoint
        endpoint.job, endpoint.shard, endpoint.workers = (get(spec.JOB, name) for name in ("job", "shard", "workers"))
        self.index, self._other.index = endpoint.shard, self._other.registers.get(spec.JOB, "shard")
        endpoint.local_mac, endpoint.peer_mac = get_pair(spec.LOCAL_MAC), get_pair(spec.PEER_MAC)
        endpoint.key = get_pair(spec.JOB_KEY) if get(spec.MERGE) else None
        endpoint.resend_after = get(spec.RESEND_CYCLES)
        endpoint.resends, endpoint.doublings = get(spec.RESEND, "limit"), get(spec.RESEND, "doublings")

    def _counts(self) -> Counter[str]:
        """Counters since power-up, by the names of `COUNTERS` and `KEYED_COUNTERS` in `p4sgd.hw.spec.registers`."""
        drops, now = self._endpoint.drops, self._clock()
        dropped = {f"DROPPED_{drop.name}": drops[drop] for reasons in (DropReason, KeyedDrop) for drop in reasons}
        cycles = {"CYCLES": now, "CYCLES_NETWORK": now - self._counted["CYCLES_BUSY"]}
        names = ("CYCLES_BUSY", "PACKETS_SENT", "PACKETS_RESENT", "PACKETS_RECEIVED")
        counted = {name: self._counted[name] for name in names}
        return Counter(cycles | counted | {"PACKETS_DROPPED": drops.total()} | dropped)

    def _show_counters(self) -> None:
        """Show in the registers what was counted since the run began."""
        for name, count in self._counts().items():
            self._show_pair(_COUNTERS[name].registers, count - self._before[name])

    def _show(self, register: Register, **fields: int) -> None:
        for name, value in fields.items():
            self.registers.set(register, name, value & (1 << register[name].bits) - 1)

    def _show_pair(self, pair: tuple[Register, Register], value: int) -> None:
        low, high = pair
        self._show(low, value=value)
        self._show(high, value=value >> 32)
