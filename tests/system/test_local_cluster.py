"""A cluster of processes in UDP on this machine, by p4sgd cluster: without root, without a network of its own."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support.bench import default_seed
from support.command_line import PROGRAM, heed_interrupts, run

from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.serve import local_cluster

_LIMIT_S = 120

KINDS = ("loss", "duplication", "reordering", "change")
FAULTS = [word for kind in KINDS for word in ("--fault", f"link_{kind}=0.02")]


class User:
    """Somebody with a folder for what runs."""

    def __init__(self, folder):
        self.folder = folder
        self.variables = {"XDG_RUNTIME_DIR": str(folder), "COLUMNS": "200"}

    def start(self, *words):
        command, pipe = [PROGRAM, *map(str, words)], subprocess.PIPE
        return subprocess.Popen(
            command,
            env=os.environ | self.variables,
            cwd=self.folder,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )

    def run(self, *words, status=0):
        """What a command prints, on both streams. It runs in this process: others take a second to start."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for variable in self.variables.items():
                patch.setenv(*variable)
            return run(*words, status=status).output

    def document(self, *words):
        return json.loads(self.run(*words, "--quiet", "--json"))

    def weights(self, *words):
        return self.document("train", *words)["weights_sha256"]

    def processes(self):
        """All processes that this user has."""
        mine = f"XDG_RUNTIME_DIR={self.folder}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def await_processes(self, wanted):
        end = time.monotonic() + _LIMIT_S
        while not wanted(len(self.processes())):
            assert time.monotonic() < end, self.processes()
            time.sleep(0.05)

    def await_ended(self):
        """What status prints once the supervisor knows that a process has ended."""
        end = time.monotonic() + _LIMIT_S
        while True:
            with contextlib.suppress(AssertionError):
                return self.run("cluster", "status", "--json", status=1)
            assert time.monotonic() < end
            time.sleep(0.05)

    def close(self):
        self.run("cluster", "down")
        self.await_processes(lambda count: count == 0)  # the supervisor has left its socket, and is about to end


@pytest.fixture
def user(tmp_path):
    with contextlib.closing(User(tmp_path)) as found:
        yield found


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    """Somebody whose cluster runs all the time, also while others start and end theirs."""
    with contextlib.closing(User(tmp_path_factory.mktemp("owner"))) as found:
        said = found.run("cluster", "up", "--workers", "4", "--config", "tiny")
        assert "a cluster of 4 workers is running" in said
        assert "p4sgd train breast_cancer --device cluster\n" in said
        yield found


TRAIN = ("breast_cancer", "--epochs", "2", "--batch", "32", "--scaling", "maxabs")
CLUSTER = ("--device", "cluster")


@pytest.fixture(scope="module")
def emulated(owner):
    """The weights of the emulator, which are those of any number of workers."""
    return owner.weights(*TRAIN, "--workers", "2", "--config", "tiny")


def test_a_healthy_cluster(owner):
    """The doctor and commands of switches find it, nobody else looks in, and there is one at a time."""
    document = owner.document("doctor", *CLUSTER)
    assert document["healthy"]
    settings = [finding["evidence"] for finding in document["findings"] if finding["check"] == "settings"]
    assert all(re.fullmatch(r"127(\.\d+){3}:51[234]\d\d", evidence["address"]) for evidence in settings), settings
    assert owner.document("switch", "status", "--interval", "0") == {"slots": 4096, "places": 8, "jobs": []}
    assert owner.document("switch", "counters")["counters"]["OVERRUNS"] == 0
    folder = owner.folder / "p4sgd"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_socket()} == {0o600}
    before = owner.document("cluster", "status")
    assert "a local cluster is running already: p4sgd cluster down ends it" in owner.run("cluster", "up", status=2)
    assert owner.document("cluster", "status") == before
    names = ["switch", *(f"worker {index}" for index in range(4))]
    assert [(each["name"], each["ended"]) for each in before["members"]] == [(name, None) for name in names]
    # Several classes are a run each on the same samples, whose plan of packets is made once.
    words = ("digits", "--epochs", "1", "--batch", "64", "--lr", "16")
    document = owner.document("train", *words, *CLUSTER)
    assert document["weights_sha256"] == owner.weights(*words, "--workers", "2", "--config", "tiny")
    times = [row["message_times"] for row in document["rows"]]
    assert len(times) == 10
    assert len({(tuple(each["messages"]), each["planning_s"]) for each in times}) == 1


def start_racks(user):
    """A cluster of two racks of two workers, in a network that loses."""
    seed = default_seed() % (1 << 31)
    words = ("--workers", "4", "--racks", "2", "--config", "tiny", "--seed", seed)
    assert "a cluster of 4 workers is running" in user.run("cluster", "up", *words, *FAULTS)


