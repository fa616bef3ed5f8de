"""Runs that a worker has room for and runs that it refuses: the same in RTL and emulated."""

import dataclasses

from p4sgd.hw.spec.config import WorkerConfig

ROOMS = [dataclasses.replace(WorkerConfig.tiny(), lanes=lanes, chunks=16, line_fifo_depth=64) for lanes in (8, 16)]

ORDINARY = {
    "micro": 2,
    "mini": 3,
    "chunks": 1,
    "precision": 1,
    "stored": 1,
    "unit_chunks": 0,
    "stale": 0,
    "directory": 0,
    "lines": 1,
    "limit": 1,
    "misplaced": 0,
}


def cases(lanes: int) -> list[tuple[bool, dict[str, int]]]:
    """What a run changes of `ORDINARY`, and whether a worker of `ROOMS` refuses it."""
    return [
        (False, {"chunks": 16, "precision": 4, "stored": 8}),
        (False, {"chunks": 8, "precision": 8, "stored": 8, "stale": 1}),
        (False, {"unit_chunks": 2}),
        (lanes << 3 > 64, {"unit_chunks": 3}),
        (True, {"micro": 0}),
        (True, {"mini": 0}),
        (True, {"chunks": 0}),
        (True, {"precision": 0}),
        (True, {"precision": 3, "stored": 2}),
        (True, {"precision": 8, "stored": 9}),
        (False, {"chunks": 16, "precision": 8, "stored": 8, "directory": 1}),  # how many lines, the host knows
        (True, {"precision": 2, "stored": 3, "directory": 1}),
        (True, {"directory": 1, "lines": 0}),
        (False, {"lines": 0}),
        (True, {"limit": 0}),
        (False, {"limit": 1 << 30}),
        (True, {"misplaced": 1}),
        (True, {"chunks": 17, "directory": 1}),
        (True, {"chunks": 17}),
        (True, {"chunks": 9, "stale": 1}),
        (True, {"chunks": 16, "precision": 5, "stored": 8}),
        (False, {}),
    ]
