"""Cluster files: the addresses of an aggregator and its workers, and how patient the workers are."""

import hashlib
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p4sgd.host.errors import UserError
from p4sgd.host.links.opening import UDP
from p4sgd.host.links.udp import address_text, parse_udp_address
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.token import read_token
from p4sgd.host.xrt.board import PREFIX, BoardAddress, parse_device
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import MAX_PORTS
from p4sgd.hw.spec.packet import GROUP_BIT, mac_text
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = [
    "AGGREGATOR_MAC",
    "KINDS",
    "AggregatorAddress",
    "Cluster",
    "NetworkOptions",
    "SwitchPort",
    "Tls",
    "WorkerAddress",
    "read_cluster",
]


KINDS = ("socket", "bmv2", "tofino", "fpga")
"""The kinds of aggregators."""

_PORTS = {"bmv2": 511, "tofino": 288}
"""Number of ports of the kinds that are switches for all traffic. v1model drops frames to port 511. A Tofino keeps
flooded frames from going back where they came from only on 4 pipes of 72 device ports."""

_LARGEST_SHARE = 1_000_000

AGGREGATOR_MAC = 0x0250_3453_47FF
"""The aggregator's default MAC address."""


@dataclass(frozen=True)
class Tls:
    """Files for TLS: the certificate of the authority, and the client's own certificate and key."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class SwitchPort:
    """A port for frames of other protocols, and the MAC addresses known to be behind it."""

    port: int
    stations: tuple[int, ...] = ()


@dataclass(frozen=True)
class AggregatorAddress:
    """How to reach the aggregator.

    Attributes
    ----------
    kind
        One of `KINDS`.
    control
        ``unix:PATH`` or ``tcp:HOST:PORT`` of a socket aggregator, ``HOST:PORT`` of gRPC, ``xrt:BDF`` of an FPGA.
    mac
        The aggregator's own address: a MAC address, or a number that stands for an address in UDP
        (`p4sgd.hw.spec.udp`).
    device_id, tls, program
        Of bmv2 and tofino: number of the device, files for TLS, and the folder that ``p4sgd switch build`` made.
    ports
        Of bmv2 and tofino: ports for other traffic, besides those of the workers.
    board
        Of an FPGA: the board and its xclbin.
    udp
        Whether packets travel in UDP.
    """

    kind: str
    control: str
    mac: int = AGGREGATOR_MAC
    device_id: int = 0
    tls: Tls | None = None
    program: Path | None = None
    ports: tuple[SwitchPort, ...] = ()
    board: BoardAddress | None = None
    udp: bool = False


@dataclass(frozen=True)
class NetworkOptions:
    """How long workers wait for answers, and the settings of boards' links.

    Attributes
    ----------
    resend_us
        Microseconds after which an unanswered packet is first sent again.
    resends
        Resends before the worker gives up; 0 never gives up.
    doublings
        How often the time between resends doubles.
    rs_fec
        Whether boards' links use forward error correction (IEEE 802.3 clause 91). Both ends of a link must agree.
    """

    resend_us: int = 2000
    resends: int = 100
    doublings: int = 6
    rs_fec: bool = True


@dataclass(frozen=True)
class WorkerAddress:
    """How to reach a worker.

    Attributes
    ----------
    control
        ``unix:PATH`` or ``tcp:HOST:PORT`` of a worker process, ``xrt:BDF`` of a board of this machine; empty if there
        is an interface.
    port
        Port of the aggregator that the worker is behind.
    board
        Of a board: the board and its xclbin.
    host
        Name of the machine that ``control`` refers to, when ranks on several machines train together. It only tells
        equal values of ``control`` apart.
    mac
        The worker's own address, if the file gives one: a MAC address, or a number that stands for an address in UDP.
    share
        Share of the features that the worker should get, in proportion to the others'.
    late
        Whether training may begin without the worker process and take it in when it has been started.
    interface
        Link of a rank that is a worker itself, in data-parallel training.
    udp
        Whether packets travel in UDP.
    """

    control: str
    port: int
    board: BoardAddress | None = None
    host: str = ""
    mac: int | None = None
    share: float = 1.0
    late: bool = False
    interface: str = ""
    udp: bool = False

    @property
    def place(self) -> str:
        """``control`` or the interface: what tells it from other workers of its machine."""
        return self.control or self.interface

    @property
    def local_mac(self) -> int:
        """The worker's own MAC address: that of the file, or else the first of `default_mac`."""
        return self.default_mac() if self.mac is None else self.mac

    def default_mac(self, program: int = 0) -> int:
        """A MAC address made of 40 bits of the SHA-256 of machine and ``control`` or interface.

        The machine is this one if the file names none, and the path of a socket is the absolute one. So the address is
        locally administered, the same in every program on this machine that uses the worker, and differs between
        workers: several programs may have workers behind one port of an aggregator.

        Parameters
        ----------
        program
            Number of the program among those whose ranks share the interface.
        """
        kind, _, path = self.place.partition(":")
        place = f"unix:{os.path.realpath(path)}" if kind == "unix" else self.place
        who = f"{self.host or socket.gethostname()} {place}{f' {program}' if program else ''}"
        return 0x02 << 40 | int.from_bytes(hashlib.sha256(who.encode()).digest()[:5], "big")


