"""An emulator whose workers send their probes to the Python model of an aggregator."""

import dataclasses
from collections import Counter

from p4sgd.host.devices import open_device
from p4sgd.host.devices.device import client_of
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import VERSION, DropReason, EchoValue, Packet, PacketType
from support.aggregator_model import Aggregator
from support.recording_device import BareDevice


class CountingAggregator:
    """The model, with the counters of the hardware that an examination looks at."""

    most = 0

    def __init__(self, slots):
        self.model = Aggregator(slots)
        self.counts = Counter()

    def served(self):
        return self.model.jobs

    def counters(self):
        names = ("FRAMES", "ECHOES", "FULLS_TO_ONE", "CLEARS_TO_ONE")
        drops = {f"DROPPED_{drop.name}": self.model.drops[drop] for drop in DropReason}
        return {name: self.counts[name] for name in names} | drops


class ProbingWorker:
    """An emulated worker but for the registers in ``words``; its memory is what ``spoil`` makes of it."""

    def __init__(self, device, index, emulated):
        self._device = device
        self._index = index
        self._emulated = emulated
        self.words = {}
        self.spoil = lambda data: data
        self.config = emulated.config
        self.write_memory = emulated.write_memory

    def read_memory(self, bank, address, size):
        return self.spoil(self._emulated.read_memory(bank, address, size).copy())

    def read_register(self, offset):
        return self.words.get(offset, self._emulated.read_register(offset))

    def write_register(self, offset, word):
        self._emulated.write_register(offset, word)
        if offset == registers.JOIN.offset and self._index == len(self._device.workers) - 1:
            self._device.begin(self._device.job())
        if offset == registers.PROBE.offset:
            self.words[registers.ECHO.offset] = 0
            self._device.probe(self._index, registers.PROBE.decode(word))

    def take(self, echo, cycles):
        """Show an echo in the registers."""
        values = [value & 0xFFFFFFFF for value in echo.values]
        self.words |= {
            registers.ECHO.offset: registers.ECHO.encode(
                number=values[EchoValue.NUMBER],
                verdict=values[EchoValue.VERDICT],
                port=values[EchoValue.PORT],
                version=echo.version,
                came=1,
            ),
            registers.ECHO_JOB.offset: registers.ECHO_JOB.encode(round=echo.round, workers=values[EchoValue.WORKERS]),
            registers.ECHO_AGGREGATED.offset: echo.bitmap,
            registers.ECHO_ACKNOWLEDGED.offset: values[EchoValue.ACKNOWLEDGED],
            registers.ECHO_SLOTS.offset: values[EchoValue.SLOTS],
            registers.ECHO_SOURCE[0].offset: echo.source & 0xFFFFFFFF,
            registers.ECHO_SOURCE[1].offset: echo.source >> 32,
            registers.ECHO_EXPECTED[0].offset: values[EchoValue.MAC_LOW],
            registers.ECHO_EXPECTED[1].offset: values[EchoValue.MAC_HIGH],
            registers.ECHO_CYCLES.offset: cycles,
        }


class NetworkedDevice(BareDevice):
    """Worker i is behind port i.

    ``up(worker, frame)`` and ``down(worker, echo)`` are the links: what they return comes out, nothing if it is None.
    ``begin(job)`` is the controller of the aggregator; with an ``aggregator`` of None this cannot be read. A run
    counts 2 packets a worker, and those in ``resent``; both again if RESEND_CYCLES is shorter than an answer takes.
    """

    name = "networked"
    CYCLES = 50

    def __init__(self, config, workers, *, slots=None, version=VERSION):
        self._emulator = open_device("emulator", config, workers)
        self.network = self.aggregator = CountingAggregator(slots or config.slots)
        self.version = version
        self.workers = [ProbingWorker(self, *each) for each in enumerate(self._emulator.workers)]
        self.resent = [0] * workers
        self.up = lambda worker, frame: frame
        self.down = lambda worker, echo: echo
        self.begin = lambda job: self.network.model.begin(0, job)

    def job(self):
        """The job that the workers are in, as a controller would have it served."""
        clients = [client_of(worker) for worker in self.workers]
        self.network.model.mac = clients[0].read_pair(registers.PEER_MAC)
        members = [Member(client.read_pair(registers.LOCAL_MAC), port) for port, client in enumerate(clients)]
        return Job(clients[0].read(registers.JOB)["job"], tuple(members), 1 << 40, (1 << len(members)) - 1)

    def probe(self, index, question):
        """Carry a probe to the aggregator and its echo back."""
        client = client_of(self.workers[index])
        who = client.read(registers.JOB)
        packet = Packet(
            type=PacketType.PROBE,
            job=who["job"],
            slot=question["slot"],
            round=0,
            shard=who["shard"],
            workers=who["workers"],
            bitmap=1 << who["shard"],
            values=(question["number"], *[0] * 7),
            destination=(1 << 48) - 1 if question["broadcast"] else client.read_pair(registers.PEER_MAC),
            source=client.read_pair(registers.LOCAL_MAC),
        )
        frame = self.up(index, packet.to_bytes())
        if frame is None:
            return
        self.network.counts["FRAMES"] += 1
        answer = self.network.model.receive_frame(frame, index)
        if answer is None:
            return
        self.network.counts["ECHOES"] += 1
        echo = self.down(index, dataclasses.replace(answer.packet, version=self.version))
        if echo is not None and echo.destination == client.read_pair(registers.LOCAL_MAC):
            self.workers[index].take(echo, self.CYCLES)

    def wait(self, timeout_s=None):
        self._emulator.wait(timeout_s)
        for worker, resent in zip(self.workers, self.resent, strict=True):
            if client_of(worker).read(registers.RESEND_CYCLES)["value"] < self.CYCLES:
                resent = 2
            for name, count in (("CYCLES", 1), ("PACKETS_SENT", 2 + resent), ("PACKETS_RESENT", resent)):
                worker.words[registers.COUNTERS[name].registers[0].offset] = count
