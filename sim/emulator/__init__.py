"""The emulated device: the registers and memory of every worker, and the arithmetic of runs.

`EmulatedDevice` reads the same memory image and the same registers as the RTL and ends with the same bits. It does not
emulate time: sums are formed without packets, and the cycle and packet counters read 0. `NetworkedWorker` is one worker
that forms its sums by packets, through whatever carries them.
"""

from p4sgd.sim.emulator.device import EmulatedDevice, RemoteWorkers, warm_up
from p4sgd.sim.emulator.networked import NetworkedWorker
from p4sgd.sim.emulator.worker import EmulatorError

__all__ = ["EmulatedDevice", "EmulatorError", "NetworkedWorker", "RemoteWorkers", "warm_up"]
