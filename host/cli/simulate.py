"""The command `p4sgd simulate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli.checkpoints import TrainingRequest
from p4sgd.host.cli.options import common_options, configuration_option, fault_option
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.paths import check_apart, check_new_model, check_new_trace, check_new_waveform
from p4sgd.host.cli.reading import reading_options, take_reading
from p4sgd.host.cli.training import finish, run_training, training_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from p4sgd.host.training import TrainingResult
    from p4sgd.hw.spec.register_map import Counter
    from p4sgd.sim.cluster.trace import Trace

__all__ = ["simulate"]


@click.command()
@click.argument("data")
@click.option("--test", metavar="DATA", help="Data to measure every epoch on, without influence on training.")
@click.option("--out", type=click.Path(path_type=Path), metavar="MODEL", help="Model file to write.")
@configuration_option
@click.option("--samples", type=click.IntRange(1), help="Train on the first so many samples only.")
@click.option(
    "--waves",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Leave a waveform (VCD): slower, and tens of kilobytes a cycle.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Leave a trace of every micro-batch (JSON), which ui.perfetto.dev shows: a kilobyte for each and worker.",
)
@click.option("--timeline", is_flag=True, help="Draw what worker 0 does around the second mini-batch.")
@fault_option
@training_options
@reading_options
@common_options
def simulate(
    data: str,
    test: str | None,
    out: Path | None,
    config: str | None,
    samples: int | None,
    waves: Path | None,
    trace: Path | None,
    timeline: bool,
    fault: tuple[tuple[str, float], ...],
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> None:
    """Train on the simulated Verilog and count cycles.

    A whole cluster is simulated: workers, aggregator, cables and memories. It does about 100,000 cycles a second.
    The weights are those of `p4sgd train`; what this adds is where the time goes, cycle by cycle. In the table of
    epochs samples/s is the speed of the simulator, not of boards.
    """
    from p4sgd.host.cli.trace import draw, save_trace
    from p4sgd.host.devices.faults import simulated_faults
    from p4sgd.hw.spec.config import WorkerConfig
    from p4sgd.hw.spec.registers import counters

    output = Output(as_json=as_json, quiet=quiet)
    check_new_model(out)
    check_new_waveform(waves)
    check_new_trace(trace)
    check_apart([out, waves, trace], [data, test])
    chances: dict[str, Any] = dict(fault)
    reading = take_reading(choices)
    traces: list[Trace] = []

    def keep(run: "Trace") -> None:
        """Also that of a run that fails, which shows where."""
        if trace is not None:
            save_trace(run, trace)
        traces.append(run)

    result = run_training(
        output,
        TrainingRequest(data, test, reading, choices, "rtl", out),
        config,
        samples=samples,
        seed=choices["seed"],
        **chances,
        waves=waves,
        on_trace=keep if timeline or trace is not None else None,
    )
    totals = _totals(result)
    _show(output, totals, counters(WorkerConfig(**result.summary["configuration"])))
    if timeline:
        for line in draw(traces[0]):
            output.say(line)
    if waves is not None:
        output.say(f"waveform in {waves}")
    if trace is not None:
        shown = len(traces[0].workers[0]["update"])
        output.say(f"trace in {trace}{'' if traces[0].whole else f', which ends after {shown:,} micro-batches'}")
    finish(
        output,
        result,
        out,
        counters=totals,
        faults=simulated_faults(chances),
        waves=None if waves is None else str(waves),
        trace=None if trace is None else str(trace),
    )


def _totals(result: "TrainingResult") -> list[dict[str, int]]:
    """The counters of each worker, summed over all epochs."""
    workers = zip(*(record.counters for record in result.history), strict=True)
    return [{name: sum(epoch[name] for epoch in epochs) for name in epochs[0]} for epochs in workers]


def _show(output: Output, totals: list[dict[str, int]], meanings: "Mapping[str, Counter]") -> None:
    workers = [f"worker {index}" for index in range(len(totals))]
    rows = []
    for name in totals[0]:
        meaning = meanings[name].help.removesuffix(" of the last run")
        cells = []
        for counters in totals:
            share = f" ({counters[name] / counters['CYCLES']:6.1%})" if name.startswith("CYCLES_") else ""
            cells.append(f"{counters[name]:,}{share}")
        rows.append((name.lower(), meaning, *cells))
    output.table(["counter, all epochs", "meaning", *workers], rows, texts=2)
