"""What workers that have given up say, on a model of their network."""

import pytest
from support.networked_device import NetworkedDevice

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.diagnosis import explain_network_error, inquire
from p4sgd.host.devices.network import NetworkSettings
from p4sgd.host.devices.session import Session
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import Packet, PacketType

SLOT, ROUND, JOB = 2, 1, 7


@pytest.fixture
def device():
    made = NetworkedDevice(WorkerConfig.tiny(), 3)
    Session(made, NetworkSettings(job=JOB, first_round=ROUND))
    return made


def send_partial(device, worker):
    """Have the aggregator get a worker's partial of the slot."""
    local = client_of(device.workers[worker]).read_pair(registers.LOCAL_MAC)
    partial = Packet(PacketType.PARTIAL, JOB, SLOT, ROUND, worker, 3, 1 << worker, source=local)
    assert device.network.model.receive(partial, worker) is None
    assert device.network.model.accepted == worker + 1


def give_up(device, *workers, round_=ROUND):
    """Let workers give up that waited for sums, as the hardware does: with a probe."""
    for worker in workers:
        device.workers[worker].words[registers.GIVEN_UP.offset] = registers.GIVEN_UP.encode(
            slot=SLOT, partial=1, given_up=1, round=round_
        )
        device.probe(worker, {"slot": SLOT, "number": 0, "broadcast": 0})


def explain(device):
    return explain_network_error([inquire(client_of(worker), 0.0) for worker in device.workers])


def lose(count, *workers):
    """A link that loses the first frames of workers."""
    left = dict.fromkeys(workers, count)

    def carry(worker, frame):
        left[worker] = left.get(worker, 0) - 1
        return frame if left[worker] < 0 else None

    return carry


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("lost", [0, 1, 20])
def test_losses_do_not_hide_who_is_missing(device, way, lost):
    send_partial(device, 0)
    send_partial(device, 1)
    setattr(device, way, lose(lost, 0, 1))
    give_up(device, 0, 1)
    said = f"worker 2 no longer answers: worker 0, 1 waited for it in vain (slot {SLOT}, round {ROUND})"
    assert explain(device) == said


def test_a_worker_that_nobody_hears_is_missing_to_the_others(device):
    send_partial(device, 0)
    send_partial(device, 1)
    device.up = lambda worker, frame: None if worker == 2 else frame
    give_up(device, 0, 1, 2)
    assert explain(device).startswith("worker 2 no longer answers: worker 0, 1 waited for it in vain (slot 2, ")


def test_silence(device):
    device.down = lambda worker, echo: None
    give_up(device, 1, 2)
    said = explain(device)
    assert said.startswith("the aggregator does not answer worker 1, 2, not even a probe: ")
    assert said.endswith(f" (slot {SLOT}, round {ROUND})")


def test_losses_do_not_hide_what_the_aggregator_drops(device):
    device.network.model.end(0)
    device.up = lose(3, 1)
    give_up(device, 1)
    assert explain(device).startswith("the aggregator drops what worker 1 sends: it is of another job")


def test_another_round(device):
    device.up = lose(3, 1)
    give_up(device, 1, round_=9)
    assert explain(device).startswith("the aggregator is not in the round of worker 1 (slot 2, round 9): ")
