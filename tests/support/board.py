"""A board served in a thread, with a link of which the test holds the other end."""

import contextlib
import socket
import threading

from p4sgd.host.board.server import BoardServer
from p4sgd.host.control.address import ControlAddress
from p4sgd.host.control.listening import ControlListener


class PairLink:
    """Frames as datagrams of a socket pair."""

    def __init__(self, end):
        self._end = end
        self.lost = 0
        end.setblocking(False)

    def fileno(self):
        return self._end.fileno()

    def reaches(self, address):
        return True

    def send(self, frame):
        with contextlib.suppress(BlockingIOError):
            self._end.send(frame)

    def receive(self):
        try:
            return self._end.recv(2048)
        except BlockingIOError:
            return None

    def close(self):
        self._end.close()


class _StoppedError(Exception):
    pass


@contextlib.contextmanager
def serve_board(config, address, *, memory_limit=1 << 20):
    """Serve a board; gives the other end of its link."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    wake, waker = socket.socketpair()
    failures = []

    def serve(listener):
        server = BoardServer(config, PairLink(near), listener, memory_limit)
        server._selector.register(wake, 1, stop)
        try:
            server.serve()
        except _StoppedError:
            pass
        except BaseException as error:
            failures.append(error)

    def stop():
        raise _StoppedError

    with contextlib.closing(ControlListener(ControlAddress.parse(address))) as listener:
        thread = threading.Thread(target=serve, args=(listener.socket,))
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
