"""The command `p4sgd data synth`."""

from collections.abc import Iterable
from pathlib import Path

import click

from p4sgd.host.cli.options import NameFrom, common_options, overwrite_option
from p4sgd.host.cli.output import Output

__all__ = ["synth"]


def _shapes() -> Iterable[str]:
    from p4sgd.host.data.synth import SHAPES

    return SHAPES


@click.command()
@click.argument("name", type=NameFrom("shape", _shapes))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="File to write: .libsvm (text) or .npz (smaller and faster).",
)
@overwrite_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Factor on samples and features, at most 1.")
@common_options
def synth(name: str, out: Path, overwrite: bool, seed: int, scale: float, as_json: bool, quiet: bool) -> None:
    """Make a data set of a known one's shape.

    NAME says whose samples, features and density it gets. The labels come from a hidden linear model and are -1 or +1,
    2 % of them wrong. The same name, seed and scale give the same data.
    """
    output = Output(as_json=as_json, quiet=quiet)
    with output.working(f"making {name}"):
        import numpy as np

        from p4sgd.host.cli.paths import check_absent, check_apart
        from p4sgd.host.data.synth import make_dataset, write_dataset

        check_absent(out, overwrite=overwrite)
        check_apart([out])
        made = make_dataset(name, seed=seed, scale=scale)
        write_dataset(made, out)
    features = made.features
    stored = features.size if isinstance(features, np.ndarray) else int(features.nnz)
    output.document(
        {"name": name, "out": str(out), "samples": made.samples, "features": made.feature_count, "stored": stored}
    )
    kind = f"{stored:,} non-zero values" if made.sparse else "dense"
    output.say(f"{out}: {made.samples:,} samples, {made.feature_count:,} features, {kind}")
