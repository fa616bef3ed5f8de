"""Base class of the readers of tables: files whose columns hold numbers, booleans or texts, and a label."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from p4sgd.host.data.cells import CellError, Cells, RawLabels, numbers_of
from p4sgd.host.data.columns import Columns
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.source import Rows, Source
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.notation import MISSING, TYPED, Notation
from p4sgd.host.data.reading import SAID, TableReading
from p4sgd.host.data.survey import RowNumbers, Survey
from p4sgd.host.data.table import Table, TextColumn, UnknownTexts, unknown_remarks
from p4sgd.host.errors import UserError


class Arrays(NamedTuple):
    """Some rows as pyarrow arrays: of each feature, of each label, if needed, of numbers by role, and of IDs, if any.

    ``first`` is the number of rows before these.
    """

    first: int
    features: list[Any]
    labels: list[Any]
    beside: dict[str, Any]
    ids: Any

    @classmethod
    def of(cls, first: int, columns: Columns, arrays: Mapping[int, Any] | Sequence[Any]) -> "Arrays":
        """The rows of a table, of whose columns there are arrays by index, at least of those that are needed."""
        features, labels = ([arrays[place] for place in places] for places in (columns.features, columns.labels))
        beside = {role: arrays[place] for role, place in columns.beside.items()}
        return cls(first, features, labels, beside, None if columns.id is None else arrays[columns.id])


class TableSource(Source):
    """A file that is a table. Rows are float64, see `p4sgd.host.data.table.Table.rows`."""

    fills_gaps = True
    _surveyed = False
    """Whether the contents of the columns are known, and may be texts or gaps."""

    _quoted_codes = False
    """Whether some digits after a 0, such as 01001, are in quotes."""

    _surveyed_remarks: tuple[str, ...] = ()

    _unit = "row"
    """What holds a sample."""

    @property
    def _notation(self) -> Notation:
        """How texts write numbers and gaps, see `p4sgd.host.data.cells.Cells`."""
        return TYPED

    @property
    def _makes_more(self) -> bool:
        """Whether texts are to be made of numbers, or numbers of dates, as only a survey can."""
        return self.options.like is None and (bool(self.options.categorical) or self.options.dates != "text")

    @cached_property
    @abstractmethod
    def columns(self) -> Columns:
        """The columns of the table."""

    @abstractmethod
    def _arrays(self) -> Iterator[Arrays]:
        """The rows."""

    @abstractmethod
    def _locate(self, row: int, column: int) -> str:
        """A cell in a message, by its row, as `Arrays` counts it, and its column."""

    @abstractmethod
    def _labels(self, label: Any) -> RawLabels:
        """The labels in a pyarrow array."""

    @abstractmethod
    def _numbers(self) -> Iterator[Rows]:
        """The rows, if they are all numbers; else `NotNumbersError`."""

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        columns, like = self.columns, self.options.like
        self._unknown: UnknownTexts = {}
        self.ids = "" if columns.id is None else columns.title(columns.id), []
        self._found = RowNumbers(list(map(columns.column, columns.features)))
        if self.table is None and like is not None and like.encoding is not None:
            self.table, self._surveyed = like.encoding, True
        for place in self._categorical() if like is not None else ():
            if self.table is None or not isinstance(self.table.columns[place], TextColumn):
                problem = "held no texts in training: leave --categorical out, or train with it"
                raise columns.refusal(columns.features[place], problem)
        for rows in self._known_rows() if self._surveyed else self._numbers():
            self._found.add(rows.features)
            yield rows
        if not self._found.rows:
            yield Rows(np.empty((0, len(columns.features))))

    def _known_rows(self) -> Iterator[Rows]:
        """The rows of a table that may hold texts or gaps."""
        assert self.table is not None
        gaps = self.options.takes_gaps
        for arrays in self._arrays():
            try:
                rows = self.table.rows(arrays.features, self._unknown, gaps=gaps, notation=self._notation)
            except CellError as error:
                error.row += arrays.first
                raise self._tell(error) from None
            beside = {}
            for role, array in arrays.beside.items():
                try:
                    beside[role] = numbers_of(array, role, self._notation)
                except CellError as error:
                    place = self._locate(arrays.first + error.row, self.columns.beside[role])
                    raise error.described(place, self._unit, role) from None
            if arrays.ids is not None:
                self.ids[1].extend(text or "" for text in Cells(arrays.ids).texts)
            yield Rows(rows, tuple(map(self._labels, arrays.labels)), beside)

    def label_place(self, sample: int, target: int) -> str | None:
        return self._locate(sample, self.columns.labels[target])

    def _tell(self, cell: CellError) -> UserError:
        return cell.described(self._locate(cell.row, self.columns.features[cell.column]), self._unit)

    def survey(self) -> Table:
        self._surveyed = True
        if self.options.like is not None and self.options.like.encoding is None:
            return self._plain_table()
        names, count, chosen = self.columns.feature_names, len(self.columns.features), self._categorical()
        survey = Survey(names, count, self._notation, categorical=chosen, dates=self.options.dates)
        for arrays in self._arrays():
            survey.add(arrays.features, arrays.first)
        table = survey.finish(self.name, gaps=self.options.takes_gaps, tell=self._tell, codes=self._quoted_codes)
        self._surveyed_remarks = survey.remarks
        return table

    def _categorical(self) -> set[int]:
        """Features that the user says to be categories, by their place among the features."""
        columns, found = self.columns, set[int]()
        for choice in self.options.categorical:
            place = columns.find(choice, "--categorical")
            if place not in columns.features:
                raise columns.refusal(place, "is no feature: leave --categorical out")
            found.add(columns.features.index(place))
        return found

    def _plain_table(self) -> Table:
        return Table.of_numbers(self.columns.feature_names, len(self.columns.features))

    def settle(self) -> FeatureSpace:
        columns, like = self.columns, self.options.like
        if not self._found.rows:
            raise UserError(f"{self.name}: there are no samples")
        if self.table is None:
            self.table = self._plain_table()
        if like is None:
            found = self._found.remarks(self.table)
            self.remarks = (*columns.remarks, *self._surveyed_remarks, *found)
        elif like.encoding is not None:
            self.remarks = (*columns.remarks, *unknown_remarks(self._unknown))
            return replace(like, reading=self._reading)
        else:
            self.remarks = columns.remarks
        return FeatureSpace(len(columns.features), columns.feature_names, reading=self._reading)

    @property
    def _reading(self) -> TableReading:
        """What to remember to read other tables alike."""
        how, said = self._notation, {name: getattr(self.options, name) for name in SAID}
        more = tuple(sorted(how.missing - MISSING))
        return replace(self.columns.reading, decimal=how.decimal, thousands=how.thousands, missing_values=more, **said)

    def finish(self, features: Any) -> Features:
        like = self.options.like
        return features if like is None or like.encoding is None else like.encoding.apply(features)
