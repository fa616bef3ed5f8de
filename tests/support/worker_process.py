"""A worker served in a thread, with a link of which the test holds the other end."""

import contextlib
import socket
import threading

from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.serve.worker import WorkerServer, cycles_now
from p4sgd.hw.spec.packet import MOST_BYTES
from p4sgd.sim.emulator.networked import NetworkedWorker


class PairLink:
    """Frames as datagrams of a socket pair, perhaps from a UDP address."""

    most_bytes = MOST_BYTES

    def __init__(self, end, address=None):
        self._end = end
        self.address = address
        self.lost = 0
        end.setblocking(False)

    def fileno(self):
        return self._end.fileno()

    def reaches(self, address):
        return self.address is None or address >> 40 != 0x02

    def send(self, frame):
        with contextlib.suppress(BlockingIOError):
            self._end.send(frame)

    def receive(self):
        try:
            return self._end.recv(2048)
        except BlockingIOError:
            return None

    def receive_batch(self, batch):
        frame = self.receive()
        if frame is not None:
            batch.put(0, frame)
        return int(frame is not None)

    def send_batch(self, batch, rows):
        for row in rows:
            self.send(batch.frame(row))

    def close(self):
        self._end.close()


class _StoppedError(Exception):
    pass


def emulated(config, send):
    """A worker of the emulator."""
    return NetworkedWorker(config, send, cycles_now)


@contextlib.contextmanager
def serve_worker(config, address, *, memory_limit=1 << 20, make=emulated, link_address=None, token=None, tell=print):
    """Serve a worker; gives the other end of its link. ``tell`` is called with its remarks."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    wake, waker = socket.socketpair()
    failures = []

    link = PairLink(near, link_address)
    worker = make(config, link.send)

    def serve(listener):
        server = WorkerServer(worker, link, listener, memory_limit, tell=tell)
        server._control.watch(wake, stop)
        try:
            server.serve()
        except _StoppedError:
            pass
        except BaseException as error:
            failures.append(error)

    def stop():
        raise _StoppedError

    thread = threading.Thread(target=serve, args=(ControlListener(ControlAddress.parse(address), token=token),))
    thread.start()
    try:
        yield far
    finally:
        waker.send(b"x")
        thread.join(30)
        for each in (near, far, wake, waker):
            each.close()
    assert not thread.is_alive()
    assert not failures, failures
