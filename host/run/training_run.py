"""A training run: a request with everything read, checked and decided, which is then carried out."""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from p4sgd.host import devices, training
from p4sgd.host.configuration import named_config
from p4sgd.host.data import Dataset, FeatureSpace, read_dataset
from p4sgd.host.data.builtin import is_builtin
from p4sgd.host.data.identity import identify
from p4sgd.host.devices import CLUSTER, DEVICES, Device
from p4sgd.host.devices.device import NetworkError
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, raise_on_all
from p4sgd.host.distributed.launching import launch_command, launcher_program
from p4sgd.host.errors import P4sgdError, UserError, option
from p4sgd.host.run.checks import (
    check_apart,
    check_data_parallel,
    check_outputs,
    check_reading,
    check_same_request,
    find_cluster_file,
)
from p4sgd.host.run.request import TrainingRequest, complete
from p4sgd.host.training.checkpoint import CheckpointFile
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.events import SILENT, Events, Stage
from p4sgd.host.training.model_file import save_model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import check_memory, encode_table, suits_sparse_workers
from p4sgd.host.training.result import ResultSet, TrainingResult
from p4sgd.hw.spec.config import CONFIGURATIONS, NamedConfig, WorkerConfig

if TYPE_CHECKING:
    from p4sgd.host.aggregators.cluster_file import Cluster
    from p4sgd.host.streaming.folder import PreparedFolder
    from p4sgd.sim.cluster.trace import Trace
    from p4sgd.sim.sparse.data_parallel import SampleRanks

_NARROW_CHUNKS = 128
"""Units of few features on one emulated engine, and as many again."""


