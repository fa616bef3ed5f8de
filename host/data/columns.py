"""Choice of the feature columns and the label column of a table."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.notation import MISSING, PLAIN, Notation
from p4sgd.host.data.reading import TableColumn, TableReading
from p4sgd.host.data.sample_numbers import OFFSETS, ROLES, WEIGHT
from p4sgd.host.errors import UserError, listed

LABEL_NAMES = ("label", "target", "class", "y")
"""Headers, in upper or lower case, that mark the label column by default."""

_SHOWN = 10
"""Maximum number of headers in a message."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a source; every reader uses those that concern its format. What is not said of them here is
    in the help of the command line (`p4sgd.host.cli.options`).

    Columns of tables are given by header, or by number from 1 or backwards from −1: the label, further labels
    (``target_columns``), weights, offsets or exposures of samples, ``ignore_columns``, which are neither features nor
    label, and ``id_column``, which is a feature if ``like`` says so.

    Parameters
    ----------
    labels_needed
        If not, labels may be missing or invalid; the label column is only identified not to take it for a feature.
    like
        The features that the samples must have. A table that lacks one, or without names has another number of columns,
        is refused; columns in another order are reordered, and others left out. Labels, weights and ignored columns are
        those of ``like.reading``, if nothing else is chosen. In a LIBSVM file missing features are zeros and further
        features are ignored.
    file_format, header, delimiter, encoding
        What is not said here is what was said of the training data, as ``like.reading`` tells.
    missing, dates
        CSV, Parquet: one of `p4sgd.host.data.encoding.FILLINGS`, and one of `p4sgd.host.data.dates.DATES`; if ``like``
        is given, what that says.
    decimal, thousands, missing_values
        With ``None`` they are those of ``like.reading``, to whose missing values more may be added.
    """

    label_column: str | int | None = None
    ignore_columns: Sequence[str | int] = ()
    labels_needed: bool = True
    like: FeatureSpace | None = None
    header: bool | None = None
    delimiter: str | None = None
    zero_based: bool | None = None
    hash_bits: int | None = None
    missing: str = "error"
    weight_column: str | int | None = None
    offset_column: str | int | None = None
    exposure_column: str | int | None = None
    target_columns: Sequence[str | int] = ()
    dates: str = "text"
    categorical: Sequence[str | int] = ()
    decimal: str | None = None
    thousands: str | None = None
    missing_values: Sequence[str] = ()
    encoding: str | None = None
    id_column: str | int | None = None
    file_format: str | None = None

    @property
    def known(self) -> TableReading:
        """How the training data were read, if ``like`` tells."""
        return TableReading(0) if self.like is None or self.like.reading is None else self.like.reading

    @property
    def notation(self) -> Notation:
        """How texts write numbers and gaps."""
        decimal, thousands = self.decimal or self.known.decimal, self.thousands or self.known.thousands
        if decimal == thousands and self.decimal != self.thousands:  # one of them is another than in training
            decimal, thousands = self.decimal or PLAIN.decimal, self.thousands or PLAIN.thousands
        return Notation(MISSING.union(self.known.missing_values, self.missing_values), decimal, thousands)

    @property
    def takes_gaps(self) -> bool:
        if self.like is None:
            return self.missing != "error"
        return self.like.encoding is not None and self.like.encoding.missing != "error"


@dataclass(frozen=True)
class Columns:
    """The ``count`` columns of the table ``source``, with their ``names``; empty if there are none.

    ``features`` are column indices, from 0, in the order of the features, ``labels`` those of the labels, and
    ``beside`` those of numbers of samples by their roles (`p4sgd.host.data.sample_numbers.ROLES`), without labels and
    weights if these are not needed; ``ignored`` are those left out at the user's wish, and ``id`` is that of the names
    of samples. ``remarks`` tell which columns were taken for the label, or left out, if nobody has named them.
    """

    source: str
    count: int
    names: tuple[str, ...]
    features: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    beside: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()
    id: int | None = None

    def title(self, place: int) -> str:
        """Header of a column, or its number."""
        return self.names[place] if self.names else f"column {place + 1}"

    @property
    def label_titles(self) -> tuple[str, ...]:
        return tuple(map(self.title, self.labels))

    def column(self, place: int) -> TableColumn:
        return TableColumn(place + 1, self.names[place] if self.names else "")

    @property
    def reading(self) -> TableReading:
        """What to remember to read other tables alike."""
        labels, ignored = (tuple(map(self.column, places)) for places in (self.labels, self.ignored))
        beside: dict[str, Any] = {role: self.column(place) for role, place in self.beside.items()}
        return TableReading(self.count, labels, ignored=ignored, **beside)

    def __getitem__(self, place: int) -> str:
        """A column in a message: its number from 1, and its name if it has one."""
        return f"column {place + 1} ({self.names[place]})" if self.names else f"column {place + 1}"

    def refusal(self, place: int, problem: str) -> UserError:
        return UserError(f"{self.source}, {self[place]}: {problem}")

    def find(self, choice: str | int, option: str) -> int:
        """Index of the column that the user has chosen with an option."""
        if choice in self.names:
            if self.names.count(str(choice)) > 1:
                raise UserError(f"{self.source}: several columns are called {choice!r}: choose with {option} NUMBER")
            return self.names.index(str(choice))
        if not is_number(choice):
            known = f"there are {listed(self.names, _SHOWN)}" if self.names else "the columns have no names"
            raise UserError(f"{self.source}: there is no column {choice!r} for {option}; {known}")
        place = int(choice)
        if place == 0 or abs(place) > self.count:
            raise UserError(f"{self.source}: {option} must be 1 to {self.count}, or -{self.count} to -1, not {place}")
        return place - 1 if place > 0 else self.count + place

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Headers of the features; empty if there are none."""
        return tuple(self.names[place] for place in self.features) if self.names else ()


