r"""Writes vectors: those of `cases/`, and long random sequences with what the oracle says of them.

python tests/conformance/generate.py                                     # the files of vectors/, anew
python tests/conformance/generate.py --out DIR --seed 1 --frames 100000  # more, for a switch of your own
python tests/conformance/generate.py --out DIR --slots 4096 --places 8 --ports 32
"""

import argparse
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from conformance import cases
from conformance.random_sequences import random_cases
from conformance.script import cases_of
from conformance.vectors import Case, Geometry, write

COMMITTED = Path(__file__).with_name("vectors")
KEYED = COMMITTED / "version2"
"""Vectors for who speaks version 2: about its packets, and random ones. --version 2 makes the other topics."""

KEYED_TOPIC = "keyed"
SEED, FRAMES = 0, 4000
"""Of the random sequences that are committed."""


def committed() -> dict[Path, Geometry]:
    """The committed files, and the aggregator that each is for."""
    plain = {file: Geometry() for file in sorted(COMMITTED.glob("*.jsonl*"))}
    return plain | {file: Geometry(version=2) for file in sorted(KEYED.glob("*.jsonl*"))}


SMALLEST = Geometry(slots=8, places=2, ports=4)
"""What cases can be made for."""


def topics(version: int = 1) -> list[str]:
    known = sorted(module.name for module in pkgutil.iter_modules(cases.__path__))
    return [topic for topic in known if version > 1 or topic != KEYED_TOPIC]


def topic_cases(topic: str, geometry: Geometry) -> Iterator[Case]:
    """The cases of a module of `cases/`."""
    return cases_of(import_module(f"conformance.cases.{topic}"), geometry)


def hand_written(geometry: Geometry) -> Iterator[Case]:
    """The cases of all topics that are for an aggregator of this version."""
    for topic in topics(geometry.version):
        yield from topic_cases(topic, geometry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=COMMITTED, help="folder to write to (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the random sequences (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=FRAMES, help="in random sequences (default: %(default)s)")
    default = Geometry()
    parser.add_argument("--slots", type=int, default=default.slots, help="of each job")
    parser.add_argument("--places", type=int, default=default.places, help="jobs at a time")
    parser.add_argument("--ports", type=int, default=default.ports, help="ports that jobs use")
    parser.add_argument("--version", type=int, choices=[1, 2], default=1, help="of the packet that is spoken")
    given = parser.parse_args()
    geometry = Geometry(given.slots, given.places, given.ports, given.version)
    if not geometry.holds(SMALLEST):
        parser.error(f"cases are for {SMALLEST} and more, not for {geometry}")
    given.out.mkdir(parents=True, exist_ok=True)
    for topic in topics(given.version):
        write(given.out / f"{topic}.jsonl", topic_cases(topic, geometry))
    write(given.out / "random.jsonl.gz", random_cases(geometry, given.seed, given.frames))
    if given.out == COMMITTED:
        KEYED.mkdir(exist_ok=True)
        geometry = Geometry(version=2)
        write(KEYED / f"{KEYED_TOPIC}.jsonl", topic_cases(KEYED_TOPIC, geometry))
        write(KEYED / "random.jsonl.gz", random_cases(geometry, SEED, FRAMES // 4))


if __name__ == "__main__":
    main()
