"""`p4sgd generate` writes what `p4sgd.build` makes and says where it is."""

import json

import pytest
from click.testing import CliRunner

from p4sgd.build.generate import verilog
from p4sgd.host.cli.app import main
from p4sgd.host.configuration import named_config
from p4sgd.hw.spec.config import NamedConfig

NUMBERS = ["--ports", "2", "--build-id", "5"]


def run(*words):
    done = CliRunner().invoke(main, ["generate", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("changes", [{}, {"slots": 32, "lanes": 8}, {"engines": 3, "board": "u50"}], ids=str)
def test_the_command_of_a_header_names_the_configuration_again(changes):
    named = NamedConfig.of("small", **changes)
    _, name, *settings = named.options
    assert named_config(name, settings[1::2]) == named
    assert named_config("u280", [f"base={name}", *settings[1::2]]) == named


@pytest.mark.slow
def test_files_and_json(tmp_path):
    out = tmp_path / "out"
    document = json.loads(run("--config", "tiny", *NUMBERS, "--out", out, "--json").stdout)
    assert sorted(document["files"]) == sorted(path.name for path in out.iterdir())
    assert document["file_list"] == str(out / "files.f")
    verilog.generate(NamedConfig.of("tiny"), tmp_path / "direct", ports=2, build_id=5)
    for path in out.iterdir():
        assert path.read_bytes() == (tmp_path / "direct" / path.name).read_bytes(), path.name
    header = (out / "p4sgd_registers.h").read_text().splitlines()[0]
    assert f"`p4sgd generate --config tiny {' '.join(NUMBERS)} --out DIR`" in header
