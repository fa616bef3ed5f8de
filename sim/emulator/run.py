"""Runs of emulated workers: the golden model's arithmetic, for one worker or several at once."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import IMPORTANCE, RESIDUAL, WEIGHT, IntArray
from p4sgd.hw.spec.image import LABEL_BYTES, unpack_labels
from p4sgd.hw.spec.register_map import Register
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden
from p4sgd.sim.dense.lines import Lines
from p4sgd.sim.emulator.worker import EmulatedWorker, EmulatorError
from p4sgd.sim.features import Source, new_model, shared_features
from p4sgd.sim.loss import deltas
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.directories import Directories
from p4sgd.sim.sparse.entries import Entries

__all__ = ["Inputs", "Run", "read_settings"]


class Run:
    """A run of workers whose settings, labels and tables are the same, and the form of their features.

    Parameters
    ----------
    inputs
        What the workers' registers and memory say; see `Inputs.alike`.
    ranks
        Processes that have other samples of the worker, a single sparse one; None if all are here.

    Attributes
    ----------
    settings
        The settings; ``chunks`` are those of the first worker.
    features
        The features. Who keeps them saves a later run of the same samples the decoding.

    Raises
    ------
    EmulatorError
        If a sparse worker's memory has no list of entries, or if directories are not as they must be.
    """

    def __init__(self, inputs: Sequence["Inputs"], ranks: SampleRanks | None = None) -> None:
        self._workers = workers = [each.worker for each in inputs]
        self.settings = inputs[0].settings
        self.table, self.labels, self.importances = inputs[0].table, inputs[0].labels, inputs[0].importances
        try:
            self.features = shared_features([each.source for each in inputs])
        except ValueError as error:
            raise EmulatorError(f"worker {', '.join(str(worker.index) for worker in workers)}: {error}") from error
        weights = [worker.first_weights(each.settings.chunks) for worker, each in zip(workers, inputs, strict=True)]
        limits, exempt = np.array([each.limit for each in inputs]), [each.exempt for each in inputs]
        self._model = new_model(self.features, weights, self.settings, limits, exempt, ranks)
        self._residual_saturated = False

    def partials(self, mini_batch: int, part: range | None = None) -> IntArray:
        """Forward pass, Round 1 and clamp of a mini-batch: sums of the workers' partial activations, int64 (B,).

        With staleness this may come before or after the `update` of the mini-batch before, to the same values.

        Parameters
        ----------
        mini_batch
            Its number.
        part
            Consecutive micro-batches of it, for the sums of which alone this is called; by default all.
        """
        rows = self._rows(mini_batch, part)
        return self._model.partials(rows.start, rows.stop - rows.start, self.settings.features.forward_shift)

    def update(self, mini_batch: int, sums: IntArray, part: range | None = None) -> None:
        """Loss, backward pass and Round 3 of a mini-batch, or of the parts of `partials` in the same order.

        They begin when all partials of the mini-batch are there, which read the weights from before it.

        Parameters
        ----------
        sums
            The job's sums, int64 (B,) or as many as the part has.
        mini_batch, part
            See `partials`.
        """
        rows = self._rows(mini_batch, part)
        own, saturated = deltas(sums, self.labels[rows], self.importances[rows], self.table, self.settings)
        self._residual_saturated |= saturated
        self._model.update(rows.start, own)
        if rows.stop % self.settings.batch == 0:
            self._model.regularize()

    def _rows(self, mini_batch: int, part: range | None) -> slice:
        """The samples of a part of a mini-batch."""
        part = range(self.settings.micro_batches) if part is None else part
        first = mini_batch * self.settings.batch
        return slice(first + BANKS * part.start, first + BANKS * part.stop)

    def train(self) -> None:
        """Do all mini-batches, if the workers are all of the job's."""
        settings, step = self.settings, self._model.mini_batches_at_once
        for first in range(0, settings.mini_batches, step):
            samples = slice(first * settings.batch, min(first + step, settings.mini_batches) * settings.batch)
            self._residual_saturated |= self._model.train(
                samples.start, self.labels[samples], self.importances[samples], self.table
            )

    def finish(self) -> None:
        """Set weights, flags and control registers of the workers as at the end of a run."""
        model = self._model
        for worker, weights, clamped, saturated in zip(
            self._workers, model.values(last=True), model.clamped, model.saturated, strict=True
        ):
            worker.finish(weights, golden.Flags(bool(clamped), self._residual_saturated, bool(saturated)))


