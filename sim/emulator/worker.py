"""Emulated workers: registers, memory, and runs by the golden model's arithmetic, of one worker or several at once."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IMPORTANCE, RESIDUAL, WEIGHT, ByteArray
from p4sgd.hw.spec.image import LABEL_BYTES, unpack_labels
from p4sgd.hw.spec.register_map import Access, Field, Register
from p4sgd.hw.spec.registers import ModelSource, identity, program_map
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, LossTable, RunSettings
from p4sgd.sim import golden
from p4sgd.sim.features import Source, new_model, shared_features
from p4sgd.sim.lines import Lines
from p4sgd.sim.model import Targets
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.entries import Directories, Entries


class EmulatorError(RuntimeError):
    """Registers or memory describe a run that a real worker could not do or would never finish."""


class Memory:
    """One memory bank: the arrays written to it, by address. Addresses that were never written cannot be read.

    Arrays are kept, not copied, so that an image, often a mapped file, takes no further memory; they must not be
    changed afterwards. When an array is partly overwritten, the rest of it is copied and the array released.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pieces: dict[int, ByteArray] = {}

    def write(self, address: int, data: ByteArray) -> None:
        """Write bytes at an address."""
        data = data.reshape(-1).view(np.uint8)
        self.forget(address, data.size)
        self._pieces[address] = data

    def forget(self, address: int, size: int) -> None:
        """Release bytes, as if they had never been written."""
        end = address + size
        for start, piece in list(self._pieces.items()):
            stop = start + piece.size
            if start < end and address < stop:
                del self._pieces[start]
                if start < address:
                    self._pieces[start] = piece[: address - start].copy()
                if end < stop:
                    self._pieces[end] = piece[end - start :].copy()

    @property
    def size(self) -> int:
        """Bytes kept. An array counts as whole pages, because many small ones take more memory than their bytes."""
        return sum(-(-piece.size // spec.PAGE_BYTES) * spec.PAGE_BYTES for piece in self._pieces.values())

    def read(self, address: int, size: int) -> ByteArray:
        """Bytes from an address on; not a copy if they lie within one array. They must all have been written."""
        if not size:
            return np.empty(0, np.uint8)
        end = address + size
        parts: list[tuple[int, ByteArray]] = []
        for start, piece in sorted(self._pieces.items()):
            stop = start + piece.size
            if start <= address and end <= stop:
                return piece[address - start : end - start]
            if start < end and address < stop:
                parts.append((max(start, address), piece[max(address - start, 0) : end - start]))
        if sum(part.size for _, part in parts) != size:
            raise EmulatorError(f"{self._name}: bytes {address:#x} to {end:#x} were not written")
        return np.concatenate([part for _, part in parts])


class Registers:
    """The register file of a worker, with the map and access kinds of the RTL, and registers of programs only.

    ``on_strobe(register, field, value)`` is called for a write to a strobe field, and for a set W1S field.
    """

    def __init__(self, config: WorkerConfig, on_strobe: Callable[[Register, Field, int], None]) -> None:
        registers = program_map(config)
        self._at = {register.offset: register for register in registers}
        self._word = {register.offset: register.reset for register in registers}
        self._cleared = {
            register.offset: sum(field.mask for field in register.fields if field.access is Access.RC)
            for register in registers
        }
        self._on_strobe = on_strobe
        for name, word in identity(config).items():
            self._word[registers[name].offset] = word

    def get(self, register: Register, field: str = "value") -> int:
        """A field's value, without the side effects of a bus read."""
        return register[field].decode(self._word[register.offset])

    def get_pair(self, pair: tuple[Register, Register]) -> int:
        """The 64-bit value of two registers, low and high."""
        low, high = map(self.get, pair)
        return low | high << 32

    def set(self, register: Register, field: str, value: int) -> None:
        """Set a field from the hardware's side, whatever its access kind."""
        known = register[field]
        self._word[register.offset] = self._word[register.offset] & ~known.mask | known.encode(value)

    def read(self, offset: int) -> int:
        """Bus read: clears read-to-clear fields; unmapped offsets read 0."""
        word = self._word.get(offset, 0)
        if cleared := word & self._cleared.get(offset, 0):
            self._word[offset] = word - cleared
        return word

    def write(self, offset: int, word: int) -> bool:
        """Bus write: unmapped offsets and read-only fields are ignored. Returns whether a read-write field changes."""
        register, changes = self._at.get(offset), False
        if register is None:
            return False
        for field in register.fields:
            before, bits = self._word[offset], word & field.mask
            match field.access:
                case Access.RW:
                    self._word[offset] = before & ~field.mask | bits
                    changes |= before & field.mask != bits
                case Access.W1C:
                    self._word[offset] = before & ~bits
                case Access.W1S if bits:
                    self._word[offset] = before | bits
                    self._on_strobe(register, field, field.decode(word))
                case Access.STROBE:
                    self._on_strobe(register, field, field.decode(word))
        return changes


class EmulatedWorker:
    """Registers and memory of a worker of size ``config``; ``index`` is its number in messages."""

    def __init__(self, config: WorkerConfig, index: int) -> None:
        self.config = config
        self.index = index
        self.registers = Registers(config, self._strobe)
        self.registers.set(spec.CTRL, "idle", 1)
        self.started = False
        self._slope = np.zeros(config.table_segments, np.int64)
        self._intercept = np.zeros(config.table_segments, np.int64)
        self._segment = 0
        self.clear()

    def clear(self) -> None:
        """Release all banks, as if they had never been written, and the weights, which become 0."""
        config = self.config
        self._inputs: Inputs | None = None
        self._memory = [Memory(f"worker {self.index}, memory {number}") for number in range(config.memories)]
        self._chunks = config.chunks  # chunks that have weights
        # Zeros of as many features as a sparse worker has would take memory that most runs never need.
        self._weights = np.broadcast_to(np.int32(0), (config.engines, config.chunks * config.lanes))

    def read_register(self, offset: int) -> int:
        """Read a word."""
        return self.registers.read(offset)

    def write_register(self, offset: int, word: int) -> None:
        """Write a word. A run that this starts is carried out in `EmulatedDevice.wait`."""
        if self.registers.write(offset, word):
            self._inputs = None

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to a bank. The array is kept, not copied: it must not be changed afterwards."""
        self._inputs = None
        self._memory[bank].write(address, data)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of a bank that were written, not to be changed: they may be no copy."""
        content = self._memory[bank].read(address, size)
        content.flags.writeable = False
        return content

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        """Release bytes of a bank, as if they had never been written."""
        self._inputs = None
        self._memory[bank].forget(address, size)

    @property
    def memory_bytes(self) -> int:
        """Bytes kept in all banks."""
        return sum(memory.size for memory in self._memory)

    def memory(self, number: int, address: tuple[Register, Register], size: int) -> npt.NDArray[np.uint8]:
        """Bytes at the address in a pair of registers."""
        return self._memory[number].read(self.registers.get_pair(address), size)

    def inputs(self) -> "Inputs":
        """The run that registers and memory describe: those of the last run, until the host changes either."""
        if self._inputs is None:
            self._inputs = Inputs(self)
        return self._inputs

    def write_table(self, table: LossTable) -> None:
        """Write the loss table, of as many segments as there are, as by registers: hundreds of writes at once."""
        self.write_register(spec.TABLE_SHIFT.offset, table.shift)
        self._slope[:], self._intercept[:], self._inputs = table.slope, table.intercept, None

    def table(self) -> LossTable:
        """The loss table."""
        return LossTable(self.registers.get(spec.TABLE_SHIFT), self._slope.copy(), self._intercept.copy())

    def first_weights(self, chunks: int) -> npt.NDArray[np.int32]:
        """Initial weights of a run, by RUN.model_source: int32 (E, chunks · lanes), not to be changed."""
        config, size = self.config, chunks * self.config.lanes
        source = self.registers.get(spec.RUN, "model_source")
        if source == ModelSource.MEMORY.value:
            stored = [
                self.memory(config.model_memory(engine), spec.model_address(engine), 4 * size)
                for engine in range(config.engines)
            ]
            return np.stack([part.view("<i4") for part in stored])
        if source == ModelSource.ZERO.value:
            return np.broadcast_to(np.int32(0), (config.engines, size))
        if chunks > self._chunks:
            raise EmulatorError(
                f"worker {self.index}: the weights to keep are those of {self._chunks} chunks, the run has {chunks}"
            )
        return self._weights[:, :size]

    def finish(self, weights: npt.NDArray[np.int32], flags: golden.Flags) -> None:
        """End a run: keep its weights, which nobody changes, and flags; store the weights if RUN.model_store is set."""
        self._weights = weights
        self._chunks = weights.shape[1] // self.config.lanes
        if self.registers.get(spec.RUN, "model_store"):
            for engine, values in enumerate(weights):
                address = self.registers.get_pair(spec.model_address(engine))
                self._memory[self.config.model_memory(engine)].write(address, values.view(np.uint8))
        for name, flag in vars(flags).items():
            if flag:
                self.registers.set(spec.STATUS, name, 1)
        self.registers.set(spec.CTRL, "done", 1)
        self.stop()

    def stop(self) -> None:
        """Be idle, without a run."""
        self.started = False
        self.registers.set(spec.CTRL, "idle", 1)

    def _strobe(self, register: Register, field: Field, value: int) -> None:
        if register is spec.CTRL:
            self.started = True
            self.registers.set(spec.CTRL, "start", 0)
            self.registers.set(spec.CTRL, "idle", 0)
            self.registers.set(spec.CTRL, "ready", 1)
        elif register is spec.TABLE_INDEX:
            self._segment = value % self.config.table_segments
        elif register is spec.TABLE_INTERCEPT:
            self._slope[self._segment] = self.registers.get(spec.TABLE_SLOPE)
            self._intercept[self._segment] = value
            self._inputs = None
            self._segment = (self._segment + 1) % self.config.table_segments


class Run:
    """A run of workers whose settings, labels and tables are the same, and the form of their features.

    ``inputs`` are the workers', see `Inputs.alike`, and ``ranks`` processes that have other samples of the worker, a
    single sparse one. `EmulatorError` if entries or directories in a memory are not as they must be.
    """

    def __init__(self, inputs: Sequence["Inputs"], ranks: SampleRanks | None = None) -> None:
        self._workers = workers = [each.worker for each in inputs]
        self.settings = inputs[0].settings  # ``chunks`` are those of the first worker
        try:
            # Who keeps these saves a later run of the same samples the decoding.
            self.features = shared_features([each.source for each in inputs])
        except ValueError as error:
            raise EmulatorError(f"worker {', '.join(str(worker.index) for worker in workers)}: {error}") from error
        weights = [worker.first_weights(each.settings.chunks) for worker, each in zip(workers, inputs, strict=True)]
        limits, exempt = np.array([each.limit for each in inputs]), [each.exempt for each in inputs]
        self.model = new_model(self.features, weights, self.settings, inputs[0].targets, limits, exempt, ranks)

    def samples(self, mini_batch: int, part: range | None = None) -> slice:
        """The samples of a mini-batch, or of some of its micro-batches."""
        part = range(self.settings.micro_batches) if part is None else part
        first = mini_batch * self.settings.batch
        return slice(first + BANKS * part.start, first + BANKS * part.stop)

    def finish(self) -> None:
        """Set weights, flags and control registers of the workers as at the end of a run."""
        model = self.model
        for worker, weights, clamped, saturated in zip(
            self._workers, model.values(last=True), model.clamped, model.saturated, strict=True
        ):
            worker.finish(weights, golden.Flags(bool(clamped), model.residual_saturated, bool(saturated)))


class Inputs:
    """A run as a worker's registers and memory describe it; `EmulatorError` if they describe none."""

    def __init__(self, worker: EmulatedWorker) -> None:
        self.worker = worker
        get, config = worker.registers.get, worker.config
        self.settings, self.limit = read_settings(worker)
        self.exempt = _exempt(worker, self.settings.chunks)
        self.job = get(spec.JOB, "job"), get(spec.JOB, "workers")
        total = self.settings.micro_batches * self.settings.mini_batches
        weighted = self.settings.weighted
        labels = worker.memory(config.labels_memory, spec.LABELS_ADDRESS, total * LABEL_BYTES * (1 + weighted))
        self.targets = Targets(*unpack_labels(labels, weighted=weighted), worker.table())
        importances = self.targets.importances
        if weighted and (IMPORTANCE.one < importances.max() or importances.min() < 0):
            raise EmulatorError(f"worker {worker.index}: a weight of a sample is not in 0..1")
        self.regions: list[tuple[int, int, int]] = []
        """Memories of the features, addresses and bytes."""
        if self.settings.chunks * config.lanes % self.settings.unit:
            raise EmulatorError(f"worker {worker.index}: {self.settings.chunks} chunks are no whole number of units")
        self.source: Source = self._entries(total) if config.sparse else self._lines(total)

    def _lines(self, micro_batches: int) -> Lines | Directories:
        settings, config, worker = self.settings, self.worker.config, self.worker
        form, chunks, unit = settings.features, settings.chunks, settings.unit
        directory = worker.registers.get(spec.FORMAT, "directory")
        parts = []
        for engine in range(config.engines):
            lines = (_lines_of(worker, engine),) if directory else (micro_batches, chunks, form.stored)
            shape = *lines, BANKS // config.ports, config.lanes // 8
            for port in range(config.ports):
                memory, address = engine * config.ports + port, spec.lines_address(engine, port)
                parts.append(self._read(memory, address, math.prod(shape)).reshape(shape))
        if directory:
            return Directories(tuple(parts), micro_batches, chunks, form, unit, config.line_fifo_depth)
        return Lines(tuple(parts), form, unit)

    def _entries(self, micro_batches: int) -> Entries:
        settings, config = self.settings, self.worker.config

        def read(memory: int, kind: str, count: int) -> npt.NDArray[Any]:
            dtype = np.dtype(kind)
            return self._read(memory, spec.lines_address(memory, 0), count * dtype.itemsize).view(dtype)

        starts = read(0, "<i8", micro_batches + 1)
        if starts[0] != 0 or (starts[1:] < starts[:-1]).any():
            raise EmulatorError(f"worker {self.worker.index}: memory 0 does not say where entries begin")
        keys, values = read(1, "<u4", int(starts[-1])), read(2, "u1", int(starts[-1]))
        shape = config.engines, settings.chunks * config.lanes
        return Entries(starts, keys, values, settings.features, settings.unit, shape)

    def _read(self, memory: int, address: tuple[Register, Register], size: int) -> npt.NDArray[np.uint8]:
        self.regions.append((memory, self.worker.registers.get_pair(address), size))
        return self.worker.memory(memory, address, size)

    def alike(self, other: "Inputs") -> bool:
        """Whether two workers do the same but for their features, so that one `Run` can do both."""
        own, others = self.targets, other.targets
        return (
            type(self.source) is type(other.source)
            and dataclasses.replace(self.settings, chunks=other.settings.chunks) == other.settings
            and own.table.shift == others.table.shift
            and np.array_equal(own.table.slope, others.table.slope)
            and np.array_equal(own.table.intercept, others.table.intercept)
            and np.array_equal(own.labels, others.labels)
            and np.array_equal(own.importances, others.importances)
        )


def read_settings(worker: EmulatedWorker) -> tuple[RunSettings, int]:
    """Settings of a run and the largest magnitude of a partial activation, from the registers."""
    get = worker.registers.get
    try:
        form = FeatureFormat(
            get(spec.FORMAT, "stored"), get(spec.FORMAT, "precision"), bool(get(spec.FORMAT, "signed"))
        )
        settings = RunSettings(
            features=form,
            chunks=get(spec.CHUNKS),
            micro_batches=get(spec.MICRO_BATCHES),
            mini_batches=get(spec.MINI_BATCHES),
            label_mode=LabelMode(*(bool(get(spec.LABEL_MODE, name)) for name in ("sign", "offset", "constant"))),
            rate_mantissa=get(spec.RATE, "mantissa"),
            # The register holds the shift of Round 3, from which the exponent follows.
            rate_exponent=get(spec.RATE, "gradient_shift") - RESIDUAL.fraction - form.fraction + WEIGHT.fraction,
            shrink=get(spec.SHRINK_FACTOR),
            threshold=get(spec.THRESHOLD),
            workers=get(spec.JOB, "workers"),
            unit=worker.config.lanes << get(spec.FORMAT, "unit_chunks"),
            stale=bool(get(spec.RUN, "stale")),
            weighted=bool(get(spec.LABEL_MODE, "weighted")),
        )
        directory = get(spec.FORMAT, "directory")
        if directory and form.precision != form.stored:
            raise ValueError("a run of an image with directories reads all planes")
        if directory and not all(_lines_of(worker, engine) for engine in range(worker.config.engines)):
            raise ValueError("every engine of a run with directories has lines")
        # Directories themselves tell how many lines there are.
        settings.check_fits(worker.config, 0 if directory else None)
        if not get(spec.PARTIAL_LIMIT):
            raise ValueError("PARTIAL_LIMIT is 0, so every partial activation would be, too")
        engines = range(worker.config.engines)
        addresses = [pair for engine in engines for pair in spec.engine_addresses(worker.config, engine)]
        for low, _ in (spec.LABELS_ADDRESS, *addresses):
            if get(low) % spec.PAGE_BYTES:
                raise ValueError(f"{low.name} is {get(low):#x}, no multiple of {spec.PAGE_BYTES}")
    except ValueError as error:
        raise EmulatorError(f"worker {worker.index}: {error}") from error
    return settings, get(spec.PARTIAL_LIMIT)


def _lines_of(worker: EmulatedWorker, engine: int) -> int:
    """Lines of an engine in a run with directories."""
    return worker.registers.get_pair(spec.lines_count(engine))


def _exempt(worker: EmulatedWorker, chunks: int) -> int | None:
    """Index of the weight without penalties among those of all engines; None if there is none."""
    get, config = worker.registers.get, worker.config
    place = get(spec.EXEMPT, "engine"), get(spec.EXEMPT, "chunk"), get(spec.EXEMPT, "lane")
    sizes = config.engines, chunks, config.lanes
    if not get(spec.EXEMPT, "exempt") or any(each >= size for each, size in zip(place, sizes, strict=True)):
        return None
    return int(np.ravel_multi_index(place, sizes))
