"""Runs of emulated workers: the golden model's arithmetic, for one worker or several at once."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import RESIDUAL, WEIGHT, IntArray
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden, kernels
from p4sgd.sim.emulator.worker import EmulatedWorker, EmulatorError
from p4sgd.sim.features import Features, Lines

__all__ = ["Inputs", "Run", "read_settings"]

_PART = 1 << 26
"""Number of features that a call of the kernels trains on, a few hundredths of a second: between calls Ctrl-C acts."""

ByteArray = npt.NDArray[np.uint8]


class Run:
    """A run of workers whose settings, labels and tables are the same.

    Parameters
    ----------
    inputs
        What the workers' registers and memory say; see `Inputs.alike`.

    Attributes
    ----------
    settings
        The settings; ``chunks`` are those of the first worker.
    features
        The decoded features. Who keeps them saves a later run of the same samples the decoding.
    """

    def __init__(self, inputs: Sequence["Inputs"]) -> None:
        self._workers = workers = [each.worker for each in inputs]
        self.settings = inputs[0].settings
        self.table, self.labels = inputs[0].table, inputs[0].labels
        self.features = Features.shared([each.lines for each in inputs])
        self._limits = np.array([each.limit for each in inputs])
        self.flags = [golden.Flags() for _ in workers]
        self._all = [worker.first_weights(each.settings.chunks) for worker, each in zip(workers, inputs, strict=True)]
        flat = [weights.reshape(-1) for weights in self._all]
        pairs = list(zip(flat, self.features.columns, strict=True))
        self._weights = np.concatenate([weights[columns] for weights, columns in pairs])
        rest = [np.delete(weights, columns) for weights, columns in pairs]
        self._others = np.concatenate([part if part.any() else part[:0] for part in rest])
        self._rest = rest
        # Weights of forward passes; with staleness those before the last update.
        self._read = self._weights.copy() if self.settings.stale else self._weights
        self._current: tuple[int, tuple[ByteArray, int]] | None = None

    def partials(self, mini_batch: int) -> IntArray:
        """Forward pass, Round 1 and clamp of a mini-batch: sums of the workers' partial activations, int64 (B,)."""
        batch, form = self.settings.batch, self.settings.features
        rows, first = self.features.rows(mini_batch * batch, batch)
        self._current = mini_batch, (rows, first)
        clamped = np.zeros(len(self._workers), np.bool_)
        sums = kernels.partials(
            rows, first, self.features.layout, form, form.forward_shift, self._read, self._limits, clamped, batch
        )
        for flags, value in zip(self.flags, clamped, strict=True):
            flags.partial_clamped |= bool(value)
        return sums

    def update(self, mini_batch: int, sums: IntArray) -> None:
        """Loss, backward pass and Round 3 of the mini-batch of the last `partials`, from the job's sums."""
        settings, labels = self.settings, self.labels
        assert self._current is not None
        assert self._current[0] == mini_batch
        rows, first = self._current[1]
        own = golden.Flags()
        part = labels[mini_batch * settings.batch : (mini_batch + 1) * settings.batch]
        deltas = golden.delta(golden.residual(sums, part, self.table, settings.label_mode, own), settings)
        if settings.stale:
            self._read[:] = self._weights
        units, workers = self.features.layout
        for worker, flags in enumerate(self.flags):
            columns = int(units[workers[worker]]), int(units[workers[worker + 1]])
            flags.residual_saturated |= own.residual_saturated
            flags.weight_saturated |= kernels.backward(
                rows, first, columns, deltas, settings.features, settings.gradient_shift, self._weights
            )
        kernels.regularize(self._weights, settings.shrink, settings.threshold)
        kernels.regularize(self._others, settings.shrink, settings.threshold)

    def train(self) -> None:
        """Do all mini-batches, if the workers are all of the job's."""
        settings, count = self.settings, len(self._workers)
        step = max(1, _PART // max(1, settings.batch * self.features.count))
        for first in range(0, settings.mini_batches, step):
            samples = slice(first * settings.batch, min(first + step, settings.mini_batches) * settings.batch)
            rows, row = self.features.rows(samples.start, samples.stop - samples.start)
            clamped, saturated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
            residual_saturated = kernels.train(
                rows[row : row + samples.stop - samples.start],
                self.labels[samples],
                self.features.layout,
                settings,
                self.table,
                self._limits,
                self._weights,
                self._read,
                self._others,
                (clamped, saturated),
            )
            for worker, flags in enumerate(self.flags):
                flags.partial_clamped |= bool(clamped[worker])
                flags.weight_saturated |= bool(saturated[worker])
                flags.residual_saturated |= residual_saturated

    def finish(self) -> None:
        """Set weights, flags and control registers of the workers as at the end of a run."""
        begin = other = 0
        for worker, weights, columns, rest, flags in zip(
            self._workers, self._all, self.features.columns, self._rest, self.flags, strict=True
        ):
            flat = weights.reshape(-1)
            flat[columns] = self._weights[begin : begin + columns.size]
            begin += columns.size
            if rest.any():
                flat[np.delete(np.arange(flat.size), columns)] = self._others[other : other + rest.size]
                other += rest.size
            worker.finish(weights, flags)


class Inputs:
    """What a worker's registers and memory say about a run.

    Raises
    ------
    EmulatorError
        If they describe none.
    """

    def __init__(self, worker: EmulatedWorker) -> None:
        self.worker = worker
        get, config = worker.registers.get, worker.config
        self.settings, self.limit = read_settings(worker)
        self.job = get(spec.JOB, "job"), get(spec.JOB, "workers")
        self.table = worker.table()
        form = self.settings.features
        total = self.settings.micro_batches * self.settings.mini_batches
        labels = worker.memory(config.labels_memory, spec.LABELS_ADDRESS, total * LABEL_BYTES)
        self.labels: IntArray = labels.view("<i4").astype(np.int64)
        shape = (total, self.settings.chunks, form.stored, BANKS // config.ports, config.lanes // 8)
        parts = tuple(
            worker.memory(engine * config.ports + port, spec.lines_address(engine, port), int(np.prod(shape))).reshape(
                shape
            )
            for engine in range(config.engines)
            for port in range(config.ports)
        )
        self.lines = Lines(parts, form, self.settings.unit)

    def alike(self, other: "Inputs") -> bool:
        """Whether two workers do the same but for their features, so that one `Run` can do both."""
        return (
            dataclasses.replace(self.settings, chunks=other.settings.chunks) == other.settings
            and self.table.shift == other.table.shift
            and np.array_equal(self.table.slope, other.table.slope)
            and np.array_equal(self.table.intercept, other.table.intercept)
            and np.array_equal(self.labels, other.labels)
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
        )
        settings.check_fits(worker.config)
    except ValueError as error:
        raise EmulatorError(f"worker {worker.index}: {error}") from error
    return settings, get(spec.PARTIAL_LIMIT)
