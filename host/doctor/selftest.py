"""The self-test of a board: what its memory ports and MACs do, and whether that is enough for a worker."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from p4sgd.host.boards.kernel import EMULATED_WAIT_S, BankMemory, BoardAddress
from p4sgd.host.boards.mac import BoardMac, await_links, open_mac
from p4sgd.host.doctor.ethernet import why_down
from p4sgd.host.doctor.finding import Evidence, Finding, Problem, Result, judge
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import selftest
from p4sgd.hw.spec.cmac import FEC_LANES, LinkState
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.packet import FRAME_BYTES
from p4sgd.hw.spec.register_map import Register, RegisterClient, find_other_map
from p4sgd.hw.spec.selftest import Sizes, first_number, number_of_word, pattern, read_result

_STILL_CYCLES = 10_000
"""Cycles without a beat or a frame after which none is waited for, 40 µs at 250 MHz: memory answers within 1 µs, and so
do the MAC and its transceivers. Cycles, because Vitis' emulator may do few a second."""

_STILL_S = 1.0
"""Longest time that so many cycles take on a board."""

_CLOCK_S = 0.1
"""Time for which the clock is counted. A register is read in some 10 µs, so the rate is known to a part in 1,000."""

_CLOCK_READINGS = 5

_POLL_S = 0.0005

_SHARE = 0.9
"""Least share of a beat a cycle at which memory keeps up with a port.

A pseudo channel of HBM gives 14.375 GB/s (UG1393, HBM Configuration and Use; 9.9 on a U50, by the 316 GB/s of DS965). A
port of 32 bytes takes 8.0 at 250 MHz. So only refreshes stop it: if all banks refresh at once, for 260 ns of 3.9 µs,
that is 6.7 % of the time. The rest is for the start of a run and for crossings between clocks."""

_STRIDE = 8
"""Stored planes of the run in single beats, of which one is read: what most depends on the reads under way."""

_NOMINAL_MEGAHERTZ = 1000 / CLOCK_NS

_LINE_FRAMES = 100e9 / 8 / (FRAME_BYTES + 24) / 1e6
"""Millions of frames a second on 100 Gb/s: preamble, check sequence and gap are 24 bytes more of each (IEEE 802.3)."""

_SEEDS = {"read": 0x1234_5678, "written": 0x8765_4321}
"""Seeds of the pattern that the host writes, and of the one that the ports write over it."""

_EMULATED_SIZE, _EMULATED_FRAMES = 1 << 16, 1000
"""Most bytes of each port's memory, and frames, in Vitis' emulator, which simulates some thousand cycles a second."""

_LOSSES = ("TX_DROPPED", "RX_BAD", "RX_BAD_FCS", "RX_OVERFLOWS", "FEC_CORRECTED", "FEC_UNCORRECTED", "LINK_LOSSES")
"""Counters of a MAC that tell where frames are lost."""

_CHECK_LINKS = "check the sp= lines of link_hw.cfg"
_TIMING = "was timing met when it was linked?"


