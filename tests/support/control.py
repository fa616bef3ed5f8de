"""A control socket that adds numbers, its clients, and connections of strangers."""

import contextlib
import struct
import threading
import time

from p4sgd.host.rpc.address import ControlListener
from p4sgd.host.rpc.client import ControlClient
from p4sgd.host.rpc.message import VERSION
from p4sgd.host.rpc.server import ControlServer, Methods, Until

HELLO = b'{"server":"test","version":%d,"client":1}' % VERSION
BODY_LIMIT = 1 << 20


def message(head, body=b"", body_bytes=None):
    return struct.pack("!IQ", len(head), len(body) if body_bytes is None else body_bytes) + head + body


class Served:
    """A server that adds numbers, turned by a thread."""

    def __init__(self, address, **options):
        self.total = 0
        methods = Methods(add=self._add, total=lambda: self.total, echo=self._echo, wait=self._wait)
        self.server = ControlServer(
            ControlListener(address, options.pop("token", None)),
            "test",
            methods,
            **{"most_clients": 2, "busy": "is busy", "body_limit": BODY_LIMIT} | options,
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _add(self, number: int):
        self.total += number

    def _echo(self, body):
        return body.data

    def _wait(self, seconds: float):
        return Until(lambda: self.total > 0, time.monotonic() + seconds)

    def _turn(self):
        while not self._is_over.is_set():
            self.server.turn(0.01)
        self.server.close()

    def close(self):
        self._is_over.set()
        self._thread.join()


def connect(address, timeout_s=10, **options):
    return contextlib.closing(
        ControlClient(address, "test", "the server", "p4sgd test", timeout_s=timeout_s, **options)
    )


def raw(address, first=message(HELLO)):
    connection = address.connect(10)
    connection.sendall(first)
    return contextlib.closing(connection)


def await_end(connection):
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
