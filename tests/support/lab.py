"""Network namespaces joined by cables, and processes in them: a lab that is gone when its owner is."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("p4sgd")
_ROOT = Path(__file__).parents[2]
_READY_S = 120


def need_namespaces():
    """Skip a test where there are no network namespaces, saying why."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (apt-get install util-linux iproute2)")
    tried = subprocess.run(["unshare", *_FLAGS, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network namespaces: {tried.stderr.strip()}")


_FLAGS = ["-n"] if os.geteuid() == 0 else ["-Urn"]
"""Who is not the superuser is it in a user namespace, to which all network namespaces of a lab belong."""


class Namespace:
    """A network namespace; it lives as long as a process that waits for the end of its input."""

    def __init__(self, enter=()):
        flags = ["-n"] if enter else _FLAGS
        self._holder = subprocess.Popen([*enter, "unshare", *flags, "cat"], stdin=subprocess.PIPE)
        self.pid = self._holder.pid
        self.enter = ["nsenter", "-t", str(self.pid), "-n"]
        if os.geteuid():
            self.enter += ["-U", "--preserve-credentials"]
        self._await_birth()
        self.ip("link", "set", "lo", "up")

    def _await_birth(self):
        while self._holder.poll() is None:
            with contextlib.suppress(FileNotFoundError):
                if Path(f"/proc/{self.pid}/comm").read_text() == "cat\n":
                    return
            time.sleep(0.005)
        raise AssertionError("the namespace did not come to be")

    def ip(self, *words):
        """Run the ip command."""
        subprocess.run([*self.enter, "ip", *words], check=True, capture_output=True, text=True)

    def close(self):
        self._holder.stdin.close()
        self._holder.wait()


class Lab:
    """Workers and an aggregator, each in a namespace of its own, in a folder with their sockets and logs.

    With ``faults``, words for `support.relay`, every frame goes through it.
    """

    def __init__(self, folder, workers, *, config="tiny", network="", faults=None):
        self.folder = folder
        self.size = workers
        self.config = config
        self._stack = contextlib.ExitStack()
        self.processes = {}
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_all)
            self.switch = stack.enter_context(contextlib.closing(Namespace()))
            enter = self.switch.enter if os.geteuid() else ()
            self.workers = [stack.enter_context(contextlib.closing(Namespace(enter))) for _ in range(workers)]
            relay = None
            if faults is not None:
                relay = stack.enter_context(contextlib.closing(Namespace(enter)))
            for index, worker in enumerate(self.workers):
                if relay is None:
                    self._cable(self.switch, f"s{index}", worker, "eth0")
                else:
                    self._cable(relay, f"up{index}", worker, "eth0")
                    self._cable(self.switch, f"s{index}", relay, f"down{index}")
            if relay is not None:
                command = [sys.executable, "-m", "support.relay", str(workers), *faults]
                self._start("relay", relay, command, self.folder / "relay.ready")
            self.write_cluster(network=network)
            self.start_switch()
            for index in range(workers):
                self.start_worker(index, wait=False)
            for index in range(workers):
                self.await_ready(f"worker{index}")
            self._stack = stack.pop_all()
            # Callbacks run last in, first out: processes end before their namespaces.
            self._stack.callback(self._end_all)

    def _cable(self, one, name, other, other_name):
        one.ip("link", "add", name, "type", "veth", "peer", "name", other_name, "netns", str(other.pid))
        for namespace, end in ((one, name), (other, other_name)):
            namespace.ip("link", "set", end, "addrgenmode", "none")
            namespace.ip("link", "set", end, "up")

    def write_cluster(self, *, name="cluster.toml", ports=None, network=""):
        """The lab's cluster file, with worker i behind port i if ``ports`` do not say otherwise."""
        lines = ["[aggregator]", 'kind = "socket"', 'control = "unix:switch"', "[network]", network]
        for index, port in enumerate(ports or range(self.size)):
            lines += ["[[workers]]", f'control = "unix:worker{index}"', f"port = {port}"]
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return path

    # -- processes -----------------------------------------------------------------------------------------------

    def start_switch(self):
        words = [word for index in range(self.size) for word in ("--interface", f"s{index}")]
        control = self.folder / "switch"
        self._start(
            "switch", self.switch, [PROGRAM, "switch", "serve", *words, "--control", f"unix:{control}"], control
        )

    def start_worker(self, index, *, wait=True):
        control = self.folder / f"worker{index}"
        command = [PROGRAM, "worker", "--interface", "eth0", "--control", f"unix:{control}", "--config", self.config]
        self._start(f"worker{index}", self.workers[index], command, control, wait=wait)

    def _start(self, name, namespace, command, sign, *, wait=True):
        """Start a process that is ready when a file is there."""
        sign.unlink(missing_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*namespace.enter, *map(str, command)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT / ".packages"), str(_ROOT / "tests")])},
            )
        self.processes[name] = process, sign
        if wait:
            self.await_ready(name)

    def await_ready(self, name):
        process, sign = self.processes[name]
        end = time.monotonic() + _READY_S
        while not sign.exists():
            log = (self.folder / f"{name}.log").read_text()
            assert process.poll() is None, f"{name} has ended: {log}"
            assert time.monotonic() < end, f"{name} is not ready: {log}"
            time.sleep(0.02)

    def kill(self, name, number=signal.SIGKILL):
        """End a process; returns its exit status."""
        process, _ = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(30)

    def _end_all(self):
        for process, _ in self.processes.values():
            process.kill()
        for process, _ in self.processes.values():
            process.wait()
        self.processes.clear()

    def p4sgd(self, *words, **options):
        """Start the command line in the lab's folder, in no namespace of the lab: sockets of files reach everywhere."""
        return subprocess.Popen(
            [PROGRAM, *map(str, words)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def close(self):
        self._stack.close()
