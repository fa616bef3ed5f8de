"""What all tests share: Hypothesis' settings, compiled loops, and the order of the tests."""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does: no test is to fail for that.
settings.register_profile("p4sgd", deadline=None, print_blob=True)
settings.load_profile("p4sgd")

# Some tests fork a process in which others have used gRPC. The handlers of gRPC for that sometimes abort the child.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Hundreds of simulators and commands start, each of which would compile all of Python's modules that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

LONGEST = (
    "host/cli/test_resources_command.py",
    "test_readme.py",
    "build/fpga/test_full_size.py",
    "system/test_rtl_identical.py",
    "system/test_doctor.py",
    "system",
    "conformance",
    "formal",
    "build",
    "hw",
)
"""Files and folders with the longest tests, longest first."""


BEGUN = time.time()

WAVES = os.environ.get("P4SGD_WAVES")
"""File for the waveform of the one test that is selected, a bench (see ``support/bench.py``)."""


COMPILE = """if True:
    import tempfile
    from pathlib import Path
    import numpy as np
    from p4sgd.host.cli.app import main
    from p4sgd.host.data.kernels import add_extremes, add_sums, quantize_scaled
    from p4sgd.host.serve import aggregator
    from p4sgd.hw.spec.config import CONFIGURATIONS
    from p4sgd.sim.emulator import warm_up
    aggregator.warm_up()  # which takes too long for workers that wait for it
    for kind in (np.float32, np.float64):
        rows, zeros = np.zeros((1, 1), kind), np.zeros(1)
        quantize_scaled(rows, np.arange(1), zeros, zeros, 8, False, np.zeros((1, 1), np.uint8))
        add_extremes(rows, np.zeros(1), np.zeros(1), np.zeros(1, np.int32))
        add_sums(rows, zeros, zeros, 31, np.zeros((3, 1), np.int64))
    path = Path(tempfile.mkdtemp(), "data.libsvm")
    path.write_text("1 1:1\\n0 2:1\\n" * 50_000)  # so large that the reader is compiled, too
    words = ["train", str(path), "--epochs", "1", "--l2", "0.01", "--quiet"]
    main(words, standalone_mode=False)
    path.write_text("1 1:1 200:1\\n0 2:1\\n" * 8)
    for config, skip_zeros in (("small", "never"), ("small", "always"), ("sparse", "auto")):
        main([*words, "--workers", "2", "--config", config, "--skip-zeros", skip_zeros], standalone_mode=False)
        warm_up(CONFIGURATIONS[config]())"""


_COMPILING = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin to compile the loops of Numba, while tests are collected: a program that compiles says so.

    That no test is to find, and several processes that compile at the same time would overwrite each other's cache.
    """
    if WAVES and not WAVES.endswith(".fst"):
        raise pytest.UsageError(f"P4SGD_WAVES={WAVES}: waveforms are FST files: call it {Path(WAVES).stem}.fst")
    if WAVES:
        config.option.dist = "no"  # one process for one test, which needs none of these loops
    elif not hasattr(config, "workerinput"):  # a process of pytest-xdist
        config.stash[_COMPILING] = subprocess.Popen([sys.executable, "-c", COMPILE], stdout=subprocess.DEVNULL)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Wait for the loops: no process of pytest-xdist gets a test before."""
    compiling = session.config.stash.get(_COMPILING, None)
    if compiling is not None and compiling.wait() != 0:
        raise subprocess.CalledProcessError(compiling.returncode, compiling.args)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the compilation if there was an error before the first test."""
    compiling = config.stash.get(_COMPILING, None)
    if compiling is not None:
        compiling.kill()
        compiling.wait()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Tell of the waveform."""
    if WAVES and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        is_new = Path(WAVES).exists() and Path(WAVES).stat().st_mtime >= BEGUN
        terminalreporter.write_line(f"waveform in {WAVES}" if is_new else "no waveform: no bench ran")


@pytest.fixture(scope="session", autouse=True)
def own_runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands take this user's local cluster by default: tests are to find none but their own."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("run"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Which loops a test tries is not to depend on how many values those before it had."""
    if (statistics := sys.modules.get("p4sgd.host.data.statistics")) is not None:
        statistics._seen = 0


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores, as many tests wait for other programs."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(trylast=True)  # when tests that are not wanted have been left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest tests begin first, in every process.

    A process that has no tests left takes over some that another would have come to last. Those should be short.
    """
    if WAVES and len(items) > 1:
        raise pytest.UsageError(f"P4SGD_WAVES is a file for one test, not for {len(items)}: {items[0].nodeid}, …")
    order = {Path(__file__).parent / name: index for index, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: min(
            (order[path] for path in (item.path, *item.path.parents) if path in order), default=len(order)
        )
    )
    # pytest-xdist cuts the list into equal shares, one a process: deal the files in turn, and even the shares out.
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for _, file in itertools.groupby(items, key=lambda item: item.path):
        min(shares, key=len).extend(file)
    sizes = [len(items) * (index + 1) // processes - len(items) * index // processes for index in range(processes)]
    surplus = list(itertools.chain.from_iterable(share[size:] for share, size in zip(shares, sizes, strict=True)))
    items.clear()
    for share, size in zip(shares, sizes, strict=True):
        missing = size - len(share)
        items += [*share[:size], *surplus[: max(missing, 0)]]
        del surplus[: max(missing, 0)]
