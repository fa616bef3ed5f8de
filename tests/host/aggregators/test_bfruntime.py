"""The controller of a Tofino, on a stand-in for the SDE's client with the interpreted program."""

import contextlib
from pathlib import Path

import pytest
from support.table_switches import MAC, Tofino, made, packet, send

from p4sgd.host.aggregators.bfruntime import BfRuntimeController, open_bfruntime
from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Tls
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import PacketType


@pytest.fixture
def switch(tmp_path):
    with made(Tofino, tmp_path) as found:
        yield found


@pytest.fixture
def controller(switch):
    with contextlib.closing(BfRuntimeController("localhost:50052")) as opened:
        opened.set_mac(MAC)
        yield opened


def test_answers_to_all_reach_every_port(switch, controller):
    """Also the port of the last packet, and regardless of where other frames are flooded."""
    controller.set_forwarding(range(4), {})
    job = Job(1, (Member(1, 3), Member(2, 0)), 0x0100_5034_5347, 0b1001)
    controller.begin(0, job, 0)
    assert send(switch, job, PacketType.PARTIAL, 0, 0) is None
    last = packet(job, PacketType.PARTIAL, 1, 0)
    assert [port for port, _ in switch.forward(last.to_bytes(), 0)] == [0, 3]


def test_a_switch_that_refuses(switch, controller):
    with pytest.raises(P4sgdError, match="localhost:50052 refuses: Object not found"):
        controller.delete_group(8)


def test_without_the_sde():
    with pytest.raises(UserError, match=r"bfrt_grpc.*SDE"):
        BfRuntimeController("localhost:50052")


def test_another_program(switch, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.bfruntime.P4_NAME", "ipv4")
    with pytest.raises(P4sgdError, match="does not run ipv4"):
        BfRuntimeController("localhost:50052")


def test_tls_is_refused():
    with pytest.raises(UserError, match="tls"):
        open_bfruntime(AggregatorAddress("tofino", "localhost:50052", tls=Tls(Path("ca.pem"))))
