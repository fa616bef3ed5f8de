"""An emulator that fails in one of its runs."""

from p4sgd.host.devices import open_device
from p4sgd.host.errors import P4sgdError


class FailingDevice:
    """``run`` counts from 1; what it then raises is the ``error``, by default that of a worker that failed."""

    def __init__(self, config, workers, run, error=None):
        self.device = open_device("emulator", config, workers)
        self.run = run
        self.error = error or P4sgdError("worker 0 met a memory error")

    def __getattr__(self, name):
        return getattr(self.device, name)

    def wait(self, timeout_s=None):
        self.run -= 1
        if self.run == 0:
            raise self.error
        self.device.wait(timeout_s)
