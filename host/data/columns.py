"""Choice of the feature columns and the label column of a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from p4sgd.host.data.cells import number
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.errors import UserError, listed

LABEL_NAMES = ("label", "target", "class", "y")
"""Headers, in upper or lower case, that mark the label column by default."""

_SHOWN = 10
"""Maximum number of headers in a message."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a source; every reader uses those that concern its format.

    Columns of tables are given by header, or by number from 1 or backwards from −1: the label, further labels
    (``target_columns``, the last features of what is read until `Source.finish`), weights of samples, and
    ``ignore_columns``, which are neither features nor label.

    Parameters
    ----------
    labels_needed
        If not, labels may be missing or invalid; the label column is only identified not to take it for a feature.
    like
        The features that the samples must have. A table with other names, or with another number of columns, is
        refused; columns in another order are reordered. In a LIBSVM file missing features are zeros and further
        features are ignored.
    header
        CSV: whether the first line has names. With ``None`` it does if it names a label or the columns of ``like``, or
        if no feature in it is a number and one below it is; if that leaves doubt, the file is refused.
    delimiter
        CSV: the character between fields; ``None`` selects the most frequent of comma, semicolon and tab in the first
        line, where commas may also be decimal ones.
    zero_based
        LIBSVM: whether indices begin at 0; ``None``: if ``like`` says so, or without it, if there is a feature 0.
    hash_bits
        LIBSVM, Vowpal Wabbit: features are hashed to 2^hash_bits columns; ``None``: as ``like`` says, or without it,
        to 2^18 columns if they have names.
    missing
        CSV, Parquet: one of `p4sgd.host.data.encoding.FILLINGS`; if ``like`` is given, what that says.
    """

    label_column: str | int | None = None
    ignore_columns: tuple[str | int, ...] = ()
    labels_needed: bool = True
    like: FeatureSpace | None = None
    header: bool | None = None
    delimiter: str | None = None
    zero_based: bool | None = None
    hash_bits: int | None = None
    missing: str = "error"
    weight_column: str | int | None = None
    target_columns: tuple[str | int, ...] = ()

    @property
    def takes_gaps(self) -> bool:
        if self.like is None:
            return self.missing != "error"
        return self.like.encoding is not None and self.like.encoding.missing != "error"


@dataclass(frozen=True)
class Columns:
    """The ``count`` columns of the table ``source``, with their ``names``; empty if there are none.

    ``features`` are column indices, from 0, in the order of the features; the last ``targets`` are further labels.
    ``label`` and ``weight`` are those of the label and of the weights of samples; ``None`` if there is none or it is
    not needed. ``remarks`` tell which column was taken for the label, if only its place tells that.
    """

    source: str
    count: int
    names: tuple[str, ...]
    features: tuple[int, ...] = ()
    label: int | None = None
    weight: int | None = None
    targets: int = 0
    remarks: tuple[str, ...] = ()

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
        """Headers of the features, further labels included; empty if there are none."""
        return tuple(self.names[place] for place in self.features) if self.names else ()

    @property
    def numbered(self) -> list[tuple[int, str]]:
        """Number from 1 and header of each feature; the header is empty if there are none."""
        return [(place + 1, self.names[place] if self.names else "") for place in self.features]


def choose_columns(count: int, names: Sequence[str] | None, options: ReadOptions, source: str) -> Columns:
    """Find the label and the features of a table of so many columns, with their headers, if there are any.

    By default the label is the only column with a header in `LABEL_NAMES`, otherwise the last column. If the features
    are known (``like``), a column with one of their headers is not the label, and a single column left over is; if they
    have no headers, the label is where that of the training data was; if labels are not needed and there are only as
    many columns as features, there is no label, and a label column that is named may be missing. Ignored columns do not
    count. ``source`` is the name of the table, for messages.

    Raises `UserError` if a named column does not exist, if several may be the label, if there are no features, or if
    they are not those required.
    """
    table, like = Columns(source, count, tuple(names or ())), options.like
    ignored = {table.find(choice, "--ignore-column") for choice in options.ignore_columns}
    weight = None
    if options.weight_column is not None:
        weight = table.find(options.weight_column, "--weight-column")
        if weight in ignored:
            raise table.refusal(weight, "has the weights, so it cannot be ignored")
    left = [place for place in range(count) if place not in ignored and place != weight]
    if not left:
        raise UserError(f"{source}: all {count} columns are to be ignored, none is left")
    named = [] if options.label_column is None else [options.label_column, *options.target_columns]
    if table.names and not options.labels_needed:
        named = [choice for choice in named if choice in table.names or number(str(choice)) is not None]
    labels = [table.find(choice, "--label-column") for choice in named]
    label, targets = labels[0] if labels else None, labels[1:]
    if options.label_column is None:
        label = _find_label(table, left, options)
    elif label in ignored:
        raise table.refusal(labels[0], "is the label, so it cannot be ignored")
    elif label is not None and label == weight:
        raise table.refusal(label, "is the label, so it cannot have the weights")
    for place in targets:
        if place in (label, weight) or place in ignored or targets.count(place) > 1:
            raise table.refusal(place, "is a label already, or ignored: name it once")
    features = tuple(place for place in left if place != label and place not in targets)
    if not features:
        raise UserError(f"{source}: there is only a label column, no features")
    if like is not None:
        beside = "" if label is None else f" beside the label ({table[label]})"
        if table.names and like.column_names:
            features = _in_order(features, table.names, like.column_names, source, beside)
        elif len(features) != like.column_count:
            raise UserError(f"{source}: there are {len(features)} features{beside}, {like.column_count} are needed")
    if not options.labels_needed:
        return replace(table, features=features)
    remarks: tuple[str, ...] = ()
    if options.label_column is None and like is None and table.names and label == left[-1]:
        name = table.names[label].strip().lower()
        if name and name not in LABEL_NAMES:
            remarks = (f"labels are those of the last column, {table[label]}: --label-column NAME takes another",)
    return Columns(source, count, table.names, (*features, *targets), label, weight, len(targets), remarks)


def is_number(column: str | int | None) -> bool:
    """Whether a choice of a column is its number."""
    try:
        int(column or "")
    except ValueError:
        return False
    return True


def _find_label(table: Columns, places: Sequence[int], options: ReadOptions) -> int | None:
    like, names = options.like, table.names
    known = frozenset(() if like is None else like.column_names)
    others = [place for place in places if names[place] not in known] if names else []
    named = [place for place in others if names[place].strip().lower() in LABEL_NAMES]
    if len(named) == 1:
        return named[0]
    if len(named) > 1 and options.labels_needed:
        choices = [names[place] if names.count(names[place]) == 1 else str(place + 1) for place in named]
        raise UserError(
            f"{table.source}: {' and '.join(table[place] for place in named)} may have the labels: choose with "
            f"--label-column {choices[-1]}, and leave out with --ignore-column {choices[0]} what is no feature"
        )
    if known and len(others) == 1:
        return others[0]
    if not options.labels_needed and like is not None and len(places) == like.column_count:
        return None
    if like is not None and like.label_column is not None and len(places) == like.column_count + 1 and not known:
        return table.find(like.label_column, "--label-column")
    return places[-1]


def _in_order(
    features: tuple[int, ...], names: tuple[str, ...], wanted: tuple[str, ...], source: str, beside: str
) -> tuple[int, ...]:
    """Column indices of the features in the order of the wanted names; there must be no other features."""
    found = tuple(names[place] for place in features)
    if found == wanted:
        return features
    places = dict(zip(found, features, strict=True))
    missing = [name for name in wanted if name not in places]
    if missing:
        raise UserError(f"{source}: features are missing{beside}: {listed(missing, _SHOWN)}")
    strange = sorted(places.keys() - set(wanted))
    if strange:
        unknown = f"features{beside} that the model does not know: {listed(strange, _SHOWN)}"
        raise UserError(f"{source}: there are {unknown}: use --ignore-column")
    if len(places) < len(found) or len(found) != len(wanted):
        raise UserError(f"{source}: features of the same name must be in the order of the training data")
    return tuple(places[name] for name in wanted)
