"""A made table with texts and gaps, like that of the passengers of the Titanic.

Columns and numbers of passengers are those of the well-known table (1,309 passengers; 323, 277 and 709 in the classes);
so are, roughly, the parts that are missing and that survived. How columns depend on each other is our choice.
"""

from pathlib import Path
from typing import Any

import numpy as np

from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file

TABLES = {"titanic": 1309}
"""Number of rows by name."""

_CLASSES = (323, 277, 709)
_DECKS = ("A", "B", "C", "D", "E", "F", "G")
_PORTS = ("Cherbourg", "Queenstown", "Southampton")


def make_table(name: str, *, seed: int = 0, scale: float = 1.0, samples: int | None = None) -> Any:
    """Make a table of passengers, a `pyarrow.Table` whose last column ``survived`` is the label, 0 or 1.

    The age is missing for a fifth of the passengers, the deck for most of those who are not in the first class. The
    same arguments give the same table. ``name`` is one of `TABLES`, whose number of rows is multiplied by ``scale``,
    above 0 and at most 1, or replaced by ``samples``.
    """
    import pyarrow as pa

    if name not in TABLES:
        raise UserError(f"there is no table {name!r}: choose one of {', '.join(TABLES)}")
    if not 0 < scale <= 1:
        raise UserError(f"scale must be above 0 and at most 1, not {scale:g}")
    for what, number, least in (("seed", seed, 0), ("samples", samples, 2)):
        if number is not None and number < least:
            raise UserError(f"{what} must be at least {least}, not {number}")
    count = samples or max(16, round(TABLES[name] * scale))
    rng = np.random.default_rng(seed)
    pclass = 1 + rng.choice(3, count, p=np.array(_CLASSES) / sum(_CLASSES))
    female = rng.random(count) < 0.355
    age = np.clip(rng.normal(44 - 5 * pclass, 13).round(), 1, 80)
    companions = rng.poisson(0.45, (2, count))
    fare = (np.exp(rng.normal(5.2 - 0.85 * pclass, 0.45)) * (1 + 0.4 * companions.sum(axis=0))).round(4)
    deck = rng.choice(_DECKS, count, p=(0.08, 0.22, 0.32, 0.16, 0.14, 0.06, 0.02))
    port = rng.choice(_PORTS, count, p=(0.21, 0.09, 0.70))
    margin = 2.1 + 2.5 * female - 1.0 * pclass - 0.035 * (age - 30) - 0.3 * companions[0] - 0.5 * (port == _PORTS[2])
    survived = rng.random(count) < 1 / (1 + np.exp(-margin))
    no_age = rng.random(count) < 0.2
    no_deck = rng.random(count) < np.where(pclass == 1, 0.2, 0.95)
    no_port = rng.random(count) < 0.0015
    columns = {
        "pclass": pclass,
        "sex": np.where(female, "female", "male"),
        "age": pa.array(age, mask=no_age),
        "sibsp": companions[0],
        "parch": companions[1],
        "fare": fare,
        "deck": pa.array(deck, mask=no_deck),
        "embarked": pa.array(port, mask=no_port),
        "survived": survived.astype(np.int64),
    }
    return pa.table(columns)


def write_table(table: Any, path: Path) -> None:
    """Write a table as CSV or Parquet, by the extension (.csv, .parquet, .pq), whole or not at all."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet", ".pq"):
        raise UserError(f"{path}: cannot write a table in this format: name the file .csv or .parquet")
    with new_file(path) as file:
        if suffix == ".csv":
            from pyarrow import csv

            file.write((",".join(table.column_names) + "\n").encode())  # pyarrow puts headers in quotes
            csv.write_csv(table, file, csv.WriteOptions(include_header=False, quoting_style="none"))
        else:
            from pyarrow import parquet

            parquet.write_table(table, file)
