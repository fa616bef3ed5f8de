"""Checks of what a command reads and writes, before hours of work: output files, reading options, the cluster file."""

import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.errors import UserError, flag, option

if TYPE_CHECKING:
    from p4sgd.host.distributed.communicator import Communicator
    from p4sgd.host.run.request import TrainingRequest


def check_new_file(path: Path | None, *, special: bool = False) -> None:
    """Raise a `UserError` if a file could not be written, or is none, but for pipes and devices if ``special``."""
    if path is None:
        return
    if path.exists() and not path.is_file():
        if special and not path.is_dir():
            return
        raise UserError(f"{path}: is not a file that could be written")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        problem = f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
        raise UserError(f"{path}: {problem}")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"{path}: no permission to write")
    try:
        # os.access is not enough: for the administrator it grants every folder, /proc too.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot write in {folder} ({error.strerror}): choose another folder") from error


def check_replaces(path: Path | None, is_one: Callable[[Path], bool], kind: str) -> None:
    """`check_new_file` for a file that may replace an older one of its ``kind``, or an empty file, but nothing else."""
    check_new_file(path)
    if path is not None and path.exists() and path.stat().st_size and not is_one(path):
        raise UserError(f"{path}: already exists and is no {kind} of p4sgd: choose another name or delete it")


def check_absent(path: Path | None, *, overwrite: bool, special: bool = False) -> None:
    """`check_new_file` for a file that is replaced only on request: a model, or what may be any file of the user's."""
    check_new_file(path, special=special)
    if path is not None and path.is_file() and path.stat().st_size and not overwrite:
        remedy = f"choose another name, or replace it with {option('overwrite', True)}"
        raise UserError(f"{path}: already exists: {remedy}")


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse to write one file twice, under whatever names, or over one of the ``inputs``, files or data sets."""
    taken = {_file(Path(source)): "is read" for source in inputs if source is not None}
    for path in outputs:
        if path is None or (path.exists() and not path.is_file()):
            continue  # a terminal may be both read and written
        if _file(path) in taken:
            raise UserError(f"{path}: {taken[_file(path)]} by this command: choose another name for what it writes")
        taken[_file(path)] = "is written already"


def _file(path: Path) -> object:
    """What all paths to one file have in common: its inode, or the real path where the file does not exist yet."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def check_reading(reading: Mapping[str, Any], sources: Iterable[str | None]) -> None:
    """Refuse arguments of `p4sgd.host.data.read_dataset` that apply to none of the data that are read with them."""
    from p4sgd.host.data.builtin import is_builtin
    from p4sgd.host.data.read import FORMATS, find_format

    given = [name for name, value in reading.items() if name != "file_format" and (value or value is False)]
    if not given:
        return
    used: set[str] = set()
    kinds = []
    for source in sources:
        if source is None:
            continue
        if reading.get("file_format") is None and is_builtin(source):
            kinds.append(f"{source} is built in")
        elif Path(source).is_dir():
            kinds.append(f"{source} is prepared already")
        else:
            file_format, _ = find_format(source, reading.get("file_format"))
            used.update(FORMATS[file_format].arguments)
            kinds.append(f"{source} is {file_format}")
    for name in given:
        if name not in used:
            formats = ", ".join(each for each, known in FORMATS.items() if name in known.arguments)
            raise UserError(f"is for {formats}, but {' and '.join(kinds)}: leave it out", field=name)


def find_cluster_file(device: str, path: Path | None) -> Path | None:
    """The cluster file of the device ``cluster``: the given one, or that of the local cluster if one is running;
    ``None`` for other devices. `UserError` if the device needs a file and there is none, or the reverse."""
    from p4sgd.host.devices import CLUSTER

    if device != CLUSTER:
        if path is not None:
            raise UserError(f"{option('cluster', str(path))} is of no use without {option('device', CLUSTER)}")
        return None
    if path is not None:
        return path
    from p4sgd.host.serve.local_cluster import find_local_cluster

    if (running := find_local_cluster()) is None:
        raise UserError(
            f"{option('device', CLUSTER)} needs {option('cluster', 'FILE.toml')}, which names its workers and its "
            "aggregator, or a local cluster: p4sgd cluster up starts one"
        )
    return Path(running["file"])


def check_same_request(request: "TrainingRequest", ranks: "Communicator") -> None:
    """Refuse ranks with another version, other options or other contents of files than rank 0; names may differ."""
    if ranks.size == 1:
        return
    from p4sgd.host.configuration import named_config
    from p4sgd.host.data.read import STANDARD_INPUT
    from p4sgd.host.devices import CLUSTER
    from p4sgd.host.distributed.communicator import check_same
    from p4sgd.host.files import fingerprint

    facts: dict[str, Any] = {flag(name): value for name, value in (*request.reading.items(), *request.options.items())}
    facts |= {flag(name): getattr(request, name) for name in ("device", "sparse_workers", "samples")}
    if request.config is not None:
        facts["--config"] = named_config(request.config, request.settings)  # a file may differ, too
    facts |= {f"--{name}": getattr(request, name) is not None for name in ("out", "report", "checkpoint")}
    files = {"DATA": request.source, **{f"--{name}": getattr(request, name) for name in ("test", "resume", "init")}}
    for name, file in files.items():
        if file is not None and (file == STANDARD_INPUT or Path(file).is_fifo()):
            raise UserError(f"{name} {file} can be read once, by one process: write the data to a file for several")
    if request.device == CLUSTER:
        files["--cluster"] = find_cluster_file(CLUSTER, request.cluster)
    for name, file in files.items():
        if file is not None and not Path(file).is_dir():  # `PreparedFolder` compares folders
            facts[name] = fingerprint(Path(file))
    version = {"the version of p4sgd": importlib.metadata.version("p4sgd")}
    check_same(ranks, version | {name: str(value) for name, value in facts.items() if value is not None})


def check_outputs(request: "TrainingRequest") -> None:
    """Refuse files to be written that may not be, before anything is read."""
    from p4sgd.host.training.checkpoint import is_checkpoint_file
    from p4sgd.host.training.model_file import is_model_file

    check_replaces(request.out, is_model_file, "model file")
    check_absent(request.out, overwrite=request.overwrite)
    check_replaces(request.checkpoint, is_checkpoint_file, "checkpoint")
    if request.report is not None:
        from p4sgd.host.report import check_libraries, is_report_file

        check_replaces(request.report, is_report_file, "report")
        check_libraries()


def check_data_parallel(asked: "TrainingRequest", device: str) -> None:
    """Refuse what does not go with ranks that divide the samples of a single sparse worker."""
    for words, wrong in {
        f"--device {device}": device != "emulator",
        f"--config {asked.config}": asked.config not in (None, "sparse") or bool(asked.settings),
        "--sparse-workers": asked.sparse_workers,
        "--workers": asked.options.get("workers", 1) != 1,
    }.items():
        if wrong:
            raise UserError(f"--parallel data trains one sparse worker: leave {words} out, or take --parallel model")
