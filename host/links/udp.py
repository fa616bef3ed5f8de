"""Links over UDP, for routed networks and for programs without permission for raw sockets."""

import contextlib
import ctypes
import fcntl
import functools
import select
import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.host.links.link import SIOCGIFINDEX, SIOCGIFMTU, ask_interface, enlarge_receive_buffer
from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST, mac_text
from p4sgd.hw.spec.udp import (
    ETHERNET_BYTES,
    FIRST_GROUP,
    HEADER_BYTES,
    LONGEST_PAYLOAD,
    PACKET_BYTES,
    PORT,
    PROGRAM_PORTS,
    address_of,
    is_unicast,
    socket_address_of,
)

if TYPE_CHECKING:
    from p4sgd.host.links.batch import FrameBatch


def parse_udp_address(text: str) -> int:
    """The number that stands for ``10.0.0.1`` or, with a port for programs, ``10.0.0.1:51201``."""
    host, colon, port = text.partition(":")
    try:
        ipv4 = IPv4Address(host)
    except ValueError:
        raise UserError(f"{host!r} is not an IPv4 address such as 10.0.0.1") from None
    if ipv4.is_unspecified or not is_unicast(ipv4):
        raise UserError(f"{host} is not the address of a single host")
    if not colon:
        return address_of(ipv4)
    if port.isascii() and port.isdecimal() and int(port) in PROGRAM_PORTS:
        return address_of(ipv4, int(port))
    first, last = PROGRAM_PORTS[0], PROGRAM_PORTS[-1]
    raise UserError(f"{port!r} is not a port for packets: those are {first} to {last}; without one it is {PORT}")


def udp_address_text(address: int) -> str:
    """What `parse_udp_address` reads; a MAC address for a number that stands for no IPv4 address."""
    try:
        ipv4, port = socket_address_of(address)
    except ValueError:
        return mac_text(address)
    return str(ipv4) if port == PORT else f"{ipv4}:{port}"


def address_text(address: int, *, udp: bool) -> str:
    """An address as the user knows it: of UDP or of Ethernet."""
    return udp_address_text(address) if udp else mac_text(address)


_IP_PKTINFO, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 8, 10, 2
"""From linux/in.h; :mod:`socket` does not have them."""

_ETHERTYPE = packet.ETHERTYPE.to_bytes(2, "big")
_FOREIGN = bytes(packet.FRAME_BYTES)
"""Replacement for a datagram that is not a packet: a frame of EtherType 0, as in the hardware."""

_PACKET_INFO = struct.Struct("=I4s4s")
"""struct in_pktinfo of ip(7): index of the interface through which a datagram arrived, and addresses."""

_SIOCGIFCONF = 0x8912
_CONFIGURED, _MOST_CONFIGURED = struct.Struct("16s4x4s16x"), 1024
"""From linux/sockios.h; an address in the answer of netdevice(7): label of its interface, and address."""

_TTL = 64

_KNOWN = 1024
"""Most addresses that are kept translated."""


@functools.lru_cache(_KNOWN)
def _socket_address(address: bytes) -> tuple[str, int] | None:
    """Where to send a frame with these six bytes as its destination; None if they stand for no IPv4 address."""
    try:
        ipv4, port = socket_address_of(int.from_bytes(address, "big"))
    except ValueError:
        return None
    return str(ipv4), port


@functools.lru_cache(_KNOWN)
def _source_bytes(host: str, port: int) -> bytes | None:
    """The six bytes of a frame's source, for a datagram from there; None if it cannot be from a single host."""
    ipv4 = IPv4Address(host)
    if int(ipv4) >= FIRST_GROUP:
        return None
    return address_of(ipv4, port if port in PROGRAM_PORTS else PORT).to_bytes(6, "big")


def _interface_of(opened: socket.socket, address: IPv4Address) -> str:
    """Interface that has an address, in the network namespace of a socket; lo for all others that are local, such as
    127.0.0.2."""
    room = ctypes.create_string_buffer(_MOST_CONFIGURED * _CONFIGURED.size)
    answer = fcntl.ioctl(opened, _SIOCGIFCONF, struct.pack("iP", len(room), ctypes.addressof(room)))
    size, _ = struct.unpack("iP", answer)
    labels = {configured: label for label, configured in _CONFIGURED.iter_unpack(room.raw[:size])}
    label: bytes = labels.get(address.packed, b"lo")
    return label.rstrip(b"\0").decode().partition(":")[0]


