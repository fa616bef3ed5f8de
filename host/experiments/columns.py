"""Experiment on sparse columns whose samples are divided among ranks: all at servers, or the hot ones everywhere."""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from p4sgd.host.data.synth import make_source, write_dataset
from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.experiment import Cell, Chart, Experiment, Finding, Source, Table
from p4sgd.host.experiments.ranks import run_command, why_no_ranks
from p4sgd.host.serve.local_cluster import python_command
from p4sgd.hw.spec.packet import FRAME_BYTES

RANKS = 4


def hot_and_cold(quick: bool) -> Finding:
    """E15: bytes and time of a mini-batch by the number of hot columns."""
    if problem := why_no_ranks():
        return Finding(skipped=problem)
    batches, splits = ((256,), ("none", "auto")) if quick else ((64, 256, 1024), ("none", "64", "256", "1024", "auto"))
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.libsvm")
        write_dataset(make_source("rcv1", scale=0.05 if quick else 0.5), data)
        for batch in batches:
            hashes = set()
            for split in splits:
                words = ["train", str(data), "--batch", str(batch), "--epochs", "3", "--lr", "1", "--json", "--quiet"]
                words += ["--launcher", "mpi", "--parallel", "data", "--split", split]
                command = python_command("from p4sgd.host.cli import main; main()", *words)
                document = json.loads(run_command(RANKS, command))
                hashes.add(document["weights_sha256"])
                rows.append([batch, {"none": "none: all at servers"}.get(split, split), *_row(document, batch)])
            if len(hashes) > 1:
                raise P4sgdError("the weights depend on the split")
    columns = ("B", "hot columns", "frames for sums", "bytes of sums", "bytes of cold columns", "µs", "source")
    gains = {}
    for batch in batches:
        times = {row[1]: float(row[5] or 0) for row in rows if row[0] == batch}
        gains[batch] = times["none: all at servers"] / times["auto"]
    slower = [f"{1 / gain:.2f} times at B = {batch:,}" for batch, gain in gains.items() if gain < 1]
    return Finding(
        [
            Table(
                f"Data of rcv1's shape, {RANKS} ranks with samples of their own, a mini-batch of the busiest one",
                columns,
                rows,
                [Chart("hot columns", "µs", "B"), Chart("hot columns", "bytes of cold columns", "B", log_y=True)],
                "Steps of 8 hot columns are a frame for an aggregator, or 64 bytes of a sum by MPI as here; weights "
                "and steps of cold columns travel between the ranks that have them. All splits end with the same "
                "weights. Ranks share the cores of this machine.",
            )
        ],
        [f"The predicted split is {min(gains.values()):.2f} to {max(gains.values()):.2f} times as fast as servers."],
        [f"Columns that are all at servers are faster than the predicted split: {', '.join(slower)}."]
        if slower
        else [],
    )


def _row(document: dict[str, Any], batch: int) -> list[Cell]:
    epoch, mini_batches = document["epochs"][-1], -(-document["samples"] // batch)
    frames = max(each["ROWS"] for each in epoch["counters"]) / mini_batches
    sent = max(each["BYTES_SENT"] for each in epoch["counters"]) / mini_batches
    seconds = statistics.median(each["seconds"] for each in document["epochs"][1:])
    return [frames, frames * FRAME_BYTES, sent, seconds / mini_batches * 1e6, Source.MEASURED]


EXPERIMENTS = (
    Experiment("E15", "Hot and cold columns", "Which columns should all ranks have, and which a server?", hot_and_cold),
)
