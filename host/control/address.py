"""Addresses of control sockets: ``unix:PATH`` or ``tcp:HOST:PORT``."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from p4sgd.host.errors import UserError

__all__ = ["ControlAddress"]

_MOST_PATH_BYTES = 107
"""What Linux has room for (unix(7)), without the zero at the end."""

_RETRY_S = 0.01


@dataclass(frozen=True)
class ControlAddress:
    """Where a control socket is: a path, or a host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "ControlAddress":
        """Read ``unix:PATH`` or ``tcp:HOST:PORT``; an IPv6 address stands in brackets.

        Raises
        ------
        UserError
            If the text is neither.
        """
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest:
            if len(os.fsencode(rest)) > _MOST_PATH_BYTES or "\0" in rest:
                raise UserError(f"{text}: a socket's path has at most {_MOST_PATH_BYTES} bytes: choose a shorter one")
            return cls(path=Path(rest))
        host, port = _host_and_port(rest)
        if kind == "tcp" and host:
            return cls(host=host, port=port)
        raise UserError(f"{text!r} is no control address: give unix:PATH or tcp:HOST:PORT")

    @classmethod
    def parse_tcp(cls, text: str, option: str) -> "ControlAddress":
        """Read ``HOST:PORT``, the value of an option.

        Raises
        ------
        UserError
            If it is none; the message names the option.
        """
        host, port = _host_and_port(text)
        if not host:
            raise UserError(f"{option}: {text!r} is no HOST:PORT")
        return cls(host=host, port=port)

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"

    def beside(self, folder: Path) -> "ControlAddress":
        """The same address, with a path that is relative to a folder."""
        return self if self.path is None else ControlAddress(path=folder / self.path)

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect to the server there; the socket keeps the time-out.

        Raises
        ------
        OSError
            If there is none, or it does not answer in time.
        """
        if self.path is None:
            return socket.create_connection((self.host, self.port), timeout_s)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            end = time.monotonic() + timeout_s
            while True:
                try:
                    connection.connect(str(self.path))
                    return connection
                except BlockingIOError:  # at once and not after the time-out, if many are waiting already
                    if time.monotonic() > end:
                        raise TimeoutError("timed out") from None
                    time.sleep(_RETRY_S)
        except BaseException:
            connection.close()
            raise


def _host_and_port(text: str) -> tuple[str, int]:
    """Both parts of ``HOST:PORT``; an empty host if it is none."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16 and _may_be_host(host)):
        return "", 0
    return host, int(port)


def _may_be_host(host: str) -> bool:
    """Whether a host can be looked for at all; else :mod:`socket` fails with errors that are none of the network."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False
