"""`p4sgd switch deploy` loads a switch, or says what is wrong in one line."""

import json

import pytest
from click.testing import CliRunner
from support.p4 import Program
from support.p4_switch import with_sizes
from support.p4runtime_server import P4RuntimeServer

from p4sgd.host.cli.app import main
from p4sgd.hw.spec.aggregator import AggregatorConfig

WORKERS = "".join(f'[[workers]]\ncontrol = "unix:w{port}"\nport = {port}\n' for port in (4, 2))


@pytest.fixture
def server(tmp_path):
    sources = with_sizes(tmp_path / "sources", AggregatorConfig(slots=16, jobs=2))
    running = P4RuntimeServer(Program(sources / "p4sgd_v1model.p4"), has_pipeline=False)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"target": "bmv2"}')
    (folder / "p4sgd.json").write_text("{}")
    (folder / "p4sgd.p4info.txtpb").write_text(str(running.info))
    yield running
    running.stop()


def run(folder, aggregator, *more):
    file = folder / "cluster.toml"
    file.write_text(f"[aggregator]\n{aggregator}\n{WORKERS}")
    return CliRunner().invoke(main, ["switch", "deploy", "--cluster", str(file), *more])


def test_loads_a_switch(server, tmp_path):
    text = f'kind = "bmv2"\ncontrol = "{server.address}"\nprogram = "program"\nmac = "02:00:00:00:00:01"'
    done = run(tmp_path, text, "--json")
    assert done.exit_code == 0, done.output
    expected = {"switch": server.address, "slots": 16, "jobs": 2, "ports": [2, 4], "stations": {}}
    assert json.loads(done.stdout) == {"switches": [expected]}
    assert server.config.p4_device_config == b"{}"
    assert server.groups == {16: [2, 4]}
    assert server.program.tables["own"].entries == {(): ("set_mac", [0x0200_0000_0001])}


def test_loads_the_switch_of_a_rack(server, tmp_path):
    """The top one is a program; frames of other protocols go up and down, too."""
    rack = f'[[racks]]\nkind = "bmv2"\ncontrol = "{server.address}"\nmac = "02:00:00:00:00:01"\nport = 0\nuplink = 7\n'
    text = f'kind = "socket"\ncontrol = "unix:top"\n{rack}program = "program"'
    behind = f"{WORKERS}rack = 0"  # the last one
    file = tmp_path / "cluster.toml"
    file.write_text(f"[aggregator]\n{text}\n{behind}\n")
    done = CliRunner().invoke(main, ["switch", "deploy", "--cluster", str(file), "--json"])
    assert done.exit_code == 0, done.output
    assert [(each["switch"], each["ports"]) for each in json.loads(done.stdout)["switches"]] == [
        (server.address, [2, 7])
    ]
    assert server.program.tables["own"].entries == {(): ("set_mac", [0x0200_0000_0001])}


def test_other_traffic_has_further_ports(server, tmp_path):
    """As the file says at the time: what it does not name any more is taken back."""
    text = f'kind = "bmv2"\ncontrol = "{server.address}"\nprogram = "program"\n'
    more = '[[aggregator.ports]]\nport = 40\nstations = ["aa:bb:cc:00:00:01"]\n[[aggregator.ports]]\nport = 2'
    frame = bytes.fromhex("aabbcc000001 020000000002 0800") + bytes(46)
    for written, ports, stations, expected in (
        (text + more, [2, 4, 40], {"aa:bb:cc:00:00:01": 40}, [40]),
        (text, [2, 4], {}, [4]),
    ):
        done = run(tmp_path, written, "--json")
        assert done.exit_code == 0, done.output
        (document,) = json.loads(done.stdout)["switches"]
        assert (document["ports"], document["stations"]) == (ports, stations)
        assert server.groups == {16: ports}
        assert [port for port, _ in server.forward(frame, 2)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "bmv2"\ncontrol = "localhost:1"', "aggregator.program"),
        ('kind = "bmv2"\ncontrol = "localhost:1"\nprogram = "nothing"', "nothing: not made by"),
        ('kind = "tofino"\ncontrol = "localhost:1"', "bfrt_grpc"),
        ('kind = "socket"\ncontrol = "unix:x"', "no program to load"),
        ('kind = "bmv2"\ncontrol = "127.0.0.1:1"\nprogram = "program"', "127.0.0.1:1 cannot be reached"),
    ],
)
def test_what_cannot_be_loaded(server, tmp_path, text, message):
    done = run(tmp_path, text)
    assert done.exit_code == (1 if "reached" in message else 2), done.output
    (line,) = done.stderr.splitlines()
    assert message in line


def test_p4info_that_is_none(server, tmp_path):
    (tmp_path / "program" / "p4sgd.p4info.txtpb").write_text("nonsense {")
    done = run(tmp_path, f'kind = "bmv2"\ncontrol = "{server.address}"\nprogram = "program"')
    assert (done.exit_code, "p4sgd.p4info.txtpb" in done.stderr) == (2, True)
