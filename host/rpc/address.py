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

__all__ = ["ControlAddress", "ControlListener", "check_address"]


_MOST_PATH_BYTES = 107
"""What Linux has room for (unix(7)), without the zero at the end."""

_RETRY_S = 0.01


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
        host, port = _host_and_port(rest)
        if kind == "tcp" and host:
            _check_host(host, text)
            return cls(host=host, port=port)
        raise UserError(f"{text!r} is not a control address: give unix:PATH or tcp:HOST:PORT")

    @classmethod
    def parse_tcp(cls, text: str, option: str) -> "ControlAddress":
        """Read ``HOST:PORT``, the value of an option.

        Raises
        ------
        UserError
            If the text is something else, or no host can have the IP address; the message names the option.
        """
        host, port = _host_and_port(text)
        if not host:
            raise UserError(f"{option}: {text!r} is not HOST:PORT")
        _check_host(host, f"{option}: {text}")
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
            If there is no server, or it does not answer in time.
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
                except BlockingIOError:  # the queue is full; on a Unix socket this error comes without a wait
                    if time.monotonic() > end:
                        raise TimeoutError("timed out") from None
                    time.sleep(_RETRY_S)
        except BaseException:
            connection.close()
            raise


def _host_and_port(text: str) -> tuple[str, int]:
    """Both parts of ``HOST:PORT``; an empty host if the text is something else."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16 and _may_be_host(host)):
        return "", 0
    return host, int(port)


def _may_be_host(host: str) -> bool:
    """Whether a host's name can be looked up; for others :mod:`socket` raises errors that are not OSError."""
    try:
        return b"\0" not in host.encode("idna")
    except UnicodeError:
        return False


def _check_host(host: str, text: str) -> None:
    """Refuse IP addresses that no host can have; names are looked up later."""
    with contextlib.suppress(ValueError):
        if not is_unicast(ip_address(host)):
            raise UserError(f"{text}: {host} is not the address of a single host")


_BACKLOG = 32


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
        with _claimed(address):
            self.socket = _bind(address, owner)
            try:
                if address.path is None and token is None:
                    _check_loopback(address, self.socket)
                self.socket.listen(_BACKLOG)
                if self._path is not None:
                    status = self._path.lstat()
                    self._file = status.st_dev, status.st_ino
            except BaseException:
                self.socket.close()
                raise

    @property
    def can_be_found(self) -> bool:
        """Whether clients come here: the file of a Unix socket may have been removed or replaced."""
        if self._path is None:
            return True
        try:
            status = self._path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def close(self) -> None:
        """Stop listening. Remove the socket's file, unless it was replaced or this process may not remove it."""
        if self._path is not None:
            if self.can_be_found:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            self._path = None  # closed again, it must not remove another program's socket
        self.socket.close()


def check_address(address: ControlAddress, token: bytes | None = None) -> None:
    """Refuse an address that `ControlListener` would refuse, before long work.

    Raises
    ------
    UserError
        As `ControlListener`.
    """
    if address.path is None:
        ControlListener(address, token=token).close()
    else:
        with _claimed(address):
            pass


def _check_loopback(address: ControlAddress, bound: socket.socket) -> None:
    """Refuse to listen where other machines may connect."""
    host = bound.getsockname()[0].partition("%")[0]
    if not ip_address(host).is_loopback:
        raise UserError(
            f"{address}: anybody who reaches this address could control the program: give --token FILE with a secret "
            "that clients have too, or listen at unix:PATH or at a loopback address. (umask 077; head -c 32 "
            "/dev/urandom | base64 > FILE) makes one"
        )


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
            raise _taken(address) from None
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


def _bind(address: ControlAddress, owner: tuple[int, int] | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family if address.path is None else socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if address.path is None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        else:
            os.fchmod(listener.fileno(), stat.S_IRUSR | stat.S_IWUSR)  # the file is created with this mode
            listener.bind(str(address.path))
            if owner is not None:
                _give(address, address.path, owner)
    except BaseException:
        listener.close()
        raise
    return listener


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
    raise _taken(address)


def _taken(address: ControlAddress) -> UserError:
    return UserError(f"{address}: another program serves there: end it, or choose another address")
