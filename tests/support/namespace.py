"""A network namespace of a test's own, with pairs of virtual Ethernet interfaces in it."""

import ctypes
import gc
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

_CLONE_NEWNET = 0x40000000


def _unshare():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Namespace:
    """A thread that is in a namespace of its own, and so is what it starts and opens.

    The namespace has no name, and ends with the thread and what was begun there: nothing is left, whatever happens.
    """

    def __init__(self):
        if shutil.which("ip") is None:
            pytest.skip("needs the command ip (apt-get install iproute2)")
        gc.collect()  # not in the thread: what is left of gRPC starts threads as it ends, which would stay in there
        self._thread = ThreadPoolExecutor(1)
        try:
            self.call(_unshare)
        except OSError as error:
            self._thread.shutdown()
            pytest.skip(f"needs network namespaces ({error.strerror}): run as root, or with unshare -Urn pytest …")
        self.ip("link", "set", "lo", "up")

    def call(self, function, *args, **options):
        """Call a function in the namespace."""
        return self._thread.submit(function, *args, **options).result()

    def ip(self, *words):
        """The command ip in the namespace."""
        self.call(subprocess.run, ["ip", *words], check=True)

    def pair(self, name, peer):
        """Two interfaces with a cable between them, both up."""
        self.ip("link", "add", "name", name, "type", "veth", "peer", "name", peer)
        for each in (name, peer):
            self.ip("link", "set", each, "up")
        for each in (name, peer):
            self.wait_until_up(each)

    def wait_until_up(self, name):
        """Return when an interface passes frames: for up to a second Linux drops them after it was set up."""
        end = time.monotonic() + 30
        show = ["ip", "-o", "link", "show", name]
        while "state UP" not in self.call(subprocess.run, show, check=True, capture_output=True, text=True).stdout:
            assert time.monotonic() < end, f"{name} does not come up"
            time.sleep(0.01)

    def start(self, *command, **options):
        """Start a program in the namespace."""
        return self.call(subprocess.Popen, [str(word) for word in command], **options)

    def close(self):
        self._thread.shutdown()
