"""Registers of a folder's kernels, and the check that the document of ports is right."""

import json
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder, read_ports
from p4sgd.build.check.problem import Problem
from p4sgd.build.generate.register_documents import (
    RegisterDocuments,
    aggregator_documents,
    cmac_documents,
    selftest_documents,
    worker_documents,
)
from p4sgd.build.generate.verilog import PORTS
from p4sgd.hw.aggregator.aggregator import AGGREGATOR
from p4sgd.hw.spec.register_map import RegisterMap
from p4sgd.hw.spec.selftest import KERNEL as SELFTEST
from p4sgd.hw.spec.selftest import Sizes
from p4sgd.hw.worker.worker import WORKER

CONTROL_BLOCK = [("start", 0, 1), ("done", 1, 1), ("idle", 2, 1), ("ready", 3, 1)]
"""Fields of the register at 0 of an ``ap_ctrl_hs`` kernel (UG1393): name, lowest bit, bits."""


def register_map(folder: Folder, kernel: str) -> RegisterMap:
    """A kernel's registers."""
    return RegisterMap(_documents(folder, kernel).registers)


def pointer_register(folder: Folder, kernel: str, bus: str) -> str:
    """Name of the register that has the address for a memory port, ``m_axi_gmem<number>``."""
    config, number = folder.worker, int(bus.removeprefix("m_axi_gmem"))
    if kernel == SELFTEST:
        return f"PORT{number}_ADDRESS_LOW"
    if number == config.labels_memory:
        return "LABELS_ADDRESS_LOW"
    engine, port = divmod(number, config.ports)
    return f"LINES{engine}_{port}_ADDRESS_LOW"


def argument_names(folder: Folder, kernel: str) -> list[str]:
    """Names of the arguments in a kernel's XML that are in registers; none if it has no XML."""
    arguments = folder.xml[kernel].iter("arg") if kernel in folder.xml else ()
    return [each.get("name", "") for each in arguments if each.get("addressQualifier") != "4"]


def check_ports(folder: Folder) -> Iterator[Problem]:
    """Ports of the document, if the folder has it, are those of the Verilog."""
    if PORTS not in folder.files:
        return
    for top, entry in json.loads(folder.text(PORTS))["tops"].items():
        told = {port["name"]: f"{port['direction']} of {port['bits']} bits" for port in entry["ports"]}
        ports = read_ports(folder.text(folder.tops[top]), top)
        there = {port.name: f"{port.direction} of {port.bits} bits" for port in ports}
        for name in sorted({*told, *there}):
            if told.get(name) != there.get(name):
                said, found = told.get(name, "missing"), there.get(name, "missing")
                text = f"port {name} of {top}: {said}; in {folder.tops[top]}: {found}"
                yield Problem(PORTS, text)


def _documents(folder: Folder, kernel: str) -> RegisterDocuments:
    """Documents of a kernel's registers."""
    if kernel == WORKER:
        return worker_documents(folder.worker)
    if kernel == SELFTEST:
        return selftest_documents(Sizes.of(folder.worker, len(folder.board.cages)))
    if kernel == AGGREGATOR:
        return aggregator_documents(folder.aggregator)
    return cmac_documents()
