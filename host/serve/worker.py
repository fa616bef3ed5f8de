"""The server of a worker process: a worker between a network link and a control socket."""

import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from p4sgd.host.errors import UserError
from p4sgd.host.links.link import Link
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlListener
from p4sgd.host.rpc.message import RefusedError
from p4sgd.host.rpc.server import LEASE_S, ControlServer, Methods, Until
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.packet import mac_text
from p4sgd.hw.spec.register_map import ADDRESS_BITS, STAND_IN, RegisterClient
from p4sgd.sim.emulator import EmulatorError
from p4sgd.sim.emulator.networked import NetworkedWorker

_FRAMES = 64  # most frames taken in one turn, so that the client has its turn too

# -- arguments of requests, whose lists are bounded as packets wait in the meantime

_Word = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
_Register = Annotated[int, Meta(ge=0, lt=2 * STAND_IN, multiple_of=4)]
_Registers = Annotated[list[_Register], Meta(max_length=(1 << ADDRESS_BITS) // 4)]
_Words = Annotated[list[tuple[_Register, _Word]], Meta(max_length=4096)]
_Milliseconds = Annotated[int, Meta(ge=0, le=10_000)]
_Address = Annotated[int, Meta(ge=0)]
_Size = Annotated[int, Meta(ge=1)]


def cycles_now() -> int:
    """This machine's time in clock cycles of the hardware."""
    return time.monotonic_ns() // CLOCK_NS


class WorkerServer:
    """Serves a worker to one client at a time, and lets it `work` after every frame and request, and at `next_work`.

    Its packets come from ``link``. ``listener`` is closed with the server. All memories of the worker may keep
    ``memory_limit`` bytes; a run may also hold what was overwritten since it began. ``tell`` gets remarks on clients
    without the listener's token.
    """

    def __init__(
        self,
        worker: NetworkedWorker,
        link: Link,
        listener: ControlListener,
        memory_limit: int,
        *,
        tell: Callable[[str], None] = lambda remark: None,
    ) -> None:
        self._worker = worker
        self._link = link
        self._memory_limit = memory_limit
        self._owner: set[int] = set()  # the client that began the run, if any
        self._orphan_ends_at: float | None = None
        self._control = ControlServer(
            listener,
            "worker",
            Methods(
                read_registers=self._read_registers,
                write_registers=self._write_registers,
                read_memory=self._read_memory,
                prepare_write=self._prepare_write,
                write_memory=self._write_memory,
                await_end=self._await_end,
            ),
            refusals=(EmulatorError, UserError, MemoryError, ValueError),
            most_clients=1,
            busy="is in use by another program: wait until that has ended",
            body_limit=memory_limit,
            tell=tell,
        )
        self._control.watch(link, self._take_frames)

    def serve(self) -> None:
        """Serve until an exception, usually `KeyboardInterrupt`, ends it."""
        try:
            while True:
                self._control.turn(self._seconds_to_work())
                self._worker.work()
                self._abort_orphan()
        finally:
            self._control.close()

    def _seconds_to_work(self) -> float | None:
        """Seconds until there is something to do even if nothing is received; None if there is nothing."""
        next_work, orphan_ends_at = self._worker.next_work, self._orphan_ends_at
        waits = [] if next_work is None else [(next_work - cycles_now()) * CLOCK_NS / 1e9]
        waits += [] if orphan_ends_at is None else [orphan_ends_at - time.monotonic()]
        return min(waits, default=None)

    def _take_frames(self) -> None:
        for _ in range(_FRAMES):
            frame = self._link.receive()
            if frame is None:
                return
            self._worker.receive(frame)

    def _abort_orphan(self) -> None:
        """Abort a run whose client has been gone for long, or when another one comes. On a board it would go on."""
        clients = self._control.clients
        if self._worker.idle:
            self._owner = clients
        if self._worker.idle or clients & self._owner:
            self._orphan_ends_at = None
            return
        if self._orphan_ends_at is None:
            self._orphan_ends_at = time.monotonic() + LEASE_S
        if clients or time.monotonic() >= self._orphan_ends_at:
            client = RegisterClient(self._worker.read_register, self._worker.write_register)
            client.write(registers.ABORT, abort=1)

    # -- requests ------------------------------------------------------------------------------------------------

    def _read_registers(self, offsets: _Registers) -> list[int]:
        return [self._worker.read_register(offset) for offset in offsets]

    def _write_registers(self, words: _Words) -> None:
        for offset, word in words:
            if offset == registers.JOIN.offset:
                self._check_addresses()
            self._worker.write_register(offset, word)

    def _check_addresses(self) -> None:
        """Refuse to join a job with addresses that the link does not have or reach: its packets would be lost."""
        client, link = RegisterClient(self._worker.read_register, self._worker.write_register), self._link
        local, peer = client.read_pair(registers.LOCAL_MAC), client.read_pair(registers.PEER_MAC)
        if link.address not in (None, local):
            raise RefusedError(
                f"its packets come from {udp_address_text(link.address)}, not from {udp_address_text(local)}: the "
                "cluster file must have the former as its udp"
            )
        if not link.reaches(peer):
            raise RefusedError(
                f"it sends packets in UDP, and the aggregator's {mac_text(peer)} stands for no IPv4 address: give the "
                "aggregator its udp in the cluster file"
            )

    def _read_memory(self, bank: int, address: _Address, size: _Size) -> memoryview:
        self._check_bank(bank)
        return self._worker.read_memory(bank, address, size).data

    def _prepare_write(self, bank: int, address: _Address, size: _Size) -> None:
        """Refuse what `_write_memory` would refuse: called before many bytes are sent."""
        self._check_bank(bank)
        # What is overwritten need not be kept beside the new contents.
        if size <= self._memory_limit:
            self._worker.forget_memory(bank, address, size)
        kept = self._worker.memory_bytes
        if size > self._memory_limit - kept:
            raise RefusedError(
                f"{size:,} bytes are too many: the memory is limited to {self._memory_limit:,}, of which {kept:,} are "
                "taken: start the worker with a larger --memory-limit"
            )
        np.empty(size, np.uint8)  # or there is not enough memory

    def _write_memory(self, bank: int, address: _Address, size: _Size, body: npt.NDArray[np.uint8]) -> None:
        if body.size != size:
            raise RefusedError(f"the body has {body.size:,} bytes, not {size:,}")
        self._prepare_write(bank, address, size)
        self._worker.write_memory(bank, address, body)

    def _await_end(self, within_ms: _Milliseconds) -> Until:
        """Wait until no run is under way, but not for longer than asked."""
        return Until(lambda: self._worker.idle, time.monotonic() + within_ms / 1e3)

    def _check_bank(self, bank: int) -> None:
        banks = 2 * self._worker.config.memories  # its own, and those of a shard that it stands in for
        if not 0 <= bank < banks:
            raise RefusedError(f"bank must be 0 to {banks - 1}, not {bank}")
