"""A filter in the kernel that knows frames of a VLAN."""

import ctypes
import socket
import struct

__all__ = ["attach_untagged_filter"]

_SO_ATTACH_FILTER = 26
"""From asm-generic/socket.h; :mod:`socket` does not have it."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K and BPF_RET | BPF_K, from linux/bpf_common.h."""

_PROTOCOL, _DIRECTION, _TAG_PRESENT = 0xFFFF_F000, 0xFFFF_F004, 0xFFFF_F030
"""SKF_AD_OFF and SKF_AD_PROTOCOL, SKF_AD_PKTTYPE and SKF_AD_VLAN_TAG_PRESENT, from linux/filter.h."""

_OUTGOING = 4
"""PACKET_OUTGOING, from linux/if_packet.h."""


def attach_untagged_filter(receiver: socket.socket, ethertype: int) -> None:
    """Have a packet socket receive frames of an EtherType only that came in without a VLAN tag.

    Linux takes the tag out of a frame before anybody sees it, and only says that there was one. The frame that is left
    is not told from one that had none.

    Raises
    ------
    OSError
        If the kernel takes no filter.
    """
    program = (
        (_LOAD, 0, 0, _PROTOCOL),
        (_EQUAL, 0, 5, ethertype),
        (_LOAD, 0, 0, _DIRECTION),
        (_EQUAL, 3, 0, _OUTGOING),
        (_LOAD, 0, 0, _TAG_PRESENT),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, 0xFFFF),  # as many bytes as there are
        (_RETURN, 0, 0, 0),
    )
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    room = ctypes.create_string_buffer(code, len(code))
    receiver.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(room)))
