"""The self-test's kernel, as the board gets it, driven and judged as a board is: everything at its ports is not ours.

The text is that of the generated Verilog, registers, memories and streams are ends of cocotbext-axi. Frames come back,
but for faults on the way.
"""

import itertools
import re

import cocotb
import pytest
from cocotb.task import bridge
from support.bench import run_verilog_bench, start, worker_config
from support.foreign_axi import Buffer, HostMemory, RegisterWords, frame_sink, frame_source, send

from p4sgd.host.doctor import selftest as judge
from p4sgd.host.doctor.selftest import SelfTest, examine_self_test
from p4sgd.hw.kernel.verilog import selftest_kernel
from p4sgd.hw.spec import selftest
from p4sgd.hw.spec.config import WorkerConfig

BUILD_ID = 0x1234
SIZE = 4096
FRAMES = 40
CAGES = 2


class SpoiltBuffer(Buffer):
    """A buffer that is read through ``change``, which may spoil the bytes that are read."""

    change = staticmethod(lambda address, data: data)

    async def read(self, address, size):
        return bytes(self.change(address - self.base, bytearray(await super().read(address, size))))


class Board:
    """A `SelfTest` of a kernel in the simulator; to be used in a function that ``bridge`` runs.

    ``spoil(cage, number, frame)`` returns what comes back of a frame: a list of frames. They come to the same cage or,
    if they are ``crossed`` by a cable, to the other.
    """

    def __init__(self, dut, stall=0.0, spoil=lambda cage, number, frame: [frame], *, crossed=False):
        self.sizes = selftest.Sizes.of(worker_config(), CAGES)
        self.words = RegisterWords(dut, "s_axi_control", stall)
        self.buffers = [
            SpoiltBuffer(dut, f"m_axi_gmem{port}", stall, (2 * port + 1) << 28, SIZE)
            for port in range(self.sizes.memories)
        ]
        for cage in range(CAGES):
            back = CAGES - 1 - cage if crossed else cage
            source, sink = frame_source(dut, f"axis_rx{back}", stall), frame_sink(dut, f"axis_tx{cage}", stall)
            cocotb.start_soon(self._return(cage, source, sink, spoil))

    async def _return(self, cage, source, sink, spoil):
        for number in itertools.count():
            send(source, *spoil(cage, number, bytes((await sink.recv()).tdata)))

    def open(self):
        self.test = SelfTest("the kernel", self.words.client, self._memories, is_emulated=True)

    def _memories(self, count):
        return [HostMemory(buffer) for buffer in self.buffers[:count]]

    async def examine(self):
        """The problems that are found, by check."""

        @bridge
        def run():
            self.open()
            return examine_self_test(self.test, size=SIZE, frames=FRAMES)

        found = await run()
        self.evidence = {finding.check: finding.evidence for finding in found}
        return {finding.check: finding.problem for finding in found if finding.problem}


@cocotb.test()
async def a_board_as_it_should_be(dut):
    board = Board(dut)
    await start(dut)
    judge._SHARE = 0.5  # runs of 512 beats, of which the start is a part
    assert await board.examine() == {}
    assert not [stray for buffer in board.buffers for stray in buffer.strays]
    assert board.evidence["cage 1"]["received"] == FRAMES

    @bridge
    def look():
        registers = selftest.selftest_map(board.sizes)
        words = selftest.identity(board.sizes, BUILD_ID)
        read = board.words.read_register
        assert {name: read(registers[name].offset) for name in words} == words
        first = read(selftest.CLOCK.offset)
        assert 0 < read(selftest.CLOCK.offset) - first < 100

    await look()


@cocotb.test()
async def a_cable_between_the_cages(dut):
    """Both begin at once: else frames of one would come before the other counts them."""
    board = Board(dut, crossed=True)
    await start(dut)

    @bridge
    def both_and_one():
        board.open()
        return board.test.send(range(CAGES), FRAMES), board.test.send([1], FRAMES + 1)

    both, one = await both_and_one()
    wanted = {"sending": 0, "sent": FRAMES, "received": FRAMES, "wrong": 0, "missing": 0}
    assert [{name: result[name] for name in wanted} for result in both.values()] == [wanted, wanted]
    assert (one[1]["sent"], one[1]["received"]) == (FRAMES + 1, 0), "the other cage has got them"


def lose_and_spoil(cage, number, frame):
    """Of cage 1 a frame is lost, one comes twice and one is spoilt."""
    match cage, number:
        case 1, 3:
            return []
        case 1, 7:
            return [frame[:-1] + bytes([frame[-1] ^ 1])]
        case 1, 9:
            return [frame[:60]]
    return [frame]


@cocotb.test()
async def faults_are_named(dut):
    """Swapped ports, a wrong beat, an error of memory, lost and spoilt frames; and pauses of all, which are none."""
    judge._SHARE = 0.0
    board = Board(dut, 0.3, lose_and_spoil)
    await start(dut)
    _, one, two, three, _ = board.buffers
    one.change = lambda place, data: three.content[place : place + len(data)]
    three.change = lambda place, data: one.content[place : place + len(data)]

    def spoil(place, data):
        at = 5 * board.sizes.beat_bytes + 4
        if place <= at < place + len(data):
            data[at - place] ^= 0x10
        return data

    two.change = spoil
    found = await board.examine()
    assert "they are those of memory port 3 (engine 1, port 1)" in found["memory 1"]
    assert "they are those of memory port 1 (engine 0, port 1)" in found["memory 3"]
    assert "1 of 512 beats wrong, in words 1; the first is beat 5, which the host reads right" in found["memory 2"]
    assert f"of {FRAMES} frames 1 were lost, and 2 came back wrong" in found["cage 1"]
    assert set(found) == {"memory 1", "memory 2", "memory 3", "cage 1"}


@pytest.mark.rtl
@pytest.mark.slow
def test_selftest_kernel():
    config = WorkerConfig.small()
    kernel = selftest_kernel(config, cages=CAGES, build_id=BUILD_ID, slices=(0, 1, 3, 0, 2))
    run_verilog_bench(kernel.text, kernel.top, __file__, scrambled=True, config=config)


def test_what_is_placed_by_name_is_kept():
    """Tests of ports, and register slices: else Vivado may dissolve their modules."""
    text = selftest_kernel(WorkerConfig.tiny(), slices=(1, 2)).text
    kept = re.findall(r'keep_hierarchy = "yes" \*\)\nmodule \S+\.(\w+)', text)
    assert sorted(kept) == ["gmem0_slice0", "gmem1_slice0", "gmem1_slice1", "test0", "test1"]
