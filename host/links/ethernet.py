"""Links over Ethernet, by packet sockets."""

import contextlib
import ctypes
import errno
import socket
import struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from p4sgd.host.links.link import SIOCGIFINDEX, SIOCGIFMTU, ask_interface, enlarge_receive_buffer
from p4sgd.hw.spec.packet import ETHERTYPE, MOST_BYTES
from p4sgd.hw.spec.udp import ETHERNET_BYTES

if TYPE_CHECKING:
    from p4sgd.host.links.batch import FrameBatch

_SO_ATTACH_FILTER, _SOL_PACKET, _PACKET_ADD_MEMBERSHIP, _PACKET_MR_PROMISC, _ETH_P_ALL = 26, 263, 1, 1, 3
"""From asm-generic/socket.h, linux/socket.h, linux/if_packet.h and linux/if_ether.h; :mod:`socket` lacks them."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K and BPF_RET | BPF_K, from linux/bpf_common.h."""

_PROTOCOL, _DIRECTION, _TAG_PRESENT, _OUTGOING = 0xFFFF_F000, 0xFFFF_F004, 0xFFFF_F030, 4
"""SKF_AD_OFF and SKF_AD_PROTOCOL, SKF_AD_PKTTYPE and SKF_AD_VLAN_TAG_PRESENT, from linux/filter.h; PACKET_OUTGOING."""

_UNTAGGED = (
    (_LOAD, 0, 0, _PROTOCOL),
    (_EQUAL, 0, 5, ETHERTYPE),
    (_LOAD, 0, 0, _DIRECTION),
    (_EQUAL, 3, 0, _OUTGOING),
    (_LOAD, 0, 0, _TAG_PRESENT),
    (_EQUAL, 0, 1, 0),
    (_RETURN, 0, 0, 0xFFFF),  # as many bytes as there are
    (_RETURN, 0, 0, 0),
)
"""Filter for frames of the protocol that arrived without a VLAN tag. Linux strips the tag, so that the frame looks
untagged, and reports separately that there was one."""

_ROOM = 2048
"""Size of the buffer for a frame. A longer frame is truncated, but still too long to be a packet."""

_OF_ONE_FRAME = (errno.EMSGSIZE, errno.ENOBUFS)
"""Errors that say nothing about the interface: a frame is longer than it carries, or its queue dropped one."""


class EthernetLink:
    """Sends and receives frames of the protocol's EtherType on a network interface.

    The protocol checks addresses itself, so the interface is in promiscuous mode while the link is open. The link
    receives neither its own frames nor those of a VLAN. While the interface is down, frames are lost. The link recovers
    when the interface comes up again, or when another one takes its name. Raises OSError if there is no such interface,
    or permission is missing: raw sockets need CAP_NET_RAW.
    """

    address = None  # frames keep the addresses that they have

    def __init__(self, interface: str) -> None:
        self.lost = 0
        self._interface = interface
        self._is_bound = False
        # Protocol 0 receives nothing, so no frame of another interface is queued before the socket is bound.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        try:
            enlarge_receive_buffer(self._socket)
            code = b"".join(struct.pack("HBBI", *step) for step in _UNTAGGED)
            room = ctypes.create_string_buffer(code, len(code))
            program = struct.pack("HP", len(_UNTAGGED), ctypes.addressof(room))
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            self._bind()
        except BaseException:
            self._socket.close()
            raise

    def _bind(self) -> None:
        # Not just the EtherType: sockets for one protocol get frames after the information on VLAN tags is dropped.
        self._socket.bind((self._interface, _ETH_P_ALL))
        index = ask_interface(self._socket, self._interface, SIOCGIFINDEX)
        membership = struct.pack("iHH8s", index, _PACKET_MR_PROMISC, 0, b"")
        self._socket.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        self.most_bytes = min(MOST_BYTES, ETHERNET_BYTES + ask_interface(self._socket, self._interface, SIOCGIFMTU))
        self._is_bound = True

    def _revive(self) -> None:
        """Bind again after an error: another interface may have taken the name."""
        if not self._is_bound:
            with contextlib.suppress(OSError):
                self._bind()

    def _note(self, error: OSError) -> None:
        """Note that a frame could not be sent, and whether its interface may be gone."""
        self.lost += 1
        if not isinstance(error, BlockingIOError):
            self._is_bound = error.errno in _OF_ONE_FRAME

    def fileno(self) -> int:
        return self._socket.fileno()

    def reaches(self, address: int) -> bool:
        return True

    def send(self, frame: bytes) -> None:
        self._revive()
        try:
            self._socket.send(frame)
        except OSError as error:
            self._note(error)

    def receive(self) -> bytes | None:
        self._revive()
        try:
            return self._socket.recv(_ROOM)
        except BlockingIOError:
            return None
        except OSError:
            self._is_bound = False
            return None

    def send_batch(self, batch: "FrameBatch", rows: npt.NDArray[np.int64]) -> None:
        self._revive()
        for error in batch.frames_out.send(self._socket.fileno(), rows):
            self._note(error)

    def receive_batch(self, batch: "FrameBatch") -> int:
        self._revive()
        try:
            return batch.frames_in.receive(self._socket.fileno())
        except OSError:
            self._is_bound = False
            return 0

    def close(self) -> None:
        self._socket.close()
