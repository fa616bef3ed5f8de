"""What benchmarks share: options with defaults, tables, costs of epochs, and calls in processes of their own."""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.table import Table

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.streaming.folder import PreparedFolder
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.model_file import Model
from p4sgd.hw.spec.config import WorkerConfig
from support.events import events

CONSOLE = Console(width=160)


def parser_of(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A command line of options, each with the type of its default; lists take several values, False is a flag."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        word = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(word, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(word, nargs="*", type=type(default[0]), default=default)
        else:
            parser.add_argument(word, type=type(default), default=default)
    return parser


def show(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, numbers to the right."""
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(table)


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU time, of all threads, and seconds that passed."""

    cpu: float
    wall: float

    @staticmethod
    def now() -> "Cost":
        return Cost(time.process_time(), time.perf_counter())

    def since(self, begin: "Cost", parts: float = 1) -> "Cost":
        return Cost((self.cpu - begin.cpu) / parts, (self.wall - begin.wall) / parts)

    @staticmethod
    def median(costs: Sequence["Cost"]) -> "Cost":
        return Cost(statistics.median(cost.cpu for cost in costs), statistics.median(cost.wall for cost in costs))


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, so that its data are not kept."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def time_training(
    data: Dataset | PreparedFolder, options: TrainingOptions, config: WorkerConfig
) -> tuple[Model, list[Cost], list[Cost]]:
    """Train on the emulator: the model, and costs of the device's runs and of whole epochs but the first.

    The first epoch decodes the features.
    """
    ends, runs = list[Cost](), list[Cost]()
    device = open_device("emulator", config, options.workers)
    wait = device.wait

    def timed(timeout_s: float | None = None) -> None:
        begin = Cost.now()
        wait(timeout_s)
        runs.append(Cost.now().since(begin))

    device.wait = timed  # type: ignore[method-assign]
    model = train(data, options, device, events=events(epoch=lambda _: ends.append(Cost.now()))).model
    device.close()
    return model, runs[1:], [end.since(begin) for begin, end in itertools.pairwise(ends)]
