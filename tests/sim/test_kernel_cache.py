"""The emulator needs no folder that it can write, and says when it compiles its loops, which Ctrl-C may interrupt."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

COMPILING = "compiling the loops: some seconds, once on this machine\n"

PENALTIES = ("", " --l2 0.01", " --l1 0.001 --staleness 1")


def add(tmp_path, folder, before="", after=""):
    """Call compiled functions in a fresh process; returns what was logged."""
    (tmp_path / "loops.py").write_text("""if True:
        from pathlib import Path
        from p4sgd.sim import compiled as module
        from p4sgd.sim.compiled import compiled

        module._SIM, module._SPEC = Path("sim"), Path("spec")

        @compiled("the loops")
        def inner(a, b):
            return a + b

        @compiled("the loops", fastmath=True)
        def add(a, b):
            return inner(a, b)""")
    program = f"""if True:
        import logging, resource, sys
        logging.basicConfig(format="%(message)s", level="INFO")
        from loops import add
        {before}
        assert add(1, 2) == 3 and add(1.5, 2) == 3.5
        {after}"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


DAMAGES = {
    **{f"cut to {kept}": lambda content, kept=kept: content[:kept] for kept in (0, 1, 31, 32, 33, 1000)},
    "cut at the end": lambda content: content[:-1],
    "another byte": lambda content: content[:-50] + bytes([content[-50] ^ 1]) + content[-49:],
    "random": lambda content: np.random.default_rng(1).bytes(len(content)),
    "Numba's own": lambda content: pickle.dumps("0.0") + content,
}


def test_damaged_files_are_compiled_again(tmp_path):
    folder = tmp_path / "cache"
    add(tmp_path, folder)
    files = {file: file.read_bytes() for file in folder.rglob("*.nbc")}
    os.umask(mask := os.umask(0))
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666 & ~mask}, "who gives up privileges reads them too"
    damages = list(DAMAGES.values())
    damages += damages[: -len(damages) % len(files)]
    while damages:  # all files: who reads a function needs none of those that it calls
        damaged = {file: damages.pop()(content) for file, content in files.items()}
        for file, content in damaged.items():
            file.write_bytes(content)
        assert add(tmp_path, folder) == COMPILING
        assert set(folder.rglob("*.nbc")) == set(files)
        assert all(file.read_bytes() != content for file, content in damaged.items()), "each is written again"
    assert add(tmp_path, folder) == ""


def test_who_only_trains_imports_nothing_to_compile_with(tmp_path):
    """Loops that make arrays would import some of it when they are loaded."""
    random = np.random.default_rng(6)
    labels = random.integers(0, 2, 64)
    np.savez(tmp_path / "dense.npz", X=random.normal(size=(64, 4)), y=labels)
    features = [" ".join(f"{column}:1" for column in range(1 + sample, 1000, 100)) for sample in range(64)]
    lines = [f"{label} {text}\n" for label, text in zip(labels, features, strict=True)]
    (tmp_path / "sparse.libsvm").write_text("".join(lines))
    program = f"""if True:
        import contextlib, sys
        from p4sgd.host.cli.app import main

        for data in ("dense.npz", "sparse.libsvm"):
            for options in {PENALTIES}:
                with contextlib.suppress(SystemExit):
                    main(["train", data, "--epochs", "1", "--quiet", *options.split()])
                print(data + options, "numba.np.arrayobj" in sys.modules, file=sys.stderr)"""
    command = [sys.executable, "-c", program]
    for _ in range(2):  # the first process compiles, if nobody has yet
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    runs = [f"{data}{penalty}" for data in ("dense.npz", "sparse.libsvm") for penalty in PENALTIES]
    assert done.stderr.splitlines() == [f"{run} False" for run in runs]


def test_compiled_again_if_a_module_beside_has_changed(tmp_path):
    """Whose functions the loops may call; or one of formats and sizes, whose numbers they may have as constants."""
    folder = tmp_path / "cache"
    for room in ("sim/network", "spec"):
        (tmp_path / room).mkdir(parents=True)
    add(tmp_path, folder)
    for module in ("other.py", "sim/other.py", "sim/network/other.py", "spec/sizes.py"):
        (tmp_path / module).write_text("SIZE = 3")
        assert add(tmp_path, folder) == COMPILING
    assert add(tmp_path, folder) == ""


@pytest.mark.parametrize("trouble", ["a full disk", "a folder in the place of a file", "others may write"])
def test_folders_that_cannot_be_used(tmp_path, trouble):
    """A folder in the place of a file keeps out even the superuser, whom permissions do not."""
    folder, before = tmp_path / "cache", ""
    if trouble == "a full disk":
        before = "resource.setrlimit(resource.RLIMIT_FSIZE, (64, -1))"
    else:
        add(tmp_path, folder)
        for file in folder.rglob("*.nbc"):
            if trouble == "others may write":
                file.parent.chmod(0o777)
            else:
                file.unlink()
                file.mkdir()
    first, second = add(tmp_path, folder, before).splitlines(keepends=True)
    assert first == COMPILING
    assert second.startswith(f"cannot keep compiled loops in {folder}")
    assert "set NUMBA_CACHE_DIR" in second


@pytest.mark.parametrize("by", ["SIGINT", "SIGTERM"])
def test_an_interruption_while_llvm_calls_python(tmp_path, by):
    """The exception would be lost there, and nothing be interrupted."""
    (tmp_path / "loops.py").write_text(f"""if True:
        import signal
        from numba.core.codegen import CPUCodeLibrary

        signal.signal(signal.{by}, signal.default_int_handler)
        finish = CPUCodeLibrary._object_compiled_hook

        def interrupted(module, code):
            signal.raise_signal(signal.{by})
            finish(module, code)

        CPUCodeLibrary._object_compiled_hook = interrupted
        from p4sgd.sim.compiled import compiled

        @compiled("the loops")
        def double(a):
            return 2 * a

        try:
            double(1)
        except KeyboardInterrupt:
            print("interrupted")
        assert signal.getsignal(signal.{by}) == signal.default_int_handler
        assert double(1) == 2""")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "loops.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


@pytest.mark.slow
def test_without_a_cache_for_compiled_code(tmp_path):
    """A file in the place of a folder keeps out even the superuser, whom permissions do not."""
    package = tmp_path / "p4sgd"
    for room in ("hw", "sim", "host"):
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".packages" / "p4sgd" / "__init__.py", package)
    for room in ("sim", "host/image"):
        (package / room / "__pycache__").write_text("")
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "PYTHONPATH": str(tmp_path)}
    program = "from p4sgd.sim import parallel; print(parallel.__file__); from p4sgd.host.cli import main; main()"
    command = [sys.executable, "-c", program, "train", "iris:1", "--epochs", "1", "--config", "tiny"]
    done = subprocess.run(command, env=os.environ | nowhere, capture_output=True, text=True, check=False)
    remark = "some seconds in every run; to keep them, set NUMBA_CACHE_DIR to a folder that you may write"
    loops = ("the packing of dense data", "the emulator's loops")
    assert (done.returncode, done.stderr.splitlines()) == (0, [f"compiling {each}: {remark}" for each in loops])
    assert done.stdout.startswith(str(package)), "the copy is meant"
    assert "best model: epoch 1" in done.stdout
