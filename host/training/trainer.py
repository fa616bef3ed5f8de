"""Trains a model row by row: one row, or one for each of several classes or targets."""

import copy
import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from p4sgd.host.data import Dataset
from p4sgd.host.data.identity import identify
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.sample_numbers import relative
from p4sgd.host.devices import Device
from p4sgd.host.distributed.communicator import broadcast, raise_on_all
from p4sgd.host.errors import UserError, option
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.checkpoint import Checkpoint, CheckpointFile, Run, State, Weights
from p4sgd.host.training.class_weights import BALANCED
from p4sgd.host.training.epochs import RowTraining, release_memory
from p4sgd.host.training.events import SILENT, Events, Remarks
from p4sgd.host.training.metrics import measure_model, named
from p4sgd.host.training.model_file import ModelSet
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Prepared, PreparedData
from p4sgd.host.training.result import ResultSet, StopReason, TrainingResult, common
from p4sgd.host.training.softmax import Softmax, fit_softmax
from p4sgd.host.training.start import Start
from p4sgd.host.training.workers import Workers
from p4sgd.sim.sparse.data_parallel import SampleRanks

_BLAS = threading.Lock()
"""Its limit of threads is that of the process: who leaves one that began in another would keep it for ever."""


def train(
    data: Dataset | PreparedData,
    options: TrainingOptions,
    device: Device,
    *,
    test: Dataset | None = None,
    events: Events = SILENT,
    checkpoint: CheckpointFile | None = None,
    resume: Checkpoint | None = None,
    sample_ranks: SampleRanks | None = None,
    start: Start | None = None,
) -> TrainingResult | ResultSet:
    """Train a model.

    A model of several rows, such as one for each class, is trained row by row, each as a run of its own would be, with
    the same bits if the learning rate is the same: the search for it begins with that of the row before. Features are
    prepared and uploaded once; rows differ in labels and weights.

    Parameters
    ----------
    data, test
        Training samples, which are shuffled, and split if the options ask for it, or prepared data; and samples to
        measure the model on after every epoch.
    device
        Open device with ``options.workers`` workers, or fewer if some are late, which is possible in one process only;
        it stays open. Where several ranks train together, each has a device with one of the workers, and all call this.
    checkpoint, resume
        File for the state after every epoch, which rank 0 writes; checkpoint to go on from. The result is that of a run
        that never stopped, bit for bit, except times and counters; remarks are not repeated, but for how columns are
        dealt.
    sample_ranks
        What the device was opened with, if the ranks divide the samples of its only worker among themselves.
    start
        What a new run on data in memory starts from. No checkpoint is kept of it, because that would lack the start.

    Returns the result with the best model, a `ResultSet` of several rows. After the first epoch, Ctrl-C ends training
    early with the best model so far; before that, or as long as there is a row to begin, it raises `KeyboardInterrupt`.
    Raises `UserError` if data, options and start do not fit together, if the device is too small, or if the checkpoint
    is of another run or cannot be written; `P4sgdError` if the device fails.
    """
    if start is not None and (resume or checkpoint):
        raise ValueError("a run with a start has no checkpoint")
    start = start or Start()
    start.check(options)
    ranks = data.communicator
    if test is not None and not test.sparse and test.feature_count != data.space.count:
        raise UserError(f"{test.name} has {test.feature_count:,} features, {data.name} has {data.space.count:,}")
    workers = Workers(device, options, ranks, sample_ranks, events)
    placement, notes = workers.deal_units(data.space.count, data.samples)
    if test is not None:
        notes = {f"{test.name}: {remark}": False for remark in test.remarks} | notes
    if checkpoint is not None or resume is not None:
        identity = identify(data) if isinstance(data, Dataset) else data.identity
        config = max((shard.config for shard in placement.shards), key=lambda config: config.features)
        run = Run(options, config, identity, None if test is None else identify(test))
        if resume is not None:
            resume.check(run)
        if checkpoint is not None:
            before = [] if resume is None else resume.states
            raise_on_all(ranks, partial(checkpoint.check_replaces, run, before) if ranks.rank == 0 else None)
    if isinstance(data, Dataset):
        prepared = prepare(data, options, placement, test=test is not None, start=start)
    else:
        prepared = data.load(options, placement)
    release_memory(data.space.count)
    kinds = {"sparse" if shard.config.sparse else "dense" for shard in placement.shards}
    if options.split != "auto" and len(kinds) == 1 and sample_ranks is None:
        notes[f"{option('split', options.split)} changes nothing: all workers are {kinds.pop()}"] = False
    coding = prepared.targets.coding
    names, starts = coding.row_names, [start.row(row) for row in range(len(coding.rows))]
    states = [
        State(Weights(each.weights) if each.weights is not None else None, list(each.history), first_rate=each.rate)
        for each in starts
    ]
    if resume is not None:
        states = copy.deepcopy(resume.states)
    keep = None if checkpoint is None else partial(checkpoint.keep, run, states, ranks)
    held_out = {
        name: (samples, coding.labels_of(samples))
        for name, samples in (("validation", prepared.validation), ("test", test))
        if samples is not None
    }
    told = {text: False for state in states for text in state.remarks}
    results: list[TrainingResult] = []
    for row, state in enumerate(states):
        if len(states) > 1:
            events.row(row, names)
        remarks = Remarks(state.remarks, events, told, coding.name_rows([names[row]]) if len(states) > 1 else "")
        own = {name: (samples, coding.of_row(labels, row)) for name, (samples, labels) in held_out.items()}
        last, this = row == len(states) - 1, prepared.row(row, options)
        hint = states[row - 1].history[0].learning_rate if row else None
        training = RowTraining(workers, this, own, state, starts[row], events, remarks, keep, last=last, hint=hint)
        prepared = dataclasses.replace(prepared, images=())  # which are the workers' now
        del this
        for text, warns in notes.items():
            remarks.add(text, warns=warns)
        if row == 0 and keep is not None and state.weights is not None:
            keep()  # the new checkpoint file may be another one
        results.append(training.run())
        if len(states) == 1:
            return results[0]
        if results[-1].stopped is StopReason.INTERRUPTED and len(results) < len(states):
            raise KeyboardInterrupt
        now = workers.prepared
        prepared = dataclasses.replace(prepared, images=now.images, dealt=now.dealt)
    result = _joined(results, prepared, held_out, options, start)
    general = tuple(f": {text}" for text, of_all in told.items() if of_all)
    for remark in result.remarks:
        # What is about all rows may have come up while only some of them were trained.
        if remark not in told and not remark.endswith(general):
            events.remark(remark)
    return result


def _joined(
    results: Sequence[TrainingResult],
    prepared: Prepared,
    held_out: Mapping[str, tuple[Dataset, FloatArray]],
    options: TrainingOptions,
    start: Start,
) -> ResultSet:
    coding = prepared.targets.coding
    labels = {"train": prepared.targets.labels, **{name: labels for name, (_, labels) in held_out.items()}}
    weights = dict(results[0].weights)
    if prepared.targets.weigh_row is not None:  # each row has weights of its own: those of the samples alone count here
        known = {"train": prepared.train, **{name: samples for name, (samples, _) in held_out.items()}}
        weights |= {name: relative(each.sample_weights, each.name) for name, each in known.items() if each is not None}
    offsets = {"train": prepared.targets.offsets}
    offsets |= {name: samples.offsets for name, (samples, _) in held_out.items()}
    activations = {
        name: (np.column_stack([result.activations[name][0] for result in results]), values)
        for name, values in labels.items()
    }
    models = tuple(result.model for result in results)
    model = ModelSet(models, coding)
    if isinstance(coding, LabelCoding) and model.loss == "logistic" and options.bias and start.refit:
        model = dataclasses.replace(model, softmax=_softmax(model, activations, weights, prepared, options))
    metrics: dict[str, float] = {}
    for name, (z, values) in activations.items():
        metrics |= named(name, measure_model(model, z, values, weights[name], offsets[name]))
    metrics = broadcast(prepared.communicator, metrics)
    training = common([model.training for model in models]) | {"labels": coding.to_json(), "metrics": metrics}
    training.pop("epoch", None)  # of a row
    next_start = None
    if all(result.next_start is not None for result in results):
        rows = tuple(result.next_start for result in results if result.next_start is not None)
        next_start = dataclasses.replace(rows[0], coding=coding, weights=None, rate=None, history=(), rows=rows)
    return ResultSet(
        dataclasses.replace(model, training=training), metrics, tuple(results), activations, weights, next_start
    )


def _softmax(
    model: ModelSet,
    activations: Mapping[str, tuple[FloatArray, FloatArray]],
    weights: Mapping[str, FloatArray | None],
    prepared: Prepared,
    options: TrainingOptions,
) -> Softmax | None:
    """The softmax of several classes, fitted to held-out samples or to those that were trained on."""
    samples: dict[str, tuple[FloatArray, npt.NDArray[np.intp], FloatArray | None]] = {}
    for name, (z, labels) in activations.items():
        classes, own = np.searchsorted(model.labels.classes, labels), weights[name]
        if options.class_weight == BALANCED:
            totals = np.bincount(classes, own, len(model.rows))
            own = (1.0 if own is None else own) / np.where(totals > 0, totals, 1.0)[classes]
        samples[name] = z, classes, own
    used = np.count_nonzero(functools.reduce(np.logical_or, (row.coefficients != 0 for row in model.rows)))
    strength = prepared.strengths(options)[0]
    with _BLAS, threadpool_limits(1, "blas"):  # its matrices are small: threads that wait would take processor time
        found = fit_softmax(samples["train"], samples.get("validation"), int(used), strength)
    return broadcast(prepared.communicator, found)
