"""A process that passes frames on between pairs of interfaces, up{i} and down{i}, and loses, repeats and reorders some.

``python -m support.relay WORKERS SEED LOSS DUPLICATION DELAY_US [CHANGE]`` writes relay.ready when it works, and every
second or so what has become of frames to relay.json. CHANGE is the chance that one to eight bits of a frame behind its
EtherType are flipped.
"""

import heapq
import json
import random
import selectors
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

from p4sgd.host.links import open_link
from support.lines import Faults, Line


def changed(rng, frame):
    """A frame with some of its bits flipped."""
    frame = bytearray(frame)
    for bit in rng.sample(range(14 * 8, len(frame) * 8), rng.randint(1, 8)):
        frame[bit // 8] ^= 1 << bit % 8
    return bytes(frame)


def main(workers, seed, loss, duplication, delay_us, change=0):
    faults = Faults(loss=float(loss), duplication=float(duplication), delay=(1, int(delay_us)))
    rng, counts = random.Random(int(seed)), Counter()
    selector = selectors.DefaultSelector()
    for index in range(int(workers)):
        up, down = open_link(f"up{index}"), open_link(f"down{index}")
        for source, target in ((up, down), (down, up)):
            selector.register(source, selectors.EVENT_READ, (target, Line(faults, rng, counts)))
    Path("relay.ready").touch()
    waiting, number, told_at = [], count(), 0.0
    while True:
        now = time.monotonic_ns() // 1000
        for key, _ in selector.select(max(0, waiting[0][0] - now) / 1e6 if waiting else 1.0):
            target, line = key.data
            while (frame := key.fileobj.receive()) is not None:
                for arrival in line.arrivals(time.monotonic_ns() // 1000):
                    heapq.heappush(waiting, (arrival, next(number), target, frame))
        now = time.monotonic_ns() // 1000
        while waiting and waiting[0][0] <= now:
            _, _, target, frame = heapq.heappop(waiting)
            if rng.random() < float(change):
                frame = changed(rng, frame)
                counts["changed"] += 1
            target.send(frame)
        if time.monotonic() > told_at + 0.2:
            told_at = time.monotonic()
            Path("relay.part").write_text(json.dumps(counts))
            Path("relay.part").replace("relay.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
