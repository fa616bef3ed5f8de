"""Emulated device: registers and memory of every worker, and the arithmetic of runs.

`EmulatedDevice` takes the same memory images and registers as the RTL and produces the same bits. It does not emulate
time or packets: cycle and packet counters read 0. `p4sgd.sim.emulator.networked` has a single worker that takes part in
AllReduce by packets, over any transport.
"""

from p4sgd.sim.emulator.device import EmulatedDevice, RemoteWorkers, warm_up
from p4sgd.sim.emulator.worker import EmulatorError

__all__ = ["EmulatedDevice", "EmulatorError", "RemoteWorkers", "warm_up"]
