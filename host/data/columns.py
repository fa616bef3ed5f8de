"""Choice of the feature columns and the label column of a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.raw_labels import number
from p4sgd.host.errors import UserError, listed

LABEL_NAMES = ("label", "target", "class", "y")
"""Headers, in upper or lower case, that mark the label column by default."""

_SHOWN = 10
"""Maximum number of headers in a message."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a source; every reader uses those that concern its format.

    Parameters
    ----------
    label_column
        Tables: header of the label column, or its number, counted from 1 or backwards from −1.
    target_columns
        Tables: further label columns, given in the same way. They are the last features of what is read, from where
        `p4sgd.host.data.read.read_dataset` takes them.
    ignore_columns
        Tables: columns that are neither features nor label, given in the same way.
    labels_needed
        Whether labels are needed. If not, they may be missing or invalid; the label column is only identified in order
        not to take it for a feature.
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
        LIBSVM: whether indices begin at 0. With ``None`` they do if ``like`` says so; if it says nothing, they do if
        there is a feature 0.
    hash_bits
        LIBSVM, Vowpal Wabbit: features are hashed to 2^hash_bits columns. With ``None`` as ``like`` says; if it says
        nothing, names of Vowpal Wabbit are hashed to 2^18 columns and indices of LIBSVM are not hashed.
    missing
        CSV, Parquet: one of `p4sgd.host.data.encoding.FILLINGS`; if ``like`` is given, what that says.
    weight_column
        Tables: column with the weights of the samples, given like the label column; ``None`` if there is none.
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
        """Whether values of a table may be missing."""
        if self.like is None:
            return self.missing != "error"
        return self.like.encoding is not None and self.like.encoding.missing != "error"


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Parameters
    ----------
    count
        Number of columns, including ignored ones.
    features
        Column indices of the features, from 0, in the order of the features; the last ``targets`` are further labels.
    label, weight
        Column index of the label and of the weights of samples; ``None`` if there is none or it is not needed.
    names
        Headers of all columns, if there are any.
    guessed
        Whether nothing but its place tells that the last column, which has a name, has the labels.
    """

    count: int
    features: tuple[int, ...]
    label: int | None
    names: tuple[str, ...] | None
    weight: int | None = None
    targets: int = 0
    guessed: bool = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user should know: which column was taken for the label, if that was a guess."""
        if not self.guessed or self.label is None:
            return ()
        return (f"labels are those of the last column, {self[self.label]}: --label-column NAME takes another",)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Headers of the features, further labels included; empty if there are none."""
        return () if self.names is None else tuple(self.names[place] for place in self.features)

    @property
    def numbered(self) -> list[tuple[int, str]]:
        """Number from 1 and header of each feature; the header is empty if there are none."""
        return [(place + 1, "" if self.names is None else self.names[place]) for place in self.features]

    def __getitem__(self, place: int) -> str:
        return _describe(place, self.names)


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
    kept = None if names is None else tuple(names)
    ignored = {_chosen(count, kept, choice, "--ignore-column", source) for choice in options.ignore_columns}
    weight = None
    if options.weight_column is not None:
        weight = _chosen(count, kept, options.weight_column, "--weight-column", source)
        if weight in ignored:
            raise UserError(f"{source}, {_describe(weight, kept)}: has the weights, so it cannot be ignored")
    left = [place for place in range(count) if place not in ignored and place != weight]
    if not left:
        raise UserError(f"{source}: all {count} columns are to be ignored, none is left")
    named = [] if options.label_column is None else [options.label_column, *options.target_columns]
    if kept is not None and not options.labels_needed:
        named = [choice for choice in named if choice in kept or number(str(choice)) is not None]
    labels = [_chosen(count, kept, choice, "--label-column", source) for choice in named]
    label, targets = labels[0] if labels else None, labels[1:]
    if options.label_column is None:
        label = _find_label(count, left, kept, options, source)
    elif label is not None:
        if label in ignored:
            raise UserError(f"{source}, {_describe(label, kept)}: is the label, so it cannot be ignored")
        if label == weight:
            raise UserError(f"{source}, {_describe(label, kept)}: is the label, so it cannot have the weights")
    for place in targets:
        if place in (label, weight) or place in ignored or targets.count(place) > 1:
            raise UserError(f"{source}, {_describe(place, kept)}: is a label already, or ignored: name it once")
    features = tuple(place for place in left if place != label and place not in targets)
    if not features:
        raise UserError(f"{source}: there is only a label column, no features")
    if options.like is not None:
        beside = "" if label is None else f" beside the label ({_describe(label, kept)})"
        if kept is not None and options.like.column_names:
            features = _in_order(features, kept, options.like.column_names, source, beside)
        elif len(features) != options.like.column_count:
            raise UserError(
                f"{source}: there are {len(features)} features{beside}, {options.like.column_count} are needed"
            )
    if not options.labels_needed:
        return Columns(count, features, None, kept, None)
    last = "" if kept is None or label != left[-1] else kept[label]
    guessed = bool(last) and last.strip().lower() not in LABEL_NAMES
    guessed = guessed and options.label_column is None and options.like is None
    return Columns(count, (*features, *targets), label, kept, weight, len(targets), guessed)


def is_number(column: str | int | None) -> bool:
    """Whether a choice of a column is its number."""
    try:
        int(column or "")
    except ValueError:
        return False
    return True


def _find_label(
    count: int, places: Sequence[int], names: tuple[str, ...] | None, options: ReadOptions, source: str
) -> int | None:
    """Index of the label among some columns."""
    like = options.like
    known = frozenset(() if like is None else like.column_names)
    others = [] if names is None else [place for place in places if names[place] not in known]
    named = [place for place in others if names is not None and names[place].strip().lower() in LABEL_NAMES]
    if len(named) == 1:
        return named[0]
    if names is not None and len(named) > 1 and options.labels_needed:
        choices = [names[place] if names.count(names[place]) == 1 else str(place + 1) for place in named]
        raise UserError(
            f"{source}: {' and '.join(_describe(place, names) for place in named)} may have the labels: choose with "
            f"--label-column {choices[-1]}, and leave out with --ignore-column {choices[0]} what is no feature"
        )
    if known and len(others) == 1:
        return others[0]
    if not options.labels_needed and like is not None and len(places) == like.column_count:
        return None
    if like is not None and like.label_column is not None and len(places) == like.column_count + 1 and not known:
        return _chosen(count, None, like.label_column, "--label-column", source)
    return places[-1]


def _chosen(count: int, names: tuple[str, ...] | None, choice: str | int, option: str, source: str) -> int:
    """Index of the column that the user has chosen with an option."""
    if isinstance(choice, str):
        if names is not None and choice in names:
            if names.count(choice) > 1:
                raise UserError(f"{source}: several columns are called {choice!r}: choose one with {option} NUMBER")
            return names.index(choice)
        try:
            choice = int(choice)
        except ValueError:
            known = "the columns have no names" if names is None else f"there are {listed(names, _SHOWN)}"
            raise UserError(f"{source}: there is no column {choice!r} for {option}; {known}") from None
    if choice == 0 or abs(choice) > count:
        raise UserError(f"{source}: {option} must be 1 to {count}, or -{count} to -1, not {choice}")
    return choice - 1 if choice > 0 else count + choice


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
        raise UserError(
            f"{source}: there are features{beside} that the model does not know: {listed(strange, _SHOWN)}: leave them "
            f"out with --ignore-column"
        )
    if len(places) < len(found) or len(found) != len(wanted):
        raise UserError(f"{source}: features of the same name must be in the order of the training data")
    return tuple(places[name] for name in wanted)


def _describe(place: int, names: Sequence[str] | None) -> str:
    """A column in a message: its number from 1, and its name if it has one."""
    return f"column {place + 1}" if names is None else f"column {place + 1} ({names[place]})"
