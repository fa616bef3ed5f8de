"""Cluster files, right and wrong: every mistake names the file and the key."""

import hashlib
from pathlib import Path

import pytest

from p4sgd.host.aggregators.cluster_file import (
    AggregatorAddress,
    Cluster,
    NetworkOptions,
    SwitchPort,
    Tls,
    WorkerAddress,
    read_cluster,
)
from p4sgd.host.errors import UserError

SOCKET = '[aggregator]\nkind = "socket"\ncontrol = "unix:/lab/a"\n'
BMV2 = '[aggregator]\nkind = "bmv2"\ncontrol = "127.0.0.1:9559"\n'
WORKER = '[[workers]]\ncontrol = "unix:/lab/w0"\nport = 0\n'
PORT = "[[aggregator.ports]]\nport = 40\n"
STATION = 'stations = ["02:00:00:00:00:01"]\n'
BOARD = '[[workers]]\ncontrol = "xrt:3B:00.1"\nxclbin = "a.xclbin"\nport = 0\n'


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "cluster.toml"
        path.write_text(text)
        return read_cluster(path)

    return read


def test_equal_addresses_on_several_machines(read):
    found = read(
        SOCKET + BOARD + 'host = "node1"\n' + BOARD + 'host = "node2"\n' + WORKER + WORKER + 'host = "node2"\n'
    )
    assert [worker.host for worker in found.workers] == ["node1", "node2", "", "node2"]
    assert found.workers[0].control == found.workers[1].control


def test_ports_for_other_traffic(read):
    text = PORT + 'stations = ["aa:BB:cc:00:00:01", "00:00:00:00:00:02"]\n[[aggregator.ports]]\nport = 0\n'
    expected = (SwitchPort(40, (0xAABB_CC00_0001, 2)), SwitchPort(0))
    for aggregator in (BMV2, BMV2.replace("bmv2", "tofino")):
        assert read(aggregator + text + WORKER).aggregator.ports == expected
    assert read(BMV2 + WORKER).aggregator.ports == ()
    assert read(BMV2 + WORKER + text.replace("40", "510")).aggregator.ports[0].port == 510


def test_workers_have_addresses_of_their_own(read, monkeypatch):
    """The addresses depend on machine and control address, not on the order in the file."""
    first = read(SOCKET + BOARD + BOARD.replace("3B", "3c") + WORKER + WORKER.replace("w0", "w1"))
    macs = [worker.local_mac for worker in first.workers]
    assert len(set(macs)) == 4
    assert {mac >> 40 for mac in macs} == {0x02}, "administered locally, of a single host"
    again = read(SOCKET + WORKER.replace("w0", "w1").replace("port = 0", "port = 5") + BOARD)
    assert [worker.local_mac for worker in again.workers] == [macs[3], macs[0]]
    named = read(SOCKET + BOARD + 'host = "node7"\n' + BOARD)
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    assert named.workers[0].local_mac not in macs
    (there,) = read(SOCKET + BOARD).workers
    assert there.local_mac == named.workers[0].local_mac, "whether the file names the machine or not"
    (told,) = read(SOCKET + WORKER + 'mac = "02:00:00:00:00:07"\n').workers
    assert told.local_mac == 0x0200_0000_0007
    # Jobs left by an earlier version are known by these addresses, so they must never change.
    hashed = hashlib.sha256(b"node1 unix:/lab/w0").hexdigest()
    assert f"{WorkerAddress(0, 'unix:/lab/w0', host='node1').local_mac:012x}" == f"02{hashed[:10]}"


