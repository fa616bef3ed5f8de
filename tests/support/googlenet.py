"""GoogLeNet's layers and the all-reduces between its computers, as the authors of MG-WFBP measured them.

The figures are in the repository of S. Shi, https://github.com/shyhuai/B-Caffe, commit 1e8a70d, in which MG-WFBP (S.
Shi, X. Chu, B. Li, INFOCOM 2019) was first written: GPUs on 10 Gbit/s Ethernet, MPI.
"""

from itertools import accumulate

__all__ = ["ALL_REDUCE_S", "READY_S", "SIZES"]

# logdata/tmp8comm.log, its second half: parameters of the 64 layers, a layer's weights and biases together, and the
# time of its backward pass in µs.
_PARAMETERS = """
    9472 4160 110784 12352 18560 110720 3136 12864 6208 32896 32896 221376 8256 76928 16448 92352 46208 179968 7744
    19264 30784 65664 2098176 1025024 82112 57472 226048 12352 38464 32832 65664 65664 295168 12352 38464 32832
    57472 73920 373568 16448 51264 32832 67712 2098176 1025024 135424 84672 461120 16960 102528 67712 213248 133312
    461120 26688 102528 106624 319872 159936 663936 40000 153728 106624 1025024
"""
_BACKWARD_US = """
    15143.7 3825.38 21038.8 2641.02 3080.61 6052.77 1952.83 1119.52 2047.23 4329.54 4242.4 7513.63 2643.9 3101.5
    3380.64 4733.76 2681.41 5296.16 1470.69 871.456 2137.12 1476.58 703.008 460.512 4075.14 2911.97 3050.18 1793.25
    1612.45 2221.54 3096.32 3116.74 3534.24 1673.63 1461.28 2246.59 2735.94 3884.7 4892.67 1745.82 1556.86 2292.83
    1424.9 703.968 469.76 5788.32 4642.24 5166.24 3048.51 2581.73 3296.7 3990.82 3214.59 2036.86 1212.67 1015.55
    2499.81 2876.35 3467.62 2355.17 1420 1250.91 2564.19 461.088
"""

SIZES = [4 * int(each) for each in reversed(_PARAMETERS.split())]
"""Bytes of the gradients, float32, in the order of the backward pass."""

READY_S = list(accumulate(float(each) * 1e-6 for each in reversed(_BACKWARD_US.split())))
"""When the gradients of each layer are there, in seconds."""

# logdata/allreduce4.log and allreduce8.log: some of the 266 sizes, both sides of the jumps among them, in bytes and µs.
_BYTES = """
    4 1024 2048 4096 8192 12288 16384 32768 65536 131072 196608 258048 262144 393216 520192 524288 786432 1048576
"""
_ALL_REDUCE_US = {
    4: """
    54.50 53.21 55.34 62.64 71.82 223.94 226.11 253.56 300.92 465.67 588.84 672.38 962.70 1153.71 1400.97 1416.60
    1828.45 2251.96
""",
    8: """
    82.28 101.89 157.62 161.78 182.03 791.79 884.19 997.06 1110.54 1332.52 1466.24 1636.38 1639.34 1923.98 2160.11
    3120.97 3493.92 4678.91
""",
}

ALL_REDUCE_S = {
    nodes: ([int(each) for each in _BYTES.split()], [float(each) * 1e-6 for each in times.split()])
    for nodes, times in _ALL_REDUCE_US.items()
}
"""By number of computers: sizes in bytes, and the time of an all-reduce of each in seconds (OSU benchmark 5.4.0)."""