def choose_columns(count: int, names: Sequence[str] | None, options: ReadOptions, source: str) -> Columns:
    """Find the labels and the features of a table of so many columns, with their headers, if there are any.

    By default the label is the only column with a header in `LABEL_NAMES`, otherwise the last column. If the features
    are known (``like``), columns that the user does not choose are those of the training data, as far as they are
    there; a column with the header of a feature is not the label, and a single column left over is. If labels are not
    needed and there are only as many columns as features, there is no label, and a label column that is named may be
    missing. Ignored columns do not count. ``source`` is the name of the table, for messages.

    Raises `UserError` if a named column does not exist, if several may be the label, if there are no features, or if
    some are missing.
    """
    table, like = Columns(source, count, tuple(names or ())), options.like
    uses = _chosen(table, options)
    if options.id_column is not None:
        place = table.find(options.id_column, "--id-column")
        table = replace(table, id=place)
        if like is None or not table.names or table.names[place] not in like.column_names:
            uses.setdefault(place, _IGNORED)
    # Numbers of columns are not what they were where the user leaves columns out.
    known = None if like is None or (options.ignore_columns and not table.names) else like.reading
    if known is not None:
        _add_known(uses, table, known)
    beside = {role: place for place, role in uses.items() if role in ROLES}
    if like is not None and like.offset is not None and not beside.keys() & OFFSETS:
        column = None if like.reading is None else like.reading.beside.get(like.offset)
        lacks = f"the model was trained with an {like.offset} of every sample"
        if column is not None:
            lacks = f"the {like.offset} column {column.header or column.number} is missing, which the model needs"
        raise UserError(f"{source}: {lacks}: --{like.offset}-column names one")
    labels = [place for place, use in uses.items() if use == _LABEL]
    left = [place for place in range(count) if place not in uses]
    if not left and not labels:
        raise UserError(f"{source}: all {count} columns are to be ignored, none is left")
    if options.label_column is None:
        labels = _find_labels(table, left, options)
    features, remarks = tuple(place for place in left if place not in labels), list[str]()
    if not features:
        raise UserError(f"{source}: there is only a label column, no features")
    if like is not None:
        features = _known_features(table, features, labels, like)
        strange = [table.names[place] for place in sorted({*left}.difference(features, labels))]
        if strange:
            remarks.append(f"left out what the model does not know: {listed(strange, _SHOWN)}")
    if not options.labels_needed:
        beside = {kind: beside[kind] for kind in OFFSETS if kind in beside}
        return replace(table, features=features, beside=beside, remarks=tuple(remarks))
    if options.label_column is None and known is not None and table.names:
        missing = [each.header for each in known.labels if each.header and each.header not in table.names]
        if missing:
            them = ", ".join(table[place] for place in labels)
            remarks.append(f"the label column {listed(missing, _SHOWN)} is missing: labels are those of {them}")
    if options.label_column is None and like is None and table.names and labels == left[-1:]:
        name = table.names[left[-1]].strip().lower()
        if name and name not in LABEL_NAMES:
            remarks.append(f"labels are those of the last column, {table[left[-1]]}: --label-column NAME takes another")
    return replace(
        table,
        features=features,
        labels=tuple(labels),
        beside=beside,
        ignored=tuple(sorted(place for place, use in uses.items() if use == _IGNORED)),
        remarks=tuple(remarks),
    )


_IGNORED, _LABEL = "ignored", "label"
"""Uses of columns beside `ROLES`."""

_CANNOT = {_IGNORED: "be ignored", **{role: f"have the {role}s" for role in ROLES}}


