"""Experiments on plans: which sums travel together, and who inverts which factor, for the layers of ResNet-50."""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np

from p4sgd.host.distributed.planner import Passes
from p4sgd.host.experiments.experiment import Cell, Chart, Experiment, Finding, Source, Table

MS, FLOAT_BYTES = 1e-3, 4


class Layer(NamedTuple):
    """A convolution without bias, or the last, fully connected layer: a matrix that is used at so many positions."""

    inputs: int
    outputs: int
    positions: int

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


def resnet_50() -> list[Layer]:
    """The 54 layers with matrices of ResNet-50 in their order (K. He et al., CVPR 2016, table 1), for 224 × 224."""
    layers, channels = [Layer(3 * 7 * 7, 64, 112 * 112)], 64
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            layers += [Layer(channels, width, side**2), Layer(9 * width, width, side**2)]
            layers += [Layer(width, 4 * width, side**2)]
            if block == 0:
                layers.append(Layer(channels, 4 * width, side**2))
            channels = 4 * width
    return [*layers, Layer(channels, 1000, 1)]


def greedy(ready: Sequence[float], sizes: Sequence[int], start_s: float, cost: Callable[[int], float]) -> list[int]:
    """Lengths of messages by the rule of MG-WFBP (S. Shi et al., INFOCOM 2019).

    A layer's gradients wait for those of the next layer if these are there before the start-up time of a message, which
    could be sent now, is over.
    """
    lengths, first, channel = [], 0, 0.0
    for index, there in enumerate(ready):
        begin = max(channel, there)
        if index + 1 < len(ready) and ready[index + 1] < begin + start_s:
            continue
        lengths.append(index + 1 - first)
        channel, first = begin + cost(sum(sizes[first : index + 1])), index + 1
    return lengths


def merging(quick: bool) -> Finding:
    """E13: sums of gradients in messages, by four plans."""
    layers = resnet_50()[::-1]  # gradients of the last layer are there first
    macs = [layer.weights * layer.positions for layer in layers]
    rows: list[list[Cell]] = []
    for backward_ms, start_ms, gigabits in product((50, 200), (0.1, 1.0, 5.0), (1, 10, 100)):
        gaps = [backward_ms * MS * each / sum(macs) for each in macs]

        def cost(size: int, start_s: float = start_ms * MS, rate: float = gigabits * 1e9) -> float:
            return start_s + size * FLOAT_BYTES * 8 / rate

        passes = Passes(gaps, [0.0] * len(layers), [layer.weights for layer in layers], cost)
        plans = {
            "one a layer (WFBP)": [1] * len(layers),
            "one in all": [len(layers)],
            "MG-WFBP": greedy(list(accumulate(gaps)), passes.sizes, start_ms * MS, cost),
            "planned": passes.best(),
        }
        network = f"{start_ms:g} ms, {gigabits} Gb/s"
        for name, lengths in plans.items():
            rows.append([backward_ms, network, name, len(lengths), passes.end(lengths) / MS, Source.MODELLED])
    columns = ("backward pass, ms", "network", "messages by", "messages", "all sums, ms", "source")
    ends = {tuple(row[:3]): float(row[4] or 0) for row in rows}
    gains = [
        {name: ends[where, network, name] / end for name in plans}
        for (where, network, name), end in ends.items()
        if name == "planned"
    ]
    most = {name: max(gain[name] for gain in gains) for name in plans}
    return Finding(
        [
            Table(
                "Gradients of ResNet-50, from the start of the backward pass to the last sum",
                columns,
                rows,
                [Chart("network", "all sums, ms", "messages by", {"backward pass, ms": 50}, log_y=True)],
                "Layers take parts of the backward pass by their multiplications. A message takes the start-up time "
                "and its bytes of f32 on the network; both, and the time of the pass, are assumed.",
            )
        ],
        [
            f"The exact plan is never later than the rule of MG-WFBP, which takes up to {most['MG-WFBP']:.2f} times as "
            f"long; a message a layer up to {most['one a layer (WFBP)']:.1f} times, one in all up to "
            f"{most['one in all']:.2f} times.",
            "The trace of 64 layers in the MG-WFBP paper is not in this report.",
        ],
    )


