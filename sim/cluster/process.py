"""A simulated cluster as a process of its own."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from p4sgd.sim.cluster.protocol import SOCKET_VARIABLE
from p4sgd.sim.verilator import Build, SimulationError

__all__ = ["ClusterProcess"]

_START_SECONDS = 120.0


class ClusterProcess:
    """Starts a built cluster and sends it requests (see :mod:`p4sgd.sim.cluster.server`).

    The simulator runs in a session of its own, so that Ctrl-C reaches the client only.

    Parameters
    ----------
    build
        The compiled model.
    settings
        Values for inputs of the top level, set before reset: seed, stalls, losses, addresses.

    Raises
    ------
    SimulationError
        If the simulator does not start, or has gone away when asked; the message holds the end of its log.
    """

    def __init__(self, build: Build, settings: Mapping[str, int]) -> None:
        self._build = build
        self.directory = Path(tempfile.mkdtemp(prefix="p4sgd-cluster-"))
        """Scratch folder of this run: memory files, log and waveform."""
        address = self.directory / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(1)
            listener.settimeout(0.2)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(build.directory), build.top, str(int(build.waves))],
                cwd=self.directory,
                env=os.environ | {SOCKET_VARIABLE: str(address)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            waited = 0.0
            while self._connection is None:
                try:
                    self._connection, _ = listener.accept()
                except TimeoutError:
                    waited += 0.2
                    if self._process.poll() is not None or waited > _START_SECONDS:
                        raise self._failure("the simulator did not start") from None
        self._connection.settimeout(None)
        self._stream = self._connection.makefile("rw")
        self._exchange({"settings": dict(settings)})

    def request(self, do: str, **arguments: Any) -> Any:
        """Have the simulator do something and return its answer."""
        return self._exchange({"do": do, **arguments})

    def _exchange(self, message: dict[str, Any]) -> Any:
        try:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()
            line = self._stream.readline()
        except OSError:
            line = ""
        if not line:
            raise self._failure("the simulator ended unexpectedly")
        return json.loads(line)

    def _failure(self, what: str) -> SimulationError:
        log = self.directory / "simulation.log"
        text = log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"
        self.close()
        return SimulationError(f"{what}:\n{text}")

    def close(self, *, waves: Path | None = None) -> None:
        """End the simulator; keep its waveform (VCD) if asked to, delete everything else."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._stream.write('{"do": "close"}\n')
                self._stream.flush()
            with contextlib.suppress(OSError):
                self._stream.close()
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            if waves is not None:
                shutil.move(self.directory / "dump.vcd", waves)
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _main(directory: str, top: str, waves: str) -> None:
    work = Path.cwd()
    build = Build(Path(directory), top, bool(int(waves)))
    build.run("p4sgd.sim.cluster.server", work, plusargs=[f"+memory={work}"])


if __name__ == "__main__":
    _main(*sys.argv[1:])
