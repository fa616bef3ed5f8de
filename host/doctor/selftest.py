"""The self-test of a board: what its memory ports and MACs do, and whether that is enough for a worker."""

from collections.abc import Mapping, Sequence

from p4sgd.host.doctor.ethernet import why_down
from p4sgd.host.doctor.finding import Evidence, Finding, Problem, Result, judge
from p4sgd.host.xrt.mac import await_links
from p4sgd.host.xrt.selftest import BoardSelfTest
from p4sgd.hw.spec.cmac import FEC_LANES, LinkState
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.packet import FRAME_BYTES
from p4sgd.hw.spec.selftest import first_number, number_of_word, pattern, read_result

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

_LINK_CONFIGURATION = "the sp= lines of link_hw.cfg"
_TIMING = "was timing met when it was linked?"


def examine_self_test(board: BoardSelfTest, *, size: int, frames: int, loopback: bool = True) -> list[Finding]:
    """Run the self-test of a board, and judge what it finds. The content of its memory is lost; raises as a
    `BoardSelfTest`.

    ``size`` are the bytes of each port's memory, a multiple of 4096, and ``frames`` those that each cage sends. In
    ``loopback`` the transceivers receive what they send; else a cable joins the two cages, or a plug each to itself.

    Returns findings ``clock``, ``memory <port>`` and ``cage <number>``: one for each problem, or one that has passed.
    Of an emulated board, whose time is another, there is no ``clock``, and rates are those of the nominal one.
    """
    findings, megahertz = list[Finding](), _NOMINAL_MEGAHERTZ
    if board.is_emulated:
        size, frames = min(size, _EMULATED_SIZE), min(frames, _EMULATED_FRAMES)
    else:
        megahertz = board.kernel.megahertz()
        slow = Problem(
            f"the kernels' clock has {megahertz:.0f} MHz, not {_NOMINAL_MEGAHERTZ:g}: linking did not meet timing",
            "look for the failing paths in the reports of v++ (out/hw/reports); rates below are at this clock",
            Result.WARNING,
        )
        is_slow = megahertz < 0.99 * _NOMINAL_MEGAHERTZ  # v++ lowers the clock of a kernel that misses timing
        findings += judge(None, "clock", {"megahertz": f"{megahertz:.1f}"}, slow if is_slow else None)
    findings += _examine_memories(board, size, megahertz)
    return findings + _examine_cages(board, frames, megahertz, loopback)


class _Port:
    """A memory port: what it reads and writes, what its runs have shown, and what is wrong."""

    def __init__(self, board: BoardSelfTest, number: int, size: int, megahertz: float) -> None:
        sizes = board.kernel.sizes
        self._board = board
        self._megahertz = megahertz
        self.number = number
        self.beat_bytes = sizes.bytes_of(number)
        self.beats = size // self.beat_bytes
        self.address = board.reserve(number, size)
        engine, own = divmod(number, sizes.ports)
        where = "labels" if number == sizes.memories - 1 else f"engine {engine}, port {own}"
        self.name = f"memory port {number} ({where})"
        self.evidence: dict[str, int | str] = {}
        self.problems: list[Problem] = []

    def first(self, seed: str, beat: int = 0) -> int:
        return first_number(self.address + beat * self.beat_bytes, self.beat_bytes, _SEEDS[seed])

    def set(self, seed: str) -> None:
        self._board.kernel.set_port(self.number, self.address, self.first(seed))

    def note(self, run: str, result: Mapping[str, int]) -> bool:
        """Add what a run has counted to the evidence; whether there is still something to find out about the port."""
        if run == "alone":
            self.evidence["latency_ns"] = round(1000 * result["latency"] / self._megahertz)
        rate = _share(result) * self.beat_bytes * self._megahertz
        self.evidence[f"{run.replace(' ', '_')}_mb_per_s"] = round(rate)
        for name in ("wrong", "errors"):
            self.evidence[name] = int(self.evidence.get(name, 0)) + result[name]
        return all(problem.result is not Result.FAILED for problem in self.problems)


def _share(result: Mapping[str, int]) -> float:
    return result["beats"] / max(1, result["cycles"] - result["latency"])


