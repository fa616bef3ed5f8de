"""Cluster files: the addresses of an aggregator and its workers, and how patient the workers are."""

import hashlib
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

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
        workers: several programs may have workers behind one port of an aggregator. ``program`` is the number of the
        program among those whose ranks share the interface.
        """
        kind, _, path = self.place.partition(":")
        place = f"unix:{os.path.realpath(path)}" if kind == "unix" else self.place
        who = f"{self.host or socket.gethostname()} {place}{f' {program}' if program else ''}"
        return 0x02 << 40 | int.from_bytes(hashlib.sha256(who.encode()).digest()[:5], "big")


@dataclass(frozen=True)
class Cluster:
    """The contents of a cluster file. Workers are in the order of shards.

    ``token`` is that of control sockets over TCP (`p4sgd.host.rpc.token`), if the file names one.
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
    top.take(
        aggregator=_Key("a table: [aggregator]", _is_table),
        network=_Key("a table: [network]", _is_table, usual={}),
        workers=_Key(
            f"1 to {MAX_WORKERS} tables, each begun with [[workers]]",
            lambda value: _are_tables(value) and 1 <= len(value) <= MAX_WORKERS,
        ),
        token=_path(read_token),
    )
    network = top.table("network")
    most = {field.name: (1 << field.bits) - 1 for field in registers.RESEND.fields}
    network.take(
        resend_us=_number(1, 4_000_000, NetworkOptions.resend_us),
        resends=_number(0, most["limit"], NetworkOptions.resends),
        doublings=_number(0, most["doublings"], NetworkOptions.doublings),
        rs_fec=_truth(NetworkOptions.rs_fec),
    )
    aggregator = _aggregator(top.table("aggregator"))
    workers = tuple(_worker(table) for table in top.tables("workers"))
    cluster = Cluster(aggregator, workers, NetworkOptions(**network.values), top.values["token"])
    _check_addresses(path, cluster)
    return cluster


def _check_addresses(path: Path, cluster: Cluster) -> None:
    """Refuse a cluster two of whose members have the same address."""
    # A board may have both a worker and the aggregator. Two workers of an emulated one differ in their units.
    aggregator = cluster.aggregator
    known = {} if aggregator.board else {("", aggregator.control): "aggregator"}
    macs = {aggregator.mac: "aggregator"}
    for index, worker in enumerate(cluster.workers):
        own = f"workers[{index}]"
        if (other := known.setdefault((worker.host, worker.place), own)) != own:
            where = f" on {worker.host}" if worker.host else ": name their host, if these are two"
            key = "control" if worker.control else "interface"
            raise UserError(f"{path}: {own}.{key}: {worker.place} is also that of {other}{where}")
        if (other := macs.setdefault(worker.local_mac, own)) != own:
            text = address_text(worker.local_mac, udp=worker.udp)
            key = "udp" if worker.udp else "mac"
            raise UserError(f"{path}: {own}.{key}: {text} is also that of {other}: give each an address of its own")
    if any(worker.udp != aggregator.udp for worker in cluster.workers):
        raise UserError(f"{path}: packets travel in UDP or not: give udp to the aggregator and to all workers, or none")


