"""Workers that the device `cluster` has, refuses, drops and takes in."""

import contextlib
import dataclasses
import pickle
import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.ranks import run_ranks
from support.recording_device import RecordingWorker
from support.worker_process import serve_worker

from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, WorkerAddress
from p4sgd.host.aggregators.membership import NumberTakenError
from p4sgd.host.devices.cluster import ClusterDevice
from p4sgd.host.devices.device import WorkerName
from p4sgd.host.devices.job_workers import JobWorkers
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()


def nothing(remark):
    raise AssertionError(remark)


@pytest.fixture(autouse=True)
def controller(monkeypatch):
    """The aggregator is not needed here."""
    controller = SimpleNamespace(most=0, close=lambda: None)
    monkeypatch.setattr("p4sgd.host.devices.cluster.open_controller", lambda cluster: controller)
    return controller


@pytest.fixture
def cluster(tmp_path):
    """Opens the device on three workers, of which ``late`` ones may be missing."""
    controls = [f"unix:{tmp_path / f'worker{index}'}" for index in range(3)]

    def open_cluster(*late, shares=(1.0, 2.0, 3.0)):
        workers = tuple(
            WorkerAddress(port, control, share=shares[port], late=port in late) for port, control in enumerate(controls)
        )
        return ClusterDevice(None, 3, cluster=Cluster(AggregatorAddress("socket", "unix:none"), workers))

    return controls, open_cluster


def test_a_worker_that_is_not_there_is_refused_unless_it_may_be_late(cluster):
    controls, open_cluster = cluster
    with (
        serve_worker(TINY, controls[2]),
        pytest.raises(UserError, match=r"worker 0 at \S*0 is .*; worker 1 at \S*1 is"),
    ):
        open_cluster()
    with serve_worker(TINY, controls[0]), serve_worker(TINY, controls[2]):
        with pytest.raises(UserError, match=r"worker 1 at \S*worker1 is not there"):
            open_cluster(0)
        with contextlib.closing(open_cluster(1)) as device:
            assert device.shares == [1.0, 3.0]
            assert device.absent == [WorkerName(1, controls[1])]
            assert device.take_in(nothing) == set()
            with serve_worker(TINY, controls[1]):
                assert device.take_in(nothing) == {1}
                assert device.shares == [1.0, 2.0, 3.0]
                assert device.absent == []
                assert device.take_in(nothing) == set()
    with pytest.raises(UserError, match=r"none of the cluster file's workers is there"):
        open_cluster(0, 1, 2)


def test_a_worker_that_was_dropped_is_taken_in_when_it_was_started_again(cluster):
    controls, open_cluster = cluster
    with contextlib.ExitStack() as stack:
        for control in controls[:2]:
            stack.enter_context(serve_worker(TINY, control))
        with serve_worker(TINY, controls[2]):
            device = stack.enter_context(contextlib.closing(open_cluster()))
            lost = device.workers[2]
            device.drop({2})
            assert [worker.config for worker in device.workers] == [TINY] * 2
            assert device.take_in(nothing) == set(), "it is the same process: its network is at fault"
        with pytest.raises(P4sgdError, match=r"start it again: .*worker2 --config tiny$"):
            lost.read_register(0)
        assert device.take_in(nothing) == set()
        with serve_worker(TINY, controls[2]):
            assert device.take_in(nothing) == {2}
            device.drop({0})
            assert device.shares == [2.0, 3.0]
            assert device.names == (WorkerName(1, controls[1]), WorkerName(2, controls[2]))


def test_its_job_ends_when_it_is_closed(tmp_path, controller):
    served = {}
    vars(controller).update(
        jobs=4,
        served=lambda: dict(served),
        set_mac=lambda mac: None,
        begin=lambda place, job, first_round: served.update({place: job}),
        end=served.pop,
        close=lambda: served.update(closed=None),
    )
    control = f"unix:{tmp_path / 'worker'}"
    cluster = Cluster(AggregatorAddress("socket", "unix:none"), (WorkerAddress(0, control),))
    with serve_worker(TINY, control):
        for _ in range(2):
            device = ClusterDevice(None, 1, cluster=cluster)
            Session(device)
            assert len(served) == 1
            device.close()
            assert served == {"closed": None}
            served.clear()
        device = ClusterDevice(None, 1, cluster=cluster)
        Session(device)
        controller.served = Mock(side_effect=P4sgdError("the aggregator is gone"))
        device.close()
        assert "closed" in served, "whatever the aggregator says"


def test_workers_of_other_slots_cannot_take_part(cluster):
    controls, open_cluster = cluster
    other = dataclasses.replace(TINY, slots=8)
    wide = dataclasses.replace(TINY, engines=2)
    with serve_worker(TINY, controls[0]), serve_worker(wide, controls[1]):
        with contextlib.closing(open_cluster(2)) as device, serve_worker(other, controls[2]):
            assert [worker.config for worker in device.workers] == [TINY, wide]
            remarks = []
            assert device.take_in(remarks.append) == set()
            (remark,) = remarks
            assert re.search(rf"worker 2 at {controls[2]} has 8 slots, worker 0 at \S* has 4", remark)
            assert device.absent == [WorkerName(2, controls[2])]
        with (
            serve_worker(other, controls[2]),
            pytest.raises(UserError, match=r"worker 2 at \S* has 8 slots, worker 0 at \S* has 4: .*equally many"),
        ):
            open_cluster()


def test_a_refusal_of_the_aggregator_reaches_all_ranks():
    """All ranks must then take the next number. Only the first controls the aggregator."""
    joined = []

    def join(applicant, port, first_round, *, index):
        joined.append(index)
        if len(joined) == 3:
            raise pickle.loads(pickle.dumps(NumberTakenError(7)))  # as MPI makes it

    def of_rank(ranks):
        membership = SimpleNamespace(join=join)
        workers = JobWorkers(lambda: membership if ranks.rank == 0 else pytest.fail("not the first"), ranks)
        worker = RecordingWorker(TINY, size=16)
        with pytest.raises(NumberTakenError, match=r"^job 7 cannot begin: the"):
            workers.before_write(worker, ranks.rank, 0, registers.JOIN.offset, registers.JOIN.encode(round=1))
        return ranks.rank

    assert run_ranks(3, of_rank) == joined == [0, 1, 2]
