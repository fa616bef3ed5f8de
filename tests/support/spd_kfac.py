"""Published sizes and costs of ResNet-50's Kronecker factors, and the published rule for merging messages.

Times are for SPD-KFAC (S. Shi, L. Zhang, B. Li: Accelerating Distributed K-FAC with Smart Parallelism of Computing and
Communication Tasks, ICDCS 2021, arXiv:2107.06533) on 64 GPUs (RTX 2080 Ti) with 100 Gbit/s InfiniBand. The constants
are in the authors' repository, https://github.com/shyhuai/kfac_pytorch, commit 1dacea7.
"""

import math
from itertools import accumulate

__all__ = ["FACTORS", "READY_S", "broadcast_s", "cost_table", "invert_s", "mg_wfbp", "reduce_s", "resnet50"]


def resnet50():
    """Sizes of the factors A and G of ResNet-50's 54 layers: two lists, in the order of torchvision's modules.

    A layer's factor A has k² · c_in rows, one more for a bias; its factor G has c_out rows.
    """
    a, g = [7 * 7 * 3], [64]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers = [(channels, width), (3 * 3 * width, width), (width, 4 * width)]
            if block == 0:
                layers.append((channels, 4 * width))  # the shortcut
            a += [rows for rows, _ in layers]
            g += [rows for _, rows in layers]
            channels = 4 * width
    return [*a, channels + 1], [*g, 1000]


_A, _G = resnet50()

FACTORS = [*_A, *reversed(_G)]
"""Sizes of the 108 factors in the order in which they are computed: A in the forward pass, G in the backward pass."""

# icdcs2021-logs/factorcompute-fp32-resnet50.oog: 32 samples, in µs, in the order of the layers.
_A_US = """
    3530 200 5807 167 160 1230 5780 166 1227 5814 164 1223 5837 106 304 1021 5829 112 1039 5819 111 1054 5857 108 1051
    5151 89 268 956 5145 89 952 5157 88 942 5135 88 950 5163 87 951 5145 89 950 5332 82 279 954 5358 83 993 5353 81 54
"""
_G_US = """
    497 160 160 1235 1229 164 160 1233 165 160 1226 331 102 1027 1081 115 106 1045 113 105 1057 113 106 1069 321 80 986
    956 90 83 937 92 91 962 87 87 970 92 85 952 92 85 946 286 72 978 996 78 78 979 78 76 962 15
"""

READY_S = list(accumulate(int(each) * 1e-6 for each in [*_A_US.split(), *reversed(_G_US.split())]))
"""When each of `FACTORS` is computed, in seconds, without the passes through the network around it."""


def invert_s(size):
    """Time to invert a factor: ``estimate_inverse_time_with_model`` of kfac/utils.py, fitted."""
    return 3.64e-3 * math.exp(4.77e-4 * size)


def broadcast_s(size):
    """Time to broadcast a triangle of a factor: ``estimate_bcast_time`` of kfac/utils.py, fitted, 4 bytes a value."""
    return 2 * 5 * 4 * 6.374037687522862e-06 + 1.840345743984339e-10 * 4 * size * (size + 1) / 2


REDUCE_LATENCY_S = 9.29e-4


def reduce_s(values):
    """Time of an all-reduce of so many values: ``get_alpha_beta`` of kfac/utils.py, fitted."""
    return REDUCE_LATENCY_S + 1.4335e-9 * values


def cost_table(cost, sizes):
    """Entries of a table: size and cost of each different size, sorted."""
    return [[size, cost(size)] for size in sorted(set(sizes))]


def mg_wfbp(ready, sizes, cost, latency):
    """Numbers of items of the messages by the published greedy rule, for a cost of latency + b · size.

    An item joins the message before it if it is ready less than a latency after that message could start (S. Shi,
    X. Chu, B. Li: MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms, INFOCOM 2019).
    """
    lengths, size, free = [1], sizes[0], 0.0
    for item in range(1, len(sizes)):
        start = max(free, ready[item - 1])
        if ready[item] - start < latency:
            lengths[-1] += 1
            size += sizes[item]
        else:
            free = start + cost(size)
            lengths.append(1)
            size = sizes[item]
    return lengths
