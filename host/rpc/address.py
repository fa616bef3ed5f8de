"""Addresses of control sockets, ``unix:PATH`` or ``tcp:HOST:PORT``, and listening there."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.udp import is_unicast

_MOST_PATH_BYTES = 107  # What Linux has room for (unix(7)), without the zero at the end

_BACKLOG = 128


@dataclass(frozen=True)
class ControlAddress:
    """Address of a control socket: a path, or a host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "ControlAddress":
        """Read ``unix:PATH`` or ``tcp:HOST:PORT``; an IPv6 address stands in brackets.

        Raises UserError if the text is neither, the path is too long, or no single host can have the IP address.
        """
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest:
            if len(os.fsencode(rest)) > _MOST_PATH_BYTES or "\0" in rest:
                raise UserError(f"{text}: a socket's path has at most {_MOST_PATH_BYTES} bytes: choose a shorter one")
            return cls(path=Path(rest))
        if kind == "tcp" and (found := cls._of(rest, text)):
            return found
        raise UserError(f"{text!r} is not a control address: give unix:PATH or tcp:HOST:PORT")

    @classmethod
    def parse_tcp(cls, text: str, option: str) -> "ControlAddress":
        """Read ``HOST:PORT``, the value of an option; raises UserError as `parse`, with the option."""
        if found := cls._of(text, f"{option}: {text}"):
            return found
        raise UserError(f"{option}: {text!r} is not HOST:PORT")

    @classmethod
    def _of(cls, text: str, name: str) -> "ControlAddress | None":
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:  # for other names socket raises errors that are not OSError
            is_host = host != "" and b"\0" not in host.encode("idna")
        except UnicodeError:
            is_host = False
        if not (is_host and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
            return None
        with contextlib.suppress(ValueError):  # names are looked up later
            if not is_unicast(ip_address(host)):
                raise UserError(f"{name}: {host} is not the address of a single host")
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect to the server there; the socket keeps the time-out. Raises OSError if none answers in time."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout_s)
            _notice_vanishing(connection)
            return connection
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(timeout_s)
            end = time.monotonic() + timeout_s
            # While the queue is full, a Unix socket has this error at once.
            while (error := connection.connect_ex(str(self.path))) == errno.EAGAIN and time.monotonic() < end:
                time.sleep(0.01)
            if error:
                raise TimeoutError("timed out") if error == errno.EAGAIN else OSError(error, os.strerror(error))
            opened.pop_all()
        return connection


class ControlListener:
    """A socket that listens at an address. Only its owner may connect to a Unix socket.

    The file of a Unix socket on which no process listens is replaced. Clients over TCP must have the ``token``; None is
    for loopback addresses only. Raises UserError if it cannot listen there, another program does, or other machines
    could connect without a token.
    """

    def __init__(self, address: ControlAddress, token: bytes | None = None) -> None:
        self._path = address.path
        self.token = token if address.path is None else None
        with _claimed(address), contextlib.ExitStack() as opened:
            if address.path is None:
                family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
                self.socket = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
                opened.enter_context(self.socket)
                host = self.socket.getsockname()[0].partition("%")[0]
                if token is None and not ip_address(host).is_loopback:
                    raise UserError(
                        f"{address}: anybody who reaches this address could control the program: give --token FILE "
                        "with a secret that clients have too, made by (umask 077; head -c 32 /dev/urandom | base64 > "
                        "FILE), or listen at unix:PATH or at a loopback address"
                    )
            else:
                self.socket = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                os.fchmod(self.socket.fileno(), stat.S_IRUSR | stat.S_IWUSR)  # the file is created with this mode
                self.socket.bind(str(address.path))
                self.socket.listen(_BACKLOG)
                self._file = address.path.lstat()
            opened.pop_all()

    def accept(self) -> tuple[socket.socket, str]:
        """Accept a connection, which does not block; also tells the host it is from, nothing for a Unix socket."""
        connection, name = self.socket.accept()
        connection.setblocking(False)
        if connection.family == socket.AF_UNIX:
            return connection, ""
        _notice_vanishing(connection)
        return connection, name[0]

    @property
    def can_be_found(self) -> bool:
        """Whether clients come here: the file of a Unix socket may have been removed or replaced."""
        try:
            return self._path is None or os.path.samestat(self._path.lstat(), self._file)
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening. Remove the socket's file, unless it was replaced or this process may not remove it."""
        if self._path is not None and self.can_be_found:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._path = None  # closed again, it must not remove another program's socket
        self.socket.close()


def check_address(address: ControlAddress, token: bytes | None = None) -> None:
    """Refuse an address that `ControlListener` would refuse, before long work; raises UserError as it does."""
    if address.path is None:
        ControlListener(address, token=token).close()
    else:
        with _claimed(address):
            pass


@contextlib.contextmanager
def _claimed(address: ControlAddress) -> Iterator[None]:
    """Have an address for this process, to bind a socket and listen; raises UserError for every OSError within, too.

    The folder of a Unix socket is locked, and the file of a killed process removed: a process that starts at the same
    time could remove a socket that is bound and does not listen yet.
    """
    taken = UserError(f"{address}: another program serves there: end it, or choose another address")
    try:
        with contextlib.ExitStack() as locked:
            if address.path is not None:
                if not address.path.parent.is_dir():
                    raise UserError(f"{address}: there is no folder {address.path.parent}: make it first")
                folder = os.open(address.path.parent, os.O_RDONLY)
                locked.callback(os.close, folder)
                fcntl.flock(folder, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):  # also if its process removes it meanwhile
                    if not stat.S_ISSOCK(address.path.lstat().st_mode):
                        raise UserError(f"{address}: something else is there already: choose another name")
                    try:
                        address.connect(1.0).close()
                    except ConnectionRefusedError:
                        address.path.unlink()
                    else:
                        raise taken
            yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise taken from None
        raise UserError(f"{address}: cannot listen there: {error.strerror or error}") from None


def _notice_vanishing(connection: socket.socket) -> None:
    """Have a connection over TCP fail 25 s after the other machine is gone, also while something is under way to it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"NODELAY": 1, "KEEPIDLE": 10, "KEEPINTVL": 5, "KEEPCNT": 3, "USER_TIMEOUT": 25_000}
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)
