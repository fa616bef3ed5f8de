"""The command `p4sgd inspect`: what a model file has, without data."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import COLUMNS, Output, cell, shorten
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.training.model_file import Model, ModelSet


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(0), default=10, metavar="N", help="Show the N largest coefficients.")
@options.common
def inspect(model: Path, top: int, output: Output) -> None:
    """Show what a model is and how it was trained.

    The largest coefficients are listed: of raw features, for a regression in the unit of the target (with
    the losses poisson, gamma and tweedie its logarithm). Their sizes depend
    on the units of the features. The scaled ones, by which they are ordered, are of features scaled as in training.
    """
    import numpy as np

    from p4sgd.host.training.model_file import ModelSet, load_model

    loaded = load_model(model)
    form, space, (first, *_) = loaded.features, loaded.space, loaded.rows
    several = isinstance(loaded, ModelSet)
    coefficients, intercept = loaded.linear()
    table, slope = np.atleast_2d(coefficients), first.slope[: space.count]
    scaled = np.divide(table, slope, out=np.zeros_like(table), where=slope != 0)
    used = np.argwhere(table)
    order = used[np.argsort(-np.abs(scaled[tuple(used.T)]), kind="stable")]
    names, kind = loaded.labels.row_names, loaded.labels.row_kind
    largest: list[dict[str, Any]] = [
        ({kind: names[row]} if several else {})
        | {
            "feature": space.name(column),
            "coefficient": float(table[row, column]),
            "scaled": float(scaled[row, column]),
        }
        for row, column in order[:top].tolist()
    ]
    try:
        rows = [*_model(loaded), *_training(loaded.training)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{model}: a damaged model file: what it says of its training: {error!r}") from error
    output.document(
        {
            "model": str(model),
            "loss": loaded.loss,
            "loss_parameters": [row.loss_parameters for row in loaded.rows] if several else first.loss_parameters,
            "labels": loaded.labels.to_json(),
            "features": space.count,
            "nonzero": len(used),
            "named": bool(space.names),
            "zero_based": space.zero_based,
            "hash_bits": space.hash_bits,
            "table": None if space.encoding is None else space.encoding.to_json(),
            "planes": form.stored,
            "precision": form.precision,
            "signed": form.signed,
            "preconditioned": first.mixing is not None,
            "intercept": np.asarray(intercept).tolist(),
            "coefficients": largest,
            "training": loaded.training,
            **({"rows": [row.training for row in loaded.rows]} if several else {}),
        }
    )
    output.table([str(model), ""], rows, texts=2, wraps=True)
    if several:
        epochs = [row.training.get("epoch") for row in loaded.rows]
        intercepts = [f"{value:.6g}" for value in np.asarray(intercept)]
        output.table([kind, "best epoch", "intercept"], zip(map(shorten, names), epochs, intercepts, strict=True))
    if largest:
        cells = []
        for each in largest:
            row = [shorten(each[kind])] if several else []
            cells.append([*row, each["feature"], f"{each['coefficient']:.6g}", f"{each['scaled']:.4g}"])
        output.table([*([kind] * several), "feature", "coefficient", "scaled"], cells, texts=1 + several)


_MISSING = {
    "error": "refused",
    "mean": "filled with the mean of the column; of texts, none of the known ones",
    "indicator": "filled with the mean of the column and told by a feature; of texts, one of their own",
}
"""What a table of the model shows for each way to fill gaps."""


def _model(model: "Model | ModelSet") -> Iterator[tuple[str, str]]:
    """What a model is: rows of a table."""
    from p4sgd.host.losses import Task, get_loss

    labels, space, form = model.labels, model.space, model.features
    first = model.rows[0]
    loss = get_loss(first.loss, first.loss_parameters)
    yield "loss", f"{loss.name}: {loss.summary}"
    for name, value in loss.parameters.items():  # epsilon is of the scaled target
        yield name, f"{value * first.labels.scale if name == 'epsilon' else value:.6g}"
    if len(model.rows) > 1 and not labels.classes:
        yield "targets", ", ".join(labels.row_names)
    elif labels.classes:
        yield "classes", ", ".join(labels.meanings)
    elif labels.task is Task.REGRESSION:
        yield "target", f"mean {first.labels.mean:.6g}, deviation {first.labels.scale:.6g}"
    else:
        yield "target", "its logarithm is a sum of coefficients"
    if space.hash_bits is not None:
        kind = f"hashed to 2^{space.hash_bits} columns"
    else:
        kind = "by name" if space.names else f"numbered from {0 if space.zero_based else 1}"
    if space.encoding is not None:
        kind = f"made of {space.column_count} columns of a table"
    used = sum(int((row.coefficients != 0).sum()) for row in model.rows)
    of = "" if len(model.rows) == 1 else f" of {len(model.rows) * space.count:,}"
    yield "features", f"{space.count:,}, {kind}; {used:,}{of} have a coefficient other than 0"
    if space.encoding is not None:
        yield "missing values", _MISSING[space.encoding.missing]
    if len(model.rows) == 1:
        yield "intercept", f"{first.linear()[1]:.6g}"
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
        workers, configs = len(facts["units"]), facts.get("configuration", [])
        sparse = sum(bool(each.get("sparse")) for each in configs) if isinstance(configs, list) else 0
        of_them = f", {sparse} of them sparse" if sparse else ""
        yield "device", f"{facts['device']}, {workers} worker{'s' * (workers > 1)}{of_them}"
    if "p4sgd" in facts:
        yield "version", f"p4sgd {facts['p4sgd']}"
