"""Sums: int32, two's complement."""

from collections.abc import Sequence

from conformance.script import Script, lanes, vector, vector_for

MAX, MIN = (1 << 31) - 1, -(1 << 31)


def _adds(s: Script, partials: Sequence[Sequence[int]], sums: Sequence[int]) -> None:
    job = s.begin(len(partials))
    for shard, values in enumerate(partials[:-1]):
        job.partial(shard, 1, values).added()
    job.partial(len(partials) - 1, 1, partials[-1]).full_to_all(sums)
    job.partial(0, 1, (0,) * 8).full_to_one(sums)


@vector
def lanes_are_apart(s: Script) -> None:
    """Value i of the answer is the sum of values i; no carry goes from one to the next."""
    _adds(s, [[-1, 0, -1, 0, -1, 0, -1, 0], [1, 5, 1, 5, 1, 5, 1, 5]], [0, 5, 0, 5, 0, 5, 0, 5])


@vector
def each_lane_in_its_place(s: Script) -> None:
    """The first value is the first of the answer."""
    _adds(s, [[1, 2, 3, 4, 5, 6, 7, 8], [10, 20, 30, 40, 50, 60, 70, 80]], [11, 22, 33, 44, 55, 66, 77, 88])


@vector
def negative_values(s: Script) -> None:
    """Partials are signed."""
    _adds(
        s,
        [[-5, 5, -5, 0, -1, 1, -65536, 65536], [3, -3, -3, 0, 1, -1, 65535, -65537]],
        [-2, 2, -8, 0, 0, 0, -1, -1],
    )


@vector
def sums_wrap(s: Script) -> None:
    """Beyond int32 a sum wraps: it neither saturates nor disturbs its neighbours."""
    _adds(
        s,
        [[MAX, MIN, MAX, MIN, MAX, MIN, MAX, 0], [1, -1, MAX, MIN, MIN, MAX, -1, MIN]],
        [MIN, MAX, -2, 0, -1, -1, MAX - 1, MIN],
    )


@vector
def sums_wrap_there_and_back(s: Script) -> None:
    """A sum that wraps on the way is right in the end: adding is the same in any order."""
    _adds(s, [[MAX, MIN] * 4, [1, -1] * 4, [-1, 1] * 4], [MAX, MIN] * 4)


@vector_for({"pattern": 0x7FFF_FFFF}, {"pattern": -0x8000_0000}, {"pattern": -1}, {"pattern": 0x0000_FFFF})
def a_pattern_and_nothing(s: Script, pattern: int) -> None:
    """Extremes pass as they are."""
    _adds(s, [[pattern] * 8, [0] * 8], [pattern] * 8)


@vector_for({"pattern": 0x5555_5555, "twice": -0x5555_5556}, {"pattern": -0x5555_5556, "twice": 0x5555_5554})
def a_pattern_twice(s: Script, pattern: int, twice: int) -> None:
    """Every second bit carries into the next: 0x55555555 twice is 0xAAAAAAAA, 0xAAAAAAAA twice is 0x55555554."""
    _adds(s, [[pattern] * 8, [pattern] * 8], [twice] * 8)


@vector
def thirty_two_extremes(s: Script) -> None:
    """32 times 2^31 − 1 is −32 modulo 2^32, 32 times −2^31 is 0."""
    _adds(s, [[MAX, MIN] * 4] * 32, [-32, 0] * 4)


@vector
def every_bit_carries(s: Script) -> None:
    """0xFFFFFFFF and 1: a carry through all 32 bits, and none beyond them."""
    _adds(s, [[-1] * 8, [1] * 8], [0] * 8)


@vector
def one_worker_gets_its_own_values(s: Script) -> None:
    """The sum of one."""
    _adds(s, [[MAX, MIN, -1, 0, 1, 2, 3, 4]], [MAX, MIN, -1, 0, 1, 2, 3, 4])


@vector
def nothing_is_left_of_the_sums_before(s: Script) -> None:
    """A round overwrites what overflowed in the one before, complete or not."""
    job = s.begin()
    job.partial(0, 1, [MAX] * 8).added()
    job.partial(1, 1, [MAX] * 8).full_to_all([-2] * 8)
    job.partial(0, 2, [MIN] * 8).added()
    job.partial(1, 3, lanes(1), why="the round before never was complete").added()
    job.partial(0, 3, lanes(2)).full_to_all(3)
