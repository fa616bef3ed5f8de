"""The self-test of a board: memory ports and Ethernet ports, tried one by one or together."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.xrt.board import EMULATED_WAIT_S, BoardAddress
from p4sgd.host.xrt.kernel import BankMemory, BoardKernel
from p4sgd.host.xrt.library import XrtError
from p4sgd.host.xrt.mac import BoardMac, open_mac
from p4sgd.hw.spec import selftest
from p4sgd.hw.spec.register_map import Register, RegisterClient, find_other_map
from p4sgd.hw.spec.selftest import Sizes

__all__ = ["BoardSelfTest", "SelfTestClient"]


_RUN_S = 15.0
"""Longest time of a run, and of sending frames: the largest buffer of a port, 1 GiB at 8 GB/s, takes 0.13 s, and at a
hundredth of that rate 13 s."""

_ARRIVE_S = 0.01
"""Longest time that frames take to come back; in the MAC and its transceivers they take less than 1 µs."""

_CLOCK_S = 0.1
"""Time for which the clock is counted. A register is read in some 10 µs, so the rate is known to a part in 1,000."""

_POLL_S = 0.0005


class SelfTestClient:
    """The registers of a self-test.

    Parameters
    ----------
    name
        Name of the user, for messages.
    client
        The registers.

    Attributes
    ----------
    sizes : Sizes
        Sizes, as read from the kernel.
    patience_s, arrive_s : float
        Longest time in s of a run, and of sending frames; and of what was sent last to come back.

    Raises
    ------
    P4sgdError
        If the registers are not those of a self-test of this version.
    """

    def __init__(self, name: str, client: RegisterClient) -> None:
        self._name = name
        self._client = client
        self.patience_s, self.arrive_s = _RUN_S, _ARRIVE_S
        problem = find_other_map(
            client,
            selftest.IDENTITY,
            selftest.MAGIC,
            selftest.ABI_VERSION,
            unknown=f"{name} has no self-test: its first word",
            who=f"{name} has",
        )
        if problem is not None:
            raise P4sgdError(problem)
        self.sizes = Sizes(**client.read(selftest.GEOMETRY))

    def set_port(self, port: int, address: int, first: int) -> None:
        """Set the byte address of a port's memory, a multiple of 4096, and the number of the beat there."""
        self._client.write_pair(selftest.address_of(port), address)
        self._client.write(selftest.first_of(port), value=first)

    def read(
        self, ports: Iterable[int], groups: int, burst_beats: int = 1, stride_beats: int = 1
    ) -> dict[int, dict[str, int]]:
        """Let ports read, all at once.

        Parameters
        ----------
        ports
            Numbers of the ports.
        groups
            Groups that each reads.
        burst_beats, stride_beats
            As in `p4sgd.hw.spec.selftest.SHAPE`.

        Returns
        -------
        Results by port, as in `p4sgd.hw.spec.selftest.port_results`.

        Raises
        ------
        P4sgdError
            If a port does not end its run.
        """
        self._client.write(selftest.SHAPE, burst_beats=burst_beats, stride_beats=stride_beats)
        self._client.write(selftest.GROUPS, value=groups)
        return self._run(list(ports), read=1)

    def write(self, ports: Iterable[int], chunks: int) -> dict[int, dict[str, int]]:
        """Let ports write, all at once, each so many chunks; returns, and raises, as `read`."""
        self._client.write(selftest.CHUNKS, value=chunks)
        return self._run(list(ports), write=1)

    def _run(self, ports: Sequence[int], **command: int) -> dict[int, dict[str, int]]:
        self._client.write_pair(selftest.PORTS, sum(1 << port for port in ports))
        self._client.write(selftest.RUN, **command)
        end = time.monotonic() + self.patience_s
        while busy := self._client.read_pair(selftest.BUSY):
            if time.monotonic() > end:
                stuck = ", ".join(str(port) for port in ports if busy >> port & 1)
                raise P4sgdError(
                    f"{self._name} does not end its run at memory port {stuck}: the memory does not answer. Reset the "
                    "board (xbutil reset), and check the sp= lines of the link configuration"
                )
            time.sleep(_POLL_S)
        return {
            port: {name: self._value(register) for name, register in selftest.port_results(port).items()}
            for port in ports
        }

    def send(self, cages: Iterable[int], frames: int) -> dict[int, dict[str, int]]:
        """Let Ethernet ports send frames, all at once, and wait until these have come back or are lost.

        Returns
        -------
        Results by port, as in `p4sgd.hw.spec.selftest.cage_registers`.

        Raises
        ------
        P4sgdError
            If the MAC does not take the frames.
        """
        cages = list(cages)
        registers = {cage: selftest.cage_registers(cage) for cage in cages}
        self._client.write(selftest.CAGES, value=sum(1 << cage for cage in cages))
        self._client.write(selftest.SEND, value=frames)
        end = time.monotonic() + self.patience_s
        for cage in cages:
            while self._value(registers[cage]["sending"]):
                if time.monotonic() > end:
                    raise P4sgdError(f"{self._name}: the MAC of cage {cage} does not take its frames")
                time.sleep(_POLL_S)
        end = time.monotonic() + self.arrive_s
        while time.monotonic() < end:
            arrived = [sum(self._value(registers[cage][name]) for name in ("received", "wrong")) for cage in cages]
            if min(arrived, default=frames) >= frames:
                break
        return {
            cage: {name: self._value(register) for name, register in known.items()} for cage, known in registers.items()
        }

    def megahertz(self) -> float:
        """Rate of the kernel's clock, by this machine's."""
        began, first = time.monotonic(), self._value(selftest.CLOCK)
        time.sleep(_CLOCK_S)
        cycles = (self._value(selftest.CLOCK) - first) % (1 << selftest.WORD_BITS)
        return cycles / (time.monotonic() - began) / 1e6

    def _value(self, register: Register) -> int:
        return self._client.read(register)["value"]


