"""Cluster files, right and wrong: every mistake names the file and the key."""

import hashlib
from ipaddress import IPv4Address
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
from p4sgd.host.xrt.board import BoardAddress
from p4sgd.hw.spec.udp import address_of

SOCKET = '[aggregator]\nkind = "socket"\ncontrol = "unix:/lab/a"\n'
BMV2 = '[aggregator]\nkind = "bmv2"\ncontrol = "127.0.0.1:9559"\n'
RANK = '[[workers]]\ninterface = "eth0"\nport = 1\n'
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


def test_a_minimal_file(read):
    assert read(SOCKET + WORKER) == Cluster(
        AggregatorAddress("socket", "unix:/lab/a"), (WorkerAddress("unix:/lab/w0", 0),)
    )
    assert Cluster(AggregatorAddress("socket", "x"), ()).network == NetworkOptions(2000, 100, 6)


def test_equal_addresses_on_several_machines(read):
    found = read(
        SOCKET + BOARD + 'host = "node1"\n' + BOARD + 'host = "node2"\n' + WORKER + WORKER + 'host = "node2"\n'
    )
    assert [worker.host for worker in found.workers] == ["node1", "node2", "", "node2"]
    assert found.workers[0].control == found.workers[1].control


def test_ports_for_other_traffic(read):
    text = "[[aggregator.ports]]\nport = 40\n"
    text += 'stations = ["aa:BB:cc:00:00:01", "00:00:00:00:00:02"]\n[[aggregator.ports]]\nport = 0\n'
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
    assert f"{WorkerAddress('unix:/lab/w0', 0, host='node1').local_mac:012x}" == f"02{hashed[:10]}"


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


def test_addresses_in_udp(read):
    cluster = read(
        SOCKET + 'udp = "10.0.0.1"\n' + WORKER + 'udp = "10.0.0.1:51201"\n' + RANK.replace("eth0", "udp:10.0.0.9:51455")
    )
    assert cluster.aggregator.mac == address_of(IPv4Address("10.0.0.1"))
    assert [worker.local_mac for worker in cluster.workers] == [
        address_of(IPv4Address("10.0.0.1"), 51201),
        address_of(IPv4Address("10.0.0.9"), 51455),
    ]
    assert cluster.aggregator.udp
    assert all(worker.udp for worker in cluster.workers)