def _aggregator(table: "_Table") -> AggregatorAddress:
    kind = table.content.get("kind")
    table.take_some(kind=_TEXT)
    if kind not in KINDS:
        table.refuse("kind", f"there is no aggregator of kind {kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "socket":
        table.take(kind=_TEXT, control=_CONTROL, udp=_UDP, mac=_MAC)
    elif kind == "fpga":
        table.take(kind=_TEXT, control=_BOARD, xclbin=_XCLBIN, mac=_MAC)
    else:
        table.take(
            kind=_TEXT,
            control=_Key("a text", _is_text, lambda text, _: _grpc(text)),
            device_id=_number(0, (1 << 64) - 1, 0),
            program=_path(),
            tls=_Key("a table: [aggregator.tls]", _is_table, usual=None),
            ports=_Key("tables, each begun with [[aggregator.ports]]", _are_tables, usual=[]),
            mac=_MAC,
        )
    values = table.values
    board = _board(values) if kind == "fpga" else None
    if values.get("udp") is not None and values["mac"] is not None:
        table.refuse("mac", "is for Ethernet: leave it or udp out")
    if kind in _PORTS:
        values["ports"] = _ports(table.tables("ports"), _PORTS[kind])
        values["tls"] = None if values["tls"] is None else _tls(table.table("tls"))
    udp, mac = values.pop("udp", None), values.pop("mac")
    control = str(board) if board else values.pop("control")
    return AggregatorAddress(
        **values, control=control, mac=mac or udp or AGGREGATOR_MAC, board=board, udp=udp is not None
    )


def _ports(tables: list["_Table"], count: int) -> tuple[SwitchPort, ...]:
    found: dict[int, str] = {}
    behind: dict[int, int] = {}
    for table in tables:
        table.take(port=_number(0, count - 1), stations=_STATIONS)
        port = table.values["port"]
        if (other := found.setdefault(port, table.name)) != table.name:
            table.refuse("port", f"{port} is also that of {other}")
        for station in table.values["stations"]:
            if station in behind:
                table.refuse("stations", f"{mac_text(station)} is already behind port {behind[station]}")
            behind[station] = port
    return tuple(SwitchPort(**table.values) for table in tables)


def _tls(table: "_Table") -> Tls:
    table.take(ca=_path(), certificate=_path(), key=_path())
    tls = Tls(**table.values)
    if tls.ca is None:
        table.refuse("ca", "is missing: the file with the certificate of the authority")
    if (tls.certificate is None) != (tls.key is None):
        table.refuse("key" if tls.key is None else "certificate", "is missing: certificate and key go together")
    return tls


def _worker(table: "_Table") -> WorkerAddress:
    control, interface = table.content.get("control"), table.content.get("interface")
    if interface and control is not None:
        table.refuse("interface", "is for a rank that is a worker itself: give it or control, not both")
    is_board = isinstance(control, str) and control.startswith(PREFIX)
    table.take(
        interface=_Key("a text", _is_text, usual=""),
        **({} if interface else {"control": _BOARD if is_board else _CONTROL}),
        port=_number(0, MAX_PORTS - 1),
        udp=_UDP,
        mac=_MAC,
        host=_Key("a text", _is_text, usual=""),
        share=_SHARE,
        late=_truth(False),
        **({"xclbin": _XCLBIN} if is_board else {}),
    )
    values = table.values
    udp, mac = values.pop("udp"), values.pop("mac")
    board = _board(values) if is_board else None
    if interface and interface.startswith(UDP):
        udp = table.convert("interface", parse_udp_address, interface.removeprefix(UDP).partition(",")[0])
    if mac is not None and udp is not None:
        table.refuse("mac", "is for Ethernet: leave it out, as packets travel in UDP")
    if board is not None and udp is not None:
        table.refuse("udp", "is for worker processes: boards need Ethernet")
    if values["late"] and (board or interface):
        table.refuse("late", f"a {'board' if board else 'rank'} cannot be late: only worker processes can")
    control = str(board) if board else values.pop("control", "")
    return WorkerAddress(**values, control=control, board=board, mac=udp or mac, udp=udp is not None)


def _board(values: dict[str, Any]) -> BoardAddress:
    device, unit = values.pop("control")
    return BoardAddress(device, values.pop("xclbin"), unit)


# -- tables and their keys ---------------------------------------------------------------------------------------------

_REQUIRED = object()


@dataclass(frozen=True)
class _Key:
    """A key: what its value must be, and how to convert it, with the folder of the file, if it is there."""

    what: str
    is_right: Callable[[Any], bool]
    convert: Callable[[Any, Path], Any] = lambda value, _: value
    usual: Any = _REQUIRED


class _Table:
    """A table of the file, with the name that errors call it. `take` reads its keys into ``values``."""

    def __init__(self, path: Path, name: str, content: Mapping[str, Any]) -> None:
        self._path, self.name, self.content = path, name, content
        self.values: dict[str, Any] = {}

    def take(self, **keys: _Key) -> None:
        """Read these keys, and refuse others."""
        self.take_some(**keys)
        for key in self.content.keys() - keys:
            self.refuse(key, f"unknown key; there are {', '.join(keys)}")

    def take_some(self, **keys: _Key) -> None:
        for name, key in keys.items():
            if name in self.content:
                value = self.content[name]
                if not key.is_right(value):
                    self.refuse(name, f"must be {key.what}, not {value!r}")
                self.values[name] = self.convert(name, key.convert, value, self._path.parent)
            elif key.usual is _REQUIRED:
                self.refuse(name, f"is missing: {key.what}")
            else:
                self.values[name] = key.usual

    def convert(self, key: str, convert: Callable[..., Any], *value: Any) -> Any:
        try:
            return convert(*value)
        except UserError as error:
            self.refuse(key, str(error))

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise UserError(f"{self._path}: {self._full_name(key)}: {problem}") from None

    def _full_name(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def table(self, key: str) -> "_Table":
        return _Table(self._path, self._full_name(key), self.values[key])

    def tables(self, key: str) -> list["_Table"]:
        return [
            _Table(self._path, f"{self._full_name(key)}[{index}]", each) for index, each in enumerate(self.values[key])
        ]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _number(low: int, high: int, usual: Any = _REQUIRED) -> _Key:
    return _Key(
        f"a whole number, {low} to {high}", lambda value: type(value) is int and low <= value <= high, usual=usual
    )


def _truth(usual: bool) -> _Key:
    return _Key("true or false", lambda value: isinstance(value, bool), usual=usual)


def _path(convert: Callable[[Path], Any] = lambda path: path) -> _Key:
    return _Key("a text", _is_text, lambda text, folder: convert(folder / text) if text else None, usual=None)


def _control(text: str, folder: Path) -> str:
    whole = str(ControlAddress.parse(text).beside(folder))
    ControlAddress.parse(whole)  # with the folder, the path may be too long
    return whole


def _grpc(text: str) -> str:
    ControlAddress.parse_tcp(text, "the switch's gRPC server")
    return text


def _mac(text: str, _: Path | None = None) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
        raise UserError(f"must be a MAC address, such as 02:50:34:53:47:ff, not {text!r}")
    number = int(text.replace(":", ""), 16)
    if number >> GROUP_BIT & 1:
        raise UserError(f"{text} is the address of a group: its first byte must be even")
    return number


_TEXT = _Key("a text", _is_text)
_CONTROL = _Key("a text", _is_text, _control)
_BOARD = _Key("a text", _is_text, lambda text, _: parse_device(text))
_XCLBIN = _Key(
    "the bitstream for the board", lambda value: _is_text(value) and value != "", lambda text, folder: folder / text
)
_MAC = _Key("a text", _is_text, _mac, usual=None)
_UDP = _Key("a text", _is_text, lambda text, _: parse_udp_address(text) if text else None, usual=None)
_STATIONS = _Key(
    "a list of MAC addresses",
    lambda value: isinstance(value, list) and all(_is_text(each) and each for each in value),
    lambda texts, _: tuple(map(_mac, texts)),
    usual=(),
)
_SHARE = _Key(
    f"a number above 0, at most {_LARGEST_SHARE:,}",
    lambda value: type(value) in (int, float) and 0 < value <= _LARGEST_SHARE,
    lambda value, _: float(value),
    usual=1.0,
)
