"""Client of a simulator process, which loads memories, accesses registers and runs the clock on request."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.packet import FRAME_BYTES
from p4sgd.sim.cluster.protocol import SOCKET
from p4sgd.sim.rpc import Channel
from p4sgd.sim.verilator import Build, SimulationError

__all__ = ["ClusterProcess"]

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0

_FRAMES_LIMIT = 1 << 20
"""Limit for the frames that a worker sends during one request, in bytes."""


class ClusterProcess:
    """Starts the simulator of a cluster or single worker and sends it requests (see :mod:`p4sgd.sim.cluster.server`).

    The simulator runs in a session of its own, so that Ctrl-C reaches only the client.

    Parameters
    ----------
    build
        The compiled model.
    settings
        Values of top-level inputs, set before reset, such as the seed and chances of faults.

    Raises
    ------
    SimulationError
        If the simulator does not start, or ends before it answers a request. The message holds the end of its log.
    """

    def __init__(self, build: Build, settings: Mapping[str, int]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="p4sgd-cluster-"))
        """Scratch folder of this run: memory files, log and waveform."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                self._listen(listener)
                self._process = self._spawn(build)
                self._channel = self._accept(listener, self._process)
            self._call("reset", settings=dict(settings))
        except BaseException:
            self.close()
            raise

    def _listen(self, listener: socket.socket) -> None:
        # The folder is named by its descriptor: a socket address has at most 107 bytes, and the path may be longer.
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

    def _accept(self, listener: socket.socket, process: subprocess.Popen[bytes]) -> Channel:
        listener.settimeout(0.2)
        give_up = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(None)
                return Channel(connection)
            if process.poll() is not None or time.monotonic() > give_up:
                raise self._failure("the simulator did not start")

    def request(self, do: str, **arguments: Any) -> Any:
        """Call a method of the simulator's server and return its result."""
        result, _ = self._call(do, **arguments)
        return result

    def exchange(self, frames: Sequence[bytes], cycles: int) -> tuple[list[bytes], bool]:
        """Send frames to a worker and run until it sends some or becomes idle, for at most ``cycles`` cycles.

        Returns the frames that it has sent, and whether it is idle.
        """
        sizes = [len(frame) for frame in frames]
        idle, sent = self._call("exchange", b"".join(frames), most=_FRAMES_LIMIT, sizes=sizes, cycles=cycles)
        return [frame.tobytes() for frame in sent.reshape(-1, FRAME_BYTES)], idle

    def _call(
        self, do: str, body: bytes = b"", *, most: int = 0, **arguments: Any
    ) -> tuple[Any, npt.NDArray[np.uint8]]:
        if self._channel is not None:
            try:
                return self._channel.call(do, body, most=most, **arguments)
            except OSError:
                pass  # it has ended
            except BaseException:  # a late answer would be taken for that to the next request
                self._hang_up()
                raise
        raise self._failure("the simulator ended unexpectedly")

    def _failure(self, what: str) -> SimulationError:
        log = self.directory / "simulation.log"
        text = log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"
        return SimulationError(f"{what}:\n{text}")

    def _hang_up(self) -> None:
        """Close the connection, at which the simulator ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def stop(self) -> None:
        """End the simulator, which completes its waveform. Its files stay until `close`."""
        try:
            self._hang_up()
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_SECONDS)
        finally:
            self._kill()

    def _kill(self) -> None:
        """Kill what is left of the session: the process started by `_spawn`, and its child, the simulator."""
        if self._process is not None:
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
