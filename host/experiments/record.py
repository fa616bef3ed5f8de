"""The files of experiments: for each a JSON document with what it found, and by what, where and when."""

import datetime
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from p4sgd.host.errors import UserError
from p4sgd.host.experiments.experiment import Experiment, Finding
from p4sgd.host.files import new_file


@dataclass(frozen=True)
class Record:
    """What an experiment found in one run."""

    id: str
    title: str
    question: str
    finding: Finding
    quick: bool
    seconds: float  # that passed
    command: str
    commit: str  # of the source, or the version if it is installed without its repository
    machine: str
    date: str  # ISO 8601, when the run began


def make_record(experiment: Experiment, quick: bool, command: str) -> Record:
    """Run an experiment; errors are its own."""
    date, begin = datetime.datetime.now().astimezone(), time.perf_counter()
    finding = experiment.run(quick)
    seconds = round(time.perf_counter() - begin, 3)
    about = (command, _commit(), _machine(), date.isoformat(timespec="seconds"))
    return Record(experiment.id, experiment.title, experiment.question, finding, quick, seconds, *about)


def save_record(record: Record, folder: Path) -> None:
    """Write a record as ``ID.json``; `UserError` if it cannot be written."""
    with new_file(folder / f"{record.id}.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def load_records(folder: Path, ids: Iterable[str]) -> list[Record]:
    """The records in a folder of experiments of these ids, in their order; `UserError` if one cannot be read."""
    records = []
    for path in (folder / f"{each}.json" for each in ids):
        if path.exists():
            try:
                records.append(msgspec.json.decode(path.read_bytes(), type=Record))
            except (OSError, RecursionError, msgspec.DecodeError) as error:
                raise UserError(f"{path}: not the record of an experiment: {error}: delete it") from error
    return records


def _commit() -> str:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # or git would tell of a repository that it is installed within
        return f"version {version('p4sgd')}"
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout.strip() or "unknown"


def _machine() -> str:
    """Processor, memory, accelerators and system of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [f"{len(os.sched_getaffinity(0))} cores of {model}", f"{gibibytes:.0f} GiB", _gpus() or "no GPU"]
    return ", ".join([*parts, platform.platform(terse=True), f"Python {platform.python_version()}"])


def _gpus() -> str:
    """The names of NVIDIA's GPUs in this machine; empty if there are none."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return ", ".join(subprocess.run(command, capture_output=True, check=False, text=True).stdout.splitlines())