def test_a_file_with_all_keys(read, tmp_path):
    text = BMV2 + 'mac = "02:50:34:53:47:FF"\ndevice_id = 3\nprogram = "out"\n'
    text += 'tls = { ca = "ca.pem", certificate = "/c.pem", key = "k.pem" }\n'
    text += "[network]\nresend_us = 10\nresends = 0\ndoublings = 15\nrs_fec = false\n"
    text += WORKER + '[[workers]]\ncontrol = "tcp:host:99"\nport = 0\n[[workers]]\ncontrol = "unix:w2"\nport = 31\n'
    assert read(text) == Cluster(
        AggregatorAddress(
            "bmv2",
            "127.0.0.1:9559",
            0x0250_3453_47FF,
            3,
            Tls(tmp_path / "ca.pem", Path("/c.pem"), tmp_path / "k.pem"),
            tmp_path / "out",
        ),
        (WorkerAddress("unix:/lab/w0", 0), WorkerAddress("tcp:host:99", 0), WorkerAddress(f"unix:{tmp_path}/w2", 31)),
        NetworkOptions(10, 0, 15, rs_fec=False),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "aggregator: is missing"),
        ("aggregator = 1", "aggregator: must be a table: [aggregator], not 1"),
        ("[aggregator]\n" + WORKER, "aggregator.kind: is missing"),
        ('[aggregator]\nkind = "cisco"\n' + WORKER, "aggregator.kind: there is no aggregator of kind 'cisco'"),
        ('[aggregator]\nkind = "socket"\n' + WORKER, "aggregator.control: is missing"),
        ('[aggregator]\nkind = "socket"\ncontrol = 5\n' + WORKER, "aggregator.control: must be a text, not 5"),
        ('[aggregator]\nkind = "socket"\ncontrol = "a:1"\n' + WORKER, "aggregator.control: 'a:1' is not a control"),
        ('[aggregator]\nkind = "bmv2"\ncontrol = "a"\n' + WORKER, "aggregator.control: the switch's gRPC server: 'a'"),
        ('[aggregator]\nkind = "fpga"\ncontrol = "a"\n' + WORKER, "aggregator.control: 'a' is no board: give"),
        ('[aggregator]\nkind = "fpga"\ncontrol = "xrt:3b:00.1"\n' + WORKER, "aggregator.xclbin: is missing"),
        (SOCKET + '[[workers]]\ncontrol = "xrt:3b:00.1"\nport = 0\n', "workers[0].xclbin: is missing"),
        (SOCKET + '[[workers]]\ncontrol = "xrt:3b.1"\nport = 0\n', "workers[0].control: 'xrt:3b.1' is no board"),
        (SOCKET + BOARD + BOARD.replace("3B", "0000:3b"), "workers[1].control: xrt:0000:3b:00.1 is also that of"),
        (SOCKET + 2 * (BOARD + 'host = "node1"\n'), "workers[1].control: xrt:0000:3b:00.1 is also that of workers[0]"),
        (SOCKET + WORKER + 'xclbin = "a"\n', "workers[0].xclbin: unknown key; there are interface, control, port"),
        (SOCKET + "device_id = 1\n" + WORKER, "aggregator.device_id: unknown key; there are kind, control, udp, mac"),
        (SOCKET + 'mac = "02-50"\n' + WORKER, "aggregator.mac: must be a MAC address"),
        (SOCKET + 'udp = "host"\n' + WORKER, "aggregator.udp: 'host' is not an IPv4 address such as 10.0.0.1"),
        (SOCKET + WORKER + 'udp = "10.0.0.2:80"\n', "workers[0].udp: '80' is not a port for packets: those are 51200"),
        (SOCKET + 'udp = "10.0.0.1"\nmac = "02:50:34:53:47:ff"\n' + WORKER, "aggregator.mac: is for Ethernet"),
        (SOCKET + WORKER + 'udp = "10.0.0.2"\nmac = "02:50:34:53:47:f0"\n', "workers[0].mac: is for Ethernet: leave"),
        (SOCKET + BOARD + 'udp = "10.0.0.2"\n', "workers[0].udp: is for worker processes: boards need Ethernet"),
        (SOCKET + WORKER + 'udp = "10.0.0.2"\n', "packets travel in UDP or not: give udp to the aggregator and to all"),
        (SOCKET + 'udp = "10.0.0.2"\n' + WORKER, "packets travel in UDP or not: give udp to the aggregator and to all"),
        (SOCKET + 'udp = "10.0.0.2:51207"\n' + WORKER + 'udp = "10.0.0.2:51207"\n', "workers[0].udp: 10.0.0.2:51207"),
        (SOCKET + 'mac = "03:50:34:53:47:ff"\n' + WORKER, "aggregator.mac: 03:50:34:53:47:ff is the address of"),
        (SOCKET + WORKER + 'mac = "01:00:00:00:00:07"\n', "workers[0].mac: 01:00:00:00:00:07 is the address of a"),
        (SOCKET + BOARD + 'mac = "02:00:00:00:00:07"\n' + WORKER + 'mac = "02:00:00:00:00:07"\n', "workers[1].mac:"),
        (SOCKET + WORKER + 'mac = "02:50:34:53:47:ff"\n', "workers[0].mac: 02:50:34:53:47:ff is also that of"),
        (BMV2 + "device_id = -1\n" + WORKER, "aggregator.device_id: must be a whole number, 0 to"),
        (BMV2 + "tls = {}\n" + WORKER, "aggregator.tls.ca: is missing"),
        (BMV2 + 'tls = { ca = "a", key = "b" }\n' + WORKER, "aggregator.tls.certificate: is missing"),
        (BMV2 + 'tls = { ca = "a", cert = "b" }\n' + WORKER, "aggregator.tls.cert: unknown key; there are ca, certif"),
        (SOCKET, "workers: is missing: 1 to 32 tables, each begun with [[workers]]"),
        (SOCKET + WORKER.replace("[[workers]]", "[workers]"), "workers: must be 1 to 32 tables"),
        (SOCKET + WORKER * 33, "workers: must be 1 to 32 tables"),
        (SOCKET + '[[workers]]\ncontrol = "unix:a"\n', "workers[0].port: is missing: a whole number, 0 to 31"),
        (SOCKET + WORKER + '[[workers]]\ncontrol = "unix:a"\nport = 32', "workers[1].port: must be a whole number"),
        (SOCKET + WORKER + "prot = 1\n", "workers[0].prot: unknown key; there are interface, control, port"),
        (SOCKET + WORKER + "share = 0\n", "workers[0].share: must be a number above 0, at most 1,000,000, not 0"),
        (SOCKET + WORKER + "share = true\n", "workers[0].share: must be a number above 0"),
        (SOCKET + WORKER + "late = 1\n", "workers[0].late: must be true or false, not 1"),
        (SOCKET + BOARD + "late = true\n", "workers[0].late: a board cannot be late"),
        (SOCKET + RANK + "late = true\n", "workers[0].late: a rank cannot be late"),
        (SOCKET + RANK * 2, "workers[1].interface: eth0 is also that of workers[0]: name their host, if these are two"),
        (SOCKET + RANK + 'control = "unix:a"\n', "workers[0].interface: is for a rank that is a worker itself: give"),
        (SOCKET + WORKER * 2, "workers[1].control: unix:/lab/w0 is also that of workers[0]"),
        (SOCKET + "[network]\nresend_us = 0\n" + WORKER, "network.resend_us: must be a whole number, 1 to 4000000"),
        (SOCKET + "[network]\ndoublings = 16\n" + WORKER, "network.doublings: must be a whole number, 0 to 15, not 16"),
        (SOCKET + "[network]\npatience = 1\n" + WORKER, "network.patience: unknown key; there are resend_us, resends"),
        (SOCKET + "[[aggregator.ports]]\nport = 1\n" + WORKER, "aggregator.ports: unknown key; there are kind"),
        (BMV2 + "ports = [1]\n" + WORKER, "aggregator.ports: must be tables, each begun with [[aggregator.ports]]"),
        (BMV2 + PORT.replace("40", "511") + WORKER, "aggregator.ports[0].port: must be a whole number, 0 to 510, not"),
        (BMV2.replace("bmv2", "tofino") + PORT.replace("40", "288") + WORKER, "aggregator.ports[0].port: must be a"),
        (BMV2 + "[[aggregator.ports]]\n" + WORKER, "aggregator.ports[0].port: is missing: a whole number, 0 to 510"),
        (BMV2 + PORT * 2 + WORKER, "aggregator.ports[1].port: 40 is also that of aggregator.ports[0]"),
        (BMV2 + PORT + "station = []\n" + WORKER, "aggregator.ports[0].station: unknown key; there are port, stations"),
        (BMV2 + PORT + 'stations = "a"\n' + WORKER, "aggregator.ports[0].stations: must be a list of MAC addresses"),
        (BMV2 + PORT + 'stations = [""]\n' + WORKER, "aggregator.ports[0].stations: must be a list of MAC addresses"),
        (BMV2 + PORT + 'stations = ["a"]\n' + WORKER, "aggregator.ports[0].stations: must be a MAC address, such as"),
        (BMV2 + PORT + 'stations = ["03:00:00:00:00:01"]\n' + WORKER, "aggregator.ports[0].stations:"),
        (BMV2 + PORT + STATION + PORT.replace("40", "41") + STATION + WORKER, "aggregator.ports[1].stations:"),
        ("more = 1\n" + SOCKET + WORKER, "more: unknown key; there are aggregator, network, workers"),
        ("[aggregator", "not a TOML file"),
    ],
)
def test_mistakes(read, tmp_path, text, says):
    with pytest.raises(UserError) as raised:
        read(text)
    assert str(raised.value).startswith(f"{tmp_path}/cluster.toml: {says}")


