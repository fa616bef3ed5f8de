"""Samples a second of worker processes and an aggregator across virtual Ethernet, and the processor time of each.

    PYTHONPATH=tests python tests/bench/bench_processes.py [--data digits:3] [--batch 64 256] [--merge 1 auto]

Needs network namespaces: root, or `unshare -Urn` before it. Processor time is that of the whole run without start and
upload, divided by its micro-batches of 8 samples; the rate is the median of the epochs. The time of a mini-batch stands
beside the one that was predicted before the first epoch (`message_times` in the result).
"""

import itertools
import os
import statistics
import tempfile
from pathlib import Path

from support.lab import Lab
from support.script import CONSOLE, parser_of, show

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> tuple[float, float]:
    """What a process has used so far: in its own code, and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def measure(lab: Lab, words: list[str]) -> tuple[dict, dict[str, tuple[float, float]]]:
    """A run's document, and what each process used for it."""
    before = {name: processor_seconds(process.pid) for name, (process, _) in lab.processes.items()}
    document, used = lab.document("train", *words, "--device", "cluster", "--cluster", "cluster.toml"), {}
    for name, (process, _) in lab.processes.items():
        now = processor_seconds(process.pid)
        used[name] = now[0] - before[name][0], now[1] - before[name][1]
    return document, used


def main() -> None:
    """Measure and print."""
    parser = parser_of(
        __doc__, data="digits:3", config="small", batch=["64", "256"], workers=4, epochs=30, merge=["1", "auto"]
    )
    options = parser.parse_args()
    variants = list(itertools.product(options.batch, options.merge))
    spent: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), options.workers, config=options.config, network="resend_us = 20000")
        try:
            for batch, merge in variants:
                words = [options.data, "--batch", batch, "--merge", merge]
                _, at_start = measure(lab, [*words, "--epochs", "1"])
                document, used = measure(lab, [*words, "--epochs", str(options.epochs + 1)])
                rates = [epoch["samples_per_second"] for epoch in document["epochs"]]
                counters = [worker for epoch in document["epochs"] for worker in epoch["counters"]]
                resent, sent = (sum(worker[name] for worker in counters) for name in ("PACKETS_RESENT", "PACKETS_SENT"))
                found = document["message_times"]
                told = "nothing predicted"
                if found is not None:
                    taken, predicted = found["measured_s"] * 1e3, found["predicted_s"] * 1e3
                    told = f"a mini-batch took {taken:.2f} ms, predicted {predicted:.2f} ({predicted / taken - 1:+.0%})"
                CONSOLE.print(
                    f"{options.config}, {options.workers} workers, --batch {batch}, {document['packets']}: "
                    f"{statistics.median(rates):,.0f} samples/s ({min(rates):,.0f} to {max(rates):,.0f}), {resent:,} "
                    f"of {sent:,} packets sent again; {told}"
                )
                first = document["epochs"][0]
                micro_batches = options.epochs * first["samples_per_second"] * first["seconds"] / 8
                for name, now in used.items():
                    times = [(end - begin) / micro_batches for begin, end in zip(at_start[name], now, strict=True)]
                    spent.setdefault(name, []).append(" ".join(f"{each * 1e6:.0f}" for each in times))
        finally:
            lab.close()
    columns = ("process", *(f"--batch {batch} --merge {merge}: user, kernel" for batch, merge in variants))
    show("µs of processor time a micro-batch", columns, ([name, *times] for name, times in spent.items()))


if __name__ == "__main__":
    main()
