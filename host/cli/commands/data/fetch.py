"""The command `p4sgd data fetch`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from p4sgd.host.cli.options import NameFrom, common_options
from p4sgd.host.cli.output import Output

__all__ = ["fetch"]


def _originals() -> Iterable[str]:
    from p4sgd.host.data.fetch import ORIGINALS

    return ORIGINALS


@click.command()
@click.argument("name", type=NameFrom("data set", _originals))
@click.option(
    "--out",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    default=Path(),
    help="Folder to put it in; the current one if not given.",
)
@click.option("--sha256", metavar="HEX", help="What the checksum of the file must be.")
@common_options
def fetch(name: str, directory: Path, sha256: str | None, as_json: bool, quiet: bool) -> None:
    """Fetch an original data set from the LIBSVM page.

    The checksum of a first download is written to checksums.json beside it, and every later one must agree with it.
    """
    from p4sgd.host.data import fetch as originals

    output = Output(as_json=as_json, quiet=quiet)
    with _progress(output, name) as on_progress:
        fetched = originals.fetch(name, directory, sha256=sha256, on_progress=on_progress)
    output.document(
        {
            "name": name,
            "path": str(fetched.path),
            "sha256": fetched.sha256,
            "downloaded": fetched.downloaded,
            "pinned": fetched.pinned,
        }
    )
    state = "fetched" if fetched.downloaded else "was there already"
    trust = "; checksum noted, nobody has vouched for it" if fetched.pinned else "; checksum as it should be"
    output.say(f"{fetched.path}: {state}{trust}")


@contextmanager
def _progress(output: Output, name: str) -> Iterator[Callable[[int, int | None], None] | None]:
    """A progress bar on the terminal, fed by the function that is handed out."""
    if not output.shows_progress:
        yield None
        return
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.remarks, transient=True) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
