"""Emulated worker that takes part in AllReduce by packets, as a board does."""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.packet import (
    BROADCAST,
    KEYED_VERSION,
    MOST_MICRO_BATCHES,
    VERSION,
    DropReason,
    EchoValue,
    KeyedDrop,
    Packet,
)
from p4sgd.hw.spec.register_map import Field, Register
from p4sgd.sim.emulator.worker import EmulatedWorker, EmulatorError, Inputs, Run
from p4sgd.sim.model import Features
from p4sgd.sim.network.endpoint import Endpoint, SlotPhase

_PROBE_NUMBERS = 1 << spec.PROBE["number"].bits
_COUNTERS = spec.COUNTERS | spec.KEYED_COUNTERS


class _Progress:
    """Progress of a run. The partials of a mini-batch are computed at once and wait here for free slots.

    All arithmetic is done within ``computing()``, which takes its time. An AllReduce has ``merged`` micro-batches, the
    last of a mini-batch may have fewer.
    """

    def __init__(self, run: Run, computing: Callable[[], AbstractContextManager[None]], merged: int) -> None:
        self.run = run
        self._computing = computing
        self._size = BANKS * merged
        self.partials: deque[IntArray] = deque()
        self._sums: list[int] = []
        self._mini_batch = -1

    def begin(self) -> None:
        """Compute the partials of the first mini-batch, unless that is done."""
        if self._mini_batch < 0:
            with self._computing():
                self._next()

    def take(self, sums: tuple[int, ...]) -> None:
        """Take the sums of an AllReduce; after the last one, update the weights and begin the next mini-batch."""
        self._sums += sums
        if len(self._sums) == self.run.settings.batch:
            with self._computing():
                self.run.model.backward(self.run.samples(self._mini_batch), np.array(self._sums, np.int64))
                self._sums.clear()
                self._next()

    @property
    def is_over(self) -> bool:
        """Whether all mini-batches are done."""
        return self._mini_batch == self.run.settings.mini_batches

    def _next(self) -> None:
        self._mini_batch += 1
        if not self.is_over:
            partials = self.run.model.forward(self.run.samples(self._mini_batch))
            self.partials.extend(partials[first : first + self._size] for first in range(0, partials.size, self._size))


class NetworkedWorker(EmulatedWorker):
    """An emulated worker that sends and receives packets as the RTL does.

    Its cycles are those of ``clock``: CYCLES_BUSY while it computes, CYCLES_NETWORK at all other times of a run.

    It has neither thread nor timer: its owner passes frames to `receive` and calls `work` after every frame, after
    every register write, and at the time `next_work`. One call computes at most one mini-batch.

    ``send`` sends a frame, which may get lost, and ``clock`` returns the time in cycles (`p4sgd.hw.spec.config`). It
    computes at a fraction ``speed`` of this machine's speed, above 0 and at most 1. ``most`` are the micro-batches in a
    packet of version 2, for MERGE_MOST; 0 to speak version 1 only.
    """

    def __init__(
        self,
        config: WorkerConfig,
        send: Callable[[bytes], None],
        clock: Callable[[], int],
        *,
        speed: float = 1.0,
        most: int = MOST_MICRO_BATCHES,
    ) -> None:
        super().__init__(config, 0)
        self._most = most
        self.registers.set(spec.MERGE_MOST, "value", most)
        self._send_frame = send
        self._clock = clock
        self._endpoint = Endpoint(config.slots, shard=0, workers=1, most=most)
        self._endpoint.leave()  # after power-up a worker is in no job
        self._progress: _Progress | None = None
        self._features: Features | None = None  # those of the last run, and where they are: memory, address, bytes
        self._regions: list[tuple[int, int, int]] = []
        self._resend_at: int | None = None
        self._probe = 0, 0  # number of the last probe, and when it was sent
        self._speed = speed
        self._counted = Counter[str]()  # since power-up
        self._before = self._counts()  # counters when the run began

    # -- for the owner -------------------------------------------------------------------------------------------

    def write_register(self, offset: int, word: int) -> None:
        """Write a word; an `EmulatorError` if this would start a run that the worker cannot do."""
        super().write_register(offset, word)
        if offset == spec.PROBE.offset:
            self._configure()
            question = spec.PROBE.decode(word)
            destination = BROADCAST if question["broadcast"] else self._endpoint.peer_mac
            self._send_probe(question["slot"], question["number"], destination)

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

    def receive(self, frame: bytes) -> None:
        """Process a frame of any length."""
        now = self._clock()
        self._counted["PACKETS_RECEIVED"] += 1
        acknowledgement = self._endpoint.receive_frame(frame, now)
        if acknowledgement is not None:
            self._send(acknowledgement, now)
        if self._endpoint.echo is not None:
            self._show_echo(self._endpoint.echo, now)
            self._endpoint.echo = None

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
            inputs = Inputs(self)
            run = Run([inputs])
            self._features, self._regions = run.features, inputs.regions
        except BaseException:
            self.stop()
            raise
        self._before = self._counts()
        if self._endpoint.joined:
            self._progress = _Progress(run, self._computing, merged or 1)
            return
        self._end("not_joined")
        if self._endpoint.given_up is not None:
            self.registers.set(spec.STATUS, "network_error", 1)

    def _advance(self, progress: _Progress) -> None:
        endpoint = self._endpoint
        if endpoint.given_up is not None:
            self._end("network_error")
            return
        progress.begin()
        while endpoint.sums:
            progress.take(endpoint.sums.popleft())
        while progress.partials and endpoint.can_submit:
            now = self._clock()
            self._send(endpoint.submit(progress.partials.popleft().tolist(), now), now)
        if progress.is_over and not endpoint.busy:
            self._progress = None
            self._show_counters()
            try:
                progress.run.finish()
            except EmulatorError:
                self._end("memory_error")
                endpoint.leave()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        """Count the time of the enclosed code, and stretch it if the worker is slowed down."""
        begin, computed = self._clock(), time.thread_time()
        yield
        if self._speed < 1:
            time.sleep((time.thread_time() - computed) * (1 / self._speed - 1))
        self._counted["CYCLES_BUSY"] += self._clock() - begin

    def _end(self, flag: str) -> None:
        """End the run as void, with a flag of STATUS."""
        self._progress = None
        self.registers.set(spec.STATUS, flag, 1)
        self.registers.set(spec.CTRL, "done", 1)
        self.stop()
        self._show_counters()

    # -- packets -------------------------------------------------------------------------------------------------

    def _send(self, packet: Packet, now: int) -> None:
        self._transmit(packet)
        due = now + self._endpoint.resend_after
        self._resend_at = due if self._resend_at is None else min(due, self._resend_at)

    def _transmit(self, packet: Packet) -> None:
        self._counted["PACKETS_SENT"] += 1
        self._send_frame(packet.to_bytes())

    def _resend(self, now: int) -> None:
        had_given_up = self._endpoint.given_up is not None
        for packet in self._endpoint.resend(now):
            self._counted["PACKETS_RESENT"] += 1
            self._transmit(packet)
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
        self.index = endpoint.shard
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
