r"""Damaged files of every format: each is read as what it was, or refused in one line.

    python tests/campaign/damage.py [--runs 10000] [--seed 0] [--jobs 2] [--only SEED]

A seed stands for a file and what befalls it: bits or bytes that change, blocks that are lost, zeros, repeated or moved,
a text cut or mixed with another. Whatever it is, no reader may fail but by a `UserError` of one line. What has a
checksum, our own files and compressed ones, must not be read as anything else.
"""

import atexit
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import scipy.sparse

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.configuration import named_config
from p4sgd.host.data import read_dataset
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.image.file import image_file, open_image
from p4sgd.host.streaming.folder import PreparedFolder
from p4sgd.host.streaming.manifest import load_manifest
from p4sgd.host.training.checkpoint import load_checkpoint
from p4sgd.host.training.model_file import load_model

sys.path.append(str(Path(__file__).parents[1]))  # as pytest does

from campaign.runner import Outcome, main
from support.command_line import run as run_command
from support.data_files import FORMATS, make_samples, write_data
from support.images import check_same

CLUSTER = """[aggregator]
kind = "socket"
control = "tcp:10.0.0.1:7000"
udp = "10.0.0.1"
[network]
resend_us = 2000
[[workers]]
control = "tcp:10.0.0.2:7000"
udp = "10.0.0.2:51201"
port = 0
share = 0.5
"""


def _data(path: Path) -> Any:
    data = read_dataset(path)
    return data.features, data.labels


READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys((*FORMATS, "data.vw", "sealed.parquet"), _data),
    "model": load_model,
    "checkpoint": load_checkpoint,
    "prepared/manifest.json": lambda path: load_manifest(path.parent),
    "prepared/labels.npy": lambda path: PreparedFolder(path.parent).verify(),
    "image": open_image,
    "cluster.toml": read_cluster,
    "config.toml": lambda path: named_config(str(path), (), hardware=False),
}
COMPRESSED = {name for name in FORMATS if name.endswith((".gz", ".xz", ".bz2", ".npz"))} | {"sealed.parquet"}
SEALED = {"model", "checkpoint", "prepared/manifest.json", "prepared/labels.npy", "image"} | COMPRESSED
FIGURES = (*READERS, "read", "refused", "read as something else", "silent", "internal errors")


@cache
def originals() -> Path:
    """A folder with a whole file of each format."""
    folder = Path(tempfile.mkdtemp(prefix="p4sgd-damage-"))
    atexit.register(shutil.rmtree, folder)
    features, labels = make_samples(0, samples=24, features=5)
    for name in (*FORMATS, "data.vw"):
        write_data(folder, name, features, labels, np.ones(24) if name == "data.vw" else None)
    pq.write_table(pq.read_table(folder / "data.parquet"), folder / "sealed.parquet", write_page_checksum=True)
    data, words = folder / "data.libsvm", ("--epochs", "1", "--config", "tiny", "--batch", "8")
    run_command("train", data, *words, "--out", folder / "model", "--checkpoint", folder / "checkpoint")
    run_command("data", "prepare", data, "--out", folder / "prepared", "--config", "tiny", "--batch", "8")
    shutil.copy(image_file(folder / "prepared", 0), folder / "image")
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "config.toml").write_text("engines = 2\nlanes = 8\nchunks = 16\nslots = 4\n")
    return folder


def damaged(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """The content after one to three mishaps."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        first = rng.randrange(len(data) + 1)
        size = rng.choice((1, 1, 4, 64, rng.randrange(len(data) + 1)))
        block = data[first : first + size]
        match rng.choice(("bit", "bit", "byte", "digit", "cut", "lose", "zeros", "repeat", "move", "mix", "more")):
            case "bit" if data:
                data[first % len(data)] ^= 1 << rng.randrange(8)
            case "byte" if data:
                data[first % len(data)] = rng.choice(b"\0\n\r\t ,;:|\"'-+.eE0\xff\x80[]{}=")
            case "digit" if places := [place for place, each in enumerate(data) if 48 <= each < 58]:
                data[rng.choice(places)] = rng.randrange(48, 58)
            case "cut":
                del data[first:]
            case "lose":
                del data[first : first + size]
            case "zeros":
                data[first : first + size] = bytes(len(block))
            case "repeat":
                data[first:first] = block
            case "move":
                del data[first : first + size]
                place = rng.randrange(len(data) + 1)
                data[place:place] = block
            case "mix":
                data[first : first + size] = other[first : first + size]
            case "more":
                data += rng.randbytes(size)
    return bytes(data)


def _is_same(name: str, read: Any) -> bool:
    """Whether what was read of a damaged file is what the whole one has: filling between arrays means nothing."""
    if name != "image" and name not in COMPRESSED:
        return False
    whole = READERS[name](originals() / name)
    if name == "image":
        check_same([read], [whole])
        return True
    dense = [part.toarray() if scipy.sparse.issparse(part) else part for part in (*read, *whole)]
    return all(map(np.array_equal, dense[:2], dense[2:]))


def run(seed: int) -> Outcome:
    """One damaged file."""
    rng, folder = random.Random(seed), originals()
    name, other = rng.choice(list(READERS)), rng.choice(list(READERS))
    whole = (folder / name).read_bytes()
    content = damaged(rng, whole, (folder / other).read_bytes())
    outcome, said = "read", ""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of numpy.load, which leaves closing to the collector
        path = Path(scratch, name)
        if len(path.relative_to(scratch).parts) > 1:
            shutil.copytree(folder / path.parent.name, path.parent)
        path.write_bytes(content)
        try:
            found = READERS[name](path)
            if content != whole:
                outcome = "read as something else"
                if name in SEALED:
                    outcome = "read" if _is_same(name, found) else "silent"
        except (UserError, P4sgdError) as error:
            outcome, said = "refused", str(error)
        except Exception as error:
            outcome, said = "internal errors", f"{type(error).__name__}: {error}"
    failure = ""
    if outcome in ("internal errors", "silent") or "\n" in said:
        failure = said or outcome
    counts = Counter({"runs": 1, name: 1, outcome: 1})
    return Outcome(seed, counts, failure and f"{name}: {failure}")


if __name__ == "__main__":
    originals()  # before other processes are forked
    sys.exit(main(__doc__, run, FIGURES, runs=10_000))
