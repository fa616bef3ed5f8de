"""What a cluster refuses."""

from dataclasses import replace
from functools import partial

import pytest

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.cluster.build import build_cluster, build_single_worker


@pytest.mark.parametrize("build", [build_single_worker, partial(build_cluster, workers=2)])
def test_packets_in_udp_are_refused(build):
    with pytest.raises(ValueError, match="UDP"):
        build(replace(WorkerConfig.tiny(), udp=True))
