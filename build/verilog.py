"""Verilog of a worker and of the aggregator, with the documents a driver's writer needs."""

from pathlib import Path

from p4sgd.build import packet, registers
from p4sgd.build.artifacts import check_folder, write_folder
from p4sgd.build.external import External
from p4sgd.build.marking import mark
from p4sgd.hw.net.aggregator import Aggregator
from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.worker import Worker

__all__ = [
    "AGGREGATOR_TOP",
    "ENGINE",
    "FILE_LIST",
    "WORKER_TOP",
    "engine_verilog",
    "generate",
    "generated_files",
    "worker_verilog",
]

WORKER_TOP = "p4sgd_worker"
"""Top module of the worker, and the name of its file."""

ENGINE = f"{WORKER_TOP}_engine"
"""Module of an engine, in the worker's file."""

AGGREGATOR_TOP = "p4sgd_aggregator"
"""Top module of the aggregator, and the name of its file."""

FILE_LIST = "files.f"
"""The Verilog files, one a line, relative to the folder: what ``-f`` or ``-F`` of a simulator or linter takes."""


def engine_verilog(config: WorkerConfig) -> str:
    """One engine, module `ENGINE`."""
    return to_verilog(Engine(config), ENGINE)


def worker_verilog(config: WorkerConfig, *, build_id: int = 0) -> tuple[str, str]:
    """The worker in two texts: `WORKER_TOP` with instances of `ENGINE`, and `ENGINE`.

    An engine that is elaborated once and not for every instance takes minutes less at the size of a board.
    """
    engine = Engine(config)
    worker = Worker(config, build_id=build_id, engine=lambda _: External(engine.signature, ENGINE))
    return to_verilog(worker, WORKER_TOP), to_verilog(engine, ENGINE)


def generated_files(config: WorkerConfig, command: str, *, ports: int, build_id: int = 0) -> dict[str, str]:
    """All files by name; the same arguments give the same bytes.

    Parameters
    ----------
    config
        Size of the worker; the aggregator gets as many slots.
    command
        Command that makes the files, for their first lines.
    ports
        Ports of the aggregator: the most workers it can join, 1 to `MAX_WORKERS`.
    build_id
        Number that the worker's BUILD_ID register gives.

    Raises
    ------
    ValueError
        If ``ports`` or ``build_id`` is outside its range.
    """
    if not 1 <= ports <= MAX_WORKERS:
        raise ValueError(f"ports must be 1 to {MAX_WORKERS}, not {ports}")
    if not 0 <= build_id < 1 << 32:
        raise ValueError(f"build_id must be 0 to {(1 << 32) - 1}, not {build_id}")
    first = mark("// {}", command)
    designs = {
        f"{WORKER_TOP}.v": "\n".join(worker_verilog(config, build_id=build_id)),
        f"{AGGREGATOR_TOP}.v": to_verilog(Aggregator(config.slots, ports), AGGREGATOR_TOP),
    }
    return {
        **{name: f"{first}\n{text}" for name, text in designs.items()},
        FILE_LIST: "".join(f"{name}\n" for name in designs),
        "registers.md": registers.markdown(config, command, build_id),
        "registers.json": registers.json_text(config, command, build_id),
        "p4sgd_registers.h": registers.c_header(config, command, build_id),
        "packet.md": packet.markdown(command),
        "packet.json": packet.json_text(command),
        "p4sgd_packet.h": packet.c_header(command),
    }


def generate(name: str, folder: Path, *, ports: int = 8, build_id: int = 0) -> list[Path]:
    """Write everything for a preset to a folder, whole or not at all; returns the files.

    Parameters
    ----------
    name
        Name of a configuration in `PRESETS`.
    folder
        Where; an earlier output is replaced, anything else is refused.
    ports, build_id
        As in `generated_files`.

    Raises
    ------
    KeyError
        If there is no such configuration.
    ForeignFolderError
        If the folder holds files that were not generated.
    OSError
        If the folder cannot be written.
    """
    config = PRESETS[name]()
    check_folder(folder)  # before the work
    command = f"p4sgd generate --config {name} --ports {ports} --build-id {build_id} --out DIR"
    files = generated_files(config, command, ports=ports, build_id=build_id)
    description = {
        "generated_by": command,
        "config": name,
        "sizes": config.table(),
        "config_hash": config.config_hash,
        "tops": {WORKER_TOP: f"{WORKER_TOP}.v", AGGREGATOR_TOP: f"{AGGREGATOR_TOP}.v"},
    }
    return write_folder(folder, files, description)