def placed(
    sizes: Sequence[int], ranks: int, rule: str, invert: Callable[[int], float], send: Callable[[int], float]
) -> float:
    """When all ranks have all inverses: of factors that all invert, and of owned ones, sent over one channel."""
    order = sorted(sizes, reverse=True)
    if rule == "all by all":
        return sum(map(invert, order))
    busy, ready, shared = [0.0] * ranks, [], 0.0
    for index, size in enumerate(order if rule == "balanced" else sizes):
        if rule == "balanced" and invert(size) <= send(size):
            shared += invert(size)
            continue
        owner = min(range(ranks), key=busy.__getitem__) if rule == "balanced" else index % ranks
        busy[owner] += invert(size)
        ready.append((busy[owner], size))
    channel = 0.0
    for there, size in sorted(ready):
        channel = max(channel, there) + send(size)
    return max(channel, max(busy) + shared)


def _inversion(quick: bool) -> Callable[[int], float]:
    """Seconds to invert a factor of a size, by those measured here: between sizes, and beyond them, as the cube."""
    known = {}
    for size in (64, 256, 512) if quick else (64, 256, 512, 1024, 2048):
        factor = np.random.default_rng(size).standard_normal((size, size), np.float32)
        factor = factor @ factor.T + size * np.eye(size, dtype=np.float32)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            np.linalg.inv(factor)
            times.append(time.perf_counter() - begin)
        known[size] = min(times)

    def seconds(size: int) -> float:
        near = max((each for each in known if each <= size), default=min(known))
        return known[near] * (size / near) ** 3

    return seconds


def placement(quick: bool) -> Finding:
    """E14: who inverts the factors of K-FAC."""
    sizes = [size for layer in resnet_50() for size in (layer.inputs, layer.outputs)]
    invert = _inversion(quick)
    rows: list[list[Cell]] = []
    rules = ("all by all", "in turn", "balanced")
    for gigabits, ranks, rule in product((1, 10, 100), (4, 16, 64), rules):

        def send(size: int, rate: float = gigabits * 1e9) -> float:
            return 1e-4 + size * (size + 1) // 2 * FLOAT_BYTES * 8 / rate

        rows.append(
            [f"{gigabits} Gb/s, {ranks} ranks", rule, placed(sizes, ranks, rule, invert, send), Source.MODELLED]
        )
    ends = {(str(row[0]), str(row[1])): float(row[2] or 0) for row in rows}
    first = [
        where
        for where, rule in ends
        if rule == "balanced" and ends[where, rule] > min(ends[where, each] for each in rules)
    ]
    return Finding(
        [
            Table(
                f"{len(sizes)} factors of K-FAC for ResNet-50, of {min(sizes)} to {max(sizes):,} rows",
                ("network", "inverted", "all inverses, s", "source"),
                rows,
                [Chart("network", "all inverses, s", "inverted", log_y=True)],
                "Inversions of a few sizes are measured here and continued by their cubes; a broadcast takes 0.1 ms "
                "and the bytes of a triangle of f32. Balanced: the largest first to the rank with least work, and by "
                "all what takes longer to send than to invert, as SPD-KFAC does (S. Shi, L. Zhang, B. Li, ICDCS 2021).",
            )
        ],
        [f"The balanced placement is the fastest in {len(ends) // 3 - len(first)} of {len(ends) // 3} cases."],
        [
            "P4SGD plans factors of one size only, its blocks of 64 columns: for layers of different sizes it has "
            "nothing of its own to set against the published rule."
        ],
    )


EXPERIMENTS = (
    Experiment("E13", "Merged messages", "Which gradients should travel in one message?", merging),
    Experiment("E14", "Placed factors", "Which rank should invert which factor?", placement),
)
