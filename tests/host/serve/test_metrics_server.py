"""The aggregator's metrics are there whoever else connects. What they say is in test_software_aggregator.py."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections import defaultdict

import pytest

from p4sgd.host.serve import metrics
from p4sgd.host.serve.metrics import MetricsServer


@pytest.fixture(params=["127.0.0.1", "::1"])
def address(request):
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as taken:
        try:
            taken.bind((request.param, 0))
        except OSError:
            pytest.skip(f"this machine has no {request.param}")
        found = taken.getsockname()[:2]
    with contextlib.closing(MetricsServer(*found, lambda: defaultdict(lambda: 7), {}, 1)):
        yield found


def scrape(address):
    host, port = address
    with urllib.request.urlopen(f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def test_silent_connections_take_few_threads_and_keep_nobody_out(address):
    before = threading.active_count()
    with contextlib.ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection(address, 10)) for _ in range(100)]
        assert "p4sgd_aggregator_frames_total 7.0" in scrape(address)
        for each in silent[:80]:
            assert each.recv(1) == b"", "it has made room"
        ends = time.monotonic() + 20  # threads end a little later than their connections
        while threading.active_count() > before + metrics._MOST_CONNECTIONS + 1 and time.monotonic() < ends:
            time.sleep(0.01)
        assert threading.active_count() <= before + metrics._MOST_CONNECTIONS + 1


def test_a_silent_connection_is_closed(address, monkeypatch, capfd):
    monkeypatch.setattr(metrics._Handler, "timeout", 0.05)
    with socket.create_connection(address, 10) as silent, socket.create_connection(address, 10) as unfinished:
        unfinished.sendall(b"GET /metrics")
        assert (silent.recv(1), unfinished.recv(1)) == (b"", b"")
    assert capfd.readouterr().err == ""
