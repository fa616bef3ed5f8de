"""Listening where a control address says."""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from p4sgd.host.control.address import ControlAddress
from p4sgd.host.errors import UserError

__all__ = ["ControlListener", "check_address"]

_BACKLOG = 32


class ControlListener:
    """A socket that listens at an address. Only its owner may connect to a Unix socket; over TCP anybody may.

    Parameters
    ----------
    address
        Where to listen. A Unix socket that is there but served by nobody is replaced.
    owner
        User and group that a Unix socket is to belong to; ourselves if None.

    Attributes
    ----------
    socket : socket.socket
        It blocks unless it is told otherwise.

    Raises
    ------
    UserError
        If it cannot listen there, or another program does.
    """

    def __init__(self, address: ControlAddress, owner: tuple[int, int] | None = None) -> None:
        self._path = address.path
        self.socket = _open(address, owner)
        if self._path is not None:
            status = self._path.lstat()
            self._file = status.st_dev, status.st_ino

    def close(self) -> None:
        """Listen no longer, and remove the socket's file if it is still ours and this program still may."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                status = self._path.lstat()
                if (status.st_dev, status.st_ino) == self._file:
                    self._path.unlink()
        self.socket.close()


def check_address(address: ControlAddress) -> None:
    """Refuse an address, before long work, at which a `ControlListener` would be refused.

    Raises
    ------
    UserError
        As there.
    """
    if address.path is None:
        ControlListener(address).close()
    else:
        _make_room(address, address.path)


def _open(address: ControlAddress, owner: tuple[int, int] | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family if address.path is None else socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if address.path is None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
        else:
            _make_room(address, address.path)
            os.fchmod(listener.fileno(), stat.S_IRUSR | stat.S_IWUSR)  # which the file begins with
            listener.bind(str(address.path))
            if owner is not None:
                _give(address, address.path, owner)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _taken(address) from None
        raise UserError(f"{address}: cannot listen there: {error.strerror or error}") from None
    except BaseException:
        listener.close()
        raise
    return listener


def _give(address: ControlAddress, path: Path, owner: tuple[int, int]) -> None:
    """Change the owner of the socket's file, and of no other that somebody has put in its place meanwhile."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        status = os.fstat(file)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            raise UserError(f"{address}: its file was replaced meanwhile: choose a folder that nobody else writes")
        os.chown(f"/proc/self/fd/{file}", *owner)  # fchown takes no descriptor of O_PATH
    finally:
        os.close(file)


def _make_room(address: ControlAddress, path: Path) -> None:
    """Remove a socket that a program has left which did not end well."""
    if not path.parent.is_dir():
        raise UserError(f"{address}: there is no folder {path.parent}: make it first")
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
