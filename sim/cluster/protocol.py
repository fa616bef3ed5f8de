"""Names, files and limits shared by the simulator and its client. Imports neither Amaranth nor cocotb."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import CLOCK_NS

MEMORY_BITS = 24
"""log2 of the size of a simulated memory bank in bytes."""


@dataclass(frozen=True)
class MemoryTiming:
    """How fast simulated memories are."""

    MOST_OUTSTANDING: ClassVar[int] = 256

    latency: int = 40
    """Cycles from a read request to its first beat, 5 to 32767: 40 are 160 ns, about a random access to HBM."""
    outstanding: int = MOST_OUTSTANDING
    """Reads that a memory takes before it has answered the first, 1 to 256: a burst is one."""
    refresh: bool = False  # whether memories pause to refresh all their banks at once

    def __post_init__(self) -> None:
        if not 5 <= self.latency < 1 << 15:
            raise ValueError(f"latency must be 5 to 32767 cycles, not {self.latency}")
        if not 1 <= self.outstanding <= self.MOST_OUTSTANDING:
            raise ValueError(f"outstanding must be 1 to {self.MOST_OUTSTANDING}, not {self.outstanding}")

    @property
    def inputs(self) -> dict[str, int]:
        """Inputs of the cluster."""
        return {f"memory_{name}": int(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Waveform:
    """What to record of a simulated cluster, and the file to leave it in (FST)."""

    file: Path
    scope: str = ""  # an instance, with all that is in it, such as worker0.engine1; empty: the cluster
    begin: int = 0  # first cycle; cycle 0 is that of the first edge of the clock
    end: int | None = None  # cycle after the last

    @property
    def arguments(self) -> list[str]:
        """Arguments of the simulator, see ``waveform.cpp``."""
        picoseconds = 1000 * CLOCK_NS
        found = [f"+waves_begin={picoseconds * self.begin}"]
        found += [] if self.end is None else [f"+waves_end={picoseconds * self.end}"]
        return [*found, f"+waves_scope=cluster.{self.scope}"] if self.scope else found


EVENTS_FILE = "events.txt"
"""Events of the workers (see ``sim_trace.sv``), in the simulator's working folder."""

EVENTS_LIMIT = 500_000
"""Maximum number of recorded events; those of a worker in one cycle count as one. They belong to some 60,000
micro-batches and make a trace of 50 MB; viewers in a browser accept only a few times as much."""


def memory_file(worker: int, bank: int) -> str:
    """Name of the file that holds the contents of a worker's memory bank."""
    return f"worker{worker}_bank{bank}.bin"


def read_saved(directory: Path, worker: int, bank: int) -> list[tuple[int, npt.NDArray[np.uint8]]]:
    """Read the file saved by a memory bank (``sim_storage.sv``): byte address and contents of each written word.

    ValueError if it is incomplete: a simulator does not notice that the disk is full.
    """
    path = directory / f"{memory_file(worker, bank)}.txt"
    words = []
    try:
        head, *lines, end = path.read_text().splitlines()
        first, last = map(int, head.split())
        for line in lines:
            index, text = line.split()
            word = np.frombuffer(bytes.fromhex(text)[::-1], np.uint8)
            words.append((int(index, 16) * word.size, word))
        whole = end == "end" and [at for at, _ in words] == [i * word.size for i, (_, word) in enumerate(words, first)]
        whole = whole and len(words) == max(0, last - first)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"{path} is incomplete: the disk may be full")
    return words