class BoardSelfTest:
    """A board of this machine that runs the self-test.

    Parameters
    ----------
    address
        The board and its xclbin, which is loaded.

    Attributes
    ----------
    kernel : SelfTestClient
        The registers.
    is_emulated : bool
        Whether it is in Vitis' emulator.
    macs : dict of int to BoardMac
        The MAC of each cage; none in Vitis' emulator, whose frames come back without.

    Raises
    ------
    UserError
        As `BoardKernel`.
    P4sgdError
        As `BoardKernel`, `SelfTestClient` and `BoardMac`, also in later calls.
    """

    def __init__(self, address: BoardAddress) -> None:
        self._name = name = str(address)
        self.is_emulated = address.is_emulated
        with contextlib.ExitStack() as opened:
            kernel = BoardKernel(name, address, selftest.KERNEL)
            opened.enter_context(contextlib.closing(kernel))
            self.kernel = SelfTestClient(name, RegisterClient(kernel.read_register, kernel.write_register))
            self._memories: list[BankMemory] = []
            for port in range(self.kernel.sizes.memories):
                memory = kernel.memory(port)
                self._memories.append(opened.enter_context(contextlib.closing(memory)))
            self.macs: dict[int, BoardMac] = {}
            for cage in range(self.kernel.sizes.cages):
                if (mac := open_mac(name, address, cage)) is not None:
                    self.macs[cage] = opened.enter_context(contextlib.closing(mac))
            if self.is_emulated:
                self.kernel.patience_s = self.kernel.arrive_s = EMULATED_WAIT_S
            self._opened = opened.pop_all()

    def reserve(self, port: int, size: int) -> int:
        """Make room for so many bytes in the memory of a port; returns their byte address.

        Raises
        ------
        UserError
            If the board's memory is too small.
        """
        try:
            self._memories[port].reserve(size)
        except XrtError as error:
            raise UserError(
                f"{self._name} has no room for {size >> 20:,} MiB at memory port {port}: {error}; take fewer (--memory)"
            ) from None
        return self._memories[port].address

    def write_memory(self, port: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to the start of a port's memory, for which there is room."""
        with self._explaining("cannot write the memory"):
            self._memories[port].write(0, data.reshape(-1))

    def read_memory(self, port: int, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Read bytes of a port's memory."""
        with self._explaining("cannot read the memory"):
            return self._memories[port].read(start, size)

    def close(self) -> None:
        """Release memory and board."""
        with self._explaining("cannot release the memory"):
            self._opened.close()

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except XrtError as error:
            raise P4sgdError(f"{self._name} {what}: {error}") from error
