"""The folder with the Verilog of a worker and an aggregator, and documents of their registers and packets."""

from pathlib import Path
from typing import Any

from p4sgd.build.generate import packet_documents as packet
from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
from p4sgd.build.generate.boards import BOARDS, Board, board_of
from p4sgd.build.generate.floorplan import floorplan, placement
from p4sgd.build.generate.register_documents import aggregator_documents, worker_documents
from p4sgd.hw.aggregator.aggregator import AGGREGATOR, Aggregator
from p4sgd.hw.aggregator.aggregator import with_ports as aggregator_ports
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import NamedConfig, WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.worker import ENGINE, WORKER, worker_verilog

TOPS = (WORKER, AGGREGATOR)

FILE_LIST, FLOORPLAN = "files.f", f"{WORKER}_floorplan.tcl"
"""File with the names of the Verilog files, for the option ``-F`` of simulators and linters, and script for Vivado that
assigns the parts of a worker to the dies of a board's FPGA."""


def generated_files(
    config: WorkerConfig, command: str, *, ports: int, build_id: int = 0, board: Board | None = None
) -> dict[str, str]:
    """All files by name; the same arguments give the same bytes.

    ``ports`` are those of the aggregator; any number of workers may be connected to one through a switch. For a
    ``board`` there is a floor plan, and the aggregator has its full size; without, it has as many slots as the worker.
    ValueError if ``ports`` or ``build_id``, the value of the BUILD_ID registers, is outside its range.
    """
    sizes: dict[str, Any] = {} if board else {"slots": config.slots, "jobs": 2}
    aggregator = AggregatorConfig(**sizes, ports=ports)
    if not 0 <= build_id < 1 << 32:
        raise ValueError(f"build_id must be 0 to {(1 << 32) - 1}, not {build_id}")
    first = header_comment("// {}", command)
    worker, engine = worker_verilog(config, build_id=build_id)
    designs = {
        f"{WORKER}.v": f"{worker}\n{engine}",
        f"{AGGREGATOR}.v": to_verilog(aggregator_ports(Aggregator(aggregator, build_id=build_id)), AGGREGATOR),
    }
    return {
        **{name: f"{first}\n{text}" for name, text in designs.items()},
        FILE_LIST: "".join(f"{name}\n" for name in designs),
        **({FLOORPLAN: floorplan(placement(worker, WORKER, ENGINE, board), board, command)} if board else {}),
        **worker_documents(config, build_id).files(command),
        **aggregator_documents(aggregator, build_id).files(command, "aggregator_"),
        "packet.md": packet.markdown(command),
        "packet.json": packet.json_text(command),
        "p4sgd_packet.h": packet.c_header(command),
    }


def generate(named: NamedConfig, folder: Path, *, ports: int = 1, build_id: int = 0) -> list[Path]:
    """Write the folder for a configuration, as `write_folder` does; returns the files.

    Other parameters, and errors, are those of `generated_files`.
    """
    check_folder(folder)  # before the work
    command = f"p4sgd generate {' '.join(named.options)} --ports {ports} --build-id {build_id} --out DIR"
    board = board_of(named)
    files = generated_files(
        named.config, command, ports=ports, build_id=build_id, board=None if board is None else BOARDS[board]
    )
    description = {
        "config": str(named),
        "sizes": named.config.table(),
        "config_hash": named.config.config_hash,
        "tops": {top: f"{top}.v" for top in TOPS},
    }
    return write_folder(folder, command, files, description)
