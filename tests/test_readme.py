"""What the READMEs show is true: commands and Python examples run, releases and tables are those of the code.

A block fenced as ```sh holds commands for the reader to run, one a line, joined by ``&&`` where they belong together.
The blocks of a README run in order, each ``p4sgd`` command as written, in one empty folder. Other tests run the
commands of ``ELSEWHERE``, the continuous integration those of ``SETUP``. Any other command is an error, so that none
goes untested; what is not meant to be run belongs into another kind of block (```text, ```console, or indented).
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import commands as all_commands

from p4sgd.build.generate.boards import BOARDS
from p4sgd.host.boards import library
from p4sgd.host.losses import LOSSES
from p4sgd.hw.spec import packet

ROOT = Path(__file__).parents[1]
ROOMS = ("hw", "sim", "host", "build", "tests")
READMES = [
    "README.md",
    *sorted(
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("README.md")
        if "examples" not in path.parts  # whose own test runs them
    ),
]
SETUP = {"python3", "pip", "pytest", "ruff", "mypy", "apt-get", ".ci/run"}
WAVES = "simulate wine:1 --config tiny --workers 1 --waves run.fst --waves-scope worker0 --waves-window 3000:3400"
ELSEWHERE = {
    "build vitis --config u280 --out worker": "build/fpga/test_full_size.py",
    "build check worker": "build/fpga/test_full_size.py",
    "build selftest --config u280 --out selftest": "build/fpga/test_selftest_folder.py",
    "build check selftest": "build/fpga/test_selftest_folder.py",
    "resources --config tiny --unit engine": "host/cli/test_resources_command.py",
    WAVES: "host/cli/test_simulate.py",
    "generate --config small --out verilog": "build/generate/test_generated_verilog.py",
    "build vitis --config tiny --board u280 --out vitis": "build/fpga/test_folders.py",
    "build check vitis": "build/fpga/test_folders.py",
    "build demo heartbeat --out heartbeat": "build/fpga/test_heartbeat.py",
}
"""Commands that take long, and the test that runs each of them."""


def commands(text):
    """The ``p4sgd`` commands of a README's sh blocks, as lists of words."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                if not words:
                    continue
                program = words[0].removeprefix(".venv/bin/")
                if program == "p4sgd":
                    found.append(words[1:])
                else:
                    assert program in SETUP, f"a README shows a command that no test runs: {command.strip()}"
    return found


def cases():
    for name in READMES:
        found = [words for words in commands((ROOT / name).read_text()) if shlex.join(words) not in ELSEWHERE]
        if found:
            simulated = any("rtl" in words or "simulate" in words for words in found)
            yield pytest.param(found, id=name, marks=[pytest.mark.slow] + [pytest.mark.rtl] * simulated)


@pytest.fixture
def ending_clusters():
    """No process is left of a README's commands that fail."""
    yield
    subprocess.run([Path(sys.executable).with_name("p4sgd"), "cluster", "down"], capture_output=True, check=True)


@pytest.mark.parametrize("found", list(cases()))
def test_commands_work(found, tmp_path, ending_clusters):
    program = Path(sys.executable).with_name("p4sgd")
    for words in found:
        command = shlex.join(["p4sgd", *words])
        done = subprocess.run(
            [program, *words],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip() or done.stderr.strip(), f"{command} says nothing"
        if "--timeline" in words:
            (drawing,) = re.findall(
                r"^```\n(worker 0, .*?)^```", (ROOT / "sim/cluster/README.md").read_text(), re.MULTILINE | re.DOTALL
            )
            shown = "\n".join(line.rstrip() for line in done.stdout.splitlines())
            assert drawing in shown, f"sim/cluster/README.md shows another drawing than {command}"


def run_python(readme, folder):
    """Run the Python example of a README in a folder; returns the lines that it prints."""
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / readme).read_text(), re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_estimators_example_works(tmp_path):
    """That of README.md."""
    found, *probabilities = run_python("README.md", tmp_path)
    assert re.fullmatch(r"\{'precision': [248]\} 0\.9\d+", found)
    assert len(probabilities) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["tumours.model"]


def test_the_python_example_works(tmp_path):
    """That of host/README.md; examples in other READMEs are parts of programs."""
    *epochs, last = run_python("host/README.md", tmp_path)
    assert [line.split()[0] for line in epochs] == ["1", "2", "3", "4", "5"]
    assert int(last.split()[0]) in range(1, 6)


def test_releases_of_amd_s_tools_are_stated_once():
    """In host/boards, as in the code."""
    found = {}
    for name in READMES:
        if stated := re.findall(r"(\w+)\s+(20\d\d\.\d)\s+to\s+(20\d\d\.\d)", (ROOT / name).read_text()):
            found[name] = stated
    (releases,) = {board.shell.releases for board in BOARDS.values()}
    xrt = tuple(library.RELEASES.split(" to "))
    assert found == {"host/boards/README.md": [("Vitis", releases[0], releases[-1]), ("XRT", *xrt)]}


def test_the_boards_of_their_page_are_those_of_the_code():
    text = (ROOT / "host/boards/README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(xilinx_\w+)` \| (\d) \| (\d+) GB \|", text, re.MULTILINE)
    assert rows == [
        (name, board.shell.platform, str(len(board.cages)), str(board.hbm.channels * board.hbm.channel_bytes >> 30))
        for name, board in BOARDS.items()
    ]


def test_the_table_of_options_is_that_of_the_command():
    text = (ROOT / "host/training/README.md").read_text().partition("| option |")[2].partition("\n\n")[0]
    train = all_commands()["train"].params
    assert set(re.findall(r"`(--[\w-]+)", text)) <= {flag for param in train for flag in param.opts}
    assert set(LOSSES) <= set(re.findall(r"`(\w+)`", text))


def test_the_packet_of_the_protocol_page_is_that_of_the_specification():
    """Bytes and names of the fields in `p4sgd.hw.spec.packet`, without a gap, and the numbers of the types."""
    text = (ROOT / "hw/net/README.md").read_text()
    plain, keyed = text.split("### Version 2")
    differ = next(field for field in packet.KEYED_FIELDS if field not in packet.FIELDS)
    for part, declared, begin, end in (
        (plain, packet.FIELDS, 0, 8 * packet.FRAME_BYTES),
        (keyed, packet.KEYED_FIELDS, differ.offset_bits, 8 * packet.frame_bytes(0)),
    ):
        known = {field.name: field for field in declared}
        for first, last, cell in re.findall(r"^\| (\d+)(?:–(\d+))? \| (`.*?) \|", part, re.MULTILINE):
            fields = [known[name] for name in re.findall(r"`(\w+)`", cell)]
            after = fields[-1].offset_bits + fields[-1].bits
            assert (fields[0].offset_bits, fields[0].offset_bits // 8, after // 8 - 1) == (
                begin,
                int(first),
                int(last or first),
            )
            begin = after
        assert begin == end
    assert ", ".join(f"{kind.value} {kind.name}" for kind in packet.PacketType) in text


def test_another_test_names_each_command_that_it_runs():
    for command, test in ELSEWHERE.items():
        readmes = [commands((ROOT / name).read_text()) for name in READMES]
        assert shlex.split(command) in itertools.chain(*readmes), f"no README shows {command}"
        source = re.sub(r'"\s+"', "", (ROOT / "tests" / test).read_text())  # one string of several lines
        assert f'"p4sgd {command}"' in source
