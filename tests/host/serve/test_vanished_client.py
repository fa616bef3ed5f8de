"""A client over TCP whose machine vanishes while an answer to it is under way."""

import contextlib
import socket
import threading
import time

import pytest
from support.corruption import CorruptingCable
from support.namespace import Namespace

from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.rpc.client import ControlClient
from p4sgd.host.rpc.server import ControlServer, Methods, notice_vanishing

TOKEN = b"correct horse battery staple"


def test_neither_silence_nor_an_answer_that_nobody_acknowledges_lasts():
    with socket.socket() as connection:
        notice_vanishing(connection)
        idle, between, count, user = (
            connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"))
            for name in ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
        )
    assert idle + between * count == user // 1000 == 25


@pytest.mark.slow
def test_a_client_that_vanishes_makes_room():
    """After 26 s here, and after 941 s if only keepalive asks."""
    with contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(contextlib.closing(Namespace())) for _ in range(2))
        cable = CorruptingCable([here, there], 0.0, 0)
        address = ControlAddress(host="10.0.0.1", port=7000)
        listener = here.call(ControlListener, address, token=TOKEN)
        methods = Methods(vanish=cable.close)
        server = ControlServer(listener, "test", methods, most_clients=1, busy="is busy")
        stack.enter_context(contextlib.closing(server))

        def vanish():
            client = there.call(ControlClient, address, "test", "the test", "test", timeout_s=1.0, token=TOKEN)
            with pytest.raises(P4sgdError, match="has not answered for 1 s"):
                client.call("vanish")

        thread = threading.Thread(target=vanish, daemon=True)
        thread.start()
        end = time.monotonic() + 10
        while not server.has_clients:
            server.turn(0.1)
            assert time.monotonic() < end
        end = time.monotonic() + 90
        while server.has_clients:
            server.turn(0.1)
            assert time.monotonic() < end
        thread.join()
