"""A worker process at the other end of a control socket."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.device import read_configuration
from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import ControlClient
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import NamedConfig
from p4sgd.hw.spec.register_map import RegisterClient

_TIMEOUT_S = 30.0
"""Longest time without an answer: a worker answers between two mini-batches."""

_IDENTITY = range(registers.MAGIC_WORD.offset, registers.SEGMENTS.offset + 4, 4)
"""The identification block, which `read_configuration` reads."""

_COMMANDS = {
    registers.CTRL.offset,
    registers.STATUS.offset,
    registers.JOIN.offset,
    registers.SNAPSHOT.offset,
    registers.ABORT.offset,
    registers.PROBE.offset,
}
"""Registers that do something when they are written; others only keep a value."""

_MOST_KEPT = 1024
"""Most writes that are sent at once."""

_LARGE_WRITE = 1 << 20
"""Bytes from which on a worker is asked before they are sent, as it answers a write only after all of them."""


class RemoteWorker:
    """Registers and memory of a worker process (`p4sgd.host.serve.worker`).

    Writes to registers are kept and sent together, before anything else is asked for or when one of them is a command.

    ``index`` and ``interface``, its number and link, are for messages; ``token`` is that of a server over TCP;
    ``connect_s`` is the longest time in which it must greet, in seconds. A `UserError` if there is no such worker, it
    serves another client, or has another token. A `P4sgdError` if it does not answer as a worker should, here or in
    later calls.
    """

    def __init__(
        self,
        index: int,
        address: ControlAddress,
        token: bytes | None = None,
        *,
        interface: str = "INTERFACE",
        connect_s: float = _TIMEOUT_S,
    ) -> None:
        self._name = f"worker {index} at {address}"
        command = f"p4sgd worker --interface {interface} --control {address}"
        self._client = ControlClient(
            address,
            "worker",
            self._name,
            f"{command} --config NAME",
            timeout_s=_TIMEOUT_S,
            connect_s=connect_s,
            token=token,
        )
        self._kept: list[list[int]] = []
        try:
            words = dict(zip(_IDENTITY, self.read_registers(_IDENTITY), strict=True))
            self.config = read_configuration(self._name, RegisterClient(words.__getitem__, self.write_register))
            self._client.command = " ".join([command, *NamedConfig.find(self.config).options])
        except P4sgdError:
            self.close()
            raise

    def __str__(self) -> str:
        return self._name

    @property
    def process(self) -> int | None:
        """Identity of the process at the address, which another one there does not have."""
        return self._client.process

    def read_register(self, offset: int) -> int:
        return self.read_registers([offset])[0]

    def read_registers(self, offsets: Sequence[int]) -> list[int]:
        words: list[int] = self._call("read_registers", offsets=list(offsets))[0]
        return words

    def write_register(self, offset: int, word: int) -> None:
        """Write a word, with the next request if it is no command."""
        self._kept.append([offset, word])
        if offset in _COMMANDS or len(self._kept) == _MOST_KEPT:
            self._send_kept()

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to a bank; the worker refuses if it has no room, or during a run, a large write before its bytes
        are sent."""
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        where: dict[str, Any] = {"bank": bank, "address": address, "size": content.size}
        if content.size >= _LARGE_WRITE:
            self._call("prepare_write", **where)
        self._call("write_memory", content.data, **where)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        return self._call("read_memory", most=size, bank=bank, address=address, size=size)[1]

    def await_end(self, within_s: float) -> bool:
        """Wait for the end of the run, at most for a time; returns whether no run is under way."""
        ended, _ = self._call("await_end", within_ms=round(within_s * 1e3))
        return bool(ended)

    def close(self) -> None:
        """Disconnect. The worker stays as it is, for the next client."""
        with contextlib.suppress(P4sgdError):
            self._send_kept()
        self._client.close()

    def _send_kept(self) -> None:
        kept, self._kept = self._kept, []
        if kept:
            self._client.call("write_registers", words=kept)

    def _call(self, do: str, body: bytes | memoryview = b"", **arguments: Any) -> tuple[Any, npt.NDArray[np.uint8]]:
        self._send_kept()
        return self._client.call(do, body, **arguments)
