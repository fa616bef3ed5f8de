"""Frames in UDP datagrams, for networks with routers and for machines without the right to raw sockets."""

import contextlib
import select
import socket
import struct
from ipaddress import IPv4Address

from p4sgd.host.links.addresses import LocalAddresses
from p4sgd.host.links.buffers import enlarge_receive_buffer
from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST
from p4sgd.hw.spec.udp import ETHERNET_BYTES, FIRST_GROUP, FRAME_BYTES, HEADER_BYTES, PORT, address_of, ipv4_of

__all__ = ["UdpLink"]

_SO_NO_CHECK = 11
_IP_PKTINFO = 8
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2
"""From asm-generic/socket.h and linux/in.h; :mod:`socket` does not have them."""

_PAYLOAD_BYTES = FRAME_BYTES - HEADER_BYTES
_ETHERTYPE = packet.ETHERTYPE.to_bytes(2, "big")
_FOREIGN = bytes(packet.FRAME_BYTES)
"""What stands for a datagram that is no packet: a frame of EtherType 0, as in hardware."""

_PACKET_INFO = struct.Struct("=I4s4s")
"""struct in_pktinfo of ip(7): the index of the interface that a datagram came by, and addresses."""

_TTL = 64


class UdpLink:
    """Frames as datagrams of :mod:`p4sgd.hw.spec.udp`, in and out as core frames of 64 bytes.

    Addresses of a frame are numbers that stand for IPv4 addresses. A frame is sent from the local address, whatever its
    own source is, and to where its destination says; one whose destination stands for no IPv4 address is lost.

    Parameters
    ----------
    local
        Own address, of one of the machine's interfaces. What is for it is received, and what comes for everybody by
        that interface.
    group
        A multicast address that is received too, by the same interface.

    Raises
    ------
    OSError
        If the address is not this machine's, or its port is taken.
    """

    def __init__(self, local: IPv4Address, group: IPv4Address | None = None) -> None:
        self.lost = 0
        self._address = local
        self._interface = 0
        self._addresses = LocalAddresses()
        self._epoll = select.epoll()
        self._receivers: list[tuple[socket.socket, bytes]] = []
        try:
            self._local = self._open(local, address_of(local))
            # Without a checksum, and never in fragments: what the hardware asks for.
            self._local.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
            self._local.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
            self._local.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self._local.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local.packed)
            self._local.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _TTL)
            self._open(ipv4_of(BROADCAST), BROADCAST, shared=True)
            if group is not None:
                member = self._open(group, address_of(group), shared=True)
                member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group.packed + local.packed)
        except BaseException:
            self.close()
            raise

    def _open(self, address: IPv4Address, number: int, *, shared: bool = False) -> socket.socket:
        """A socket for what is sent to an address; a shared one leaves it to others, and says what came by where."""
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._receivers.append((opened, number.to_bytes(6, "big")))
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        enlarge_receive_buffer(opened)
        opened.bind((str(address), PORT))
        self._epoll.register(opened, select.EPOLLIN)
        return opened

    def fileno(self) -> int:
        """A descriptor that is readable when any of the sockets is."""
        return self._epoll.fileno()

    def reaches(self, address: int) -> bool:
        """Whether an address stands for one of IPv4."""
        try:
            ipv4_of(address)
        except ValueError:
            return False
        return True

    def send(self, frame: bytes) -> None:
        """Send a frame; it is lost if it cannot be sent at once."""
        try:
            to = ipv4_of(int.from_bytes(frame[:6], "big"))
            self._local.sendto(frame[ETHERNET_BYTES:], (str(to), PORT))
        except (ValueError, OSError):
            self.lost += 1

    def receive(self) -> bytes | None:
        """The next frame, None if none waits. What is for everybody and came by another interface counts as none."""
        for receiver, destination in self._receivers:
            with contextlib.suppress(OSError):
                payload, told, _, (sender, _) = receiver.recvmsg(
                    _PAYLOAD_BYTES + 1, socket.CMSG_SPACE(_PACKET_INFO.size)
                )
                if told and not self._is_own_interface(told[0][2]):
                    return None
                source = IPv4Address(sender)
                if len(payload) != _PAYLOAD_BYTES or int(source) >= FIRST_GROUP:
                    return _FOREIGN
                return destination + address_of(source).to_bytes(6, "big") + _ETHERTYPE + payload
        return None

    def _is_own_interface(self, told: bytes) -> bool:
        """Whether a datagram came by the interface of the local address; every socket for all hears all interfaces."""
        index, *_ = _PACKET_INFO.unpack(told)
        if index != self._interface:  # or the address is another one's by now
            self._interface = self._addresses.interface_of(self._address)
        return bool(index == self._interface)

    def close(self) -> None:
        """Close all sockets."""
        self._epoll.close()
        self._addresses.close()
        for receiver, _ in self._receivers:
            receiver.close()
