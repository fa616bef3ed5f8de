"""Kernels of emulated boards, and the memory that they reach: workers, aggregator, self-test and MAC.

What is noted in `violations` of a board's machine fails the test.
"""

import errno
import time
from dataclasses import dataclass

import numpy as np

from p4sgd.hw.spec import aggregator as spec
from p4sgd.hw.spec import cmac, registers, selftest
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.sim.emulator import EmulatorError
from p4sgd.sim.emulator.networked import NetworkedWorker

PAGE = 4096
RUN_LINGERS_S = 0.005
"""How long an aborted run takes to end."""
LINK_UP_S = 0.02
"""How long a link takes to come up."""


@dataclass
class Allocation:
    address: int
    data: np.ndarray

    @property
    def end(self):
        return self.address + self.data.size


class Channel:
    """A pseudo-channel of the board's memory, or neighbours as one memory. Its initial content is arbitrary.

    One that is a part of ``another`` has its allocations: XRT's driver keeps a single list of what is taken of the
    board, and looks for room in a range of it. Ports of kernels read and write it by addresses of the board.
    """

    size = 0  # for workers, which do not limit it

    def __init__(self, base, room, another=None):
        self.base, self._end = base, base + room
        self.allocations = [] if another is None else another.allocations

    def allocate(self, size):
        start = self.base + 3 * PAGE  # so an address without the base added is in no allocation
        for known in sorted(self.allocations, key=lambda each: each.address):
            if start + size <= known.address:
                break
            start = max(start, -(-known.end // PAGE) * PAGE + PAGE)
        if start + size > self._end:
            raise OSError(errno.ENOMEM, f"Could not allocate {size} bytes in bank")
        self.allocations.append(Allocation(start, np.full(size, 0xA5, np.uint8)))
        return self.allocations[-1]

    def _part(self, address, size):
        for known in self.allocations:
            if known.address <= address and address + size <= known.end:
                return known.data[address - known.address :][:size]
        raise EmulatorError(f"bytes {address:#x} to {address + size:#x} are in no buffer of the port's channel")

    def read(self, address, size):
        return self._part(address, size).copy()

    def write(self, address, data):
        self._part(address, data.size)[:] = data.reshape(-1)


class KernelWorker(NetworkedWorker):
    """A worker as a kernel. An aborted run ends a little later, and errors in a run are violations."""

    def __init__(self, board, config, groups, link):
        super().__init__(config, link.send, lambda: time.monotonic_ns() // CLOCK_NS, most=0)
        self._board = board
        self._memory = [board.channels[group] for group in groups]
        self.hangs = False
        self._ends_at = None

    @property
    def runs(self):
        return not self.registers.get(registers.CTRL, "idle")

    def write_register(self, offset, word):
        if offset == registers.ABORT.offset and self.runs:
            if not self.hangs:
                self._ends_at = time.monotonic() + RUN_LINGERS_S
            return
        try:
            super().write_register(offset, word)
        except EmulatorError as error:
            self._board.machine.violations.append(f"a run that cannot be was started: {error}")

    def work(self):
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self._ends_at = None
            super().write_register(registers.ABORT.offset, 1)
        try:
            super().work()
        except EmulatorError as error:
            self._board.machine.violations.append(f"a run went wrong: {error}")

    def _end(self, flag):
        super()._end(flag)
        if flag == "memory_error":
            self._board.machine.violations.append("a run has met an error of the memory")


class Kernel:
    """A kernel that neither runs nor takes frames."""

    runs = hangs = False

    def receive(self, frame):
        pass

    def work(self):
        pass


class KernelAggregator(Kernel):
    """An aggregator as a kernel: registers in front of the switch's state machine, without counters."""

    def __init__(self, machine, config):
        self._aggregator = machine.server.aggregator
        self._words = {register.offset: register.reset for register in spec.after_reset(config)}
        self._client = RegisterClient(self._words.__getitem__, self._words.__setitem__)
        self._members = {}

    def read_register(self, offset):
        if offset == spec.JOBS.offset:
            return spec.JOBS.encode(running=sum(1 << place for place in self._aggregator.jobs))
        return self._words.get(offset, 0)

    def write_register(self, offset, word):
        self._words[offset] = word
        client = self._client
        if offset == spec.MAC[1].offset:
            self._aggregator.mac = client.read_pair(spec.MAC)
        elif offset == spec.END.offset:
            self._aggregator.end(spec.END.decode(word)["place"])
        elif offset == spec.MEMBER.offset:
            member = spec.MEMBER.decode(word)
            found = Member(client.read_pair(spec.MEMBER_MAC), member["port"])
            self._members[member["place"], member["shard"]] = found
        elif offset == spec.BEGIN.offset:
            begun = spec.BEGIN.decode(word)
            settings, *group, ports = spec.job_registers(begun["place"])
            job = client.read(settings)
            members = tuple(self._members[begun["place"], shard] for shard in range(job["workers"]))
            found = Job(job["number"], members, client.read_pair(tuple(group)), client.read(ports)["value"])
            self._aggregator.begin(begun["place"], found, begun["round"])
        elif offset == spec.LOOK_MEMBER.offset:
            looked = spec.LOOK_MEMBER.decode(word)
            shown = self._members.get((looked["place"], looked["shard"]), Member(0, 0))
            client.write_pair(spec.SHOWN_MAC, shown.mac)
            client.write(spec.SHOWN_PORT, value=shown.port)


class KernelSelfTest(Kernel):
    """A self-test as a kernel: by the exact model, with a beat a cycle after a latency.

    The board's ``faults`` say what is wrong: the ``read`` or ``written`` content of a port (a function that changes
    it), ports that are ``swapped``, cycles a beat of ``slow`` ones (a number, or a function of the ports that run), and
    of those that are so in ``single`` beats or, unlike in long ones, in ``short`` bursts, their ``errors``, after how
    many beats a port is ``stuck``, the ``clock`` in MHz, what to add to the results of ``frames`` by cage, and what is
    not as it should be in ``loopback``, as of a cable.
    """

    LATENCY = 75

    def __init__(self, board, config, cages, groups):
        self._board = board
        self._sizes = selftest.Sizes.of(WorkerConfig(**config), cages)
        self._ports = [board.channels[group] for group in groups]
        self._words = {register.offset: register.reset for register in selftest.after_reset(self._sizes)}
        self._client = RegisterClient(self._words.__getitem__, self._words.__setitem__)

    def read_register(self, offset):
        if offset == selftest.CLOCK.offset:
            return int(time.monotonic() * 1e6 * self._board.faults.get("clock", 250)) % (1 << 32)
        return self._words.get(offset, 0)

    def write_register(self, offset, word):
        self._words[offset] = word
        if offset == selftest.RUN.offset:
            chosen = self._client.read_pair(selftest.PORTS)
            ports = [port for port in range(self._sizes.memories) if chosen >> port & 1]
            for port in ports:
                try:
                    self._run(port, ports, self._read if selftest.RUN.decode(word)["read"] else self._write)
                except EmulatorError as error:
                    self._board.machine.violations.append(f"a port reads or writes elsewhere: {error}")
        if offset == selftest.SEND.offset:
            for cage in range(self._sizes.cages):
                if self._words[selftest.CAGES.offset] >> cage & 1:
                    self._send(cage, word)

    def _run(self, port, ports, run):
        faults, result = self._board.faults, run(port)
        shape = self._client.read(selftest.SHAPE)
        kind = "single" if shape["stride_beats"] > 1 else "short" if shape["short"] and "short" in faults else "slow"
        cycles = faults.get(kind, {}).get(port, 1)
        cycles = max(cycles(ports) if callable(cycles) else cycles, 1)
        result |= {"cycles": round(result["beats"] * cycles) + self.LATENCY, "latency": self.LATENCY}
        result["errors"] = faults.get("errors", {}).get(port, 0)
        if port in faults.get("stuck", {}):
            result["beats"] = faults["stuck"][port]
            self._client.write_pair(selftest.BUSY, self._client.read_pair(selftest.BUSY) | 1 << port)
        for name, register in selftest.port_results(port).items():
            self._client.write(register, value=result[name])

    def _port(self, port):
        """Address, first number, bytes of a beat, and what is there, of the memory that a port reaches."""
        swapped = self._board.faults.get("swapped", ())
        other = sum(swapped) - port if port in swapped else port
        address, first = self._client.read_pair(selftest.address_of(other)), self._client.read(selftest.first_of(port))
        return address, first["value"], self._sizes.bytes_of(port), self._ports[other]

    def _read(self, port):
        address, first, beat_bytes, memory = self._port(port)
        shape = self._client.read(selftest.SHAPE)
        shape.pop("short")
        beats = self._client.read(selftest.GROUPS)["value"] * shape["stride_beats"]
        content = memory.read(address, beats * beat_bytes)
        self._board.faults.get("read", lambda port, content: None)(port, content)
        return selftest.read_result(content.reshape(beats, beat_bytes), first, **shape)

    def _write(self, port):
        assert self._sizes.writes(port), "only ports that a worker writes can write"
        address, first, beat_bytes, memory = self._port(port)
        beats = self._client.read(selftest.CHUNKS)["value"] * self._sizes.chunk_beats
        content = selftest.pattern(first, beats, beat_bytes).reshape(-1)
        self._board.faults.get("written", lambda port, content: None)(port, content)
        memory.write(address, content)
        return {"beats": beats, "wrong": 0, "wrong_beat": 0, "wrong_word": 0, "wrong_words": 0}

    def _send(self, cage, frames):
        result = {"sending": 0, "sent": frames, "received": frames, "wrong": 0, "missing": 0}
        result["cycles"] = round(1.76 * frames)
        for name, more in self._board.faults.get("frames", {}).get(cage, {}).items():
            result[name] += more
        for name, register in selftest.cage_registers(cage).items():
            self._client.write(register, value=result[name])


class KernelMac(Kernel):
    """A MAC as a kernel. Its link is up a moment after loading or reset, if the cable is good."""

    def __init__(self, board):
        self._board = board
        self.words = {register.offset: register.reset for register in cmac.after_reset()}
        self.resets = self.rx_resets = 0
        self._begin()

    def _begin(self):
        """Come out of reset."""
        self._up_at = time.monotonic() + LINK_UP_S
        self._rs_fec = cmac.CONTROL.decode(self.words[cmac.CONTROL.offset])["rs_fec"]

    def read_register(self, offset):
        if offset in (cmac.STATUS.offset, cmac.LANES.offset):
            control = cmac.CONTROL.decode(self.words[cmac.CONTROL.offset])
            cable = self._board.faults.get("loopback", {}) if control["loopback"] else self._board.cable
            fits = cable.get("there", True) and self._rs_fec == cable.get("rs_fec", 1)
            adapted = self.rx_resets >= cable.get("rx_resets", 0)
            signal = fits and adapted and not control["reset"] and not control["rx_reset"]
            block_lock = cable.get("block_lock", 0xFFFFF) if signal else 0
            fec_lock = cable.get("fec_lock", 0xF) if signal and self._rs_fec else 0
            if offset == cmac.LANES.offset:
                return cmac.LANES.encode(block_lock=block_lock, fec_lock=fec_lock)
            aligned = block_lock == 0xFFFFF and fec_lock == 0xF * self._rs_fec and not cable.get("skewed")
            remote_fault = aligned and cable.get("remote_fault", 0)
            return cmac.STATUS.encode(
                up=aligned and not remote_fault and time.monotonic() >= self._up_at,
                aligned=aligned,
                local_fault=not aligned,
                remote_fault=remote_fault,
                rx_reset=cable.get("rx_reset", 0),
                power_good=cable.get("power_good", 0xF),
                hi_ber=cable.get("hi_ber", 0),
                fec_aligned=aligned and self._rs_fec,
            )
        return self.words.get(offset, 0)

    def write_register(self, offset, word):
        if offset == cmac.SNAPSHOT.offset:
            for name, count in self._board.cable.get("errors", {}).items():
                self.words[cmac.COUNTERS[name].offset] += count
        if offset != cmac.CONTROL.offset:
            return
        before, after = (cmac.CONTROL.decode(each) for each in (self.words[offset], word))
        if before["rs_fec"] != after["rs_fec"] and not after["reset"]:
            self._board.machine.violations.append("RS-FEC is changed outside of reset")
        self.words[offset] = word
        if before["reset"] and not after["reset"]:
            self.resets += 1
            self._begin()
        self.rx_resets += before["rx_reset"] and not after["rx_reset"]
