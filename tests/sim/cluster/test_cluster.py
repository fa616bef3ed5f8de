"""What a cluster refuses."""

from dataclasses import replace

import pytest

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.cluster.build import build_cluster


def test_packets_in_udp_are_refused():
    with pytest.raises(ValueError, match="UDP cannot be simulated"):
        build_cluster(replace(WorkerConfig.tiny(), udp=True), 2)