class UdpLink:
    """Sends and receives the datagrams of :mod:`p4sgd.hw.spec.udp`, as frames of the core.

    MAC addresses in a frame stand for IPv4 addresses and ports. A frame is lost if its destination stands for none. The
    link receives datagrams to ``address``, the number of an address of this machine and a port, and at `PORT`
    broadcasts and those to a multicast ``group``, on the same interface. Raises OSError if this machine does not have
    the address, or its port is in use.
    """

    def __init__(self, address: int, group: IPv4Address | None = None) -> None:
        self.lost = 0
        self.address = address
        self._ipv4, port = socket_address_of(address)
        self._interface = 0
        self._epoll = select.epoll()
        self._receivers: list[tuple[socket.socket, bytes]] = []
        try:
            self._local = self._open(self._ipv4, port, address)
            # Datagrams are not fragmented. Linux makes and verifies their checksums, and drops those with flipped bits.
            self._local.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            self._local.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self._local.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._ipv4.packed)
            self._local.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _TTL)
            longest = self._ask_interface(SIOCGIFMTU) - (HEADER_BYTES - ETHERNET_BYTES)
            self.most_bytes = ETHERNET_BYTES + min(LONGEST_PAYLOAD, longest)
            if port == PORT:
                self._open(socket_address_of(BROADCAST)[0], PORT, BROADCAST, shared=True)
            if group is not None:
                member = self._open(group, PORT, address_of(group), shared=True)
                member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group.packed + self._ipv4.packed)
        except BaseException:
            self.close()
            raise

    def _open(self, ipv4: IPv4Address, port: int, number: int, *, shared: bool = False) -> socket.socket:
        """Open a socket. A shared one may be used by others too, and reports the interface of data."""
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._receivers.append((opened, number.to_bytes(6, "big")))
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        enlarge_receive_buffer(opened)
        opened.bind((str(ipv4), port))
        self._epoll.register(opened, select.EPOLLIN)
        return opened

    def fileno(self) -> int:
        return self._epoll.fileno()

    def reaches(self, address: int) -> bool:
        return _socket_address(address.to_bytes(6, "big")) is not None

    def send(self, frame: bytes) -> None:
        to = _socket_address(frame[:6])
        try:
            if to is not None:
                self._local.sendto(frame[ETHERNET_BYTES:], to)
                return
        except OSError:
            pass
        self.lost += 1

    def receive(self) -> bytes | None:
        """The next frame; None if none is waiting, or if it is a broadcast on another interface."""
        return self._receive(self._receivers)

    def _receive(self, receivers: Iterable[tuple[socket.socket, bytes]]) -> bytes | None:
        for receiver, destination in receivers:
            with contextlib.suppress(OSError):
                payload, told, _, (host, port) = receiver.recvmsg(
                    LONGEST_PAYLOAD + 1, socket.CMSG_SPACE(_PACKET_INFO.size)
                )
                if told and not self._is_own_interface(told[0][2]):
                    return None
                source = _source_bytes(host, port)
                if ETHERNET_BYTES + len(payload) not in PACKET_BYTES or source is None:
                    return _FOREIGN
                return destination + source + _ETHERTYPE + payload
        return None

    def send_batch(self, batch: "FrameBatch", rows: npt.NDArray[np.int64]) -> None:
        named = batch.put_names(rows)
        self.lost += rows.size - named.size + len(batch.datagrams_out.send(self._local.fileno(), named))

    def receive_batch(self, batch: "FrameBatch") -> int:
        (local, _), *shared = self._receivers
        count = 0
        with contextlib.suppress(OSError):  # as in `receive`
            count = batch.datagrams_in.receive(local.fileno())
        batch.put_heads(count, self.address)
        while shared and count < batch.rows and (frame := self._receive(shared)) is not None:
            batch.put(count, frame)
            count += 1
        return count

    def _is_own_interface(self, told: bytes) -> bool:
        """Whether a datagram arrived on the interface of the local address; sockets for broadcasts receive from all."""
        index, *_ = _PACKET_INFO.unpack(told)
        if index != self._interface:  # or another interface has the address now
            self._interface = self._ask_interface(SIOCGIFINDEX)
        return bool(index == self._interface)

    def _ask_interface(self, request: int) -> int:
        return ask_interface(self._local, _interface_of(self._local, self._ipv4), request)

    def close(self) -> None:
        self._epoll.close()
        for receiver, _ in self._receivers:
            receiver.close()
