"""A disk that is full: the largest file that the kernel grants this process is made small.

A write beyond that size fails as on a full disk does: in the middle.
"""

import contextlib
import resource
import sys


@contextlib.contextmanager
def small_disk(limit):
    """Let files have at most ``limit`` bytes, but keep Python from leaving cut bytecode of modules behind."""
    before, bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = bytecode
