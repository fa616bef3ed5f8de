"""The commands `p4sgd data synth` and `prepare`: data sets to try, and data larger than memory."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.train import describe_scaling
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.hw.spec.config import NamedConfig


@click.group()
def data() -> None:
    """Make or prepare data sets."""


def _shapes() -> Iterable[str]:
    from p4sgd.host.data.synth import SHAPES, TABLES

    return (*SHAPES, *TABLES)


@data.command()
@click.argument("name", type=options.NameFrom("shape", "p4sgd.host.cli.data:_shapes"), metavar="NAME")
@options.path(
    "--out",
    "FILE",
    "File to write: .libsvm (text) or .npz (smaller and faster); of titanic .csv or .parquet.",
    required=True,
)
@options.overwrite
@click.option("--seed", default=0, help="Seed of the random numbers.")
@click.option("--scale", default=1.0, help="Factor for the numbers of samples and features, at most 1.")
@click.option("--samples", type=int, help="Number of samples, instead of the scaled one.")
@click.option("--features", type=int, help="Number of features, instead of the scaled one.")
@click.option(
    "--nonzeros",
    type=int,
    help="Non-zero values of a sample, unless dense; in a text set on average. By default those of the known set.",
)
@options.common
def synth(name: str, out: Path, overwrite: bool, output: Output, **choices: Any) -> None:
    """Make a random data set with the shape of a known one.

    NAME is gisette, real-sim, rcv1, avazu, criteo, kdd12, zipf or titanic: the data set whose numbers of samples and
    features and whose sparsity are taken. Of avazu (its part avazu-app), criteo and kdd12, which are large, make a part
    by --samples and --features: samples keep their number of non-zero values. zipf is no known set: 1,000,000 samples
    of 20 out of 10,000,000 features, if not chosen otherwise.

    The labels, -1 or +1, come from a hidden linear model; 2 % of them are flipped. The same options give the same data.

    titanic is a table with texts and gaps, of 1,309 passengers; the label survived is 0 or 1.
    """
    with output.working(f"making {name}"):
        from p4sgd.host.data.synth import TABLES, make_source, make_table, write_dataset, write_table
        from p4sgd.host.run.checks import check_absent, check_apart

        check_absent(out, overwrite=overwrite)
        check_apart([out], [options.options_file()])
        if name in TABLES:
            for option in ("features", "nonzeros"):
                if choices.pop(option) is not None:
                    raise UserError(f"the columns of {name} are fixed: leave --{option} out")
            table = make_table(name, **choices)
            write_table(table, out)
            facts = {"samples": table.num_rows, "columns": table.num_columns - 1}
            text = f"{table.num_rows:,} samples, {table.num_columns - 1} columns and the label"
        else:
            made = make_source(name, **choices)
            write_dataset(made, out)
            facts = {"samples": made.samples, "features": made.feature_count, "stored": made.stored}
            kind = f"{made.stored:,} non-zero values" if made.sparse else "dense"
            text = f"{made.samples:,} samples, {made.feature_count:,} features, {kind}"
    output.document({"name": name, "out": str(out), **facts})
    output.say(f"{out}: {text}")


def _bytes(ctx: click.Context, param: click.Parameter, text: str) -> int:
    """A size in bytes: a number, with K, M, G or T for powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{text!r} is no size: write a number with K, M, G or T, as in 1G", ctx, param)
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


@data.command()
@options.data
@options.path("--out", "DIR", "Folder to make; it is called DIR.unfinished until it is complete.", required=True)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_bytes,
    default="1G",
    help="Approximate limit of the memory to use; each sample takes some 120 bytes of it.",
)
@options.worker_configuration(
    "Configuration of each worker that the images are for; by default u280, and sparse for sparse data.", hardware=False
)
@options.preparation
@options.reading
@options.common
def prepare(data: str, out: Path, memory: int, config: "NamedConfig | None", output: Output, **choices: Any) -> None:
    """Prepare a data set that is larger than memory.

    DATA is scaled, quantised and packed into a memory image for every worker, one part at a time. p4sgd train DIR then
    trains on these images. It ends with the weights of p4sgd train DATA; the intercept may differ a little, because it
    is not fitted to the unrounded samples. The options that the images depend on are given here; training takes them
    over and may choose only another loss of the same kind, fewer bits than are stored, other workers, or another
    --skip-zeros; for the last two it makes new images.

    While the samples are sorted, the disk needs room for a second copy of them. An interrupted preparation leaves no
    folder and starts anew.
    """
    with output.working("getting ready"):
        from p4sgd.host.data.read import open_source
        from p4sgd.host.image import open_image
        from p4sgd.host.image.file import image_file
        from p4sgd.host.run.checks import check_reading
        from p4sgd.host.streaming.make import make_folder
        from p4sgd.host.training import TrainingOptions

        if not out.exists() and not out.parent.is_dir():
            raise UserError(f"{out}: there is no folder {out.parent}")
        reading = options.take_reading(choices)
        check_reading(reading, [data])
        chosen = TrainingOptions(**choices)
        source = open_source(data, missing=chosen.missing, dates=chosen.dates, **reading)
        workers = None if config is None else config.config

    with output.steps() as on_progress:
        manifest = make_folder(source, chosen, workers, out, memory=memory, on_progress=on_progress)
    size = sum(manifest.files[image_file(out, worker).name].bytes for worker in range(chosen.workers))
    output.document({"out": str(out), "images_bytes": size, **manifest.to_json()})
    held_out = f" and {manifest.validation_samples:,} held out" if manifest.validation_samples else ""
    for remark in manifest.remarks:
        output.remark(remark)
    output.say(describe_scaling(manifest.scaling, manifest.reason, chosen.precondition))
    skipping = open_image(image_file(out, 0), verify=False).shard.directory  # as the others
    output.say(
        f"{out}: {manifest.samples:,} samples{held_out}, {manifest.space.count:,} features, {manifest.stored} planes; "
        f"images{' without lines of zeros' * skipping} "
        f"for {chosen.workers} worker{'s' * (chosen.workers > 1)}, {size / 1e6:,.1f} MB"
    )
