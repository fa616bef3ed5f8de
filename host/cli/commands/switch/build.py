"""The command `p4sgd switch build`."""

import shlex
from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import P4sgdError, UserError

__all__ = ["build"]


@click.command()
@click.option(
    "--target",
    type=click.Choice(["bmv2", "tofino"]),
    required=True,
    help="Switch that runs the program: BMv2's simple_switch, or a Tofino.",
)
@click.option(
    "--slots",
    type=int,
    default=4096,
    show_default=True,
    help="AllReduce operations that a job has in flight, a power of two.",
)
@click.option(
    "--jobs",
    type=int,
    default=4,
    show_default=True,
    help="Jobs at a time, a power of two.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
@common_options
def build(target: str, slots: int, jobs: int, out: Path, as_json: bool, quiet: bool) -> None:
    """Write the P4 program of a switch.

    For BMv2 it is compiled too if p4c-bm2-ss is there, on the path or where the environment variable P4SGD_P4C says.
    DIR is written whole or not at all. An earlier output is replaced; a folder with other files in it is refused.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"making the program for {target}"):
        from p4sgd.build import switch
        from p4sgd.build.artifacts import ForeignFolderError
        from p4sgd.hw.spec.aggregator import AggregatorConfig

        try:
            config = AggregatorConfig(slots=slots, jobs=jobs)
        except ValueError as error:
            raise UserError(f"--{error}") from error
        try:
            files, is_compiled = switch.build(target, config, out)
        except switch.TooManySlotsError as error:
            raise UserError(f"--slots times --jobs: {error}") from error
        except ForeignFolderError as error:
            raise UserError(str(error)) from error
        except switch.CompilerError as error:
            raise P4sgdError(str(error)) from error
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror or error}") from error
    commands = _next_commands(target, switch.TARGETS[target], out, is_compiled)
    output.document(
        {
            "target": target,
            "out": str(out),
            "files": [file.name for file in files],
            "compiled": is_compiled,
            "next": commands,
        }
    )
    output.table(["file", "bytes"], [(file.name, f"{file.stat().st_size:,}") for file in files])
    output.say("next, with the cluster's own interfaces and addresses:")
    for command in commands:
        output.say(f"  {command}")


def _next_commands(target: str, how: Any, out: Path, is_compiled: bool) -> list[str]:
    """What is left to do, in the order of doing."""
    compiling = [f"cd {shlex.quote(str(out))}", *map(shlex.join, how.commands(out)), "cd -"]
    commands = [] if is_compiled else [" && ".join(compiling)]
    if target == "bmv2":
        commands.append(
            "simple_switch_grpc --no-p4 -i 0@eth0 -i 1@eth1 -- --grpc-server-addr 127.0.0.1:9559 --cpu-port 510"
        )
    else:
        # By name it would look where the SDE's own build installs programs.
        configuration = out.resolve() / "tofino" / f"{Path(how.program).stem}.conf"
        commands.append(f"$SDE/run_switchd.sh -c {shlex.quote(str(configuration))}")
    return [*commands, "p4sgd switch deploy --cluster cluster.toml"]
