"""Experiment on messages: which sums travel together, for the layers of ResNet-50 and for mini-batches of ranks."""

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from typing import NamedTuple

from p4sgd.host.distributed.planner import Passes
from p4sgd.host.experiments import overlap
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment

MS, FLOAT_BYTES = 1e-3, 4

NETWORKS = {
    "10 Gb/s, 8 GPUs": (5.230272768511732e-4, 8.570746975492128e-10),
    "10 Gb/s, 16 GPUs": (9.080981007148093e-4, 7.395651186836712e-10),
    "56 Gb/s, 8 GPUs": (9.75367204301171e-5, 3.0568230536676206e-10),
    "56 Gb/s, 16 GPUs": (2.3583677659915685e-4, 4.0594787739537565e-10),
}
"""Seconds to start an AllReduce, and seconds a byte, as published with the code of MG-WFBP."""


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


def gradients() -> Finding:
    """Sums of gradients in messages, by four plans."""
    layers = resnet_50()[::-1]  # gradients of the last layer are there first
    macs = [layer.weights * layer.positions for layer in layers]
    rows: list[list[Cell]] = []
    for backward_ms, (network, (start_s, byte_s)) in product((50, 200), NETWORKS.items()):
        gaps = [backward_ms * MS * each / sum(macs) for each in macs]

        def cost(size: int, start_s: float = start_s, byte_s: float = byte_s) -> float:
            return start_s + size * FLOAT_BYTES * byte_s

        passes = Passes(gaps, [0.0] * len(layers), [layer.weights for layer in layers], cost)
        plans = {
            "one a layer (WFBP)": [1] * len(layers),
            "one in all": [len(layers)],
            "MG-WFBP": greedy(list(accumulate(gaps)), passes.sizes, start_s, cost),
            "planned": passes.best(),
        }
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
                "Layers take parts of the backward pass by their multiplications; its time is assumed. A message takes "
                "the start-up time and the time a byte that the authors of MG-WFBP fitted to an AllReduce of so many "
                "GPUs (github.com/HKBU-HPML/MG-WFBP, distributed_optimizer.py).",
            ),
        ],
        [
            f"The exact plan is never later than the rule of MG-WFBP, which takes up to {most['MG-WFBP']:.2f} times as "
            f"long; a message a layer up to {most['one a layer (WFBP)']:.1f} times, one in all up to "
            f"{most['one in all']:.2f} times.",
            "The trace of 64 layers in the MG-WFBP paper is not in this report: its authors' repository has none.",
        ],
    )


@experiment("E13", "Merged messages", "Which gradients should travel in one message?")
def merging(quick: bool) -> Finding:
    """E13: layers of a network by the model, and mini-batches of ranks as measured."""
    modelled, measured = gradients(), overlap.compare(quick)
    return Finding([*modelled.tables, *measured.tables], [*modelled.sentences, *measured.sentences])
