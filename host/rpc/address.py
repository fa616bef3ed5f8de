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

_MOST_PATH_BYTES = 107
"""What Linux has room for (unix(7)), without the zero at the end."""

_RETRY_S = 0.01
_BACKLOG = 32


@dataclass(frozen=True)
class ControlAddress:
    """Address of a control socket: a path, or a host and a port."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "ControlAddress":
        """Read ``unix:PATH`` or ``tcp:HOST:PORT``; an IPv6 address stands in brackets.

        Raises
        ------
        UserError
            If the text is neither, the path is longer than a socket's may be, or no host can have the IP address.
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
        """The address in ``HOST:PORT``; None if the text is something else."""
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

    def beside(self, folder: Path) -> "ControlAddress":
        """The same address, with a path that is relative to a folder."""
        return self if self.path is None else ControlAddress(path=folder / self.path)

    def connect(self, timeout_s: float) -> socket.socket:
        """Connect to the server there; the socket keeps the time-out. Raises OSError if none answers in time."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            end = time.monotonic() + timeout_s
            while True:
                try:
                    connection.connect(str(self.path))
                    return connection
                except BlockingIOError:  # the queue is full; on a Unix socket this error comes without a wait
                    if time.monotonic() > end:
                        raise TimeoutError("timed out") from None
                    time.sleep(_RETRY_S)
        except BaseException:
            connection.close()
            raise

    @property
    def taken(self) -> UserError:
        """The error if another program listens there."""
        return UserError(f"{self}: another program serves there: end it, or choose another address")


class ControlListener:
    """A socket that listens at an address. Only its owner may connect to a Unix socket.

    Parameters
    ----------
    address
        Where to listen. The file of a Unix socket on which no process listens is replaced.
    owner
        User and group that own a Unix socket; None for this process's.
    token
        What clients over TCP must prove to have (`p4sgd.host.rpc.token`). None lets all connect, which is for
        loopback addresses only.

    Attributes
    ----------
    socket : socket.socket
        The listening socket.
    token : bytes or None
        The token that clients must have.

    Raises
    ------
    UserError
        If it cannot listen there, another program does, or other machines could connect without a token.
    """

    def __init__(
        self, address: ControlAddress, owner: tuple[int, int] | None = None, token: bytes | None = None
    ) -> None:
        self._path = address.path
        self.token = token if address.path is None else None
        with _claimed(address), contextlib.ExitStack() as opened:
            family = socket.AF_UNIX if self._path else socket.AF_INET6 if ":" in address.host else socket.AF_INET
            self.socket = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if self._path is None:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.socket.bind((address.host, address.port))
                if token is None and not ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback:
                    raise UserError(
                        f"{address}: anybody who reaches this address could control the program: give --token FILE "
                        "with a secret that clients have too, or listen at unix:PATH or at a loopback address. "
                        "(umask 077; head -c 32 /dev/urandom | base64 > FILE) makes one"
                    )
            else:
                os.fchmod(self.socket.fileno(), stat.S_IRUSR | stat.S_IWUSR)  # the file is created with this mode
                self.socket.bind(str(self._path))
                if owner is not None:
                    _give(address, self._path, owner)
            self.socket.listen(_BACKLOG)
            self._file = self._look()
            opened.pop_all()

    @property
    def can_be_found(self) -> bool:
        """Whether clients come here: the file of a Unix socket may have been removed or replaced."""
        try:
            return self._look() == self._file
        except OSError:
            return False

    def _look(self) -> tuple[int, int] | None:
        """Device and inode of a Unix socket's file."""
        if self._path is None:
            return None
        status = self._path.lstat()
        return status.st_dev, status.st_ino

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
    """Have the address for this process, to bind a socket and listen; the path of a Unix socket is free then.

    Raises UserError for every OSError within, too.
    """
    try:
        if address.path is None:
            yield
            return
        if not address.path.parent.is_dir():
            raise UserError(f"{address}: there is no folder {address.path.parent}: make it first")
        with _locked(address.path):
            _make_room(address, address.path)
            yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise address.taken from None
        raise UserError(f"{address}: cannot listen there: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep others from removing or making the socket's file, by a lock file beside it.

    Otherwise one that starts at the same time may remove a socket that is bound and does not listen yet.
    """
    lock = Path(f"{path}.lock")
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, stat.S_IRUSR | stat.S_IWUSR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # else the one before has removed it meanwhile
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
        finally:
            os.close(file)


def _give(address: ControlAddress, path: Path, owner: tuple[int, int]) -> None:
    """Change the owner of the socket's file, but not of a file by which somebody has replaced it."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        status = os.fstat(file)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise UserError(f"{address}: its file was replaced meanwhile: choose a folder that only you may write")
        os.chown(f"/proc/self/fd/{file}", *owner)  # fchown takes no descriptor of O_PATH
    finally:
        os.close(file)


def _make_room(address: ControlAddress, path: Path) -> None:
    """Remove the file of a socket whose process was killed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError(f"{address}: something else is there already: choose another name")
    try:
        address.connect(1.0).close()
    except ConnectionRefusedError:
        path.unlink()
        return
    raise address.taken
