"""The command `p4sgd inspect`: what a model file has, without data."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output, cell
from p4sgd.host.cli.training_run import COLUMNS
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.training.model_file import Model

__all__ = ["inspect"]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--top",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="Show the N largest coefficients.",
)
@common_options
def inspect(model: Path, top: int, as_json: bool, quiet: bool) -> None:
    """Show what a model is and how it was trained.

    The largest coefficients are listed: of raw features, for a regression in the unit of the target (with
    the losses poisson and gamma its logarithm). Their sizes depend
    on the units of the features. The scaled ones, by which they are ordered, are of features scaled as in training.
    """
    import numpy as np

    from p4sgd.host.training.model_file import load_model

    output = Output(as_json=as_json, quiet=quiet)
    loaded = load_model(model)
    (coefficients, intercept), slope = loaded.linear(), loaded.slope[: loaded.coefficients.size]
    scaled = np.divide(coefficients, slope, out=np.zeros_like(slope), where=slope != 0)
    used = np.flatnonzero(coefficients)
    order = used[np.argsort(-np.abs(scaled[used]), kind="stable")]
    form, space = loaded.features, loaded.space
    largest: list[dict[str, Any]] = [
        {"feature": space.name(j), "coefficient": float(coefficients[j]), "scaled": float(scaled[j])}
        for j in order[:top].tolist()
    ]
    try:
        rows = [*_model(loaded), *_training(loaded.training)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{model}: a damaged model file: what it says of its training: {error!r}") from error
    output.document(
        {
            "model": str(model),
            "loss": loaded.loss,
            "loss_parameters": loaded.loss_parameters,
            "labels": loaded.labels.to_json(),
            "features": space.count,
            "nonzero": used.size,
            "named": bool(space.names),
            "zero_based": space.zero_based,
            "hash_bits": space.hash_bits,
            "table": None if space.encoding is None else space.encoding.to_json(),
            "planes": form.stored,
            "precision": form.precision,
            "signed": form.signed,
            "preconditioned": loaded.mixing is not None,
            "intercept": intercept,
            "coefficients": largest,
            "training": loaded.training,
        }
    )
    output.table([str(model), ""], rows, texts=2, wraps=True)
    if largest:
        cells = [(each["feature"], f"{each['coefficient']:.6g}", f"{each['scaled']:.4g}") for each in largest]
        output.table(["feature", "coefficient", "scaled"], cells)


_MISSING = {
    "error": "refused",
    "mean": "filled with the mean of the column; of texts, none of the known ones",
    "indicator": "filled with the mean of the column and told by a feature; of texts, one of their own",
}
"""What a table of the model shows for each way to fill gaps."""


def _model(model: "Model") -> Iterator[tuple[str, str]]:
    """What a model is: rows of a table."""
    from p4sgd.host.losses import Task, get_loss

    labels, space, form = model.labels, model.space, model.features
    loss = get_loss(model.loss, model.loss_parameters)
    yield "loss", f"{loss.name}: {loss.summary}"
    for name, value in loss.parameters.items():  # epsilon is of the scaled target
        yield name, f"{value * labels.scale if name == 'epsilon' else value:.6g}"
    if labels.classes:
        yield "classes", ", ".join(labels.meanings)
    elif labels.task is Task.REGRESSION:
        yield "target", f"mean {labels.mean:.6g}, deviation {labels.scale:.6g}"
    else:
        yield "target", "its logarithm is a sum of coefficients"
    if space.hash_bits is not None:
        kind = f"hashed to 2^{space.hash_bits} columns"
    else:
        kind = "by name" if space.names else f"numbered from {0 if space.zero_based else 1}"
    if space.encoding is not None:
        kind = f"made of {space.column_count} columns of a table"
    used = int((model.coefficients != 0).sum())
    yield "features", f"{space.count:,}, {kind}; {used:,} have a coefficient other than 0"
    if space.encoding is not None:
        yield "missing values", _MISSING[space.encoding.missing]
    yield "intercept", f"{model.linear()[1]:.6g}"
    bits = f"{form.precision} bit{'s' * (form.precision > 1)}"
    stored = "" if form.precision == form.stored else f" of {form.stored}"
    yield "precision", f"{bits}{stored} a feature, {'signed' if form.signed else 'unsigned'}"


def _training(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How a model was trained: rows of a table. What the model file does not say is left out."""
    options, metrics = facts.get("options", {}), facts.get("metrics", {})
    if "scaling" in facts:
        yield "scaling", ": ".join(filter(None, [facts["scaling"], facts.get("scaling_reason")]))
    if options.get("precondition", "none") != "none":
        yield "preconditioning", f"{options['precondition']}, damping {options['damping']:g}"
    if "samples" in facts:
        held_out = facts.get("validation_samples")
        more = f", {held_out:,} held out" if held_out else ""
        yield "trained on", f"{facts['data']}: {facts['samples']:,} samples{more}"
    if "epoch" in facts:
        ends = {"patience": ", stopped early", "interrupted": ", interrupted"}
        yield "epoch", f"{facts['epoch']} of {options['epochs']}{ends.get(facts['stopped'], '')}"
    if "learning_rate" in facts:
        yield "learning rate", f"{facts['learning_rate']:.4g}, {options['schedule']}"
    names = {"batch": "mini-batch", "l2": "L2 penalty", "l1": "L1 penalty", "seed": "seed"}
    yield from ((title, f"{options[name]:g}") for name, title in names.items() if options.get(name))
    for name, title in COLUMNS.items():
        if name.startswith(("train_", "validation_", "test_")) and metrics.get(name) is not None:
            yield title, cell(name, metrics[name])
    if "device" in facts:
        workers = len(facts["units"])
        yield "device", f"{facts['device']}, {workers} worker{'s' * (workers > 1)}"
    if "p4sgd" in facts:
        yield "version", f"p4sgd {facts['p4sgd']}"