@dataclass(frozen=True)
class Cluster:
    """The contents of a cluster file. Workers are in the order of shards.

    Attributes
    ----------
    aggregator, workers, network
        The tables of the file.
    token
        The token of control sockets over TCP (`p4sgd.host.rpc.token`), if the file names one.
    """

    aggregator: AggregatorAddress
    workers: tuple[WorkerAddress, ...]
    network: NetworkOptions = NetworkOptions()
    token: bytes | None = field(default=None, repr=False)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file. Paths in it are relative to its folder.

    Raises
    ------
    UserError
        If the file cannot be read or contains a mistake. The message names file and key.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read the cluster file: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error
    top = _Table(path, "", document)
    cluster = Cluster(
        aggregator=_aggregator(top.table("aggregator", required=True)),
        network=_network(top.table("network")),
        workers=tuple(_worker(table) for table in top.tables("workers", most=MAX_WORKERS, required=True)),
        token=top.token("token"),
    )
    top.refuse_others()
    # A board may have both a worker and the aggregator. Two workers of an emulated one differ in their units.
    known = {} if cluster.aggregator.board else {("", cluster.aggregator.control): "aggregator"}
    for index, worker in enumerate(cluster.workers):
        if (other := known.setdefault((worker.host, worker.place), f"workers[{index}]")) != f"workers[{index}]":
            where = f" on {worker.host}" if worker.host else ": name their host, if these are two"
            key = "control" if worker.control else "interface"
            raise UserError(f"{path}: workers[{index}].{key}: {worker.place} is also that of {other}{where}")
    macs = {cluster.aggregator.mac: "aggregator"}
    for index, worker in enumerate(cluster.workers):
        if (other := macs.setdefault(worker.local_mac, f"workers[{index}]")) != f"workers[{index}]":
            text = address_text(worker.local_mac, udp=worker.udp)
            raise UserError(
                f"{path}: workers[{index}].{'udp' if worker.udp else 'mac'}: {text} is also that of "
                f"{other}: give each an address of its own"
            )
    if any(worker.udp != cluster.aggregator.udp for worker in cluster.workers):
        raise UserError(f"{path}: packets travel in UDP or not: give udp to the aggregator and to all workers, or none")
    return cluster


def _aggregator(table: "_Table") -> AggregatorAddress:
    kind = table.text("kind", required=True)
    if kind not in KINDS:
        raise table.mistake("kind", f"there is no aggregator of kind {kind!r}: choose one of {', '.join(KINDS)}")
    tls = program = board = udp = None
    device_id = 0
    ports: tuple[SwitchPort, ...] = ()
    if kind == "socket":
        control = table.control("control")
        udp = table.udp("udp")
    if kind == "fpga":
        board = table.board("control")
        control = str(board)
    if kind in _PORTS:
        control = table.text("control", required=True)
        try:
            ControlAddress.parse_tcp(control, "the switch's gRPC server")
        except UserError as error:
            raise table.mistake("control", str(error)) from None
        device_id = table.number("device_id", 0, 0, (1 << 64) - 1)
        program = table.path("program")
        tls = _tls(table.table("tls")) if table.has("tls") else None
        ports = _ports(table.tables("ports", required=False), _PORTS[kind])
    mac = table.mac("mac")
    table.refuse_others()
    if mac is not None and udp is not None:
        raise table.mistake("mac", "is for Ethernet: leave it or udp out")
    own = mac or udp or AGGREGATOR_MAC
    return AggregatorAddress(kind, control, own, device_id, tls, program, ports, board, udp=udp is not None)


