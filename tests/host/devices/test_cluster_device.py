"""Workers that the device `cluster` refuses."""

import dataclasses

import pytest
from support.worker_process import serve_worker

from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, WorkerAddress
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()


@pytest.mark.parametrize("asked_for", [False, True])
def test_workers_with_packets_in_udp_are_refused(tmp_path, asked_for):
    """They would need MAC addresses that a session does not write."""
    config = dataclasses.replace(TINY, udp=True)
    control = f"unix:{tmp_path / 'worker'}"
    cluster = Cluster(AggregatorAddress("socket", f"unix:{tmp_path / 'none'}"), (WorkerAddress(control, 0),))
    with serve_worker(config, control), pytest.raises(UserError) as refused:
        ClusterDevice(config if asked_for else None, 1, cluster=cluster)
    assert str(refused.value).startswith(f"worker 0 at {control} was generated with --udp")
    assert str(refused.value).endswith(": generate it without --udp")
