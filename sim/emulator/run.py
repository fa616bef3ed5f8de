"""Runs of emulated workers: the golden model's arithmetic, for one worker or several at once."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IMPORTANCE, RESIDUAL, WEIGHT
from p4sgd.hw.spec.image import LABEL_BYTES, unpack_labels
from p4sgd.hw.spec.register_map import Register
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden
from p4sgd.sim.dense import Lines
from p4sgd.sim.emulator.worker import EmulatedWorker, EmulatorError
from p4sgd.sim.features import Source, new_model, shared_features
from p4sgd.sim.model import Targets
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.entries import Directories, Entries


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
        if IMPORTANCE.one < self.targets.importances.max(initial=0) or self.targets.importances.min(initial=0) < 0:
            raise EmulatorError(f"worker {worker.index}: a weight of a sample is not in 0..1")
        self.regions: list[tuple[int, int, int]] = []
        """Memories of the features, addresses and bytes."""
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