def test_two_levels_of_switches(user, emulated, owner):
    """Weights are those of one level, also where sums are clamped."""
    assert "--racks 5: there are only 4 workers" in user.run("cluster", "up", "--racks", "5", status=2)
    start_racks(user)
    document = user.document("train", *TRAIN, *CLUSTER)
    assert document["weights_sha256"] == emulated
    assert document["packets"]["version"] == 2
    counters = user.document("switch", "counters")
    assert set(counters["parts"]) == {"top", "rack 0", "rack 1"}
    assert all(counters["parts"][f"rack {rack}"]["PARTIALS_TO_PARENT"] for rack in range(2))
    assert counters["counters"]["FULLS_TO_ONE"] > 0, "something was lost"
    signs = np.where(np.arange(64) % 2, 1.0, -1.0)
    np.save(user.folder / "wide.npy", np.column_stack([np.ones((64, 256)) * signs[:, None], signs > 0]))
    options = "--epochs 1 --batch 16 --scaling none --loss squared --lr 1000"
    clamped = (user.folder / "wide.npy", *options.split())
    there, expected = (who.document("train", *clamped, *CLUSTER) for who in (user, owner))
    assert "partial_clamped" in expected["flags"]
    assert (there["weights_sha256"], there["flags"]) == (expected["weights_sha256"], expected["flags"])


@pytest.mark.slow
def test_what_is_killed_in_two_levels(user, owner):
    """The others take over what a worker had; a run whose rack lost its switch goes on when that is back."""
    start_racks(user)
    findings = user.document("doctor", *CLUSTER)["findings"]
    assert [each["result"] for each in findings if each["check"] == "rack"] == ["passed"] * 2
    members = {each["name"]: each for each in user.document("cluster", "status")["members"]}
    training = user.start(
        "train", *TRAIN, *CLUSTER, "--epochs", "40", "--tolerance", "0", "--checkpoint", "c", "--json"
    )

    def await_checkpoint(before):
        end = time.monotonic() + _LIMIT_S
        while not (path := user.folder / "c").exists() or path.stat().st_ino == before:
            assert time.monotonic() < end
            time.sleep(0.02)
        return path.stat().st_ino

    first = await_checkpoint(None)
    os.kill(members["worker 3"]["pid"], signal.SIGKILL)
    assert "is trained by 3 workers instead of 4: worker 3 at" in training.stderr.readline()
    await_checkpoint(first)
    os.kill(members["rack 0"]["pid"], signal.SIGKILL)
    said = training.communicate(timeout=_LIMIT_S)[1]
    assert training.returncode == 1, said
    assert "rack 0 was killed (SIGKILL); to start it again: p4sgd switch serve" in said
    for process in [user.start(*shlex.split(members[name]["command"])[1:]) for name in ("rack 0", "worker 3")]:
        process.stderr.readline()
    expected = owner.weights(*TRAIN, "--epochs", "40", "--tolerance", "0", "--workers", "1", "--config", "tiny")
    assert user.weights("--resume", "c") == expected
    assert user.document("switch", "status", "--interval", "0")["jobs"] == []


def test_weights_are_the_emulators_in_a_network_that_loses(user, owner, emulated):
    """With a sparse worker, beside a cluster of somebody else; then a worker is killed."""
    seed = default_seed() % (1 << 31)
    words = ("--workers", "3", "--sparse-workers", "1", "--config", "tiny", "--seed", seed, *FAULTS)
    user.run("cluster", "up", *words)
    assert user.weights(*TRAIN, *CLUSTER) == emulated
    counters = user.document("switch", "counters")["counters"]
    assert counters["FULLS_TO_ONE"] > 0, "something was lost"
    assert counters["DROPPED_CHECK"] > 0, "and changed"
    os.kill(user.document("cluster", "status")["members"][2]["pid"], signal.SIGKILL)
    shown = json.loads(user.await_ended())["members"]
    assert [each["ended"] for each in shown] == [None, None, "was killed (SIGKILL)", None]
    assert [each["config"] for each in shown] == [None, "tiny", "tiny", "sparse --set slots=4"]
    assert "running already, but worker 1 was killed (SIGKILL)" in user.run("cluster", "up", status=2)
    command = shown[2]["command"]
    for words in (("train", *TRAIN), ("doctor",)):
        said = user.run(*words, *CLUSTER, status=2)
        assert re.search(r"worker 1 at unix:\S+/worker1 is not there .*", said)
        assert f"worker 1 was killed (SIGKILL); to start it again: {command}" in said
    assert f"start worker 1 again: {command}" in user.run("cluster", "status", status=1)
    assert "--fault link_loss=0.02" in command, "with all that it was started with"
    again = user.start(*shlex.split(command)[1:])
    assert "a worker of configuration tiny" in again.stderr.readline()
    shown[2] |= {"pid": again.pid, "ended": None}
    assert user.document("cluster", "status")["members"] == shown, "one of the cluster again"
    assert user.weights(*TRAIN, *CLUSTER) == emulated
    os.kill(shown[0]["pid"], signal.SIGKILL)
    user.await_ended()
    said = user.run("switch", "status", status=2)
    assert re.search(r"/switch is not there .*: start it: p4sgd switch serve --interface udp:127\.", said)
    assert "switch was killed (SIGKILL) before" in user.run("cluster", "down")
    assert again.wait(_LIMIT_S) == 0
    user.await_processes(lambda count: count == 0)
    assert owner.weights(*TRAIN, *CLUSTER) == emulated


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_start_that_is_broken_off_leaves_nothing(user, number):
    for least in (4, 4, 4, 3, 3, 3, 2, 2, 2, 2):  # it, the supervisor and members
        starter = user.start("cluster", "up", "--workers", "2", "--config", "tiny")
        user.await_processes(lambda count, least=least: count >= least)
        starter.send_signal(number)
        starter.communicate(timeout=_LIMIT_S)
        if starter.returncode != 0:
            break
        user.run("cluster", "down")  # on a busy machine all may have answered before the signal came
    assert starter.returncode != 0
    user.await_processes(lambda count: count == 0)
    assert "no local cluster is running" in user.run("cluster", "status")


