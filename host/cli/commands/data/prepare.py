"""The command `p4sgd data prepare`."""

import re
from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.options import common_options, configuration_option
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.progress import show_steps
from p4sgd.host.cli.reading import check_reading, reading_options, take_reading
from p4sgd.host.cli.training import choose_configuration, preparation_options
from p4sgd.host.errors import UserError

__all__ = ["prepare"]


class _Size(click.ParamType):
    """Bytes: a number, with K, M, G or T for powers of 1024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuse what is none."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", str(value), re.IGNORECASE)
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no size: write a number with K, M, G or T, as in 1G", param, ctx)
        return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


@click.command()
@click.argument("data")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="Folder to make; until all is in it, it is called DIR.unfinished.",
)
@click.option(
    "--memory",
    type=_Size(),
    default="1G",
    show_default=True,
    help="Memory to use, about, at the most, however many samples there are; each takes some 80 bytes of it.",
)
@configuration_option
@preparation_options
@reading_options
@common_options
def prepare(data: str, out: Path, memory: int, config: str | None, as_json: bool, quiet: bool, **choices: Any) -> None:
    """Prepare data that are larger than memory.

    DATA is scaled, quantised and packed into a memory image for every worker, a part at a time, and p4sgd train DIR
    trains on these images, to the same weights as p4sgd train DATA. All options that prepared data depend on are given
    here; training takes them over, and may choose another loss of the same kind, or fewer bits than are stored.

    While samples are sorted the disk holds them all once more. After an interruption, of whatever kind, the same
    command goes on where it was.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working("getting ready"):
        from p4sgd.host.data.blocks import open_source
        from p4sgd.host.image.file import image_file
        from p4sgd.host.prepared.make import make_folder
        from p4sgd.host.training import TrainingOptions
        from p4sgd.hw.spec.config import PRESETS, WorkerConfig

        if not out.exists() and not out.parent.is_dir():
            raise UserError(f"{out}: there is no folder {out.parent}")
        reading = take_reading(choices)
        check_reading(reading, [data])
        source = open_source(data, **reading)
        options = TrainingOptions(**choices)

        def choose(features: int) -> WorkerConfig:
            return PRESETS[choose_configuration("emulator", features + options.bias, options.workers)]()

    with show_steps(output) as on_progress:
        wanted = choose if config is None else PRESETS[config]()
        manifest = make_folder(source, options, wanted, out, memory=memory, on_progress=on_progress)
    size = sum(manifest.files[image_file(out, worker).name].bytes for worker in range(options.workers))
    output.document({"out": str(out), "images_bytes": size, **manifest.to_json()})
    held_out = f" and {manifest.validation_samples:,} held out" if manifest.validation_samples else ""
    output.say(
        f"{out}: {manifest.samples:,} samples{held_out}, {manifest.space.count:,} features, {manifest.stored} planes; "
        f"images for {options.workers} workers, {size / 1e6:,.1f} MB"
    )
