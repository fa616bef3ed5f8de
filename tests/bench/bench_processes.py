"""Samples a second of worker processes and an aggregator across virtual Ethernet, and the processor time of each.

    PYTHONPATH=tests python tests/bench/bench_processes.py [--data digits:3] [--config small] [--epochs 30]

Needs network namespaces: root, or `unshare -Urn` before it. Processor time is that of the whole run without start and
upload, divided by its micro-batches of 8 samples; the rate is the median of the epochs.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support.lab import Lab

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> tuple[float, float]:
    """What a process has used so far: in its own code, and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def measure(lab: Lab, words: list[str]) -> tuple[dict, dict[str, tuple[float, float]]]:
    """A run's document, and what each process used for it."""
    before = {name: processor_seconds(process.pid) for name, (process, _) in lab.processes.items()}
    run = lab.p4sgd("train", *words, "--device", "cluster", "--cluster", "cluster.toml", "--json")
    out, err = run.communicate()
    if run.returncode:
        raise SystemExit(err)
    used = {}
    for name, (process, _) in lab.processes.items():
        now = processor_seconds(process.pid)
        used[name] = now[0] - before[name][0], now[1] - before[name][1]
    return json.loads(out), used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits:3")
    parser.add_argument("--config", default="small")
    parser.add_argument("--batch", default="64")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), options.workers, config=options.config, network="resend_us = 20000")
        try:
            words = [options.data, "--batch", options.batch]
            _, at_start = measure(lab, [*words, "--epochs", "1"])
            document, used = measure(lab, [*words, "--epochs", str(options.epochs + 1)])
        finally:
            lab.close()
    epochs = document["epochs"]
    rates = [epoch["samples_per_second"] for epoch in epochs]
    resent = sum(worker["PACKETS_RESENT"] for epoch in epochs for worker in epoch["counters"])
    sent = sum(worker["PACKETS_SENT"] for epoch in epochs for worker in epoch["counters"])
    batches = options.epochs * sum(
        worker["PACKETS_SENT"] - worker["PACKETS_RESENT"] for worker in epochs[0]["counters"]
    )
    micro_batches = batches / 2 / options.workers  # a PARTIAL and an ACK of each worker
    console = Console()
    console.print(
        f"{options.config}, {options.workers} workers: {statistics.median(rates):,.0f} samples/s "
        f"({min(rates):,.0f} to {max(rates):,.0f}), {resent:,} of {sent:,} packets sent again"
    )
    table = Table("process", "user, µs a micro-batch", "kernel, µs a micro-batch")
    for name, now in used.items():
        spent = [(end - begin) / micro_batches * 1e6 for begin, end in zip(at_start[name], now, strict=True)]
        table.add_row(name, *(f"{each:.0f}" for each in spent))
    console.print(table)


if __name__ == "__main__":
    main()