class TrainingRun:
    """A training run: made, it has read and checked all that it needs; `execute` carries it out.

    Nothing is written and no device is opened before that, nor are files of a prepared folder compared with their
    checksums. All ``ranks``, the processes that train together, make it; rank 0 checks the files to be written. Raises
    `UserError` if something is wrong with the request, with a file that it names, or with the data.

    Attributes
    ----------
    request
        Completed from the checkpoint that it resumes or the model that it starts from.
    config
        Configuration of the workers; ``None`` if the device says it itself.
    data, folder, rows
        The training data, read, or a prepared folder, opened; the latter only; and data that were read, with the
        columns of a table with texts or gaps in place of features.
    """

    def __init__(self, request: TrainingRequest, ranks: Communicator = SINGLE_PROCESS) -> None:
        self.ranks = ranks
        check_same_request(request, ranks)
        asked = request
        request, self.resume, like = complete(asked, ranks)
        raise_on_all(ranks, partial(check_outputs, request) if ranks.rank == 0 else None)
        self.device = request.device or "emulator"
        if self.device not in DEVICES:
            raise UserError(f"there is no device {self.device!r}: choose one of {', '.join(DEVICES)}")
        if asked.settings and asked.config is None:
            raise UserError(f"--set {asked.settings[0]} changes a configuration: name it with --config")
        chosen = None if asked.config is None else named_config(asked.config, asked.settings).config
        file = find_cluster_file(self.device, request.cluster if self.device == CLUSTER else asked.cluster)
        self.cluster: Cluster | None = None
        if file is not None:
            from p4sgd.host.aggregators.cluster_file import read_cluster

            self.cluster = read_cluster(file)
        self.request = request = dataclasses.replace(request, device=self.device, cluster=file or request.cluster)
        self.options, self.folder = self._options(asked)
        outputs = [request.out, request.report, request.checkpoint]
        check_apart(outputs, [request.source, request.test, request.options_file])
        self.rows = None if self.folder is not None else self._read_rows(like)
        data = self.folder if self.rows is None else encode_table(self.rows, self.options)
        assert data is not None
        self.data: Dataset | PreparedFolder = data
        if self.resume is not None:  # now, because test data are read to match these, and a simulator takes long
            identity = identify(data) if isinstance(data, Dataset) else data.identity
            self.resume.check_data(identity, request.changed_reading(self.resume))
        self.test: Dataset | None = None
        if request.test is not None:
            self.test = read_dataset(request.test, like=data.space, communicator=ranks, **request.reading)
        self.config = self._configuration(chosen)
        self._check_workers()
        self.checkpoint: CheckpointFile | None = None
        if request.checkpoint is not None:
            self.checkpoint = CheckpointFile(request.checkpoint, request.origin(), overwrite=request.overwrite)

    @property
    def configs(self) -> list[WorkerConfig] | None:
        """Configuration of each worker; ``None`` if the device says it itself."""
        if self.config is None:
            return None
        sparse = self.request.sparse_workers
        return [self.config] * (self.options.workers - sparse) + [WorkerConfig.sparse_worker()] * sparse

    @property
    def about(self) -> dict[str, Any]:
        """What a report tells of the run beside its result."""
        test = None if self.test is None else self.test.name
        paths = {"out": self.request.out, "checkpoint": self.request.checkpoint}
        return {"data": self.data.name, "test": test, "ranks": self.ranks.size, **paths}

    def execute(self, events: Events = SILENT, *, resume_words: Sequence[str] = ()) -> TrainingResult | ResultSet:
        """Open the device, train, and write the model and the report.

        Raises as `p4sgd.host.training.train`; notes on the error say how to resume the run, with the options
        ``resume_words`` such as ``--json``, if a checkpoint has something of it, and how to examine the network, if
        that has failed.
        """
        request, traces = self.request, list["Trace"]()

        def keep(trace: "Trace") -> None:
            traces.append(trace)
            events.trace(trace)

        if self.folder is not None:
            events.stage(Stage.VERIFY)
            self.folder.verify(events.progress)
        events.stage(Stage.OPEN)
        sample_ranks = None
        if self.options.parallel == "data":
            from p4sgd.sim.sparse.data_parallel import SampleRanks

            ranks = self.ranks
            sample_ranks = SampleRanks(ranks.rank, ranks.size, ranks.all_sum, ranks.all_to_all)
        with contextlib.ExitStack() as opened:
            opened.enter_context(self._noting_remedies(resume_words))
            device = opened.enter_context(contextlib.closing(self._open(sample_ranks, keep)))
            events.stage(Stage.TRAIN)
            result = training.train(
                self.data,
                self.options,
                device,
                test=self.test,
                events=events,
                checkpoint=self.checkpoint,
                resume=self.resume,
                sample_ranks=sample_ranks,
                start=request.start,
            )
            events.stage(Stage.WRITE)  # before the device is closed, which takes a while
            if request.out is not None and self.ranks.rank == 0:
                save_model(result.model, request.out)
        if request.report is not None and self.ranks.rank == 0:  # now that a simulated device has given its trace
            from p4sgd.host.report import save_report

            rounded = self.folder is not None
            save_report(result, request.report, self.about, rounded=rounded, trace=traces[0] if traces else None)
        return result

    # -- what is read and decided --------------------------------------------------------------------------------------

    def _options(self, asked: TrainingRequest) -> "tuple[TrainingOptions, PreparedFolder | None]":
        """The options, with what cluster, launcher and prepared folder say of them; and that folder."""
        chosen, ranks = dict(self.request.options), self.ranks
        data_parallel, there = chosen.get("parallel") == "data", dict[str, tuple[str, int]]()
        if self.cluster is not None:
            there[str(self.request.cluster)] = "has", len(self.cluster.workers)
        if ranks.size > 1:
            if not DEVICES[self.device].distributed:
                able = ", ".join(name for name, kind in DEVICES.items() if kind.distributed)
                raise UserError(f"the device {self.device} is for one process: leave --launcher out, or take {able}")
            there[launcher_program()] = "has started", ranks.size
        for who, (verb, count) in there.items() if not data_parallel else ():
            wanted = self.request.options.get("workers", count)
            if wanted != count:
                raise UserError(f"{who} {verb} {count} workers, this run has {wanted}: leave {option('workers')} out")
            chosen["workers"] = count
        check_reading(self.request.reading, [self.request.source, self.request.test])
        folder = self._open_prepared(may_read_zeros="skip_zeros" not in asked.options)
        if folder is not None:
            chosen = folder.options(chosen, set(chosen))
        if data_parallel:
            check_data_parallel(asked, self.device)
            chosen["workers"] = 1
        return TrainingOptions(**chosen), folder

    def _open_prepared(self, *, may_read_zeros: bool) -> "PreparedFolder | None":
        """The folder of prepared data that the request names as its data; ``None`` if it names something else."""
        data = self.request.source
        if data is None or is_builtin(data) or not Path(data).is_dir():
            return None
        from p4sgd.host.streaming.folder import PreparedFolder, is_prepared

        if not is_prepared(data):
            raise UserError(f"{data}: is a folder, but holds no prepared data or not all: p4sgd data prepare makes it")
        if self.request.samples is not None:
            raise UserError(f"{data}: was prepared as a whole: leave --samples out")
        if self.request.init is not None:
            raise UserError(f"{data}: was prepared with a scaling of its own: --init needs the data themselves")
        return PreparedFolder(Path(data), self.ranks, may_read_zeros=may_read_zeros)

    def _read_rows(self, like: FeatureSpace | None) -> Dataset:
        """Read the training data, with the features of the model that a run starts from."""
        request = self.request
        if request.data is None:
            raise UserError("there are no data to train on: name a file, a built-in data set or a prepared folder")
        if isinstance(request.data, Dataset):
            data = request.data
        else:
            how = {"like": like, "missing": self.options.missing, "dates": self.options.dates, **request.reading}
            data = read_dataset(request.data, communicator=self.ranks, **how)
        if request.samples is not None and request.samples < data.samples:
            data = data.take(np.arange(request.samples), f"the first {request.samples} samples of {data.name}")
        return data

    def _configuration(self, chosen: WorkerConfig | None) -> WorkerConfig | None:
        """The workers' configuration: the user's, the workers' own, the checkpoint's, the folder's, or the default.

        The folder's is not taken for simulated Verilog, which may take very long to build, nor are sparse workers.
        """
        request, data, device = self.request, self.data, self.device
        if self.options.parallel == "data":
            return WorkerConfig.sparse_worker()
        if chosen is not None:
            return chosen
        if device == CLUSTER:
            return None
        if self.resume is not None and not (device == "rtl" and self.resume.run.config.sparse):
            return self.resume.run.config
        if self.folder is not None and device != "rtl":
            return self.folder.manifest.config
        keeps_zeros = not request.sparse_workers and (request.start is None or request.start.keeps_zeros)
        if device == "emulator" and keeps_zeros and isinstance(data, Dataset) and data.sparse:
            sizes = data.stored, data.samples, data.feature_count
            if suits_sparse_workers(*sizes, self.options):
                return WorkerConfig.sparse_worker()
        config: WorkerConfig = CONFIGURATIONS[DEVICES[device].configuration]()
        if device == "emulator" and not request.sparse_workers and self.options.skip_zeros != "always":
            # Of few features most lanes of the default would be idle, and images of zeros take time to pack.
            unit = self.options.unit_of(data.space.count)
            narrow = WorkerConfig(lanes=unit, chunks=_NARROW_CHUNKS)
            if unit < config.lanes and data.space.count < narrow.features // 2:  # staleness keeps weights twice
                return narrow
        return config

    def _check_workers(self) -> None:
        """Refuse workers that do not suit the device, each other, or the data, as far as they are known."""
        options, data, device, sparse = self.options, self.data, self.device, self.request.sparse_workers
        if sparse and device != "emulator":
            raise UserError("is for the emulator: a cluster has p4sgd worker --config sparse", field="sparse_workers")
        if sparse < 0:
            raise UserError(f"must be at least 0, not {sparse}", field="sparse_workers")
        if sparse >= options.workers:
            raise UserError(
                f"{option('sparse_workers', sparse)} leaves none of {options.workers} workers dense: choose more "
                f"{option('workers')}, or {option('config', 'sparse')} for sparse ones only"
            )
        configs = self.configs
        if configs is None or self.cluster is not None:  # a cluster's workers tell what they are, which may differ
            return
        if device == "rtl" and configs[0].sparse:
            remedy = f"train without {option('device', 'rtl')}, or choose another {option('config')}"
            raise UserError(f"sparse workers cannot be simulated: {remedy}")
        shards = deal_units(data.space.count, options, configs)
        if device == "rtl" and options.skip_zeros != "always":  # else images tell how large they are
            from p4sgd.sim.cluster.protocol import MEMORY_BITS

            check_memory(data, options, shards, 1 << MEMORY_BITS)  # before a simulator is built, which takes minutes
        if self.folder is not None:
            self.folder.check(options, shards)

    # -- how it is carried out -----------------------------------------------------------------------------------------

    def _open(self, sample_ranks: "SampleRanks | None", on_trace: "Callable[[Trace], None]") -> Device:
        """Open the device, or this process's part of it; a simulated one passes its trace to ``on_trace`` when it is
        closed, if the request needs one."""
        ranks, workers = self.ranks, self.options.workers
        if sample_ranks is not None:
            return devices.open_device("emulator", self.config, workers, sample_ranks=sample_ranks)
        more: dict[str, Any] = dict(self.request.device_options)
        if self.cluster is not None:
            more["cluster"] = self.cluster
        if self.device == "rtl" and (self.request.trace or self.request.report is not None):
            more["on_trace"] = on_trace
        if ranks.size > 1 and self.device == CLUSTER:
            more["ranks"] = ranks
        elif ranks.size > 1:
            from p4sgd.host.distributed.overlap import MergedSums
            from p4sgd.sim.emulator import RemoteWorkers

            sums = MergedSums(ranks, self.options.merge, ahead=self.options.staleness > 0)
            more["remote"] = RemoteWorkers(ranks.rank, workers, sums.start, times=lambda: sums.times)
            workers //= ranks.size
        if self.configs is not None and self.request.sparse_workers:
            more["configs"] = self.configs[ranks.rank :: ranks.size]
        return devices.open_device(self.device, self.config, workers, **more)

    @contextlib.contextmanager
    def _noting_remedies(self, words: Sequence[str]) -> Iterator[None]:
        """Add to an error how to start what has ended, examine the network if that has failed, and resume the run."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self.device == CLUSTER and isinstance(error, UserError | P4sgdError):
                from p4sgd.host.serve.local_cluster import note_ended

                note_ended(error)
            if isinstance(error, NetworkError):
                what = f"--cluster {shlex.quote(str(self.request.cluster))}"
                if self.device != CLUSTER:
                    named = [] if self.config is None else NamedConfig.find(self.config).options
                    what = " ".join([f"--workers {self.options.workers}", *named])
                error.add_note(f"p4sgd doctor --device {self.device} {what} says more")
            if self.checkpoint is not None and self.checkpoint.last:
                error.add_note(resume_advice(self.checkpoint, self.ranks, words))
            raise


def resume_advice(file: CheckpointFile, ranks: Communicator, words: Sequence[str] = ()) -> str:
    """How to resume a run that has stopped, with the launcher that had started it."""
    command = launch_command(["p4sgd", "train", "--resume", str(file.path), *words], ranks)
    return f"{file.path} has the state after {file.last}; to resume: {shlex.join(command)}"
