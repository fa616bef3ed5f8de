"""Counters for Prometheus."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.aggregator import COUNTERS, job_counters
from p4sgd.hw.spec.drop import Drop
from p4sgd.hw.spec.job import Job

__all__ = ["MetricsServer"]

_PREFIX = "p4sgd_aggregator_"


class MetricsServer:
    """Answers ``GET /metrics``, in a thread of its own, which only reads.

    Parameters
    ----------
    host, port
        Where to listen.
    counters
        Gives all counters.
    jobs
        Jobs that are served, by place.

    Raises
    ------
    UserError
        If it cannot listen there.
    """

    def __init__(
        self, host: str, port: int, counters: Callable[[], Mapping[str, int]], jobs: Mapping[int, Job]
    ) -> None:
        registry = CollectorRegistry()
        registry.register(_Collector(counters, jobs))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UserError(f"--metrics {host}:{port}: cannot listen there: {error.strerror or error}") from None

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """Makes metrics of counters when they are asked for."""

    def __init__(self, counters: Callable[[], Mapping[str, int]], jobs: Mapping[int, Job]) -> None:
        self._counters = counters
        self._jobs = jobs

    def collect(self) -> Iterable[Metric]:
        counted = self._counters()
        for name, meaning in COUNTERS.items():
            if not name.startswith("DROPPED_"):
                yield CounterMetricFamily(_PREFIX + name.lower(), meaning, value=counted[name])
        dropped = CounterMetricFamily(_PREFIX + "dropped", "frames dropped", labels=["reason"])
        for drop in Drop:
            dropped.add_metric([drop.name.lower()], counted[f"DROPPED_{drop.name}"])
        yield dropped
        served = dict(self._jobs)
        yield GaugeMetricFamily(_PREFIX + "jobs", "jobs that are served", value=len(served))
        packets = CounterMetricFamily(
            _PREFIX + "job_packets",
            "packets with the number of the job in a place, accepted or dropped",
            labels=["place", "job", "outcome"],
        )
        for place, job in sorted(served.items()):
            for name, outcome in zip(job_counters(place), ("accepted", "dropped"), strict=True):
                packets.add_metric([str(place), str(job.number), outcome], counted[name])
        yield packets