class SelfTest:
    """A kernel of the self-test, by its registers; ``name`` is for messages.

    Its ``sizes`` are read from it, ``memories`` are those of its ports, and ``macs`` those of its cages, none in Vitis'
    emulator, where frames come back without. Results of a run are by port or cage
    (`p4sgd.hw.spec.selftest.port_results`, ``cage_registers``). A `P4sgdError` if it is none of this version, if a run
    does not end, or if the kernel's clock stands still.
    """

    def __init__(
        self,
        name: str,
        client: RegisterClient,
        memories: Callable[[int], Sequence[BankMemory]],
        *,
        is_emulated: bool = False,
    ) -> None:
        self._name = name
        self._client = client
        self.is_emulated = is_emulated
        self._still_s = EMULATED_WAIT_S if is_emulated else _STILL_S
        identity = selftest.IDENTITY, selftest.MAGIC, selftest.ABI_VERSION
        unknown, who = f"{name} has no self-test: its first word", f"{name} has"
        if problem := find_other_map(client, *identity, unknown=unknown, who=who):
            raise P4sgdError(problem)
        self.sizes = Sizes(**client.read(selftest.GEOMETRY))
        self.memories = memories(self.sizes.memories)
        self.macs: dict[int, BoardMac] = {}

    def set_port(self, port: int, first: int) -> None:
        """Have a port use its memory from the start, where the beat has the number ``first``."""
        self._client.write_pair(selftest.address_of(port), self.memories[port].address)
        self._client.write(selftest.first_of(port), value=first)

    def read(
        self, ports: Iterable[int], groups: int, burst_beats: int = 1, stride_beats: int = 1, *, short: bool = False
    ) -> dict[int, dict[str, int]]:
        """Let ports read, all at once, each so many groups of a shape (`p4sgd.hw.spec.selftest.SHAPE`)."""
        self._client.write(selftest.SHAPE, burst_beats=burst_beats, stride_beats=stride_beats, short=short)
        self._client.write(selftest.GROUPS, value=groups)
        return self._run(list(ports), groups * burst_beats, read=1)

    def write(self, ports: Iterable[int], chunks: int) -> dict[int, dict[str, int]]:
        """Let ports write, all at once, each so many chunks."""
        self._client.write(selftest.CHUNKS, value=chunks)
        return self._run(list(ports), chunks * self.sizes.chunk_beats, write=1)

    def _run(self, ports: list[int], beats: int, **command: int) -> dict[int, dict[str, int]]:
        registers = {port: selftest.port_results(port) for port in ports}
        self._client.write_pair(selftest.PORTS, sum(1 << port for port in ports))
        self._client.write(selftest.RUN, **command)
        self._wait(
            lambda: not self._client.read_pair(selftest.BUSY),
            lambda: [self._value(known["beats"]) for known in registers.values()],
        )
        busy, results = self._client.read_pair(selftest.BUSY), self._results(registers)
        stuck = {f"memory port {port}": result["beats"] for port, result in results.items() if busy >> port & 1}
        self._check_ended(stuck, f"{beats:,} beats", f"reset the board (xbutil reset), and {_CHECK_LINKS}")
        return results

    def send(self, cages: Iterable[int], frames: int) -> dict[int, dict[str, int]]:
        """Let Ethernet ports send frames, all at once, and wait until these have come back or are lost."""
        registers = {cage: selftest.cage_registers(cage) for cage in cages}
        self._client.write(selftest.CAGES, value=sum(1 << cage for cage in registers))
        self._client.write(selftest.SEND, value=frames)

        def totals(*names: str) -> list[int]:
            return [sum(self._value(known[name]) for name in names) for known in registers.values()]

        self._wait(lambda: not any(totals("sending")), lambda: totals("sent"))
        stuck = {f"cage {cage}": each["sent"] for cage, each in self._results(registers).items() if each["sending"]}
        self._check_ended(stuck, f"{frames:,} frames", "the MAC takes none")
        came = partial(totals, "received", "wrong")
        self._wait(lambda: min(came(), default=frames) >= frames, came)
        return self._results(registers)

    def _check_ended(self, stuck: Mapping[str, int], wanted: str, why: str) -> None:
        """Refuse ports that have not ended, given how much each has done."""
        if stuck:
            done = ", ".join(f"{port} has had {count:,}" for port, count in stuck.items())
            raise P4sgdError(
                f"{self._name} does not end its run: of {wanted} {done}, and none in the last {_STILL_CYCLES:,} "
                f"cycles: {why}"
            )

    def megahertz(self) -> float:
        """Rate of the kernel's clock, by this machine's; P4sgdError if it stands still."""
        began, first = self._read_clock()
        time.sleep(_CLOCK_S)
        ended, last = self._read_clock()
        if last == first:
            raise self._standing_still()
        return (last - first) % (1 << selftest.WORD_BITS) / (ended - began) / 1e6

    def _read_clock(self) -> tuple[float, int]:
        """Time of this machine and CLOCK, by the quickest of some readings: others may have been interrupted."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            began, clock = time.monotonic(), self._value(selftest.CLOCK)
            readings.append((time.monotonic() - began, began, clock))
        return min(readings)[1:]

    def _wait(self, is_done: Callable[[], bool], count: Callable[[], object]) -> None:
        """Wait until something is done, or until nothing has been counted for a while."""
        counted, since, end = count(), self._value(selftest.CLOCK), time.monotonic() + self._still_s
        while not is_done():
            time.sleep(_POLL_S)
            clock = self._value(selftest.CLOCK)
            if (clock - since) % (1 << selftest.WORD_BITS) >= _STILL_CYCLES:
                if (latest := count()) == counted:
                    return
                counted, since, end = latest, clock, time.monotonic() + self._still_s
            elif time.monotonic() > end:
                raise self._standing_still()

    def _standing_still(self) -> P4sgdError:
        return P4sgdError(f"{self._name}: the kernel's clock stands still: reset the board (xbutil reset)")

    def _results(self, registers: dict[int, dict[str, Register]]) -> dict[int, dict[str, int]]:
        return {
            number: {name: self._value(register) for name, register in known.items()}
            for number, known in registers.items()
        }

    def _value(self, register: Register) -> int:
        return self._client.read(register)["value"]


@contextlib.contextmanager
def open_self_test(address: BoardAddress) -> Iterator[SelfTest]:
    """Load the xclbin of the address, and open its self-test; raises as `open_kernel`, `SelfTest` and `BoardMac`."""
    name = str(address)
    with contextlib.closing(address.open_kernel(name, selftest.KERNEL)) as kernel, contextlib.ExitStack() as opened:
        test = SelfTest(name, kernel.client, kernel.memories, is_emulated=address.is_emulated)
        for cage in range(test.sizes.cages):
            if (mac := open_mac(name, address, cage)) is not None:
                test.macs[cage] = opened.enter_context(contextlib.closing(mac))
        yield test


def examine_self_test(test: SelfTest, *, size: int, frames: int, loopback: bool = True) -> list[Finding]:
    """Run the self-test of a board, and judge what it finds. The content of its memory is lost; raises as a `SelfTest`.

    ``size`` are the bytes of each port's memory, a multiple of 4096, and ``frames`` those that each cage sends. In
    ``loopback`` the transceivers receive what they send; else a cable joins the two cages, or a plug each to itself.

    Returns findings ``clock``, ``memory <port>`` and ``cage <number>``: one for each problem, or one that has passed.
    Of an emulated board, whose time is another, there is no ``clock``, and rates are those of the nominal one.
    """
    findings, megahertz = list[Finding](), _NOMINAL_MEGAHERTZ
    if test.is_emulated:
        size, frames = min(size, _EMULATED_SIZE), min(frames, _EMULATED_FRAMES)
    else:
        megahertz = test.megahertz()
        slow = Problem(
            f"the kernels' clock has {megahertz:.0f} MHz, not {_NOMINAL_MEGAHERTZ:g}: linking did not meet timing",
            "look for the failing paths in the reports of v++ (out/hw/reports); rates below are at this clock",
            Result.WARNING,
        )
        is_slow = megahertz < 0.99 * _NOMINAL_MEGAHERTZ  # v++ lowers the clock of a kernel that misses timing
        findings += judge(None, "clock", {"megahertz": f"{megahertz:.1f}"}, slow if is_slow else None)
    findings += _examine_memories(test, size, megahertz)
    return findings + _examine_cages(test, frames, megahertz, loopback)


# -- memory ------------------------------------------------------------------------------------------------------------


class _Port:
    """A memory port: what it reads and writes, what its runs have shown, and what is wrong."""

    def __init__(self, test: SelfTest, number: int, size: int, megahertz: float) -> None:
        sizes = test.sizes
        self._test = test
        self._megahertz = megahertz
        self.number = number
        self.memory = test.memories[number]
        self.memory.reserve(size)
        self.beat_bytes = sizes.bytes_of(number)
        self.beats = size // self.beat_bytes
        engine, own = divmod(number, sizes.ports)
        where = "labels" if number == sizes.memories - 1 else f"engine {engine}, port {own}"
        self.name = f"memory port {number} ({where})"
        self.evidence: dict[str, int | str] = {}
        self.problems: list[Problem] = []
        self.short_share = 0.0  # of a beat a cycle, in short bursts

    def first(self, seed: str, beat: int = 0) -> int:
        return first_number(self.memory.address + beat * self.beat_bytes, self.beat_bytes, _SEEDS[seed])

    def set(self, seed: str) -> None:
        self._test.set_port(self.number, self.first(seed))

    def note(self, run: str, result: Mapping[str, int]) -> bool:
        """Add what a run has counted to the evidence; whether there is still something to find out about the port."""
        if run == "alone":
            self.evidence["latency_ns"] = round(1000 * result["latency"] / self._megahertz)
        rate = _share(result) * self.beat_bytes * self._megahertz
        self.evidence[f"{run.replace(' ', '_')}_mb_per_s"] = round(rate)
        for name in ("wrong", "errors"):
            self.evidence[name] = int(self.evidence.get(name, 0)) + result[name]
        return all(problem.result is not Result.FAILED for problem in self.problems)

    def add(self, text: str, remedy: str, result: Result = Result.FAILED) -> None:
        """Note a problem."""
        self.problems.append(Problem(f"{self.name} {text}", remedy, result))


def _share(result: Mapping[str, int]) -> float:
    return result["beats"] / max(1, result["cycles"] - result["latency"])


def _examine_memories(test: SelfTest, size: int, megahertz: float) -> list[Finding]:
    """Let every port read alone, all of the engines at once, in short bursts, long ones and single beats, and those
    that a worker writes write."""
    ports = [_Port(test, number, size, megahertz) for number in range(test.sizes.memories)]
    for port in ports:
        port.set("read")
        port.memory.write(0, pattern(port.first("read"), port.beats, port.beat_bytes).reshape(-1))
    engines = range(test.sizes.memories - 1)  # the labels need little, and may share a channel with the last bank
    beats = ports[0].beats
    for port in ports:
        _judge_reads(ports, "alone", test.read([port.number], port.beats))
    _judge_reads(ports, "short bursts", test.read(engines, beats, short=True))
    _judge_reads(ports, "together", test.read(engines, beats))
    _judge_reads(ports, "single beats", test.read(engines, beats // _STRIDE, 1, _STRIDE), stride=_STRIDE)
    _judge_writes(test, [ports[number] for number in engines if test.sizes.writes(number)], size)
    return [found for port in ports for found in judge(None, f"memory {port.number}", port.evidence, *port.problems)]


def _judge_reads(ports: Sequence[_Port], run: str, results: Mapping[int, Mapping[str, int]], stride: int = 1) -> None:
    for number, result in results.items():
        port, share = ports[number], _share(result)
        if not port.note(run, result):
            continue
        if errors := result["errors"]:
            port.add(f"answers with {errors} errors: its addresses are not those of a memory it reaches", _CHECK_LINKS)
        elif result["wrong"]:
            port.add(*_why_wrong(ports, port, result, stride))
        elif run == "short bursts":
            port.short_share = share
        elif run == "together" and share < _SHARE <= port.short_share:
            port.add(
                f"reads {share:.0%} of a beat a cycle in long bursts, and {port.short_share:.0%} in bursts of 16 beats",
                "the way to the memory is slow with long bursts: give `lines_reader` (hw/worker/engine.py) a "
                "burst_limit of 16, and build again",
            )
        elif share < _SHARE and stride > 1:
            port.add(
                f"reads {share:.0%} of a beat a cycle if it reads 1 of {stride} planes",
                "memory takes fewer reads at a time than the port asks for: train with all stored planes, which are "
                "read at the full rate",
                Result.WARNING,
            )
        elif share < _SHARE:
            others = "while the others read, too: they share a channel" if run == "together" else "alone"
            port.add(
                f"reads only {share:.0%} of a beat a cycle {others}",
                f"{_CHECK_LINKS}: no two ports of engines may have the same channels, and each should be at channels "
                "of its own",
            )


def _why_wrong(ports: Sequence[_Port], port: _Port, result: Mapping[str, int], stride: int) -> tuple[str, str]:
    """Problem of a port that reads wrong beats, and its remedy."""
    what = f"reads {result['wrong']:,} of {result['beats']:,} beats wrong"
    beat, found = result["wrong_beat"] * stride, number_of_word(result["wrong_word"], _SEEDS["read"])
    for other in ports:
        came = (found - other.memory.address // other.beat_bytes) % (1 << 32)
        if came >= other.beats or (other is port and came == beat):
            continue
        if other is not port:
            remedy = f"the two are swapped, or get the same address: {_CHECK_LINKS} and p4sgd_selftest.xml"
            return f"{what}: they are those of {other.name}", remedy
        remedy = "bits of addresses get lost, or beats come out of order: suspect the way to the memory"
        return f"{what}: beat {came:,} comes where beat {beat:,} belongs", remedy
    words = [str(word) for word in range(port.beat_bytes // 4) if result["wrong_words"] >> word & 1]
    what += f", in words {', '.join(words)}; the first is beat {beat:,}"
    content = port.memory.read(beat * port.beat_bytes, port.beat_bytes).reshape(1, -1)
    if read_result(content, port.first("read", beat))["wrong"]:
        return f"{what}, which the host reads wrong, too", "suspect the memory or PCI Express: xbutil validate"
    return f"{what}, which the host reads right", f"suspect the way from the memory to the kernel: {_TIMING}"


def _judge_writes(test: SelfTest, ports: Sequence[_Port], size: int) -> None:
    """Let ports write another pattern as a worker stores its model, and look for it."""
    sizes = test.sizes
    chunks = min(size // (sizes.chunk_beats * sizes.beat_bytes), 1 << 16)
    beats, numbers = chunks * sizes.chunk_beats, [port.number for port in ports]
    for port in ports:
        port.set("written")
    stored, read = test.write(numbers, chunks), test.read(numbers, beats)
    for port in ports:
        result = stored[port.number]
        if not port.note("store", result):
            continue
        content = port.memory.read(0, beats * sizes.beat_bytes).reshape(beats, -1)
        wrong, own = read_result(content, port.first("written"))["wrong"], read[port.number]["wrong"]
        if result["errors"]:
            port.add(f"gets {result['errors']} errors where it writes", _CHECK_LINKS)
        elif wrong or own:
            port.add(
                f"has written {beats:,} beats; then the host reads {wrong:,} of them wrong, the port itself {own:,}",
                f"suspect the way from the kernel to the memory: {_TIMING}",
            )


# -- Ethernet ----------------------------------------------------------------------------------------------------------


def _examine_cages(test: SelfTest, frames: int, megahertz: float, loopback: bool) -> list[Finding]:
    macs = test.macs
    try:
        for mac in macs.values():
            mac.set_loopback(loopback)
        own = list(macs.values()) if loopback else list(macs.values())[:1]  # a cable is between two cages of the board
        await_links(own, [mac for mac in macs.values() if mac not in own])
        before = {cage: mac.link_state() for cage, mac in macs.items()}
        up = [cage for cage, link in before.items() if link.status["up"]]
        results = test.send(up if macs else range(test.sizes.cages), frames)
        after = {cage: mac.link_state() for cage, mac in macs.items()}
    finally:
        for mac in macs.values():
            mac.set_loopback(False)
    found = []
    for cage in sorted(results.keys() | before.keys()):
        if cage in results:
            links = (before[cage], after[cage]) if cage in before else None
            evidence, problem = _judge_frames(frames, results[cage], megahertz, links, loopback)
        else:
            evidence, problem = before[cage].status, _why_down(before[cage], loopback)
        problem = problem and problem._replace(text=f"cage {cage}: {problem.text}")
        found += judge(None, f"cage {cage}", evidence, problem)
    return found


def _why_down(link: LinkState, loopback: bool) -> Problem:
    status = link.status
    runs = status["power_good"] == (1 << FEC_LANES) - 1 and not (status["tx_reset"] or status["rx_reset"])
    if not (loopback and runs):
        return why_down(link)
    return Problem(
        "its transceivers do not receive what they send themselves",
        "suspect their reference clock: its frequency, and that of GT_REF_CLK_FREQ in p4sgd_cmac*_ip.tcl",
    )


def _judge_frames(
    frames: int, result: Mapping[str, int], megahertz: float, links: tuple[LinkState, LinkState] | None, loopback: bool
) -> tuple[Evidence, Problem | None]:
    """Judge what came back, given the state of the link before and after, if there is a MAC."""
    wrong, lost = result["wrong"], frames - result["received"] - result["wrong"]
    rate = result["sent"] * megahertz / max(1, result["cycles"])
    evidence: dict[str, int | str] = {name: result[name] for name in ("sent", "received", "wrong")}
    evidence |= {"lost": lost, "missing": result["missing"], "million_frames_per_s": f"{rate:.1f}"}
    if links:
        before, after = links
        evidence |= {name.lower(): after.counters.get(name, 0) - before.counters.get(name, 0) for name in _LOSSES}
    if wrong or lost or result["missing"]:
        text = "frames came back out of order, or others in their place"
        if wrong or lost:
            text = f"of {frames:,} frames {lost:,} were lost, and {wrong:,} came back wrong"
        remedy = "clean or replace the cable; then run it without --cable, to test the MAC alone"
        if loopback:
            remedy = f"the MAC's counters tell where; no cable is to blame in loopback: {_TIMING}"
        return evidence, Problem(text, remedy)
    if links and rate < _SHARE * min(_LINE_FRAMES, megahertz):
        text = f"it sends {rate:.0f} million frames a second, of {_LINE_FRAMES:.0f} that the line carries"
        return evidence, Problem(text, "check the clock of the kernels and of the MAC", Result.WARNING)
    return evidence, None
