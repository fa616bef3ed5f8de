"""The command `p4sgd plan factors`: where ranks would invert given factors, without data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli.options import json_option
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.distributed.merging import CostTable

__all__ = ["factors", "plan"]

_INVERSIONS = {"sizes", "invert_s", "send_s"}
_SUMS = {"ready_s", "sum_s"}
_TABLES = {"invert_s", "send_s", "sum_s"}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(min=1), required=True, help="Number of ranks.")
@json_option
def factors(file: Path, ranks: int, as_json: bool) -> None:
    """Plan where ranks invert factors, and which sums travel together.

    FILE is a JSON object. Its "sizes" are the rows of the factors in the order in which they are ready. "invert_s" and
    "send_s" are tables of measured times, [[size, seconds], ...]: to invert a factor, and to send the inverse to all
    ranks. With "ready_s", the time when each factor is computed, and "sum_s", [[values, seconds], ...], the sums of
    factors over the ranks are planned too; a factor of n rows has n (n + 1) / 2 values.
    """
    from p4sgd.host.distributed.merging import plan_messages, schedule
    from p4sgd.host.precondition.placement import PlacementProblem

    output = Output(as_json=as_json)
    given = _read(file)
    sizes = given["sizes"]
    document: dict[str, Any] = {"ranks": ranks}
    problem = PlacementProblem(sizes, given["invert_s"], given["send_s"], ranks)
    placements = {
        "planned": problem.best(),
        "round-robin": problem.round_robin(),
        "balanced sizes": problem.balanced_sizes(),
        "all by everybody": problem.by_all(),
    }
    bound = problem.lower_bound()
    document["placement"] = {
        "makespan_s": {name: each.makespan for name, each in placements.items()},
        "lower_bound_s": bound,
        "owners": placements["planned"].owners,
        "sends": placements["planned"].sends,
    }
    rows = [(name, f"{each.makespan * 1e3:.2f}", f"{len(each.sends)}") for name, each in placements.items()]
    output.table(["inverting", "ms", "sent"], [*rows, ("lower bound", f"{bound * 1e3:.2f}", "")])
    if "sum_s" in given:
        values = [size * (size + 1) // 2 for size in sizes]
        trace = given["ready_s"], values, given["sum_s"]
        merges = {
            "planned": plan_messages(*trace),
            "one a factor": schedule([1] * len(sizes), *trace),
            "one in all": schedule([len(sizes)], *trace),
        }
        document["sums"] = {
            "end_s": {name: messages[-1].end for name, messages in merges.items()},
            "messages": [
                {"factors": len(each.items), "values": each.size, "start_s": each.start, "end_s": each.end}
                for each in merges["planned"]
            ],
        }
        rows = [(name, f"{each[-1].end * 1e3:.2f}", f"{len(each)}") for name, each in merges.items()]
        output.table(["summing", "ms", "messages"], rows)
    output.document(document)


def _read(path: Path) -> dict[str, Any]:
    """The contents of a file of factors, checked, with cost tables for tables.

    Raises
    ------
    UserError
        If it cannot be read or is not as `factors` describes it; the message names file, key and entry.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(document, dict) or set(document) not in (_INVERSIONS, _INVERSIONS | _SUMS):
        raise UserError(
            f"{path}: must be an object with the keys sizes, invert_s and send_s, and with ready_s and sum_s or neither"
        )
    _check(document["sizes"], f"{path}: sizes", 1, 1 << 31, whole=True)
    if "ready_s" in document:
        _check(document["ready_s"], f"{path}: ready_s", 0, 1e9, whole=False)
        if len(document["ready_s"]) != len(document["sizes"]):
            raise UserError(f"{path}: ready_s: {len(document['ready_s'])} times for {len(document['sizes'])} sizes")
    return document | {key: _table(document[key], f"{path}: {key}") for key in _TABLES & set(document)}


def _check(values: Any, place: str, low: int, high: float, *, whole: bool) -> None:
    """Refuse what is not a list of numbers from ``low`` to ``high``."""
    number = "whole number" if whole else "number"
    if not isinstance(values, list) or not values:
        raise UserError(f"{place}: must be a list of {number}s, with at least one")
    for entry, value in enumerate(values, 1):
        kind = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not kind or not low <= value <= high:
            raise UserError(f"{place}: entry {entry} must be a {number} from {low} to {high:,.0f}, not {value!r}")


def _table(entries: Any, place: str) -> "CostTable":
    from p4sgd.host.distributed.merging import CostTable

    try:
        sizes, seconds = zip(*entries, strict=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"{place}: must be a list of pairs [size, seconds], with at least one") from error
    try:
        return CostTable(sizes, seconds)
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


@click.group()
def plan() -> None:
    """Plan the work of ranks, without data."""


plan.add_command(factors)