class Inputs:
    """What a worker's registers and memory say about a run.

    Attributes
    ----------
    places
        Where the features are: memories, the registers with the addresses, and bytes.

    Raises
    ------
    EmulatorError
        If they describe none.
    """

    def __init__(self, worker: EmulatedWorker) -> None:
        self.worker = worker
        get, config = worker.registers.get, worker.config
        self.settings, self.limit = read_settings(worker)
        self.exempt = _exempt(worker, self.settings.chunks)
        self.job = get(spec.JOB, "job"), get(spec.JOB, "workers")
        self.table = worker.table()
        total = self.settings.micro_batches * self.settings.mini_batches
        weighted = self.settings.weighted
        labels = worker.memory(config.labels_memory, spec.LABELS_ADDRESS, total * LABEL_BYTES * (1 + weighted))
        self.labels, self.importances = unpack_labels(labels, weighted=weighted)
        if IMPORTANCE.one < self.importances.max(initial=0) or self.importances.min(initial=0) < 0:
            raise EmulatorError(f"worker {worker.index}: a weight of a sample is not in 0..1")
        self.places: list[tuple[int, tuple[Register, Register], int]] = []
        self.source: Source
        if config.sparse:
            self.source = self._entries(total)
        elif get(spec.FORMAT, "directory"):
            self.source = self._directories(total)
        else:
            self.source = self._lines(total)

    def _lines(self, micro_batches: int) -> Lines:
        settings, config = self.settings, self.worker.config
        stored = settings.features.stored
        shape = (micro_batches, settings.chunks, stored, BANKS // config.ports, config.lanes // 8)
        parts = tuple(
            self._read(engine * config.ports + port, spec.lines_address(engine, port), math.prod(shape)).reshape(shape)
            for engine in range(config.engines)
            for port in range(config.ports)
        )
        return Lines(parts, settings.features, settings.unit)

    def _directories(self, micro_batches: int) -> Directories:
        settings, config, worker = self.settings, self.worker.config, self.worker
        parts = []
        for engine in range(config.engines):
            shape = _lines_of(worker, engine), BANKS // config.ports, config.lanes // 8
            for port in range(config.ports):
                content = self._read(
                    engine * config.ports + port, spec.lines_address(engine, port), shape[0] * config.port_bytes
                )
                parts.append(content.reshape(shape))
        return Directories(
            tuple(parts), micro_batches, settings.chunks, settings.features, settings.unit, config.line_fifo_depth
        )

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
        """Bytes of features."""
        self.places.append((memory, address, size))
        return self.worker.memory(memory, address, size)

    def alike(self, other: "Inputs") -> bool:
        """Whether two workers do the same but for their features, so that one `Run` can do both."""
        return (
            type(self.source) is type(other.source)
            and dataclasses.replace(self.settings, chunks=other.settings.chunks) == other.settings
            and self.table.shift == other.table.shift
            and np.array_equal(self.table.slope, other.table.slope)
            and np.array_equal(self.table.intercept, other.table.intercept)
            and np.array_equal(self.labels, other.labels)
            and np.array_equal(self.importances, other.importances)
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
    low, high = (worker.registers.get(register) for register in spec.lines_count(engine))
    return int(low | high << 32)


def _exempt(worker: EmulatedWorker, chunks: int) -> int | None:
    """Place of the weight without penalties among those of all engines; None if there is none."""
    get, config = worker.registers.get, worker.config
    place = get(spec.EXEMPT, "engine"), get(spec.EXEMPT, "chunk"), get(spec.EXEMPT, "lane")
    sizes = config.engines, chunks, config.lanes
    if not get(spec.EXEMPT, "exempt") or any(each >= size for each, size in zip(place, sizes, strict=True)):
        return None
    return int(np.ravel_multi_index(place, sizes))
