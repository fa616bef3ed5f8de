"""FrameBuffer: whole frames without gaps, and what becomes of those that are bad, cut off, or find no room."""

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start

from p4sgd.hw.kernel.frames import FrameBuffer

LAST = 1 << 576


class Sender:
    """Beats of random frames, up to twice as long as there is room for; ``bad`` beside the last of each."""

    def __init__(self, depth):
        self._depth = depth
        self._begin()

    def _begin(self):
        self.left = random.choice([1, 1, 2, random.randint(1, self._depth), random.randint(1, 2 * self._depth)])
        self.bad = random.random() < 0.2
        self._draw()

    def _draw(self):
        self.beat = random.getrandbits(576) | (LAST if self.left == 1 else 0)

    def taken(self):
        self.left -= 1
        if self.left:
            self._draw()
        else:
            self._begin()

    def cut(self):
        self._begin()


@cocotb.test()
async def behaves_like_its_model(dut):
    """The model knows frames; when there is room it tells from what has gone in and come out."""
    depth, waits = parameters()["depth"], parameters()["waits"]
    dut.i__valid.value = dut.o__ready.value = dut.cut.value = 0
    await start(dut)
    sender = Sender(depth)
    whole: list[int] = []  # beats of whole frames that have not left
    coming: list[int] = []  # of the frame that is coming
    lost = offered = inside = o_valid = False
    seen = dict.fromkeys(("kept", "dropped_bad", "dropped_full"), 0)
    for sends, takes in ((0.5, 0.5), (1.0, 1.0), (0.9, 0.2), (0.3, 0.9), (1.0, 0.0), (0.0, 1.0), (1.0, 0.7)):
        for _ in range(12 * depth + 20):
            cut = random.random() < 0.02
            valid = not cut and (offered or random.random() < sends)
            ready = random.random() < takes
            dut.i__valid.value, dut.i__payload.value, dut.bad.value = int(valid), sender.beat, int(sender.bad)
            dut.cut.value, dut.o__ready.value = int(cut), int(ready)
            await ReadOnly()

            assert bool(dut.o__valid.value) == o_valid
            stored = len(whole) - o_valid  # beats of whole frames, but for the one on o
            fits = stored + len(coming) < depth and not lost
            i_ready = fits or lost or stored == 0 if waits else True
            assert dut.i__ready.value == i_ready
            took, last = valid and i_ready, bool(sender.beat & LAST)
            expected = {
                "kept": took and last and fits and not sender.bad,
                "dropped_bad": (took and last and fits and sender.bad) or (cut and bool(coming or lost)),
                "dropped_full": took and last and not fits,
            }
            assert {name: bool(getattr(dut, name).value) for name in expected} == expected
            for name, value in expected.items():
                seen[name] += value
            if o_valid:
                assert dut.o__payload.value == whole[0]
            else:
                assert not inside, "a gap within a frame"
            fetched = stored and (not o_valid or ready)

            await RisingEdge(dut.clk)
            if o_valid and ready:
                inside = not whole.pop(0) & LAST
            if took:
                coming += [sender.beat] if fits else []
                lost = not fits and not last
                if last:
                    whole += coming if expected["kept"] else []
                    coming = []
                sender.taken()
            if cut:
                coming, lost = [], False
                sender.cut()
            offered = valid and not took
            o_valid = bool(fetched or (o_valid and not ready))
    assert all(seen.values()), seen


@pytest.mark.rtl
def test_frame_buffer():
    sizes = [{"depth": depth, "waits": waits} for depth in (2, 8) for waits in (True, False)]
    run_sizes(
        {f"depth{s['depth']}_{'waits' if s['waits'] else 'drops'}": (FrameBuffer(**s), s) for s in sizes}, __file__
    )
