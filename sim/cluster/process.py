"""Client of a simulator process, which loads memories, accesses registers and runs the clock on request."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

from p4sgd.sim.verilator import Build, SimulationError

_SIMULATOR = (sys.executable, "-m", "p4sgd.sim.cluster.process")
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0


class ClusterProcess:
    """Starts the simulator of a cluster and sends it requests (see :mod:`p4sgd.sim.cluster.server`).

    The simulator runs in a session of its own, so that Ctrl-C reaches only the client. Its standard input is the
    connection: what it starts inherits that. ``settings`` are the values of top-level inputs, set before reset, such as
    the seed and chances of faults; ``arguments`` are more plus arguments. The attribute ``directory`` is a scratch
    folder with memory files, log and waveform.

    `SimulationError` with the end of the log if the simulator does not start, or ends before it answers a request.
    """

    def __init__(self, build: Build, settings: Mapping[str, int], arguments: Sequence[str] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="p4sgd-cluster-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._connection, theirs = Pipe()
        seed = str(settings.get("seed", 0))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*_SIMULATOR, str(build.directory), build.top, str(int(build.waves)), seed, *arguments],
                    cwd=self.directory,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._ask("the simulator did not start", _START_SECONDS, "reset", {"settings": dict(settings)})
        except BaseException:
            self.close()
            raise

    def request(self, do: str, **arguments: Any) -> Any:
        """Call a method of the simulator's server and return its result."""
        return self._ask("the simulator ended unexpectedly", None, do, arguments)

    def _ask(self, failure: str, seconds: float | None, do: str, arguments: dict[str, Any]) -> Any:
        try:
            self._connection.send((do, arguments))
            if self._connection.poll(seconds):
                return self._connection.recv()
        except (OSError, EOFError):
            pass  # it has ended
        except BaseException:  # a late answer would be taken for that to the next request
            self._connection.close()
            raise
        log = self.directory / "simulation.log"
        text = log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"
        raise SimulationError(f"{failure}:\n{text}")

    def stop(self) -> None:
        """End the simulator, which completes its waveform. Its files stay until `close`."""
        try:
            self._connection.close()  # at which it ends
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_SECONDS)
        finally:
            if self._process is not None:  # what is left of the session: this process, and its child, the simulator
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._process = None

    def close(self) -> None:
        """End the simulator and delete its files, even if interrupted while waiting for its end."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    folder, top, waves, seed, *plusargs = sys.argv[1:]
    Build(Path(folder), top, bool(int(waves))).run(
        "p4sgd.sim.cluster.server", Path.cwd(), plusargs=[f"+memory={Path.cwd()}", *plusargs], seed=int(seed)
    )
