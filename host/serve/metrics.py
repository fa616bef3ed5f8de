"""The counters of a software aggregator for Prometheus."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.aggregator import COUNTERS, PARENT_COUNTERS, job_counters
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.packet import DropReason, KeyedDrop

_PREFIX = "p4sgd_aggregator_"

_TIMEOUT_S = 5.0  # longest time without progress of a request; then its connection is closed
_MOST_CONNECTIONS = 16  # how many there may be, each with a thread and a descriptor; then the oldest makes room
_PAUSE_S = 0.1  # time between two tries to accept a connection while the process has no descriptors left


class MetricsServer:
    """Answers ``GET /metrics`` in threads of its own, which only read. There are few, whoever connects.

    ``counters`` returns all counters; ``jobs`` are those that are served, by place.
    """

    def __init__(
        self, host: str, port: int, counters: Callable[[], Mapping[str, int]], jobs: Mapping[int, Job], places: int
    ) -> None:
        registry = CollectorRegistry()
        registry.register(_Collector(counters, jobs, places))
        try:
            self._server = _Server(host, port, _Handler.factory(registry))
        except OSError as error:
            raise UserError(f"--metrics {host}:{port}: cannot listen there: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Has a bounded number of connections, which nobody can use up by saying nothing."""

    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, host: str, port: int, handler: type) -> None:
        (self.address_family, _, _, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self._open: list[socket.socket] = []  # the oldest first
        super().__init__((str(address[0]), port), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # out of descriptors; the connection stays, and would be tried again at once
            time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= _MOST_CONNECTIONS:
            with contextlib.suppress(OSError):
                self._open.pop(0).shutdown(socket.SHUT_RDWR)  # so its thread ends
        self._open.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called in the thread of a connection, at its end."""
        with contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)


class _Handler(MetricsHandler):
    timeout = _TIMEOUT_S

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # else a client that hangs up would be reported with a traceback
            super().handle()


class _Collector:
    """Makes metrics of counters when they are asked for."""

    def __init__(self, counters: Callable[[], Mapping[str, int]], jobs: Mapping[int, Job], places: int) -> None:
        self._counters, self._jobs, self._places = counters, jobs, places

    def collect(self) -> Iterable[Metric]:
        counted, jobs = self._counters(), dict(self._jobs)
        for name, meaning in (COUNTERS | PARENT_COUNTERS).items():
            if not name.startswith("DROPPED_"):
                yield CounterMetricFamily(_PREFIX + name.lower(), meaning, value=counted[name])
        dropped = CounterMetricFamily(_PREFIX + "dropped", "frames dropped", labels=["reason"])
        for drop in (*DropReason, *KeyedDrop):
            dropped.add_metric([drop.name.lower()], counted[f"DROPPED_{drop.name}"])
        info = InfoMetricFamily(_PREFIX + "job", "the number of the job in a place", labels=["place"])
        for place, job in sorted(jobs.items()):
            info.add_metric([str(place)], {"job": str(job.number)})
        # By place, as they are counted: by number, a job would begin with the counts of those before it in its place.
        packets = CounterMetricFamily(
            _PREFIX + "job_packets",
            "packets with the number of the job in a place, accepted or dropped, of all jobs there so far",
            labels=["place", "outcome"],
        )
        for place in range(self._places):
            for name, outcome in zip(job_counters(place), ("accepted", "dropped"), strict=True):
                packets.add_metric([str(place), outcome], counted[name])
        yield from (
            dropped,
            GaugeMetricFamily(_PREFIX + "jobs", "jobs that are served", value=len(jobs)),
            info,
            packets,
        )
