"""`p4sgd generate` writes what `p4sgd.build` makes and says where it is."""

import json
import re

import pytest
from click.testing import CliRunner

from p4sgd.build.generate.verilog import generate
from p4sgd.host.cli.app import main


def run(*words):
    done = CliRunner().invoke(main, ["generate", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.slow
def test_files_and_json(tmp_path):
    out = tmp_path / "out"
    document = json.loads(run("--config", "tiny", "--ports", 4, "--build-id", 9, "--out", out, "--json").stdout)
    assert sorted(document["files"]) == sorted(path.name for path in out.iterdir())
    assert document["file_list"] == str(out / "files.f")
    generate("tiny", tmp_path / "direct", ports=4, build_id=9)
    for path in out.iterdir():
        assert path.read_bytes() == (tmp_path / "direct" / path.name).read_bytes(), path.name


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[], ["--ports", "2", "--build-id", "5", "--udp"]])
def test_generated_files_name_a_command_that_makes_them(tmp_path, numbers):
    """The command in a file's first line, with a folder for DIR, writes the same file again."""
    told = run("--config", "tiny", *numbers, "--out", tmp_path / "out").stdout
    assert "tops p4sgd_worker and p4sgd_aggregator" in told
    header = tmp_path / "out" / "p4sgd_registers.h"
    command = re.search(r"`p4sgd generate (.*)`", header.read_text().splitlines()[0])[1]
    run(*command.replace("DIR", str(tmp_path / "again")).split(), "--quiet")
    for path in (tmp_path / "out").iterdir():
        assert path.name in told
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