def test_a_path_that_is_too_long_with_its_folder(read, tmp_path):
    name = "x" * 100
    with pytest.raises(UserError, match=f"workers.0..control: unix:{tmp_path}/{name}: a socket's path"):
        read(SOCKET + f'[[workers]]\ncontrol = "unix:{name}"\nport = 0\n')


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="cannot read the cluster file: No such file"):
        read_cluster(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(UserError, match="not a TOML file"):
        read_cluster(tmp_path / "binary")


def test_boards(read, tmp_path):
    board = BoardAddress("0000:3b:00.1", tmp_path / "a.xclbin")
    text = '[aggregator]\nkind = "fpga"\ncontrol = "xrt:0000:3B:00.1"\nxclbin = "a.xclbin"\n'
    assert read(text + BOARD + WORKER) == Cluster(
        AggregatorAddress("fpga", "xrt:0000:3b:00.1", board=board),
        (WorkerAddress("xrt:0000:3b:00.1", 0, board), WorkerAddress("unix:/lab/w0", 0)),
    )


def test_several_workers_on_a_board_that_vitis_emulates(read, tmp_path):
    first, second = read(SOCKET + BOARD.replace("3B:00.1", "0") + BOARD.replace("3B:00.1", "0/2")).workers
    assert first.board == BoardAddress("0", tmp_path / "a.xclbin")
    assert second.board == BoardAddress("0", tmp_path / "a.xclbin", unit=2)
    assert (first.control, second.control) == ("xrt:0", "xrt:0/2")
    assert first.local_mac != second.local_mac
    assert first.board.is_emulated
    assert not read(SOCKET + BOARD).workers[0].board.is_emulated
    for address in ("0/0", "0/", "0/x", "3B:00.1/2"):
        with pytest.raises(UserError, match=r"workers\[0\].control: 'xrt:.*' is no board: .*xrt:0/2 for the second"):
            read(SOCKET + BOARD.replace("3B:00.1", address))
    with pytest.raises(UserError, match=r"workers\[1\].control: xrt:0 is also that of workers\[0\]"):
        read(SOCKET + BOARD.replace("3B:00.1", "0") + BOARD.replace("3B:00.1", "0/1"))
