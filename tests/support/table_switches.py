"""P4 switches with an interpreted program behind a P4Runtime server or a stand-in for the SDE's client; jobs."""

import contextlib
import sys
import types

import pytest

from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet
from support.bfrt import BfruntimeRpcException, Switch
from support.p4 import Program
from support.p4_switch import with_sizes
from support.p4runtime_server import P4RuntimeServer, RefusedError

SLOTS = 256
MAC = 0x0250_3453_47FF
GROUP_MAC = 0x0100_5034_5347


class Bmv2:
    kind, lacking = "bmv2", {"DROPPED_ETHERTYPE"}

    def __init__(self, sources):
        self.program = Program(sources / "p4sgd_v1model.p4")
        self.server = P4RuntimeServer(self.program)
        self.address, self.forward, self.close = self.server.address, self.server.forward, self.server.stop

    def cut(self):
        raise RefusedError(13, "the connection is cut")

    def ports_of(self, group):
        return self.server.groups[group]

    def on_write(self, happens):
        self.server.on_write = happens


class Tofino:
    kind, lacking = "tofino", {"DROPPED_ETHERTYPE", "DROPPED_RUNT", "DROPPED_LONG"}
    address = "localhost:50052"

    def __init__(self, sources):
        self.program = Program(sources / "p4sgd_tna.p4")
        self.made = Switch(self.program)
        self.ports_of, self.forward = self.made.ports_of, self.made.forward
        self._modules = pytest.MonkeyPatch()
        self._modules.setitem(sys.modules, "bfrt_grpc", types.ModuleType("bfrt_grpc"))
        self._modules.setitem(sys.modules, "bfrt_grpc.client", self.made.module())

    def close(self):
        self._modules.undo()

    def cut(self):
        raise BfruntimeRpcException(14, "the connection is cut")

    def on_write(self, happens):
        self.made.on_write = lambda what: happens()


@contextlib.contextmanager
def made(kind, folder):
    """A switch with two places, of `Bmv2` or `Tofino`."""
    with contextlib.closing(kind(with_sizes(folder / "sources", AggregatorConfig(SLOTS, jobs=2)))) as found:
        yield found


def job_of(number, workers, ports=None):
    members = tuple(Member(0x0200_0000_0000 | number << 8 | shard, shard + 1) for shard in range(workers))
    return Job(number, members, GROUP_MAC, sum(1 << port for port in ports or range(1, workers + 1)))


def packet(job, kind, shard, round_, slot=0, value=0):
    where = {"job": job.number, "slot": slot, "round": round_, "shard": shard, "workers": len(job.members)}
    addresses = {"destination": MAC, "source": job.members[shard].mac}
    return Packet(kind, **where, bitmap=1 << shard, values=(value,) * 8, **addresses)


def send(switch, job, *args, **fields):
    sent = packet(job, *args, **fields)
    return switch.program.receive(sent.to_bytes(), job.members[sent.shard].port)
