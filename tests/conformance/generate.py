r"""Writes vectors: the committed frames and long random sequences, with what the model says of them.

python tests/conformance/generate.py                                     # the files of vectors/, judged anew
python tests/conformance/generate.py --out DIR --seed 1 --frames 100000  # more, for a switch of your own
python tests/conformance/generate.py --out DIR --slots 4096 --places 8 --ports 32
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from conformance.judge import judged
from conformance.random_sequences import random_cases
from conformance.vectors import Case, Geometry, read, write

COMMITTED = Path(__file__).with_name("vectors")
KEYED = COMMITTED / "version2"
"""Vectors for who speaks version 2: about its packets, and random ones."""

PARENTS = COMMITTED / "parents"
"""Vectors of jobs with parents."""

PROGRAM = COMMITTED / "program"
"""Vectors of what only programs can: stand-ins, in racks, too."""

RANDOM = "random.jsonl.gz"
SEED, FRAMES = 0, 4000
"""Of the random sequences that are committed; all others have a quarter of the frames."""

SMALLEST = Geometry(slots=8, places=2, ports=4)
"""What the committed frames can be judged for."""


def committed() -> dict[Path, Geometry]:
    """The committed files, and the aggregator that each is for."""
    geometries = {
        COMMITTED: Geometry(),
        KEYED: Geometry(version=2),
        PARENTS: Geometry(parents=True),
        PROGRAM: Geometry(parents=True, stand_ins=True),
    }
    return {file: of for folder, of in geometries.items() for file in sorted(folder.glob("*.jsonl*"))}


def cases_of(file: Path, geometry: Geometry) -> Iterator[Case]:
    """The cases of a committed file as the model judges them."""
    if file.name == RANDOM:
        return random_cases(geometry, SEED, FRAMES if geometry == Geometry() else FRAMES // 4)
    return judged(list(read(file)), geometry)


def hand_written(geometry: Geometry) -> Iterator[Case]:
    """The cases of all topics that an aggregator of any size can be shown."""
    for file, its in committed().items():
        has_all = its.parents <= geometry.parents and its.stand_ins <= geometry.stand_ins
        if file.name != RANDOM and its.version <= geometry.version and has_all:
            yield from read(file) if its == geometry else cases_of(file, geometry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder to write to (default: the committed files)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the random sequences (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=FRAMES, help="in random sequences (default: %(default)s)")
    default = Geometry()
    parser.add_argument("--slots", type=int, default=default.slots, help="of each job")
    parser.add_argument("--places", type=int, default=default.places, help="jobs at a time")
    parser.add_argument("--ports", type=int, default=default.ports, help="ports that jobs use")
    parser.add_argument("--version", type=int, choices=[1, 2], default=1, help="of the packet that is spoken")
    parser.add_argument("--parents", action="store_true", help="jobs that have a parent, too")
    parser.add_argument("--stand-ins", action="store_true", help="jobs that have stand-ins, too")
    given = parser.parse_args()
    if given.out is None:
        for file, geometry in committed().items():
            write(file, cases_of(file, geometry))
        return
    geometry = Geometry(given.slots, given.places, given.ports, given.version, given.parents, given.stand_ins)
    if not geometry.holds(SMALLEST):
        parser.error(f"cases are for {SMALLEST} and more, not for {geometry}")
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "cases.jsonl", hand_written(geometry))
    write(given.out / RANDOM, random_cases(geometry, given.seed, given.frames))


if __name__ == "__main__":
    main()