def _ports(tables: list["_Table"], count: int) -> tuple[SwitchPort, ...]:
    found: dict[int, str] = {}
    behind: dict[int, int] = {}
    ports = []
    for table in tables:
        port = table.number("port", None, 0, count - 1)
        if port in found:
            raise table.mistake("port", f"{port} is also that of {found[port]}")
        found[port] = table.name
        stations = table.macs("stations")
        for station in stations:
            if station in behind:
                raise table.mistake("stations", f"{mac_text(station)} is already behind port {behind[station]}")
            behind[station] = port
        table.refuse_others()
        ports.append(SwitchPort(port, stations))
    return tuple(ports)


def _tls(table: "_Table") -> Tls:
    ca, certificate, key = (table.path(name) for name in ("ca", "certificate", "key"))
    table.refuse_others()
    if ca is None:
        raise table.mistake("ca", "is missing: the file with the certificate of the authority")
    if (certificate is None) != (key is None):
        raise table.mistake("key" if key is None else "certificate", "is missing: certificate and key go together")
    return Tls(ca, certificate, key)


def _network(table: "_Table") -> NetworkOptions:
    usual = NetworkOptions()
    most = {field.name: (1 << field.bits) - 1 for field in registers.RESEND.fields}
    options = NetworkOptions(
        resend_us=table.number("resend_us", usual.resend_us, 1, 4_000_000),
        resends=table.number("resends", usual.resends, 0, most["limit"]),
        doublings=table.number("doublings", usual.doublings, 0, most["doublings"]),
        rs_fec=table.truth("rs_fec", usual.rs_fec),
    )
    table.refuse_others()
    return options


def _worker(table: "_Table") -> WorkerAddress:
    interface = table.text("interface", required=False)
    if interface and table.has("control"):
        raise table.mistake("interface", "is for a rank that is a worker itself: give it or control, not both")
    board = table.board("control") if table.has_text("control", PREFIX) else None
    control = ""
    if not interface:
        control = table.control("control") if board is None else str(board)
    port = table.number("port", None, 0, MAX_PORTS - 1)
    udp = table.udp("udp")
    if interface.startswith(UDP):
        udp = table.udp_of("interface", interface.removeprefix(UDP).partition(",")[0])
    mac = table.mac("mac")
    worker = WorkerAddress(
        control,
        port,
        board,
        table.text("host", required=False),
        udp or mac,
        table.share("share"),
        table.truth("late", False),
        interface,
        udp=udp is not None,
    )
    table.refuse_others()
    if mac is not None and udp is not None:
        raise table.mistake("mac", "is for Ethernet: leave it out, as packets travel in UDP")
    if board is not None and udp is not None:
        raise table.mistake("udp", "is for worker processes: boards need Ethernet")
    if worker.late and board is not None:
        raise table.mistake("late", "a board cannot be late: only worker processes can")
    if worker.late and interface:
        raise table.mistake("late", "a rank cannot be late: only worker processes can")
    return worker