def _chosen(table: Columns, options: ReadOptions) -> dict[int, str]:
    """What the user says that columns are, by index; `UserError` if a column is to be several things."""
    uses = {table.find(choice, "--ignore-column"): _IGNORED for choice in options.ignore_columns}
    labels = [] if options.label_column is None else [options.label_column, *options.target_columns]
    if table.names and not options.labels_needed:
        labels = [choice for choice in labels if choice in table.names or is_number(choice)]
    chosen = [(role, choice) for role in ROLES if (choice := getattr(options, f"{role}_column")) is not None]
    for use, choice in (*chosen, *((_LABEL, label) for label in labels)):
        place = table.find(choice, f"--{use}-column")
        if place in uses:
            what = f"{'is the label' if use == _LABEL else f'has the {use}s'}, so it cannot {_CANNOT.get(uses[place])}"
            raise table.refusal(place, "is a label already: name it once" if uses[place] == _LABEL else what)
        uses[place] = use
    if all(kind in uses.values() for kind in OFFSETS):
        remedy = "add the logarithm of the exposure to the offset, and give that alone"
        raise UserError(f"{table.source}: has --offset-column and --exposure-column: {remedy}")
    return uses


def _add_known(uses: dict[int, str], table: Columns, known: TableReading) -> None:
    """Add weights, offsets and ignored columns of the training data to what the user has chosen."""
    given = set(uses.values())
    for role, column in known.beside.items():
        place = known.find(column, table.names, table.count)
        if place is not None and given.isdisjoint([role] if role == WEIGHT else OFFSETS):
            uses.setdefault(place, role)
    for column in known.ignored:
        place = known.find(column, table.names, table.count)
        if place is not None:
            uses.setdefault(place, _IGNORED)


def is_number(column: str | int | None) -> bool:
    """Whether a choice of a column is its number."""
    try:
        int(column or "")
    except ValueError:
        return False
    return True


def _find_labels(table: Columns, places: Sequence[int], options: ReadOptions) -> list[int]:
    """Indices of the labels among these columns, if the user names none; see `choose_columns`."""
    like, names, needed = options.like, table.names, options.labels_needed
    features = frozenset(() if like is None else like.column_names)
    if like is not None and like.reading is not None and names:
        found = (like.reading.find(column, names, table.count) for column in like.reading.labels)
        again = [place for place in found if place is not None and place in places]
        if again and (len(again) == len(like.reading.labels) or not needed):
            return again
    others = [place for place in places if names[place] not in features] if names else []
    named = [place for place in others if names[place].strip().lower() in LABEL_NAMES]
    if len(named) == 1:
        return named
    if len(named) > 1 and needed:
        choices = [shlex.quote(names[place]) if names.count(names[place]) == 1 else str(place + 1) for place in named]
        raise UserError(
            f"{table.source}: {' and '.join(table[place] for place in named)} may have the labels: choose with "
            f"--label-column {choices[-1]}, and leave out with --ignore-column {choices[0]} what is no feature"
        )
    if like is None:
        return [places[-1]]
    if features and names:
        if len(others) == 1:
            return others
        if not needed:
            return []
        labels = () if like.reading is None else like.reading.labels
        missing = [each.header for each in labels if each.header and each.header not in names]
        lacks = (
            f"the label column {listed(missing, _SHOWN)} is missing" if missing else "no column is known for the label"
        )
        them = listed([names[place] for place in others], _SHOWN)
        raise UserError(f"{table.source}: {lacks}: " + (f"--label-column names it, of {them}" if others else "add it"))
    if not needed and len(places) == like.column_count:
        return []
    ranks = [len(places) - 1] if like.reading is None else like.reading.label_ranks
    return [places[rank] for rank in ranks] if len(places) == like.column_count + len(ranks) else [places[-1]]


def _known_features(
    table: Columns, features: tuple[int, ...], labels: Sequence[int], like: FeatureSpace
) -> tuple[int, ...]:
    """Those features that the model knows, in its order; `UserError` if it knows others."""
    beside = f" beside the label ({', '.join(table[place] for place in labels)})" if labels else ""
    wanted, known = like.column_names, set(like.column_names)
    if not (table.names and wanted):
        if len(features) != like.column_count:
            raise UserError(
                f"{table.source}: there are {len(features)} features{beside}, {like.column_count} are needed"
            )
        return features
    places = {place: table.names[place] for place in features if table.names[place] in known}
    if tuple(places.values()) == wanted:
        return tuple(places)
    missing = known.difference(places.values())
    if missing:
        names = [name for name in wanted if name in missing]
        raise UserError(f"{table.source}: features are missing{beside}: {listed(names, _SHOWN)}")
    if len(known) < len(places) or len(places) != len(wanted):
        raise UserError(f"{table.source}: features of the same name must be in the order of the training data")
    by_name = {name: place for place, name in places.items()}
    return tuple(by_name[name] for name in wanted)
