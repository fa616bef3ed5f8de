"""The self-test of a board: memory ports and Ethernet ports, tried one by one or together."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError
from p4sgd.host.xrt.board import EMULATED_WAIT_S, BoardAddress
from p4sgd.host.xrt.kernel import BoardKernel
from p4sgd.host.xrt.mac import BoardMac, open_mac
from p4sgd.hw.spec import selftest
from p4sgd.hw.spec.register_map import Register, RegisterClient, find_other_map
from p4sgd.hw.spec.selftest import Sizes

_STILL_CYCLES = 10_000
"""Cycles without a beat or a frame after which none is waited for, 40 µs at 250 MHz: memory answers within 1 µs, and so
do the MAC and its transceivers. Cycles, because Vitis' emulator may do few a second."""

_STILL_S = 1.0
"""Longest time that so many cycles take on a board."""

_CLOCK_S = 0.1
"""Time for which the clock is counted. A register is read in some 10 µs, so the rate is known to a part in 1,000."""

_CLOCK_READINGS = 5

_POLL_S = 0.0005


class SelfTestClient:
    """The registers of a self-test; P4sgdError if they are not those of one of this version. ``name`` is for messages.

    A run returns the results by port or cage (`p4sgd.hw.spec.selftest.port_results`, ``cage_registers``); P4sgdError if
    it does not end, or the kernel's clock stands still.

    Attributes
    ----------
    sizes : Sizes
        Sizes, as read from the kernel.
    still_s : float
        Longest time in s of 10,000 cycles; after so many without a beat or a frame none is waited for.
    """

    def __init__(self, name: str, client: RegisterClient) -> None:
        self._name = name
        self._client = client
        self.still_s = _STILL_S
        identity = selftest.IDENTITY, selftest.MAGIC, selftest.ABI_VERSION
        unknown, who = f"{name} has no self-test: its first word", f"{name} has"
        if problem := find_other_map(client, *identity, unknown=unknown, who=who):
            raise P4sgdError(problem)
        self.sizes = Sizes(**client.read(selftest.GEOMETRY))

    def set_port(self, port: int, address: int, first: int) -> None:
        """Set the byte address of a port's memory, a multiple of 4096, and the number of the beat there."""
        self._client.write_pair(selftest.address_of(port), address)
        self._client.write(selftest.first_of(port), value=first)

    def read(
        self, ports: Iterable[int], groups: int, burst_beats: int = 1, stride_beats: int = 1
    ) -> dict[int, dict[str, int]]:
        """Let ports read, all at once, each so many groups of a shape (`p4sgd.hw.spec.selftest.SHAPE`)."""
        self._client.write(selftest.SHAPE, burst_beats=burst_beats, stride_beats=stride_beats)
        self._client.write(selftest.GROUPS, value=groups)
        return self._run(list(ports), groups * burst_beats, read=1)

    def write(self, ports: Iterable[int], chunks: int) -> dict[int, dict[str, int]]:
        """Let ports write, all at once, each so many chunks."""
        self._client.write(selftest.CHUNKS, value=chunks)
        return self._run(list(ports), chunks * self.sizes.chunk_beats, write=1)

    def _run(self, ports: list[int], beats: int, **command: int) -> dict[int, dict[str, int]]:
        registers = {port: selftest.port_results(port) for port in ports}
        self._client.write_pair(selftest.PORTS, sum(1 << port for port in ports))
        self._client.write(selftest.RUN, **command)
        self._wait(
            lambda: not self._client.read_pair(selftest.BUSY),
            lambda: [self._value(known["beats"]) for known in registers.values()],
        )
        busy = self._client.read_pair(selftest.BUSY)
        results = self._results(registers)
        self._check_ended(
            {f"memory port {port}": result["beats"] for port, result in results.items() if busy >> port & 1},
            f"{beats:,} beats",
            "the memory does not answer. Reset the board (xbutil reset), and check the sp= lines of the link "
            "configuration",
        )
        return results

    def send(self, cages: Iterable[int], frames: int) -> dict[int, dict[str, int]]:
        """Let Ethernet ports send frames, all at once, and wait until these have come back or are lost."""
        registers = {cage: selftest.cage_registers(cage) for cage in cages}
        self._client.write(selftest.CAGES, value=sum(1 << cage for cage in registers))
        self._client.write(selftest.SEND, value=frames)

        def totals(*names: str) -> list[int]:
            return [sum(self._value(known[name]) for name in names) for known in registers.values()]

        self._wait(lambda: not any(totals("sending")), lambda: totals("sent"))
        stuck = {f"cage {cage}": each["sent"] for cage, each in self._results(registers).items() if each["sending"]}
        self._check_ended(stuck, f"{frames:,} frames", "the MAC takes none")
        self._wait(
            lambda: min(totals("received", "wrong"), default=frames) >= frames,
            lambda: totals("received", "wrong"),
        )
        return self._results(registers)

    def _check_ended(self, stuck: Mapping[str, int], wanted: str, why: str) -> None:
        """Refuse ports that have not ended, given how much each has done."""
        if stuck:
            done = ", ".join(f"{port} has had {count:,}" for port, count in stuck.items())
            raise P4sgdError(
                f"{self._name} does not end its run: of {wanted} {done}, and none in the last {_STILL_CYCLES:,} "
                f"cycles: {why}"
            )

    def megahertz(self) -> float:
        """Rate of the kernel's clock, by this machine's; P4sgdError if it stands still."""
        began, first = self._read_clock()
        time.sleep(_CLOCK_S)
        ended, last = self._read_clock()
        if last == first:
            raise self._standing_still()
        return (last - first) % (1 << selftest.WORD_BITS) / (ended - began) / 1e6

    def _read_clock(self) -> tuple[float, int]:
        """Time of this machine and CLOCK, by the quickest of some readings: others may have been interrupted."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            began = time.monotonic()
            clock = self._value(selftest.CLOCK)
            readings.append((time.monotonic() - began, began, clock))
        _, began, clock = min(readings)
        return began, clock

    def _wait(self, is_done: Callable[[], bool], count: Callable[[], object]) -> None:
        """Wait until something is done, or until nothing has been counted for a while."""
        counted, since, end = count(), self._value(selftest.CLOCK), time.monotonic() + self.still_s
        while not is_done():
            time.sleep(_POLL_S)
            clock = self._value(selftest.CLOCK)
            if (clock - since) % (1 << selftest.WORD_BITS) >= _STILL_CYCLES:
                if (latest := count()) == counted:
                    return
                counted, since, end = latest, clock, time.monotonic() + self.still_s
            elif time.monotonic() > end:
                raise self._standing_still()

    def _standing_still(self) -> P4sgdError:
        return P4sgdError(f"{self._name}: the kernel's clock stands still: reset the board (xbutil reset)")

    def _results(self, registers: dict[int, dict[str, Register]]) -> dict[int, dict[str, int]]:
        return {
            number: {name: self._value(register) for name, register in known.items()}
            for number, known in registers.items()
        }

    def _value(self, register: Register) -> int:
        return self._client.read(register)["value"]


class BoardSelfTest:
    """A board of this machine that runs the self-test: its ``kernel``, and ``macs`` by cage.

    In Vitis' emulator there are no MACs: frames come back without. The xclbin of the address is loaded. UserError and
    P4sgdError as of `BoardKernel`, `SelfTestClient` and `BoardMac`, also in later calls.
    """

    def __init__(self, address: BoardAddress) -> None:
        name, self.is_emulated = str(address), address.is_emulated
        with contextlib.ExitStack() as opened:
            kernel = opened.enter_context(contextlib.closing(BoardKernel(name, address, selftest.KERNEL)))
            self.kernel = SelfTestClient(name, RegisterClient(kernel.read_register, kernel.write_register))
            self._memories = [kernel.memory(port) for port in range(self.kernel.sizes.memories)]
            self.macs: dict[int, BoardMac] = {}
            for cage in range(self.kernel.sizes.cages):
                if (mac := open_mac(name, address, cage)) is not None:
                    self.macs[cage] = opened.enter_context(contextlib.closing(mac))
            if self.is_emulated:
                self.kernel.still_s = EMULATED_WAIT_S
            self._opened = opened.pop_all()

    def reserve(self, port: int, size: int) -> int:
        """Make room for bytes in the memory of a port; returns their address."""
        self._memories[port].reserve(size)
        return self._memories[port].address

    def write_memory(self, port: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to the start of a port's memory, for which there is room."""
        self._memories[port].write(0, data.reshape(-1))

    def read_memory(self, port: int, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Read bytes of a port's memory."""
        return self._memories[port].read(start, size)

    def close(self) -> None:
        """Release memory and board."""
        self._opened.close()
