"""Folders that are generated once, however many processes run the tests."""

import fcntl
import os


def make_once(factory, name, make):
    """A folder of the test session: the first process that asks for it makes it, the others wait and read it.

    ``name``: name of the folder; ``make``: function that writes the folder, given its path.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # that of a worker is in that of the session
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder
