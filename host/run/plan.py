"""The plan of a training run: everything that is read, checked and decided before a device is opened."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from p4sgd.host.aggregators.cluster_file import Cluster, read_cluster
from p4sgd.host.data import Dataset, read_dataset
from p4sgd.host.data.identity import identify
from p4sgd.host.data.read import is_builtin
from p4sgd.host.devices import DEVICES
from p4sgd.host.distributed.communicator import (
    SINGLE_PROCESS,
    Communicator,
    launcher_program,
    raise_on_all,
)
from p4sgd.host.errors import UserError
from p4sgd.host.report import check_libraries, is_report_file
from p4sgd.host.run.checks import (
    CLUSTER,
    check_absent,
    check_apart,
    check_new_images,
    check_reading,
    check_replaces,
    find_cluster_file,
    option_name,
)
from p4sgd.host.run.request import TrainingRequest, check_same_request, init_request, resume_request
from p4sgd.host.streaming.folder import TRAINING_MAY_CHANGE, PreparedFolder, is_prepared, open_prepared
from p4sgd.host.training.checkpoint import (
    RESUME_MAY_CHANGE,
    Checkpoint,
    CheckpointFile,
    is_checkpoint_file,
    load_checkpoint,
)
from p4sgd.host.training.dealing.shares import deal_units
from p4sgd.host.training.model_file import Model, ModelSet, is_model_file, load_model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import check_memory, encode_table, suits_sparse_workers
from p4sgd.host.training.start import Start
from p4sgd.hw.spec.config import CONFIGURATIONS, WorkerConfig

__all__ = ["TrainingPlan", "make_plan"]

_DEFAULT_DEVICE = "emulator"


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What a training run will do; made by `make_plan`, carried out by `p4sgd.host.run.execute.execute`.

    Parameters
    ----------
    request
        The request, completed from the checkpoint that it resumes.
    device
        Name of the device.
    options
        All options.
    fixed
        Options that the user cannot choose in this run, and what fixes them: ``{"workers": "cluster.toml"}``.
    config
        Configuration of the workers; ``None`` if the device says it itself.
    data
        The training data, read, or a prepared folder, opened.
    rows
        The training data as they were read: a table with texts or gaps has its columns in place of features; ``None``
        for a prepared folder.
    test
        The test data, if any.
    cluster
        The cluster file's content, for the device ``cluster``.
    checkpoint
        The file that keeps the state, if one is wanted.
    resume
        The checkpoint that is resumed, if any.
    ranks
        The processes that train together.
    """

    request: TrainingRequest
    device: str
    options: TrainingOptions
    fixed: Mapping[str, str]
    config: WorkerConfig | None
    data: Dataset | PreparedFolder = field(repr=False)
    rows: Dataset | None = field(repr=False)
    test: Dataset | None = field(repr=False)
    cluster: Cluster | None = field(repr=False)
    checkpoint: CheckpointFile | None = field(repr=False)
    resume: Checkpoint | None = field(repr=False)
    ranks: Communicator = field(repr=False)

    @property
    def configs(self) -> list[WorkerConfig] | None:
        """Configuration of each worker; ``None`` if the device says it itself."""
        return None if self.config is None else _configs(self.config, self.options.workers, self.request.sparse_workers)

    def to_json(self) -> dict[str, Any]:
        """As plain data, to show before the run."""
        request = self.request
        paths = {
            name: getattr(request, name)
            for name in ("out", "report", "images", "checkpoint", "resume", "init", "cluster")
        }
        return {
            "data": self.data.name,
            "samples": self.data.samples,
            "features": self.data.space.count,
            "test": None if self.test is None else self.test.name,
            "device": self.device,
            "ranks": self.ranks.size,
            "configuration": None if self.config is None else dataclasses.asdict(self.config),
            "options": self.options.to_json(),
            "fixed": dict(self.fixed),
            **{name: None if path is None else str(path) for name, path in paths.items()},
        }


def make_plan(request: TrainingRequest, ranks: Communicator = SINGLE_PROCESS) -> TrainingPlan:
    """Read and check all that a training run needs, and decide what the request leaves open.

    Nothing is written, no device is opened. The files of a prepared folder are not compared with their checksums yet;
    `p4sgd.host.run.execute.execute` does that.

    Parameters
    ----------
    request
        The request.
    ranks
        The processes that train together, all of which call this; rank 0 checks the files to be written.

    Raises
    ------
    UserError
        If something is wrong with the request, with a file that it names, or with the data.
    """
    asked = request
    check_same_request(request, ranks)
    request, saved, model = _completed(asked, ranks)
    kept = [] if saved is None else [name for name in request.options if name not in RESUME_MAY_CHANGE]
    fixed = dict.fromkeys(kept, str(asked.resume))
    raise_on_all(ranks, partial(_check_outputs, request) if ranks.rank == 0 else None)
    device = request.device or _DEFAULT_DEVICE
    request = dataclasses.replace(request, device=device)
    for what, name, known in (("device", device, DEVICES), ("configuration", request.config, CONFIGURATIONS)):
        if name is not None and name not in known:
            raise UserError(f"there is no {what} {name!r}: choose one of {', '.join(known)}")
    cluster = None
    if (file := find_cluster_file(device, request.cluster if device == CLUSTER else asked.cluster)) is not None:
        cluster, request = read_cluster(file), dataclasses.replace(request, cluster=file)
    chosen = dict(request.options)
    data_parallel = chosen.get("parallel") == "data"
    if cluster is not None:
        _check_interfaces(cluster, request, ranks, data_parallel=data_parallel)
    if cluster is not None and not data_parallel:
        chosen["workers"] = _workers(request, f"{request.cluster} has", len(cluster.workers))
        fixed["workers"] = str(request.cluster)
    if ranks.size > 1:
        _check_distributed(device)
        if not data_parallel:
            chosen["workers"] = _workers(request, f"{launcher_program()} has started", ranks.size)
            fixed["workers"] = launcher_program()
    check_reading(request.reading, [request.source, request.test])
    folder = _open_prepared(request, ranks, may_read_zeros="skip_zeros" not in asked.options)
    if folder is not None and model is not None:
        raise UserError(f"{folder.name}: was prepared with a scaling of its own: --init needs the data themselves")
    if folder is not None:
        fixed = {name: folder.name for name in folder.manifest.options if name not in TRAINING_MAY_CHANGE} | fixed
        chosen = folder.options(chosen, set(chosen))
    if data_parallel:
        _check_data_parallel(asked, device)
        chosen["workers"] = 1
        fixed["workers"] = "--parallel data"
    options = TrainingOptions(**chosen)
    images = check_new_images(request.images, options.workers)
    outputs = [request.out, request.report, request.checkpoint, *images]
    check_apart(outputs, [request.source, request.test, request.options_file])
    rows = None
    if folder is None:
        rows = _read_training_data(request, options, ranks, model)
        data: Dataset | PreparedFolder = encode_table(rows, options)
    else:
        data = folder
    if saved is not None:  # now, because test data are read to match these, and a simulator takes long
        identity = identify(data) if isinstance(data, Dataset) else data.identity
        saved.check_data(identity, _changed_reading(request, saved))
    test = None
    if request.test is not None:
        test = read_dataset(request.test, like=data.space, communicator=ranks, **request.reading)
    config = _configuration(request, device, data, saved, options, ranks)
    _check_workers(request, options, config, data, cluster)
    checkpoint = None
    if request.checkpoint is not None:
        checkpoint = CheckpointFile(request.checkpoint, request.origin(), overwrite=request.overwrite)
    return TrainingPlan(
        request=request,
        device=device,
        options=options,
        fixed=fixed,
        config=config,
        data=data,
        rows=rows,
        test=test,
        cluster=cluster,
        checkpoint=checkpoint,
        resume=saved,
        ranks=ranks,
    )


def _completed(
    request: TrainingRequest, ranks: Communicator
) -> tuple[TrainingRequest, Checkpoint | None, Model | ModelSet | None]:
    """A request with what the checkpoint that it resumes, or the model that it starts from, knows; and these."""
    saved = model = None
    if request.init is not None:
        _check_init(request)
    if (file := request.resume) is not None:
        saved = load_checkpoint(file)
        request = resume_request(request, saved, ranks)
    if (file := request.init) is not None:
        model = load_model(file)
        request = init_request(request, Start.of_model(model, str(file)))
    return request, saved, model


def _changed_reading(request: TrainingRequest, saved: Checkpoint) -> list[str]:
    """The options with which the data are read in another way than those of a checkpoint were."""
    began, now = saved.origin.get("reading", {}), request.origin()["reading"]
    given = {name: value for name, value in json.loads(json.dumps(now)).items() if value not in (None, [])}
    return [option_name(name) for name, value in given.items() if began.get(name) != value]


def _check_workers(
    request: TrainingRequest,
    options: TrainingOptions,
    config: WorkerConfig | None,
    data: Dataset | PreparedFolder,
    cluster: Cluster | None,
) -> None:
    """Refuse workers that do not suit the device, each other, or the data, as far as their configuration is known."""
    device = request.device
    assert device is not None
    if request.sparse_workers and device != "emulator":
        raise UserError("--sparse-workers is for the emulator: in a cluster, p4sgd worker --sparse is one")
    if request.sparse_workers < 0:
        raise UserError(f"--sparse-workers must be at least 0, not {request.sparse_workers}")
    if request.sparse_workers >= options.workers:
        raise UserError(
            f"--sparse-workers {request.sparse_workers} leaves none of {options.workers} workers dense: choose more "
            f"--workers, or --config sparse for sparse ones only"
        )
    if config is None or cluster is not None:  # a cluster's workers tell what they are, which may differ
        return
    if device == "rtl" and config.sparse:
        raise UserError(
            "sparse workers are programs and cannot be simulated: use p4sgd train without --device rtl, or choose "
            "another configuration with --config"
        )
    shards = deal_units(data.space.count, options, _configs(config, options.workers, request.sparse_workers))
    if device == "rtl" and options.skip_zeros != "always":  # else images tell how large they are
        from p4sgd.sim.cluster.protocol import MEMORY_BITS

        check_memory(data, options, shards, 1 << MEMORY_BITS)  # before a simulator is built, which takes minutes
    if isinstance(data, PreparedFolder):
        data.check(options)
        dealt = data.deal_columns(shards, options, network=DEVICES[device].has_network).shards
        data.check_images(dealt, request.images)


def _check_outputs(request: TrainingRequest) -> None:
    check_replaces(request.out, is_model_file, "model file")
    check_absent(request.out, overwrite=request.overwrite)
    check_replaces(request.checkpoint, is_checkpoint_file, "checkpoint")
    check_replaces(request.report, is_report_file, "report")
    if request.report is not None:
        check_libraries()


def _check_init(request: TrainingRequest) -> None:
    """Refuse what does not go with the start from a model."""
    if request.resume is not None:
        raise UserError(f"--resume goes on from {request.resume}, --init from {request.init}: leave one of them out")
    if request.checkpoint is not None:
        raise UserError("checkpoints do not keep the model of --init: leave --checkpoint or --init out")


def _workers(request: TrainingRequest, who_has: str, there: int) -> int:
    """Number of workers of a run on workers that are there already; the request may not ask for another number."""
    wanted = request.options.get("workers", there)
    if wanted != there:
        raise UserError(f"{who_has} {there} workers, this run has {wanted}: leave --workers out")
    return there


def _check_data_parallel(asked: TrainingRequest, device: str) -> None:
    """Refuse what does not go with ranks that divide the samples of a single sparse worker among themselves."""
    reason = "--parallel data trains a single sparse worker, of which every process has some samples"
    if device == "rtl":
        raise UserError(f"{reason}, and no simulated Verilog: leave that or --device rtl out")
    if asked.config not in (None, "sparse"):
        raise UserError(f"{reason}: leave --config {asked.config} out, or take --parallel model")
    if asked.sparse_workers:
        raise UserError(f"{reason}: leave --sparse-workers out, or take --parallel model")
    if asked.images is not None:
        raise UserError(f"{reason}, in memory: leave --images out")
    if asked.options.get("workers", 1) != 1:
        raise UserError(f"{reason}: leave --workers out, or take --parallel model; --launcher starts several processes")


def _check_interfaces(cluster: Cluster, request: TrainingRequest, ranks: Communicator, *, data_parallel: bool) -> None:
    """Refuse a cluster file whose workers are not of the kind that is needed: ranks, or processes and boards."""
    for index, worker in enumerate(cluster.workers):
        if bool(worker.interface) != data_parallel:
            what = "control, not interface" if worker.interface else "interface, not control"
            how = "with --parallel data a rank is a worker itself" if data_parallel else "without --parallel data"
            raise UserError(f"{request.cluster}: workers[{index}]: {how}, it needs {what}")
    if data_parallel and len(cluster.workers) != ranks.size:
        raise UserError(
            f"{request.cluster} has {len(cluster.workers)} workers, there are {ranks.size} processes: with --parallel "
            f"data, worker i is rank i (mpiexec -n {len(cluster.workers)}, --launcher mpi)"
        )


def _check_distributed(device: str) -> None:
    """Refuse a device whose workers must all be in one process."""
    if not DEVICES[device].distributed:
        able = ", ".join(name for name, kind in DEVICES.items() if kind.distributed)
        raise UserError(f"the device {device} is for one process: leave --launcher out, or take {able}")


def _open_prepared(request: TrainingRequest, ranks: Communicator, *, may_read_zeros: bool) -> PreparedFolder | None:
    """The folder of prepared data that the request names as its data; ``None`` if it names something else."""
    data = request.source
    if data is None or is_builtin(data) or not Path(data).is_dir():
        return None
    if not is_prepared(data):
        raise UserError(f"{data}: is a folder, but holds no prepared data or not all: p4sgd data prepare makes it")
    if request.samples is not None:
        raise UserError(f"{data}: was prepared as a whole: leave --samples out")
    return open_prepared(Path(data), ranks, may_read_zeros=may_read_zeros)


def _read_training_data(
    request: TrainingRequest, options: TrainingOptions, ranks: Communicator, model: Model | ModelSet | None
) -> Dataset:
    """Read the training data; for a run that starts from a model they must have its features."""
    if request.data is None:
        raise UserError("there are no data to train on: name a file, a built-in data set or a prepared folder")
    if isinstance(request.data, Dataset):
        data = request.data
    else:
        like = None if model is None else model.space
        data = read_dataset(request.data, like=like, missing=options.missing, communicator=ranks, **request.reading)
    if model is not None:
        _check_features(data, model, str(request.init))
    if request.samples is not None and request.samples < data.samples:
        data = data.take(np.arange(request.samples), f"the first {request.samples} samples of {data.name}")
    return data


def _check_features(data: Dataset, model: Model | ModelSet, name: str) -> None:
    """Refuse data with other features than those of the model that training starts from."""
    known, given = model.space, data.space
    if given.count != known.count:
        raise UserError(
            f"{data.name} has {given.count:,} features, {name} has {known.count:,}: train anew without --init"
        )
    if given.names and known.names and given.names != known.names:
        raise UserError(f"{data.name}: the features are not those of {name}, in that order: train anew without --init")


def _configs(config: WorkerConfig, workers: int, sparse: int) -> list[WorkerConfig]:
    return [config] * (workers - sparse) + [WorkerConfig.sparse_worker()] * sparse


def _configuration(
    request: TrainingRequest,
    device: str,
    data: Dataset | PreparedFolder,
    saved: Checkpoint | None,
    options: TrainingOptions,
    ranks: Communicator,
) -> WorkerConfig | None:
    """The workers' configuration: the user's, the workers' own, the checkpoint's, the folder's, or the default.

    The folder's is not taken for simulated Verilog: it may take very long to build, and dealing units anew is quick.
    Nor are sparse workers, which are no Verilog.
    """
    if options.parallel == "data":
        return WorkerConfig.sparse_worker()
    if request.config is not None:
        return CONFIGURATIONS[request.config]()
    if device == CLUSTER:
        return None
    if saved is not None and not (device == "rtl" and saved.run.config.sparse):
        return saved.run.config
    if isinstance(data, PreparedFolder) and device != "rtl":
        return data.manifest.config
    keeps_zeros = not request.sparse_workers and (request.start is None or request.start.keeps_zeros)
    if device == "emulator" and isinstance(data, Dataset) and data.sparse and keeps_zeros:
        stored, samples = map(int, ranks.all_sum(np.array([data.stored, data.features.shape[0]])))
        if suits_sparse_workers(stored, samples, data.feature_count, options):
            return WorkerConfig.sparse_worker()
    return CONFIGURATIONS[DEVICES[device].configuration]()
