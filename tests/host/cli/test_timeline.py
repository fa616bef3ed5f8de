"""A mini-batch drawn in text."""

from p4sgd.host.cli.trace import draw
from p4sgd.hw.spec.run import STAGES
from p4sgd.sim.cluster.trace import Interval, Trace


def trace(*mini_batches, scale=1):
    """Two micro-batches a mini-batch, which begins at a cycle given; the second comes 4 cycles after the first."""
    parts = {"forward": (0, 3), "network": (5, 12), "loss": (11, 13), "backward": (14, 17), "update": (16, 18)}
    assert set(parts) == set(STAGES)
    starts = [(number, start + late) for number, start in enumerate(mini_batches) for late in (0, 4)]
    return Trace(
        [
            {
                stage: [
                    Interval(n, number, (start + begin) * scale, (start + end) * scale)
                    for n, (number, start) in enumerate(starts)
                ]
                for stage, (begin, end) in parts.items()
            }
        ],
        True,
    )


def test_the_second_mini_batch_between_its_neighbours():
    assert list(draw(trace(0, 20, 40))) == [
        "worker 0, mini-batch 1: 22 cycles, a column is 1",
        "forward  0██ 1██             ░░",
        "network       0██████",
        "                  1██████",
        "loss                0█  1█",
        "backward ░             0██ 1██",
        "update   ░░              0█  1█",
    ]


def test_the_only_mini_batch_and_a_coarser_scale():
    assert list(draw(trace(0, scale=10))) == [
        "worker 0, mini-batch 0: 220 cycles, a column is 3",
        "forward  0█████████   1██████████",
        "network                  0███████████████████████",
        "                                       1███████████████████████",
        "loss                                         0███████      1██████",
        "backward                                               0██████████   1█████████",
        "update                                                        0██████      1███████",
    ]