def test_members_end_with_a_supervisor_that_is_killed(user, emulated):
    user.run("cluster", "up", "--workers", "1", "--config", "tiny")
    members = {each["pid"] for each in user.document("cluster", "status")["members"]}
    (supervisor,) = set(user.processes()) - members
    os.kill(supervisor, signal.SIGKILL)
    user.await_processes(lambda count: count == 0)
    assert "no local cluster is running" in user.run("cluster", "down")
    assert "--device cluster needs --cluster FILE.toml" in user.run("train", *TRAIN, *CLUSTER, status=2)
    (user.folder / "mine.toml").write_text((user.folder / "p4sgd/cluster.toml").read_text() + "share = 3\n")
    user.run("cluster", "up", "mine.toml", "--config", "tiny")  # what the killed ones have left is no hindrance
    assert user.document("cluster", "status")["file"] == str(user.folder / "mine.toml")
    assert user.weights(*TRAIN, *CLUSTER) == emulated
    (user.folder / "p4sgd" / "control").unlink()  # as when the user has logged out: nobody could end it
    user.await_processes(lambda count: count == 0)


def write_cluster(folder, switch="127.0.0.1:51200", workers=("unix:w0",)):
    text = f'[aggregator]\nkind = "socket"\ncontrol = "unix:s"\nudp = "{switch}"\n'
    for index, control in enumerate(workers):
        text += f'[[workers]]\ncontrol = "{control}"\nport = 0\nudp = "127.0.0.1:{51201 + index}"\n'
    (folder / "mine.toml").write_text(text)


@pytest.mark.parametrize(
    ("change", "words", "says"),
    [
        (
            {"workers": ["tcp:127.0.0.1:9"]},
            (),
            r"mine\.toml: .* starts processes with control = \"unix:PATH\", not tcp:",
        ),
        ({}, ("--sparse-workers", "2"), "--sparse-workers 2: there are only 1 workers"),
        ({}, ("--set", "slots=7"), "--set slots=7: slots must be a power of two, not 7"),
        ({}, ("--workers", "2"), "--workers: mine.toml says which workers there are"),
        ({}, ("--racks", "2"), "--racks: mine.toml says which racks there are"),
    ],
    ids=["tcp", "sparse", "slots", "workers", "racks"],
)
def test_mistakes(user, change, words, says):
    write_cluster(user.folder, **change)
    assert re.search(says, user.run("cluster", "up", "mine.toml", *words, status=2))
    assert user.processes() == []


def test_what_is_taken_or_cannot_be_used(user, owner):
    """A worker that runs already must not be taken for the one that is to be started."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.77.1.1", 51240))
        write_cluster(user.folder, switch="127.77.1.1:51240")
        said = user.run("cluster", "up", "mine.toml", status=1)
    says = r"switch has ended with status 2: .*udp:127\.77\.1\.1:51240: another program uses port 51240"
    assert re.search(says, said)
    control = owner.document("cluster", "status")["members"][1]["control"]
    write_cluster(user.folder, workers=[control])
    assert f"{control}: another program serves there" in user.run("cluster", "up", "mine.toml", status=2)
    folder = user.folder / "p4sgd"
    folder.chmod(0o755)
    assert f"others may look into it: chmod 700 {folder}" in user.run("cluster", "up", status=2)
    folder.chmod(0o700)
    (folder / "worker0.log").unlink(missing_ok=True)
    (folder / "worker0.log").mkdir()
    said = user.run("cluster", "up", "--config", "tiny", status=2)
    assert f"{folder}/worker0.log: cannot write: Is a directory" in said
    assert user.processes() == []
    deep = user.folder / ("x" * 100)
    deep.mkdir()
    user.variables |= {"XDG_RUNTIME_DIR": str(deep)}
    said = user.run("cluster", "up", status=2)
    assert f"unix:{deep}/p4sgd/control: a socket's path has at most 107 bytes: choose a shorter one" in said
    assert "no local cluster is running" in user.run("cluster", "status")


def test_one_that_does_not_answer_is_not_taken_for_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(local_cluster, "_TIMEOUT_S", 0.1)
    with contextlib.closing(ControlListener(ControlAddress(path=local_cluster.make_folder() / local_cluster.SOCKET))):
        for does in (local_cluster.find_local_cluster, local_cluster.end_local_cluster):
            with pytest.raises(P4sgdError, match=r"^the local cluster has not answered for 0\.1 s$"):
                does()
    assert local_cluster.find_local_cluster() is None
