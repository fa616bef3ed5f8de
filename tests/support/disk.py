"""A disk that is full: the largest file that the kernel grants this process is made small.

A write beyond that size fails as on a full disk does: in the middle.
"""

import contextlib
import resource


@contextlib.contextmanager
def small_disk(limit):
    """Let files have at most ``limit`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