class _Table:
    """A table of the file. Methods take a key's value; `refuse_others` refuses the keys that were not taken.

    Mistakes name file and key.
    """

    def __init__(self, path: Path, name: str, content: Mapping[str, Any]) -> None:
        self._path = path
        self.name = name
        self._content = dict(content)
        self._known: list[str] = []

    def mistake(self, key: str, problem: str) -> UserError:
        return UserError(f"{self._path}: {self._full_name(key)}: {problem}")

    def _full_name(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def has(self, key: str) -> bool:
        return key in self._content

    def has_text(self, key: str, beginning: str) -> bool:
        value = self._content.get(key)
        return isinstance(value, str) and value.startswith(beginning)

    def _take(self, key: str, what: str, is_right: Callable[[Any], bool], *, required: bool) -> Any:
        """Remove and return the value of a key, None if it is missing."""
        self._known.append(key)
        if key not in self._content:
            if required:
                raise self.mistake(key, f"is missing: {what}")
            return None
        value = self._content.pop(key)
        if not is_right(value):
            raise self.mistake(key, f"must be {what}, not {value!r}")
        return value

    def refuse_others(self) -> None:
        for key in self._content:
            raise self.mistake(key, f"unknown key; there are {', '.join(self._known)}")

    def text(self, key: str, *, required: bool) -> str:
        value = self._take(key, "a text", lambda value: isinstance(value, str), required=required)
        return "" if value is None else str(value)

    def number(self, key: str, usual: int | None, low: int, high: int) -> int:
        value = self._take(
            key,
            f"a whole number, {low} to {high}",
            lambda value: type(value) is int and low <= value <= high,
            required=usual is None,
        )
        return usual if value is None and usual is not None else int(value)

    def share(self, key: str) -> float:
        value = self._take(
            key,
            f"a number above 0, at most {_LARGEST_SHARE:,}",
            lambda value: type(value) in (int, float) and 0 < value <= _LARGEST_SHARE,
            required=False,
        )
        return 1.0 if value is None else float(value)

    def truth(self, key: str, usual: bool) -> bool:
        value = self._take(key, "true or false", lambda value: isinstance(value, bool), required=False)
        return usual if value is None else bool(value)

    def path(self, key: str) -> Path | None:
        value = self.text(key, required=False)
        return self._path.parent / value if value else None

    def token(self, key: str) -> bytes | None:
        """What is in the file of a token."""
        path = self.path(key)
        try:
            return None if path is None else read_token(path)
        except UserError as error:
            raise self.mistake(key, str(error)) from None

    def control(self, key: str) -> str:
        text = self.text(key, required=True)
        try:
            whole = str(ControlAddress.parse(text).beside(self._path.parent))
            ControlAddress.parse(whole)  # with the folder, the path may be too long
        except UserError as error:
            raise self.mistake(key, str(error)) from None
        return whole

    def board(self, key: str) -> BoardAddress:
        """A board, with its xclbin from the key ``xclbin``."""
        text = self.text(key, required=True)
        try:
            device, unit = parse_device(text)
        except UserError as error:
            raise self.mistake(key, str(error)) from None
        xclbin = self.path("xclbin")
        if xclbin is None:
            raise self.mistake("xclbin", "is missing: the bitstream for the board")
        return BoardAddress(device, xclbin, unit)

    def mac(self, key: str) -> int | None:
        text = self.text(key, required=False)
        return self._mac_of(key, text) if text else None

    def udp(self, key: str) -> int | None:
        """The number of an address in UDP."""
        text = self.text(key, required=False)
        return self.udp_of(key, text) if text else None

    def udp_of(self, key: str, text: str) -> int:
        try:
            return parse_udp_address(text)
        except UserError as error:
            raise self.mistake(key, str(error)) from None

    def macs(self, key: str) -> tuple[int, ...]:
        def is_right(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(each, str) for each in value)

        texts = self._take(key, "a list of MAC addresses", is_right, required=False)
        return tuple(self._mac_of(key, text) for text in texts or ())

    def _mac_of(self, key: str, text: str) -> int:
        if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
            raise self.mistake(key, f"must be a MAC address, such as 02:50:34:53:47:ff, not {text!r}")
        number = int(text.replace(":", ""), 16)
        if number >> GROUP_BIT & 1:
            raise self.mistake(key, f"{text} is the address of a group: its first byte must be even")
        return number

    def table(self, key: str, *, required: bool = False) -> "_Table":
        value = self._take(
            key, f"a table: [{self._full_name(key)}]", lambda value: isinstance(value, dict), required=required
        )
        return _Table(self._path, self._full_name(key), value or {})

    def tables(self, key: str, *, most: int | None = None, required: bool) -> list["_Table"]:
        what = f"{'' if most is None else f'1 to {most} '}tables, each begun with [[{self._full_name(key)}]]"

        def is_right(value: Any) -> bool:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                return False
            return most is None or 1 <= len(value) <= most

        value = self._take(key, what, is_right, required=required)
        return [_Table(self._path, f"{self._full_name(key)}[{index}]", each) for index, each in enumerate(value or ())]
