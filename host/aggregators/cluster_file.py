"""Cluster files: the addresses of an aggregator and its workers, and how patient the workers are."""

import hashlib
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from p4sgd.host.boards import xdma, xrt
from p4sgd.host.boards.kernel import BoardAddress
from p4sgd.host.errors import UserError
from p4sgd.host.files import read_toml
from p4sgd.host.links.udp import address_text, parse_udp_address
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.token import read_token
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import MAX_PORTS
from p4sgd.hw.spec.packet import GROUP_BIT, mac_text
from p4sgd.hw.spec.run import MAX_WORKERS, MOST_WORKERS

_T = TypeVar("_T")

Kind = Literal["socket", "bmv2", "tofino", "fpga"]

_PORTS = {"bmv2": 511, "tofino": 288}
"""Number of ports of the kinds that are switches for all traffic. v1model drops frames to port 511. A Tofino keeps
flooded frames from going back where they came from only on 4 pipes of 72 device ports."""

_OF_SWITCHES = {"device_id", "program", "ports"}
_KEYS = {"socket": {"udp"}, "fpga": {"xclbin", "address_map"}, "bmv2": _OF_SWITCHES | {"tls"}, "tofino": _OF_SWITCHES}
"""Keys of the aggregator that not all kinds have. The SDE's client has no TLS: a Tofino takes a tunnel."""

_BOARDS = (xrt.PREFIX, xdma.PREFIX)

_MOST = {field.name: (1 << field.bits) - 1 for field in registers.RESEND.fields}

AGGREGATOR_MAC = 0x0250_3453_47FF
"""The aggregator's default MAC address."""


class Mac(int):
    """A MAC address, ``02:50:34:53:47:ff`` in the file."""


class UdpAddress(int):
    """The number that stands for an IPv4 address and a port (`p4sgd.hw.spec.udp`), ``10.0.0.1:51200`` in the file."""


class Control(str):
    """Where a program or a board is controlled: ``unix:PATH``, ``tcp:HOST:PORT``, ``xrt:BDF``, ``xdma:N``, or a
    switch's ``HOST:PORT``."""


class Token(bytes):
    """A token of control sockets (`p4sgd.host.rpc.token`), whose file the cluster file names."""

    def __repr__(self) -> str:
        return "Token(…)"


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """Files for TLS: the certificate of the authority, and the client's own certificate and key."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` go together: one is missing")


class SwitchPort(Struct, frozen=True, forbid_unknown_fields=True):
    """A port for frames of other protocols, and the MAC addresses known to be behind it."""

    port: Annotated[int, Meta(ge=0)]
    stations: tuple[Mac, ...] = ()


class AggregatorAddress(Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach the aggregator.

    ``control`` is ``unix:PATH`` or ``tcp:HOST:PORT`` of a program, ``HOST:PORT`` of a switch's gRPC server, or that of
    an FPGA, as of a `WorkerAddress`. ``mac`` or ``udp`` is its own address, by Ethernet or in UDP. Switches have a
    number ``device_id``, files for ``tls``, ``program``, the folder that ``p4sgd switch build`` made, and ``ports`` for
    other traffic besides those of the workers.
    """

    kind: Kind
    control: Control
    mac: Mac | None = None
    udp: UdpAddress | None = None
    device_id: Annotated[int, Meta(ge=0)] = 0
    tls: Tls | None = None
    program: Path | None = None
    ports: tuple[SwitchPort, ...] = ()
    xclbin: Path | None = None
    address_map: Path | None = None

    def __post_init__(self) -> None:
        for key in sorted(set().union(*_KEYS.values()) - _KEYS[self.kind]):
            if getattr(self, key):
                raise ValueError(f"`{key}` is not for the kind {self.kind}")
        if self.kind == "socket":
            _valid(ControlAddress.parse, self.control)
        elif self.board is None:
            _valid(ControlAddress.parse_tcp, self.control, "the switch's gRPC server")
        _check_one_address(self.mac, self.udp)
        known, behind = set[int](), dict[int, int]()
        for each in self.ports:
            if each.port >= _PORTS[self.kind]:
                raise ValueError(f"`ports`: port {each.port} must be below {_PORTS[self.kind]}")
            if each.port in known:
                raise ValueError(f"`ports`: port {each.port} is there twice")
            known.add(each.port)
            for station in each.stations:
                if (other := behind.setdefault(station, each.port)) != each.port:
                    raise ValueError(f"`ports`: {mac_text(station)} is behind the ports {other} and {each.port}")

    @property
    def address(self) -> int:
        """The MAC address, or the number that stands for the address in UDP."""
        return self.mac or self.udp or AGGREGATOR_MAC

    @property
    def board(self) -> BoardAddress | None:
        """The board of an FPGA, with its bitstream."""
        return _board(self.control, self.xclbin, self.address_map) if self.kind == "fpga" else None


