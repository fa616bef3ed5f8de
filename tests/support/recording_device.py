"""A device that computes nothing: it remembers what was written and lets a test decide what a run does."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.registers import program_map


@dataclass(frozen=True)
class Write:
    """A register write, with its fields' values."""

    register: str
    values: dict[str, int]


class RecordingWorker:
    """Registers keep what was written, those of programs too, but MERGE_MOST is 0, as on boards; memory is bytes."""

    def __init__(self, config, size=1 << 20):
        self.config = config
        self.map = program_map(config)
        self.words = {self.map[name].offset: word for name, word in registers.identity(config).items()}
        self.words[registers.CTRL.offset] = registers.CTRL.encode(idle=1)
        self.writes: list[Write] = []
        # what was never written is not zero on a board either
        self.banks = [np.full(size, 0xA5, np.uint8) for _ in range(config.memories)]
        self.status = 0

    def read_register(self, offset):
        assert self.map.at(offset) is not None, hex(offset)
        if offset == registers.STATUS.offset:
            return self.status
        return self.words.get(offset, 0)

    def write_register(self, offset, word):
        register = self.map.at(offset)
        assert register is not None, hex(offset)
        self.writes.append(Write(register.name, register.decode(word)))
        if register is registers.STATUS:
            self.status &= ~word
        elif register is registers.CTRL:
            self.words[offset] = registers.CTRL.encode()
        else:
            self.words[offset] = word

    def write_memory(self, bank, address, data):
        assert data.dtype == np.uint8
        assert data.ndim == 1
        assert data.flags.c_contiguous
        self.banks[bank][address : address + data.size] = data

    def read_memory(self, bank, address, size):
        return self.banks[bank][address : address + size].copy()

    def field(self, register, name="value"):
        """The field's value as the worker would see it."""
        return register.decode(self.words.get(register.offset, register.reset))[name]

    def pair(self, pair):
        """The value of a 64-bit register."""
        return self.field(pair[0]) | self.field(pair[1]) << 32

    def written(self, name):
        """All writes of a register, in order."""
        return [write.values for write in self.writes if write.register == name]


class BareDevice:
    """What is there of a device without a network."""

    aggregator = network_settings = shares = names = message_times = None
    absent = stand_ins = ()
    replaced = MappingProxyType({})
    closed = False

    def take_in(self, tell):
        return ()

    def clear(self):
        pass

    def close(self):
        self.closed = True


class RecordingDevice(BareDevice):
    """Workers that all end as soon as they are waited for, after ``on_run(device)``."""

    name = "recording"

    def __init__(self, config, workers, on_run: Callable[["RecordingDevice"], None] = lambda device: None):
        self.workers = [RecordingWorker(config) for _ in range(workers)]
        self.on_run = on_run

    def wait(self, timeout_s=None):
        if all(worker.writes[-1].register == "ABORT" for worker in self.workers):
            return
        assert all(
            worker.writes[-1] == Write("CTRL", {"start": 1, "done": 0, "idle": 0, "ready": 0})
            for worker in self.workers
        )
        self.on_run(self)
        for worker in self.workers:
            worker.words[registers.CTRL.offset] = registers.CTRL.encode(done=1, idle=1)
