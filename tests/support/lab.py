"""Workers and an aggregator as processes, each in a network namespace of its own: a lab that is gone with its owner."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from support.command_line import PROGRAM
from support.namespace import Namespace

_TESTS = Path(__file__).parents[1]
_READY_S = 120
_FINISH_S = 300
_GRPC = "127.0.0.1:9559"
_STOP_S = 10


def _cable(one, name, other, other_name):
    """Join two namespaces."""
    other_thread = str(other.call(threading.get_native_id))
    one.ip("link", "add", name, "type", "veth", "peer", "name", other_name, "netns", other_thread)
    for namespace, end in ((one, name), (other, other_name)):
        namespace.ip("link", "set", end, "up")


def await_file(path, process):
    """Wait until a process has made a file."""
    end = time.monotonic() + _READY_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"there is no {path}"
        time.sleep(0.02)


def finish(process, status=0):
    """What a command says, standard output and errors, once it has ended as it should."""
    try:
        out, err = process.communicate(timeout=_FINISH_S)
    except BaseException:
        process.kill()
        raise
    assert process.returncode == status, out + err
    assert "Traceback" not in err
    return out, err


class Lab:
    """Worker i is behind port i of the aggregator. Sockets and logs are in a folder, and ``cluster.toml``.

    ``network`` are lines of the cluster file, ``entries`` those of each worker. With ``bmv2`` the aggregator is BMv2,
    yet without its program, which is the folder of that name. ``config`` and ``speed`` may be lists, with a value for
    each worker; options may stand in place of a configuration. Workers of ``absent`` are not started.
    """

    def __init__(
        self,
        folder,
        workers,
        *,
        config="tiny",
        network="",
        entries=None,
        bmv2=False,
        speed="inf",
        absent=(),
    ):
        self.folder = folder
        self.size = workers
        self.configs = config if isinstance(config, list) else [config] * workers
        self.speeds = speed if isinstance(speed, list) else [speed] * workers
        self.entries = entries or [""] * workers
        self.bmv2 = bmv2
        self.processes = {}
        with contextlib.ExitStack() as stack:
            self._switch = self._namespace(stack)
            self._workers = [self._namespace(stack) for _ in range(workers)]
            stack.callback(self._end_all)  # before their namespaces
            for index, worker in enumerate(self._workers):
                _cable(self._switch, f"s{index}", worker, "eth0")
            self.write_cluster(network=network)
            self.start_switch()
            present = [index for index in range(workers) if index not in absent]
            for index in present:
                self.start_worker(index, wait=False)
            for index in present:
                self._await(f"worker{index}")
            self._stack = stack.pop_all()

    @staticmethod
    def _namespace(stack):
        return stack.enter_context(contextlib.closing(Namespace()))

    def write_cluster(self, *, name="cluster.toml", ports=None, network=""):
        """Write a cluster file, with worker i behind port i if ``ports`` do not say otherwise."""
        bmv2 = ['kind = "bmv2"', f'control = "{_GRPC}"', 'program = "bmv2"']
        aggregator = bmv2 if self.bmv2 else ['kind = "socket"', 'control = "unix:switch"']
        lines = ["[aggregator]", *aggregator, "[network]", network]
        for index, port in enumerate(ports or range(self.size)):
            lines += ["[[workers]]", f'control = "unix:worker{index}"', f"port = {port}", self.entries[index]]
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def set_link(self, worker, state):
        """Set the interface of a worker up or down."""
        self._workers[worker].ip("link", "set", "eth0", state)

    # -- processes -----------------------------------------------------------------------------------------------

    def start_switch(self):
        if self.bmv2:
            for index in range(self.size):
                # Else libpcap, with which BMv2 receives, has room for 32 frames, of up to 64 KiB, and loses the others.
                offload = [word for feature in ("tso", "gso", "gro") for word in (feature, "off")]
                self._switch.call(subprocess.run, ["ethtool", "-K", f"s{index}", *offload], check=True)
            words = [word for index in range(self.size) for word in ("-i", f"{index}@s{index}")]
            command = ["simple_switch_grpc", "--no-p4", "--log-file", "bmv2-log", *words]
            command += ["--", "--grpc-server-addr", _GRPC, "--cpu-port", 510]
            self._start("switch", self._switch, command, self.folder / "bmv2-log.txt")
            return
        words = [word for index in range(self.size) for word in ("--interface", f"s{index}")]
        control = self.folder / "switch"
        command = [PROGRAM, "switch", "serve", *words, "--control", f"unix:{control}"]
        self._start("switch", self._switch, command, control)

    def start_worker(self, index, *, wait=True):
        control = self.folder / f"worker{index}"
        config, speed = self.configs[index], self.speeds[index]
        command = [PROGRAM, "worker", "--interface", "eth0", "--control", f"unix:{control}"]
        command += config.split() if config.startswith("-") else ["--config", config]
        command += ["--speed", speed]
        self._start(f"worker{index}", self._workers[index], command, control, wait=wait)

    def _start(self, name, namespace, command, sign, *, wait=True):
        """Start a process that is ready when a file is there."""
        sign.unlink(missing_ok=True)
        path = os.pathsep.join([str(_TESTS.parent / ".packages"), str(_TESTS)])
        with (self.folder / f"{name}.log").open("ab") as log:
            process = namespace.start(
                *command, stdout=log, stderr=log, cwd=self.folder, env=os.environ | {"PYTHONPATH": path}
            )
        self.processes[name] = process, sign
        if wait:
            self._await(name)

    def _await(self, name):
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
            process.terminate()  # a simulator's files go with its worker
        for process, _ in self.processes.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def p4sgd(self, *words):
        """Start the command line in the lab's folder, with BMv2 in its namespace: sockets that are files need none."""
        command, pipe = [PROGRAM, *map(str, words)], subprocess.PIPE
        options = {"cwd": self.folder, "stdout": pipe, "stderr": pipe, "text": True}
        return self._switch.start(*command, **options) if self.bmv2 else subprocess.Popen(command, **options)

    def document(self, *words):
        """What a command says as JSON; ends the program if it fails."""
        process = self.p4sgd(*words, "--json")
        out, err = process.communicate()
        if process.returncode:
            raise SystemExit(f"{out}{err}")
        return json.loads(out)

    def run(self, *words, status=0):
        """What a command says, see `finish`."""
        return finish(self.p4sgd(*words), status)

    def weights(self, *words):
        """Hash of the weights that a training ends with."""
        return json.loads(self.run("train", *words, "--json")[0])["weights_sha256"]

    def close(self):
        self._stack.close()
