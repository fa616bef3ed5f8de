"""The folder with the Verilog of a worker and an aggregator, and documents of their ports, registers and packets."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p4sgd.build.generate import packet_documents as packet
from p4sgd.build.generate import port_documents
from p4sgd.build.generate.artifacts import check_folder, header_comment, write_folder
from p4sgd.build.generate.boards import BOARDS, Board, board_of
from p4sgd.build.generate.floorplan import floorplan, placement
from p4sgd.build.generate.port_documents import TopDocuments
from p4sgd.build.generate.register_documents import aggregator_documents, worker_documents
from p4sgd.hw.aggregator import aggregator as aggregators
from p4sgd.hw.aggregator.aggregator import AGGREGATOR, Aggregator
from p4sgd.hw.datapath.strided_reader import OUTSTANDING_READS
from p4sgd.hw.spec import timing
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import NamedConfig, WorkerConfig
from p4sgd.hw.verilog import WAIVERS, Written, write_verilog
from p4sgd.hw.worker.worker import ENGINE, WORKER, with_ports, worker_parts

NAMES = "names.json"
"""File with all instances by their paths, as in waveforms: module, class in Python, and file and line of that."""

FILE_LIST, CORE, PORTS, FLOORPLAN = "files.f", "p4sgd.core", "ports.json", f"{WORKER}_floorplan.tcl"
"""File with the names of the Verilog files, for the option ``-F`` of simulators and linters, the same as a core of
FuseSoC, document of the ports, and script for Vivado that assigns the parts of a worker to the dies of a board's
FPGA."""


def generated_files(
    config: WorkerConfig,
    command: str,
    *,
    ports: int,
    build_id: int = 0,
    board: Board | None = None,
    sources: bool = False,
    prefix: str = "",
) -> dict[str, str]:
    """All files by name; the same arguments give the same bytes.

    ``ports`` are those of the aggregator; any number of workers may be connected to one through a switch. For a
    ``board`` there is a floor plan, and the aggregator has its full size; without, it has as many slots as the worker.
    With ``sources`` attributes name lines of Python, and there is `NAMES`. ``prefix`` begins the names of all modules,
    and of the files with them: designs with several configurations tell them apart by it.
    ValueError if ``ports`` or ``build_id``, the value of the BUILD_ID registers, is outside its range.
    """
    aggregator = _aggregator(config, ports, board)
    if not 0 <= build_id < 1 << 32:
        raise ValueError(f"build_id must be 0 to {(1 << 32) - 1}, not {build_id}")
    name_of_worker, name_of_aggregator = tops_of(prefix)
    engine = prefix + ENGINE
    parts, box = worker_parts(config, build_id=build_id, module=engine)
    tops = {
        name_of_worker: with_ports(parts, config),
        name_of_aggregator: aggregators.with_ports(Aggregator(aggregator, build_id=build_id)),
    }
    documents = [TopDocuments(name, top.buses) for name, top in tops.items()]
    written = {name: write_verilog(top, name, sources=sources) for name, top in {**tops, engine: box}.items()}
    texts = {name: written[name].text for name in tops}
    worker = texts[name_of_worker]
    texts[name_of_worker] += f"\n{written[engine].text}"
    first = header_comment("// {}", command)
    return {
        "README.md": _readme(config, documents, command, board, prefix),
        **{f"{name}.v": f"{first}\n{text}" for name, text in texts.items()},
        FILE_LIST: "".join(f"{name}.v\n" for name in texts),
        **({FLOORPLAN: floorplan(placement(worker, name_of_worker, engine, board), board, command)} if board else {}),
        **({NAMES: _names(written.values(), command)} if sources else {}),
        CORE: port_documents.core(tops, command, prefix),
        WAIVERS.name: f"{first}\n{WAIVERS.read_text(encoding='utf-8')}",
        PORTS: port_documents.json_text(documents, command),
        **worker_documents(config, build_id).files(command),
        **aggregator_documents(aggregator, build_id).files(command),
        "packet.md": packet.markdown(command),
        "packet.json": packet.json_text(command),
        "p4sgd_packet.h": packet.c_header(command),
    }


def tops_of(prefix: str) -> tuple[str, str]:
    """Names of the top modules, the worker's first."""
    return f"{prefix}{WORKER}", f"{prefix}{AGGREGATOR}"


def _aggregator(config: WorkerConfig, ports: int, board: Board | None) -> AggregatorConfig:
    sizes: dict[str, Any] = {} if board else {"slots": config.slots, "jobs": 2}
    return AggregatorConfig(**sizes, ports=ports)


def _names(written: Iterable[Written], command: str) -> str:
    """The file `NAMES`."""
    found: dict[str, dict[str, str]] = {}
    for each in written:
        modules = each.modules_of_places()
        found |= {
            ".".join(place.path): {"module": modules[place.path], "class": place.source, "source": place.line}
            for place in each.places
            if place.path in modules
        }
    return json.dumps({"generated_by": command, "instances": found}, indent=2) + "\n"


_README = Path(__file__).with_name("verilog_readme.md")


def _readme(config: WorkerConfig, documents: list[TopDocuments], command: str, board: Board | None, prefix: str) -> str:
    worker, aggregator = documents
    plan = f"| `{FLOORPLAN}` | for Vivado: the die of each part of the worker on an {board.name} |\n" if board else ""
    ports = range(config.labels_memory)
    facts = {
        "core": port_documents.core_name(prefix),
        "sizes": ", ".join(f"{name} {value}" for name, value in asdict(config).items() if value is not False),
        "more": plan,
        "engines": ", ".join(map(str, ports)),
        "written": ", ".join(str(port) for port in ports if port % config.ports == 0),
        "labels": config.labels_memory,
        "outstanding": OUTSTANDING_READS,
        "reset": timing.RESET_CYCLES,
        "weight_beats": config.weight_beats,
        "forward": timing.READER_LATENCY + timing.forward_cycles(config),
        "backward": timing.backward_cycles(),
        "aggregator": Aggregator.LATENCY,
        "worker_template": worker.template(),
        "worker_table": worker.table(),
        "aggregator_template": aggregator.template(),
        "aggregator_table": aggregator.table(),
    }
    named = r"\bp4sgd_(?=(worker|aggregator)(?!_registers|_floorplan))"
    text = re.sub(named, rf"{prefix}\g<0>", _README.read_text(encoding="utf-8"))
    return f"{header_comment('<!-- {} -->', command)}\n\n{text.format(**facts)}"


def generate(
    named: NamedConfig, folder: Path, *, ports: int = 1, build_id: int = 0, sources: bool = False, prefix: str = ""
) -> list[Path]:
    """Write the folder for a configuration, as `write_folder` does; returns the files.

    Other parameters, and errors, are those of `generated_files`.
    """
    check_folder(folder)  # before the work
    flags = f"--ports {ports} --build-id {build_id}{' --src' * sources}{f' --prefix {prefix}' * bool(prefix)}"
    command = f"p4sgd generate {' '.join(named.options)} {flags} --out DIR"
    board = None if (name := board_of(named)) is None else BOARDS[name]
    sizes: dict[str, Any] = {"ports": ports, "build_id": build_id, "board": board}
    files = generated_files(named.config, command, **sizes, sources=sources, prefix=prefix)
    description = {
        "config": str(named),
        "sizes": named.config.table(),
        "config_hash": named.config.config_hash,
        "worker": asdict(named.config),
        "aggregator": asdict(_aggregator(named.config, ports, board)),
        "tops": {top: f"{top}.v" for top in tops_of(prefix)},
    }
    return write_folder(folder, command, files, description)
