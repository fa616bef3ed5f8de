"""Listening where a control address says."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from p4sgd.host.errors import UserError
from p4sgd.host.switch.address import ControlAddress

__all__ = ["listen"]

_BACKLOG = 8


@contextlib.contextmanager
def listen(address: ControlAddress) -> Iterator[socket.socket]:
    """A socket that listens at an address; of a unix socket only the owner may connect, and its file goes at the end.

    Raises
    ------
    UserError
        If the address cannot be had: another server is there, or something else than a socket.
    """
    try:
        server = _open(address)
    except OSError as error:
        raise UserError(f"{address}: cannot listen there: {error.strerror or error}") from error
    try:
        with server:
            yield server
    finally:
        if address.path is not None:
            address.path.unlink(missing_ok=True)


def _open(address: ControlAddress) -> socket.socket:
    if address.path is None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    _remove_left_over(address, address.path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)
        try:
            server.bind(str(address.path))
        finally:
            os.umask(mask)
        server.listen(_BACKLOG)
    except BaseException:
        server.close()
        raise
    return server


def _remove_left_over(address: ControlAddress, path: Path) -> None:
    """Remove the socket of a server that was killed."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise UserError(f"{address}: there is something else than a socket: choose another path")
    try:
        address.connect(1.0).close()
    except ConnectionRefusedError:
        path.unlink()
    else:
        raise UserError(f"{address}: another program listens there: end it, or choose another path")
