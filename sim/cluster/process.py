"""A simulated cluster as a process of its own."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from p4sgd.sim.cluster.protocol import SOCKET
from p4sgd.sim.verilator import Build, SimulationError

__all__ = ["ClusterProcess"]

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0


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
        self.directory = Path(tempfile.mkdtemp(prefix="p4sgd-cluster-"))
        """Scratch folder of this run: memory files, log and waveform."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: TextIO | None = None
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                self._listen(listener)
                self._process = self._spawn(build)
                self._stream = self._accept(listener, self._process)
            self._exchange({"settings": dict(settings)})
        except BaseException:
            self.close()
            raise

    def _listen(self, listener: socket.socket) -> None:
        # Through the folder's descriptor, because an address has 107 bytes and a scratch folder may be deep.
        folder = os.open(self.directory, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.close(folder)
        listener.listen(1)

    def _spawn(self, build: Build) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(build.directory), build.top, str(int(build.waves))],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _accept(self, listener: socket.socket, process: subprocess.Popen[bytes]) -> TextIO:
        listener.settimeout(0.2)
        give_up = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(TimeoutError), listener.accept()[0] as connection:
                connection.settimeout(None)
                return connection.makefile("rw")  # keeps the connection open
            if process.poll() is not None or time.monotonic() > give_up:
                raise self._failure("the simulator did not start")

    def request(self, do: str, **arguments: Any) -> Any:
        """Have the simulator do something and return its answer."""
        return self._exchange({"do": do, **arguments})

    def _exchange(self, message: dict[str, Any]) -> Any:
        line = ""
        if self._stream is not None:
            try:
                with contextlib.suppress(OSError):
                    self._stream.write(json.dumps(message) + "\n")
                    self._stream.flush()
                    line = self._stream.readline()
            except BaseException:  # the answer would be taken for that to the next request
                self._hang_up()
                raise
        if not line.endswith("\n"):  # it ended before the answer, or within
            raise self._failure("the simulator ended unexpectedly")
        return json.loads(line)

    def _failure(self, what: str) -> SimulationError:
        log = self.directory / "simulation.log"
        text = log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"
        return SimulationError(f"{what}:\n{text}")

    def _hang_up(self) -> None:
        """End the connection; the simulator ends when it sees that."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None

    def stop(self) -> None:
        """End the simulator. Its files stay until `close`, the waveform complete."""
        try:
            if self._stream is not None:
                with contextlib.suppress(OSError):
                    self._stream.write('{"do": "close"}\n')
                    self._stream.flush()
                self._hang_up()
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_SECONDS)
        finally:
            self._kill()

    def _kill(self) -> None:
        """Kill what is left of the session: the process that was started and the simulator that it started itself."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the simulator and delete its files, also when interrupted while waiting for its end."""
        try:
            self.stop()
        finally:
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