def _examine_memories(board: BoardSelfTest, size: int, megahertz: float) -> list[Finding]:
    """Let every port read alone, all of the engines at once and single beats, and those that a worker writes write."""
    kernel, sizes = board.kernel, board.kernel.sizes
    ports = [_Port(board, number, size, megahertz) for number in range(sizes.memories)]
    for port in ports:
        port.set("read")
        board.write_memory(port.number, pattern(port.first("read"), port.beats, port.beat_bytes))
    engines = range(sizes.memories - 1)  # the labels need little, and may share a channel with the last bank
    beats = ports[0].beats
    for port in ports:
        _judge_reads(board, ports, "alone", kernel.read([port.number], port.beats))
    _judge_reads(board, ports, "together", kernel.read(engines, beats))
    _judge_reads(board, ports, "single beats", kernel.read(engines, beats // _STRIDE, 1, _STRIDE), stride=_STRIDE)
    _store(board, [ports[number] for number in engines if sizes.writes(number)], size)
    found = []
    for port in ports:
        problems = [problem._replace(text=f"{port.name} {problem.text}") for problem in port.problems]
        found += judge(None, f"memory {port.number}", port.evidence, *problems)
    return found


def _judge_reads(
    board: BoardSelfTest, ports: Sequence[_Port], run: str, results: Mapping[int, Mapping[str, int]], stride: int = 1
) -> None:
    for number, result in results.items():
        port, share, problem = ports[number], _share(result), None
        if not port.note(run, result):
            continue
        if result["errors"]:
            problem = Problem(
                f"answers with {result['errors']} errors: its addresses are not those of a memory that it reaches",
                f"check {_LINK_CONFIGURATION}",
            )
        elif result["wrong"]:
            problem = _why_wrong(board, ports, port, result, stride)
        elif share < _SHARE and stride > 1:
            problem = Problem(
                f"reads {share:.0%} of a beat a cycle if it reads 1 of {stride} planes",
                "memory takes fewer reads at a time than the port asks for: train with all stored planes, which "
                "are read at the full rate",
                Result.WARNING,
            )
        elif share < _SHARE:
            others = "while the others read, too: they share a channel" if run == "together" else "alone"
            problem = Problem(
                f"reads only {share:.0%} of a beat a cycle {others}",
                f"check {_LINK_CONFIGURATION}: no two ports of engines may have the same channels, and each should "
                "be at channels of its own",
            )
        if problem is not None:
            port.problems.append(problem)


def _why_wrong(
    board: BoardSelfTest, ports: Sequence[_Port], port: _Port, result: Mapping[str, int], stride: int
) -> Problem:
    what = f"reads {result['wrong']:,} of {result['beats']:,} beats wrong"
    beat, found = result["wrong_beat"] * stride, number_of_word(result["wrong_word"], _SEEDS["read"])
    for other in ports:
        came = (found - other.address // other.beat_bytes) % (1 << 32)
        if came >= other.beats or (other is port and came == beat):
            continue
        if other is not port:
            return Problem(
                f"{what}: they are those of {other.name}",
                f"the two are swapped, or get the same address: check {_LINK_CONFIGURATION} and p4sgd_selftest.xml",
            )
        return Problem(
            f"{what}: beat {came:,} comes where beat {beat:,} belongs",
            "bits of addresses get lost, or beats come out of order: suspect the way to the memory",
        )
    words = [str(word) for word in range(port.beat_bytes // 4) if result["wrong_words"] >> word & 1]
    what += f", in words {', '.join(words)}; the first is beat {beat:,}"
    content = board.read_memory(port.number, beat * port.beat_bytes, port.beat_bytes).reshape(1, -1)
    if read_result(content, port.first("read", beat))["wrong"]:
        return Problem(f"{what}, which the host reads wrong, too", "suspect the memory or PCI Express: xbutil validate")
    return Problem(f"{what}, which the host reads right", f"suspect the way from the memory to the kernel: {_TIMING}")


def _store(board: BoardSelfTest, ports: Sequence[_Port], size: int) -> None:
    """Let ports write another pattern as a worker stores its model, and look for it."""
    sizes, kernel = board.kernel.sizes, board.kernel
    chunks = min(size // (sizes.chunk_beats * sizes.beat_bytes), 1 << 16)
    beats, numbers = chunks * sizes.chunk_beats, [port.number for port in ports]
    for port in ports:
        port.set("written")
    stored, read = kernel.write(numbers, chunks), kernel.read(numbers, beats)
    for port in ports:
        result = stored[port.number]
        if not port.note("store", result):
            continue
        content = board.read_memory(port.number, 0, beats * sizes.beat_bytes).reshape(beats, -1)
        wrong, own = read_result(content, port.first("written"))["wrong"], read[port.number]["wrong"]
        if result["errors"]:
            text = f"gets {result['errors']} errors where it writes"
            port.problems.append(Problem(text, f"check {_LINK_CONFIGURATION}"))
        elif wrong or own:
            text = (
                f"has written {beats:,} beats; then the host reads {wrong:,} of them wrong, and the port itself {own:,}"
            )
            port.problems.append(Problem(text, f"suspect the way from the kernel to the memory: {_TIMING}"))


def _examine_cages(board: BoardSelfTest, frames: int, megahertz: float, loopback: bool) -> list[Finding]:
    macs = board.macs
    try:
        for mac in macs.values():
            mac.set_loopback(loopback)
        own = list(macs.values()) if loopback else list(macs.values())[:1]  # a cable is between two cages of the board
        await_links(own, [mac for mac in macs.values() if mac not in own])
        before = {cage: mac.link_state() for cage, mac in macs.items()}
        up = [cage for cage, link in before.items() if link.status["up"]]
        results = board.kernel.send(up if macs else range(board.kernel.sizes.cages), frames)
        after = {cage: mac.link_state() for cage, mac in macs.items()}
    finally:
        for mac in macs.values():
            mac.set_loopback(False)
    found = []
    for cage in sorted(results.keys() | before.keys()):
        links = (before[cage], after[cage]) if cage in before else None
        if cage in results:
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


_LOSSES = ("TX_DROPPED", "RX_BAD", "RX_BAD_FCS", "RX_OVERFLOWS", "FEC_CORRECTED", "FEC_UNCORRECTED", "LINK_LOSSES")
"""Counters of a MAC that tell where frames are lost."""


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
        if loopback:
            return evidence, Problem(
                text, f"the MAC's counters tell where; no cable is to blame in loopback: {_TIMING}"
            )
        return evidence, Problem(text, "clean or replace the cable; then run it without --cable, to test the MAC alone")
    if links and rate < _SHARE * min(_LINE_FRAMES, megahertz):
        text = f"it sends {rate:.0f} million frames a second, of {_LINE_FRAMES:.0f} that the line carries"
        return evidence, Problem(text, "check the clock of the kernels and of the MAC", Result.WARNING)
    return evidence, None
