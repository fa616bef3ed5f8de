"""Experiment on sparse columns whose samples are divided among ranks: all at servers, or the hot ones everywhere."""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from p4sgd.host.data.synth import make_source, write_dataset
from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.experiments.ranks import run_command, why_no_ranks
from p4sgd.host.serve.local_cluster import python_command
from p4sgd.hw.spec.packet import FRAME_BYTES, VALUES

RANKS = 4

COLUMNS, SERVERS = "columns divided", "samples divided, all columns at servers"


@experiment("E15", "Hot and cold columns", "Which columns should all ranks have, and which a server?")
def hot_and_cold(quick: bool) -> Finding:
    """E15: bytes and time of a mini-batch by the number of hot columns."""
    if problem := why_no_ranks():
        return Finding(skipped=problem)
    batches, splits = ((256,), ("none", "auto")) if quick else ((64, 1024), ("none", "256", "auto"))
    names = {COLUMNS: COLUMNS, "none": SERVERS, "auto": "samples divided, hot columns as predicted"}
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.libsvm")
        write_dataset(make_source("rcv1", scale=0.05 if quick else 0.5), data)
        for batch in batches:
            hashes = set()
            for split in (COLUMNS, *splits):
                words = ["train", str(data), "--batch", str(batch), "--epochs", "3", "--lr", "1", "--json", "--quiet"]
                words += ["--launcher", "mpi", *(() if split == COLUMNS else ("--parallel", "data", "--split", split))]
                command = python_command("from p4sgd.host.cli import main; main()", *words)
                document = json.loads(run_command(RANKS, command))
                hashes.add(document["weights_sha256"])
                rows.append([batch, names.get(split, f"samples divided, {split} hot columns"), *_row(document, batch)])
            if len(hashes) > 1:
                raise P4sgdError("the weights depend on the split")
    columns = ("B", "ranks with", "frames for sums", "bytes of sums", "bytes of cold columns", "µs", "source")
    gains = {}
    for batch in batches:
        times = {row[1]: float(row[5] or 0) for row in rows if row[0] == batch}
        gains[batch] = times[SERVERS] / times[names["auto"]]
    slower = [f"{1 / gain:.2f} times at B = {batch:,}" for batch, gain in gains.items() if gain < 1]
    return Finding(
        [
            Table(
                f"Data of rcv1's shape, {RANKS} ranks, a mini-batch of the busiest one",
                columns,
                rows,
                [Chart("ranks with", "µs", "B"), Chart("ranks with", "bytes of cold columns", "B", log_y=True)],
                "Sums of 8 values, partial activations or steps of hot columns, are a frame of 64 bytes for an "
                "aggregator; here MPI adds them. Weights and steps of cold columns travel between the ranks that have "
                "them. All end with the same weights. Ranks share the cores of this machine.",
            )
        ],
        [f"The predicted split is {min(gains.values()):.2f} to {max(gains.values()):.2f} times as fast as servers."],
        [f"Columns that are all at servers are faster than the predicted split: {', '.join(slower)}."]
        if slower
        else [],
    )


def _row(document: dict[str, Any], batch: int) -> list[Cell]:
    epoch, mini_batches = document["epochs"][-1], -(-document["samples"] // batch)
    counters = epoch["counters"] or [{}]
    frames = max(each.get("ROWS", 0) for each in counters) / mini_batches
    sent = max(each.get("BYTES_SENT", 0) for each in counters) / mini_batches
    if "ROWS" not in counters[0]:  # columns are divided, so partial activations of all samples are summed
        frames = batch / VALUES
    seconds = statistics.median(each["seconds"] for each in document["epochs"][1:])
    return [frames, frames * FRAME_BYTES, sent, seconds / mini_batches * 1e6, Source.MEASURED]