def test_addresses_of_relative_sockets(tmp_path, monkeypatch):
    """Two users' files are alike, each in the user's own folder; there may be many ways to name a folder."""

    def mac(name):
        (worker,) = read_cluster(Path(name)).workers
        return worker.local_mac

    macs = []
    for user in ("alice", "bob"):
        folder = tmp_path / user
        folder.mkdir()
        (folder / "cluster.toml").write_text(SOCKET + WORKER.replace("/lab/w0", "w0"))
        monkeypatch.chdir(folder)
        macs.append(mac("cluster.toml"))
    assert macs[0] != macs[1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("bob")
    for name in ("bob/cluster.toml", "alice/../bob/cluster.toml", "link/cluster.toml", tmp_path / "bob/cluster.toml"):
        assert mac(name) == macs[1], name


def test_a_file_with_all_keys(read, tmp_path):
    text = BMV2 + 'mac = "02:50:34:53:47:FE"\ndevice_id = 3\nprogram = "out"\n'
    text += 'tls = { ca = "ca.pem", certificate = "/c.pem", key = "k.pem" }\n'
    text += "[network]\nresend_us = 10\nresends = 0\ndoublings = 15\nrs_fec = false\n"
    text += WORKER + '[[workers]]\ncontrol = "tcp:host:99"\nport = 0\nshare = 2\nlate = true\nhost = "there"\n'
    text += '[[workers]]\ncontrol = "unix:w2"\nport = 31\nmac = ""\n'
    assert read(text) == Cluster(
        AggregatorAddress(
            "bmv2",
            "127.0.0.1:9559",
            mac=0x0250_3453_47FE,
            device_id=3,
            tls=Tls(tmp_path / "ca.pem", Path("/c.pem"), tmp_path / "k.pem"),
            program=tmp_path / "out",
        ),
        (
            WorkerAddress(0, "unix:/lab/w0"),
            WorkerAddress(0, "tcp:host:99", share=2.0, late=True, host="there"),
            WorkerAddress(31, f"unix:{tmp_path}/w2"),
        ),
        NetworkOptions(10, 0, 15, rs_fec=False),
    )
    assert read(SOCKET + WORKER).network == NetworkOptions(2000, 100, 6, rs_fec=True), "without any"


RACK = '[[racks]]\nkind = "socket"\ncontrol = "unix:/lab/rack"\nmac = "02:50:34:53:47:f0"\nport = 1\nuplink = 2\n'
FPGA = 'kind = "fpga"\ncontrol = "xrt:{}"\nxclbin = "a.xclbin"\n'
MANY = "".join(WORKER.replace("w0", f"w{index}") for index in range(33))
BEHIND_RACK = "".join(WORKER.replace("w0", f"w{index}") + "rack = 0\n" for index in range(32))


def test_boards_as_aggregators_of_both_levels(read):
    """Each has cables to its own workers, and between the levels; boards may have workers, too."""
    rack = "[[racks]]\n" + FPGA.format("3B:00.1") + 'mac = "02:50:34:53:47:f0"\nport = 1\nuplink = 2\n'
    behind = WORKER.replace("w0", "w1").replace("port = 0", "port = 7") + "rack = 0\n"
    cluster = read("[aggregator]\n" + FPGA.format("3C:00.1") + rack + WORKER + BOARD + "rack = 0\n" + behind)
    assert cluster.ports_of(cluster.aggregator) == {0, 1}
    assert cluster.ports_of(cluster.racks[0]) == {0, 2, 7}


UDP_WORKER = WORKER + 'udp = "10.0.0.2:51207"\n'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ".*`aggregator`"),
        ("[aggregator", "not a TOML file"),
        ("more = 1\n" + SOCKET + WORKER, ".*`more`"),
        ("aggregator = 1", "aggregator: Expected"),
        (SOCKET.replace("socket", "cisco") + WORKER, "aggregator.kind: .*cisco"),
        (SOCKET.replace("unix:/lab/a", "a:1") + WORKER, "aggregator: 'a:1' is not a control address"),
        (BMV2.replace("127.0.0.1:9559", "a") + WORKER, "aggregator: the switch's gRPC server: 'a'"),
        (BMV2.replace("bmv2", "fpga") + WORKER, "aggregator: .* is no board: give"),
        ('[aggregator]\nkind = "fpga"\ncontrol = "xrt:3b:00.1"\n' + WORKER, "aggregator: `xclbin` is missing"),
        (SOCKET + "device_id = 1\n" + WORKER, "aggregator: `device_id` is not for the kind socket"),
        (BMV2 + 'udp = "10.0.0.1"\n' + WORKER, "aggregator: `udp` is not for the kind bmv2"),
        (SOCKET + 'mac = "02-50"\n' + WORKER, "aggregator.mac: must be a MAC address"),
        (SOCKET + 'mac = "03:50:34:53:47:ff"\n' + WORKER, "aggregator.mac: .* is the address of a group"),
        (SOCKET + 'udp = "host"\n' + WORKER, "aggregator.udp: 'host' is not an IPv4 address such as 10.0.0.1"),
        (SOCKET + 'udp = "10.0.0.1"\nmac = "02:50:34:53:47:ff"\n' + WORKER, "aggregator: `mac` is for Ethernet"),
        (
            BMV2.replace("bmv2", "tofino") + 'tls = { ca = "a" }\n' + WORKER,
            "aggregator: `tls` is not for the kind tofino",
        ),
        (BMV2 + "device_id = -1\n" + WORKER, "aggregator.device_id: .*>= 0"),
        (BMV2 + 'tls = { ca = "a", key = "b" }\n' + WORKER, "aggregator.tls: `certificate` and `key`"),
        (BMV2 + PORT.replace("40", "511") + WORKER, "aggregator: `ports`: port 511 must be below 511"),
        (BMV2.replace("bmv2", "tofino") + PORT.replace("40", "288") + WORKER, "aggregator: `ports`: .*below 288"),
        (BMV2 + PORT * 2 + WORKER, "aggregator: `ports`: port 40 is there twice"),
        (BMV2 + PORT + 'stations = ["a"]\n' + WORKER, r"aggregator.ports\[0\].stations\[0\]: must be a MAC address"),
        (BMV2 + PORT + STATION + PORT.replace("40", "41") + STATION + WORKER, "aggregator: `ports`: 02:00:00:00:00:01"),
        (SOCKET + WORKER * 993, "workers: Expected"),
        (SOCKET + MANY, r"aggregator: it adds up 32 workers or racks, not 33: use more racks"),
        (SOCKET + WORKER + '[[workers]]\ncontrol = "unix:a"\nport = 32', r"workers\[1\].port: "),
        (SOCKET + WORKER + "prot = 1\n", r"workers\[0\]: .*`prot`"),
        (SOCKET + WORKER + "share = 0\n", r"workers\[0\].share: "),
        (SOCKET + WORKER + 'xclbin = "a"\n', r"workers\[0\]: `xclbin` is for boards"),
        (SOCKET + BOARD + "late = true\n", r"workers\[0\]: only worker processes can be `late`"),
        (SOCKET + BOARD.replace('xclbin = "a.xclbin"', ""), r"workers\[0\]: `xclbin` is missing"),
        (
            SOCKET + BOARD.replace("xrt:3B:00.1", "xdma:0"),
            r"workers\[0\]: `xclbin` is not for xdma:0, .* `address_map`",
        ),
        (
            SOCKET + BOARD + 'address_map = "a.json"\n',
            r"workers\[0\]: `address_map` is not for xrt:.* `xclbin`",
        ),
        (SOCKET + WORKER + 'address_map = "a.json"\n', r"workers\[0\]: `address_map` is for boards"),
        (SOCKET + BOARD.replace("xrt:3B:00.1", "xdma:x"), r".*'xdma:x' is no board: give xdma:N"),
        *(
            (SOCKET + BOARD.replace("3B:00.1", text), r"workers\[0\].control: .*no board")
            for text in ("3b.1", "0/0", "0/x")
        ),
        (SOCKET + WORKER + 'udp = "10.0.0.2:80"\n', r"workers\[0\].udp: '80' is not a port for packets"),
        (SOCKET + UDP_WORKER + 'mac = "02:50:34:53:47:f0"\n', r"workers\[0\]: `mac` is for Ethernet"),
        (SOCKET + BOARD + 'udp = "10.0.0.2"\n', r"workers\[0\]: `udp` is for worker processes"),
        (SOCKET + UDP_WORKER, r"workers\[0\]: packets travel in UDP or not"),
        (SOCKET + 'udp = "10.0.0.2"\n' + WORKER, r"workers\[0\]: packets travel in UDP or not"),
        (
            SOCKET + 'udp = "10.0.0.2:51207"\n' + UDP_WORKER,
            r"workers\[0\]: 10.0.0.2:51207 is also that of the aggregator",
        ),
        (SOCKET + WORKER + 'mac = "02:50:34:53:47:ff"\n', r"workers\[0\]: 02:50:34:53:47:ff is also that of the agg"),
        (
            SOCKET + BOARD + BOARD.replace("3B", "0000:3b"),
            r"workers\[1\]: xrt:0000:3b:00.1 is also that of workers\[0\]",
        ),
        (SOCKET + BOARD.replace("3B:00.1", "0") + BOARD.replace("3B:00.1", "0/1"), r"workers\[1\]: xrt:0 is also that"),
        (SOCKET + RACK.replace("port = 1", "port = 32") + WORKER, r"racks\[0\].port: "),
        (SOCKET + RACK.replace("socket", "tofino") + WORKER, r'racks\[0\]: .*"fpga" or "bmv2", not "tofino"'),
        (SOCKET + RACK.replace("/lab/rack", "/lab/a") + WORKER, r"racks\[0\]: .*unix:.* is also that of the agg"),
        (SOCKET + RACK.replace("f0", "ff") + WORKER, r"racks\[0\]: 02:50:34:53:47:ff is also that of the aggregator"),
        (SOCKET + 'udp = "10.0.0.2"\n' + RACK + UDP_WORKER, r"racks\[0\]: packets travel in UDP or not"),
        (SOCKET + RACK + WORKER + "rack = 1\n", r"workers\[0\]: there is no racks\[1\]: the file has 1, from 0 on"),
        (SOCKET + RACK + BEHIND_RACK, r"racks\[0\]: a rack has at most 31 workers"),
        (SOCKET + "[network]\nresend_us = 0\n" + WORKER, "network.resend_us: .*>= 1"),
        (SOCKET + "[network]\ndoublings = 16\n" + WORKER, "network.doublings: .*<= 15"),
        (
            SOCKET + f'[[workers]]\ncontrol = "unix:{"x" * 108}"\nport = 0\n',
            r"workers\[0\].control: unix:x*: a socket's path",
        ),
    ],
)
def test_mistakes_are_named_with_file_and_key(read, tmp_path, text, names):
    with pytest.raises(UserError, match=f"^{tmp_path}/cluster.toml: {names}"):
        read(text)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="cannot read the cluster file: No such file"):
        read_cluster(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(UserError, match="not a TOML file"):
        read_cluster(tmp_path / "binary")
