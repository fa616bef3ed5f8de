"""The command `p4sgd simulate`, with files of traces for ui.perfetto.dev and drawings of them in the terminal."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.train import finish, make_request, run_training
from p4sgd.host.errors import UserError
from p4sgd.host.files import begins_with, new_file

if TYPE_CHECKING:
    from p4sgd.sim.cluster.protocol import Waveform
    from p4sgd.sim.cluster.trace import Interval, Trace

_FST = bytes([0]) + (329).to_bytes(8)
"""Begin of a waveform: type and length of its first block."""

_START = b'{"displayTimeUnit": "ns", "traceEvents": ['


@click.command()
@options.data
@options.results
@options.config_and_settings(
    "Configuration of each worker, which does not change the weights.", hardware=True, default="small"
)
@options.count("--samples", 1, "Train only on so many samples, the first ones.")
@options.path("--waves", "FILE.fst", "Write a waveform for GTKWave or Surfer; takes about a kilobyte a cycle.")
@click.option("--waves-scope", metavar="NAME", help="Only of a part of the cluster, such as worker0.engine0.")
@click.option(
    "--waves-window",
    metavar="FROM:TO",
    help="Only from cycle FROM to before cycle TO; either may be left out. --timeline tells where a mini-batch begins.",
)
@options.path(
    "--trace",
    "FILE",
    "Write a trace of every micro-batch (JSON) for ui.perfetto.dev; takes a kilobyte for each in each worker.",
)
@click.option("--timeline", is_flag=True, help="Draw the stages of worker 0 in the second mini-batch.")
@options.faults
@options.training
@options.reading
@options.common
def simulate(
    waves: Path | None,
    waves_scope: str | None,
    waves_window: str | None,
    trace: Path | None,
    timeline: bool,
    fault: dict[str, float],
    output: Output,
    **choices: Any,
) -> None:
    """Train on the simulated Verilog and count cycles.

    The simulation has the whole cluster: workers, aggregator, cables and memories. It runs at about 100,000 cycles a
    second. The weights are those of `p4sgd train`; in addition, counters show how many cycles each worker spent
    computing and waiting. In the table of epochs, samples/s is the speed of the simulator, not of boards.
    """
    from p4sgd.host.devices.faults import simulated_faults
    from p4sgd.host.run.checks import check_apart, check_replaces

    recorded = _waveform(waves, waves_scope, waves_window)
    check_replaces(waves, lambda path: begins_with(path, _FST), "waveform")
    check_replaces(trace, lambda path: begins_with(path, _START), "trace")
    check_apart(
        [choices["out"], choices["report"], waves, trace], [choices["data"], choices["test"], options.options_file()]
    )
    traces: list[Trace] = []

    def keep(found: "Trace") -> None:
        """Called for a run that fails, too: its trace shows where."""
        if trace is not None:
            save_trace(found, trace)
        traces.append(found)

    device_options = {"seed": choices["seed"], **fault, "waves": recorded}
    request = make_request(choices, device="rtl", device_options=device_options, trace=timeline or trace is not None)
    run, result = run_training(output, request, on_trace=keep)
    workers = zip(*(record.counters for record in result.history), strict=True)
    totals = [{name: sum(epoch[name] for epoch in epochs) for name in epochs[0]} for epochs in workers]
    _show_counters(output, totals, result.summary["configuration"])
    for line in draw(traces[0]) if timeline else ():
        output.say(line)
    if waves is not None:
        output.say(f"waveform in {waves}")
    if trace is not None:
        shown = len(traces[0].workers[0]["update"])
        output.say(f"trace in {trace}{'' if traces[0].whole else f', which ends after {shown:,} micro-batches'}")
    files = {"waves": waves, "trace": trace}
    more = {"counters": totals, "faults": simulated_faults(fault)}
    finish(output, run, result, more | {name: None if path is None else str(path) for name, path in files.items()})


def _waveform(file: Path | None, scope: str | None, window: str | None) -> "Waveform | None":
    """What to record of the cluster; `UserError` if the options are not those of a waveform."""
    from p4sgd.sim.cluster.protocol import Waveform

    if file is None:
        for name, value in (("waves_scope", scope), ("waves_window", window)):
            if value is not None:
                raise UserError("needs --waves FILE.fst", field=name)
        return None
    if file.suffix != ".fst":
        raise UserError(f"{file}: waveforms are FST files: call it {file.with_suffix('.fst')}", field="waves")
    cycles = re.fullmatch(r"(\d*):(\d*)", window or ":")
    begin, end = (int(text) if text else None for text in cycles.groups()) if cycles else (0, 0)
    if end is not None and (begin or 0) >= end:
        problem = f"must be two numbers of cycles with a colon, such as 1000:5000, not {window}"
        raise UserError(problem, field="waves_window")
    return Waveform(file, scope or "", begin or 0, end)


def _show_counters(output: Output, totals: Sequence[dict[str, int]], sizes: dict[str, Any]) -> None:
    from p4sgd.hw.spec.config import WorkerConfig
    from p4sgd.hw.spec.registers import counters

    rows = []
    for name, counter in counters(WorkerConfig(**sizes)).items():
        shares = [f" ({each[name] / each['CYCLES']:6.1%})" if name.startswith("CYCLES_") else "" for each in totals]
        cells = [f"{each[name]:,}{share}" for each, share in zip(totals, shares, strict=True)]
        rows.append([name.lower(), counter.help.removesuffix(" of the last run"), *cells])
    workers = [f"worker {index}" for index in range(len(totals))]
    output.table(["counter, all epochs", "meaning", *workers], rows, texts=2)


def save_trace(trace: "Trace", path: Path) -> None:
    """Write a trace in the Trace Event Format (JSON); `UserError` if it cannot be written.

    It has a process for every worker, a thread for every stage and a complete event for every micro-batch, which has
    the same name, and so the same colour, in all stages. A thread shows one event at a time, so a stage that holds
    several micro-batches has further threads. Times are those of the waveform.
    """
    with new_file(path) as file:
        file.write(_START)
        separator = "\n"
        for event in _events(trace.workers):
            file.write(f"{separator}{json.dumps(event)}".encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def _events(workers: "Sequence[dict[str, list[Interval]]]") -> Iterator[dict[str, Any]]:
    from p4sgd.hw.spec.config import CLOCK_NS
    from p4sgd.sim.cluster.trace import lanes

    thread = 0  # counted over all processes, because some viewers distinguish threads only by number
    for process, stages in enumerate(workers, 1):  # from 1, because some viewers take process 0 for the idle process
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"worker {process - 1}"}}
        for stage, intervals in stages.items():
            for number, row in enumerate(lanes(intervals) or [[]], 1):
                thread += 1
                where = {"pid": process, "tid": thread}
                name = stage if number == 1 else f"{stage} {number}"
                yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
                yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": thread}}
                for each in row:
                    numbers = {"micro_batch": each.micro_batch, "mini_batch": each.mini_batch, "cycles": each.cycles}
                    times = {"ts": each.begin * CLOCK_NS / 1000, "dur": each.cycles * CLOCK_NS / 1000}
                    name = f"micro-batch {each.micro_batch}"
                    yield {"ph": "X", "name": name, "cat": stage, **where, **times, "args": numbers}


def draw(trace: "Trace") -> Iterator[str]:
    """Lines of text that show worker 0 in its second mini-batch (or the only one), from first line to last update.

    A block is a micro-batch in a stage; its first column has the last digit of its number within the mini-batch. Blocks
    of other mini-batches are pale. A stage that holds several micro-batches at a time has further rows.
    """
    from p4sgd.sim.cluster.trace import second_mini_batch

    shown = second_mini_batch(trace)
    if shown is None:
        return
    cycles = shown.end - shown.begin
    scale = -(-cycles // 100)
    yield f"worker 0, mini-batch {shown.number}: {cycles} cycles from {shown.begin} on, a column is {scale}"
    for stage, rows in shown.rows.items():
        for number, row in enumerate(rows):
            cells = [" "] * -(-cycles // scale)
            for interval in row:
                start = max(0, (interval.begin - shown.begin) // scale)
                stop = min(len(cells), -(-(interval.end - shown.begin) // scale))
                ours = interval.mini_batch == shown.number
                cells[start:stop] = ("█" if ours else "░") * (stop - start)
                if ours:
                    cells[start] = str((interval.micro_batch - shown.first) % 10)
            yield f"{'' if number else stage:<9}{''.join(cells).rstrip()}"
