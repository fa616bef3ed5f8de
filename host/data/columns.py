"""Which columns of a table are features and which is the label."""

from collections.abc import Sequence
from dataclasses import dataclass

from p4sgd.host.errors import UserError

__all__ = ["LABEL_NAMES", "Columns", "ReadOptions", "choose_columns", "describe"]

LABEL_NAMES = ("label", "target", "class", "y")
"""Headers, in any case, that name the label column if nothing else does."""


@dataclass(frozen=True)
class ReadOptions:
    """What is known about a source beyond its contents; readers look at what concerns them.

    Parameters
    ----------
    label_column
        Table: header of the label column, or its number counted from 1, or from −1 at the end.
    labelled
        Whether the source has labels; ``None`` if that is to be seen from its width, ``features``.
    features
        Number of features that the samples must have. A LIBSVM file may have fewer, which are zeros then, and more,
        which are ignored.
    header
        CSV: whether the first line has names; ``None`` looks whether it has anything but numbers.
    delimiter
        CSV: the character between fields; ``None`` looks which of comma, semicolon and tab the first line has most.
    zero_based
        LIBSVM: whether features count from 0; ``None`` says so if there is a feature 0.
    """

    label_column: str | int | None = None
    labelled: bool | None = True
    features: int | None = None
    header: bool | None = None
    delimiter: str | None = None
    zero_based: bool | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of a table: their number, the label's place (from 0) or ``None``, and their names, if any."""

    count: int
    label: int | None
    names: tuple[str, ...] | None

    @property
    def features(self) -> list[int]:
        """Places of the feature columns, from 0."""
        return [place for place in range(self.count) if place != self.label]

    def __getitem__(self, place: int) -> str:
        return describe(place, self.names)


def describe(place: int, names: Sequence[str] | None) -> str:
    """A column in a message: its number from 1, and its name if it has one."""
    return f"column {place + 1}" if names is None else f"column {place + 1} ({names[place]})"


def choose_columns(count: int, names: Sequence[str] | None, options: ReadOptions, source: str) -> Columns:
    """Find the label column of a table.

    Without a choice it is the one column with a header of `LABEL_NAMES`, else the last.

    Parameters
    ----------
    count
        Columns of the table.
    names
        Their headers, if it has any.
    options
        What is known.
    source
        Name of the table, for messages.

    Raises
    ------
    UserError
        If there is no such column, no feature, or another number of features than was asked for.
    """
    kept = None if names is None else tuple(names)
    labelled = options.labelled
    if labelled is None:
        labelled = options.label_column is not None or count != options.features
    label = _label_place(count, kept, options.label_column, source) if labelled else None
    columns = Columns(count, label, kept)
    features = len(columns.features)
    if features == 0:
        raise UserError(f"{source}: there is only a label column, no features; is the delimiter right?")
    if options.features is not None and features != options.features:
        beside = "" if label is None else f" beside the label ({columns[label]})"
        raise UserError(f"{source}: there are {features} features{beside}, {options.features} are needed")
    return columns


def _label_place(count: int, names: tuple[str, ...] | None, choice: str | int | None, source: str) -> int:
    if choice is None:
        named = [place for place, name in enumerate(names or ()) if name.strip().lower() in LABEL_NAMES]
        return named[0] if len(named) == 1 else count - 1
    if isinstance(choice, str):
        if names is not None and choice in names:
            if names.count(choice) > 1:
                raise UserError(f"{source}: several columns are called {choice!r}: choose the label column by number")
            return names.index(choice)
        try:
            choice = int(choice)
        except ValueError:
            known = "the columns have no names" if names is None else f"there are {_listed(names)}"
            raise UserError(f"{source}: there is no column {choice!r} for the label; {known}") from None
    if choice == 0 or abs(choice) > count:
        raise UserError(f"{source}: the label column must be 1 to {count}, or -{count} to -1, not {choice}")
    return choice - 1 if choice > 0 else count + choice


def _listed(names: Sequence[str], shown: int = 10) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")
