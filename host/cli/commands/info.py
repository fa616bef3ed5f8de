"""The command `p4sgd info`."""

import os

import click

from p4sgd.host.cli.options import json_option
from p4sgd.host.cli.output import Output

__all__ = ["info"]


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, devices, boards and what is missing.

    Lists the software that P4SGD uses, the configurations of a worker, the devices that can train, the boards of this
    machine with their addresses for a cluster file, and what this machine lacks, with the command that gets it.
    """
    from p4sgd.host.cli import machine
    from p4sgd.host.devices import DEVICES
    from p4sgd.host.devices.xrt.finding import find_boards
    from p4sgd.hw.spec.config import PRESETS
    from p4sgd.sim.cache import LIMIT_BYTES, cache_directory, size

    output = Output(as_json=as_json)
    versions = machine.versions()
    findings = machine.check()
    missing = [finding for finding in findings if finding.problem]
    configurations = {name: make().table() for name, make in PRESETS.items()}
    lacks = {
        device: [finding.requirement.name for finding in missing if device in finding.requirement.devices]
        for device in DEVICES
    }
    boards = find_boards()
    cache = cache_directory()
    cached = size(cache) if cache.is_dir() else 0
    output.document(
        {
            "versions": versions,
            "cache": {"path": str(cache), "bytes": cached},
            "cores": os.cpu_count(),
            "configurations": configurations,
            "devices": {
                device: {"available": not lacks[device], "lacks": lacks[device], "summary": kind.summary}
                for device, kind in DEVICES.items()
            },
            "boards": [{"address": str(board), "shell": board.shell, "ready": board.is_ready} for board in boards],
            "missing": [
                {
                    "name": finding.requirement.name,
                    "problem": finding.problem,
                    "purpose": finding.requirement.purpose,
                    "remedy": finding.requirement.remedy,
                }
                for finding in missing
            ],
        }
    )
    output.table(["software", "version"], versions.items(), texts=2)
    names = list(configurations)
    rows = [(key, *(f"{configurations[name][key]:,}" for name in names)) for key in configurations[names[0]]]
    output.table(["configuration (one worker)", *names], rows)
    states = {device: f"lacks {', '.join(lacks[device])}" if lacks[device] else "ready" for device in DEVICES}
    output.table(
        ["device", "state", "what it is"],
        [(device, states[device], kind.summary) for device, kind in DEVICES.items()],
        texts=3,
    )
    if boards:
        output.table(
            ["board", "state", "shell"],
            [(str(board), "ready" if board.is_ready else "not ready", board.shell) for board in boards],
            texts=3,
        )
    output.say(f"simulators in {cache}: {cached / 1e6:,.0f} MB, kept to {LIMIT_BYTES / 1e6:,.0f} MB")
    if missing:
        output.table(
            ["missing", "problem", "needed for", "to get it"],
            [(f.requirement.name, f.problem or "", f.requirement.purpose, f.requirement.remedy) for f in missing],
            texts=4,
        )
    else:
        output.say("nothing is missing on this machine")