class RackAddress(AggregatorAddress, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to reach the aggregator of a rack, which is behind a ``port`` of the top one, by its own port ``uplink``."""

    port: Annotated[int, Meta(ge=0, lt=MAX_PORTS)]
    uplink: Annotated[int, Meta(ge=0, lt=MAX_PORTS)]

    def __post_init__(self) -> None:
        if self.kind == "tofino":
            raise ValueError(f'`kind` must be "socket", "fpga" or "bmv2", not "{self.kind}", which asks no other')
        super().__post_init__()


class NetworkOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How long workers wait for answers, and the settings of boards' links.

    An unanswered packet is sent again after ``resend_us`` microseconds, and ``resends`` times in all, 0 for ever; the
    time between doubles ``doublings`` times. If answers take longer, processes wait longer at once, up to the longest
    of these times. ``rs_fec`` is forward error correction (IEEE 802.3 clause 91) of boards' links, on which both ends
    must agree.
    """

    resend_us: Annotated[int, Meta(ge=1, le=4_000_000)] = 2000
    resends: Annotated[int, Meta(ge=0, le=_MOST["limit"])] = 100
    doublings: Annotated[int, Meta(ge=0, le=_MOST["doublings"])] = 6
    rs_fec: bool = True


class WorkerAddress(Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach a worker, which is behind a ``port`` of the aggregator: that of its ``rack``, if it names one.

    ``control`` is ``unix:PATH`` or ``tcp:HOST:PORT`` of a worker process, ``xrt:BDF`` of a board of this machine, whose
    bitstream is ``xclbin``, or ``xdma:N`` of one without a shell, whose bitstream has the ``address_map``. ``mac`` or
    ``udp`` is its own address. ``host`` tells equal values of ``control`` apart when ranks on several machines train
    together. ``share`` is its part of the features in proportion to the others'. Training may begin without a ``late``
    worker.
    """

    port: Annotated[int, Meta(ge=0, lt=MAX_PORTS)]
    control: Control
    mac: Mac | None = None
    udp: UdpAddress | None = None
    host: str = ""
    share: Annotated[float, Meta(gt=0, le=1_000_000)] = 1.0
    late: bool = False
    xclbin: Path | None = None
    address_map: Path | None = None
    rack: Annotated[int, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        _check_one_address(self.mac, self.udp)
        if self.board is not None:
            if self.udp is not None:
                raise ValueError("`udp` is for worker processes: boards need Ethernet")
        elif self.xclbin or self.address_map:
            raise ValueError(f"`{'xclbin' if self.xclbin else 'address_map'}` is for boards")
        else:
            _valid(ControlAddress.parse, self.control)
        if self.late and self.board:
            raise ValueError("only worker processes can be `late`, no boards")

    @property
    def board(self) -> BoardAddress | None:
        """The board and its bitstream, if it is one."""
        return _board(self.control, self.xclbin, self.address_map) if self.control.startswith(_BOARDS) else None

    @property
    def local_mac(self) -> int:
        """The worker's own address, of Ethernet, or a number that stands for one in UDP: that of the file, or else 40
        bits of the SHA-256 of machine and ``control``.

        The machine is this one if the file names none, and the path of a socket is the absolute one: every program on
        this machine that uses the worker finds the same address, and no other worker has it.
        """
        given = self.mac or self.udp
        if given is not None:
            return given
        kind, _, path = self.control.partition(":")
        place = f"unix:{os.path.realpath(path)}" if kind == "unix" else self.control
        who = f"{self.host or socket.gethostname()} {place}"
        return 0x02 << 40 | int.from_bytes(hashlib.sha256(who.encode()).digest()[:5], "big")


class Cluster(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a cluster file. Workers are in the order of shards.

    ``token`` is that of control sockets over TCP (`p4sgd.host.rpc.token`), if the file names one. ``racks`` have
    aggregators of their own, below ``aggregator``.
    """

    aggregator: AggregatorAddress
    workers: Annotated[tuple[WorkerAddress, ...], Meta(min_length=1, max_length=MOST_WORKERS)]
    network: NetworkOptions = NetworkOptions()
    token: Token | None = None
    racks: Annotated[tuple[RackAddress, ...], Meta(max_length=MAX_WORKERS)] = ()

    def __post_init__(self) -> None:
        everybody: list[tuple[str, AggregatorAddress | WorkerAddress]] = [("the aggregator", self.aggregator)]
        everybody += [(f"racks[{index}]", rack) for index, rack in enumerate(self.racks)]
        everybody += [(f"workers[{index}]", worker) for index, worker in enumerate(self.workers)]
        controls, addresses = dict[tuple[str, str], str](), dict[int, str]()
        for own, each in everybody:
            host, address = (each.host, each.local_mac) if isinstance(each, WorkerAddress) else ("", each.address)
            # A board may have both a worker and an aggregator. Two workers of an emulated one differ in their units.
            is_worker = isinstance(each, WorkerAddress)
            is_shared = not is_worker and each.board is not None
            if not is_shared and (other := controls.setdefault((host, each.control), own)) != own:
                hint = ": name their `host`, if these are two" if is_worker else ""
                raise ValueError(f"{own}: {each.control} is also that of {other}{f' on {host}' if host else hint}")
            if (other := addresses.setdefault(address, own)) != own:
                text = address_text(address, udp=self.udp)
                raise ValueError(f"{own}: {text} is also that of {other}: give each an address of its own")
            if (each.udp is not None) != self.udp:
                raise ValueError(f"{own}: packets travel in UDP or not: give `udp` to all aggregators and workers")
        sizes = [0] * len(self.racks)
        for index, worker in enumerate(self.workers):
            if worker.rack is not None:
                if worker.rack >= len(self.racks):
                    raise ValueError(
                        f"workers[{index}]: there is no racks[{worker.rack}]: the file has {len(self.racks)}, from 0 on"
                    )
                sizes[worker.rack] += 1
        if sizes and (largest := max(sizes)) >= MAX_WORKERS:
            own, most = f"racks[{sizes.index(largest)}]", MAX_WORKERS - 1
            raise ValueError(f"{own}: a rack has at most {most} workers, as its aggregator is one, too")
        behind_top = sum(map(bool, sizes)) + len(self.workers) - sum(sizes)
        if behind_top > MAX_WORKERS:
            raise ValueError(f"aggregator: it adds up {MAX_WORKERS} workers or racks, not {behind_top}: use more racks")

    def ports_of(self, aggregator: AggregatorAddress) -> set[int]:
        """The ports of an aggregator that lead to its workers, and between it and those of another level."""
        rack = self.racks.index(aggregator) if isinstance(aggregator, RackAddress) else None
        between = {aggregator.uplink} if isinstance(aggregator, RackAddress) else {rack.port for rack in self.racks}
        return between | {worker.port for worker in self.workers if worker.rack == rack}

    @property
    def udp(self) -> bool:
        """Whether packets travel in UDP."""
        return self.aggregator.udp is not None


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file, whose paths are relative to its folder; raises UserError with file and key of a mistake."""
    document = read_toml(path, "cluster file")
    try:
        return msgspec.convert(_without_empty(document), Cluster, dec_hook=partial(_decode, path.parent))
    except msgspec.ValidationError as error:
        text = str(error).replace("Object contains unknown field", "a cluster file has no key")
        problem, _, where = text.partition(" - at `$")
        key = where.strip("`.")
        raise UserError(f"{path}: {f'{key}: ' if key else ''}{problem}") from error


def _without_empty(value: Any) -> Any:
    """A document without the keys of empty texts, which stand for the default."""
    if isinstance(value, dict):
        return {key: _without_empty(each) for key, each in value.items() if each != ""}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value


def _decode(folder: Path, kind: type, text: Any) -> Any:
    """Convert a text of the file; a control address to its normal form with an absolute path."""
    if not isinstance(text, str):
        raise ValueError(f"Expected `str`, got `{text!r}`")
    if kind is Mac:
        return _mac(text)
    if kind is UdpAddress:
        return UdpAddress(_valid(parse_udp_address, text))
    if kind is Token:
        return Token(_valid(read_token, folder / text))
    if kind is not Control:
        return folder / text
    if text.startswith(_BOARDS):
        return Control(_board_at(text, folder))
    if text.startswith("unix:"):
        _valid(ControlAddress.parse, text)
        return Control(f"unix:{folder / text.removeprefix('unix:')}")
    return Control(text)


def _valid(read: Callable[..., _T], *text: Any) -> _T:
    """The result of a function that reads a text; its UserError becomes a ValueError, to which the key is added."""
    try:
        return read(*text)
    except UserError as error:
        raise ValueError(str(error)) from error


def _mac(text: str) -> Mac:
    if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
        raise ValueError(f"must be a MAC address, such as 02:50:34:53:47:ff, not {text!r}")
    number = int(text.replace(":", ""), 16)
    if number >> GROUP_BIT & 1:
        raise ValueError(f"{text} is the address of a group: its first byte must be even")
    return Mac(number)


def _check_one_address(mac: int | None, udp: int | None) -> None:
    if mac is not None and udp is not None:
        raise ValueError("`mac` is for Ethernet: leave it or `udp` out")


def _board(control: str, xclbin: Path | None, address_map: Path | None) -> BoardAddress:
    files = {"xclbin": xclbin, "address_map": address_map}
    wanted = "address_map" if control.startswith(xdma.PREFIX) else "xclbin"
    file = files.pop(wanted)
    board = _board_at(control, file or Path())
    if other := next((key for key in files if files[key] is not None), None):
        raise ValueError(f"`{other}` is not for {control}, which needs `{wanted}`")
    if file is None:
        raise ValueError(f"`{wanted}` is missing: the file of the board's bitstream")
    return board


def _board_at(control: str, file: Path) -> BoardAddress:
    """The board of a control address, given the file that its bitstream is described by."""
    if control.startswith(xdma.PREFIX):
        return xdma.XdmaAddress(_valid(xdma.parse_number, control), file)
    device, unit = _valid(xrt.parse_device, control)
    return xrt.XrtAddress(device, file, unit)
