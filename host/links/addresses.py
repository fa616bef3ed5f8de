"""Which network interface an address of this machine is of."""

import errno
import os
import socket
import struct
from ipaddress import IPv4Address

__all__ = ["LocalAddresses"]

_RTM_GETROUTE = 26
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_RTM_F_FIB_MATCH = 0x2000
_RTN_LOCAL = 2
_RTA_DST, _RTA_OIF = 1, 4
"""From linux/netlink.h and linux/rtnetlink.h."""

_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=8BI")
_ATTRIBUTE = struct.Struct("=HH")
_ROOM = 8192


class LocalAddresses:
    """Linux's table of local addresses, of the network namespace that this is made in."""

    def __init__(self) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def interface_of(self, address: IPv4Address) -> int:
        """The index of the interface that an address is of.

        Raises
        ------
        OSError
            If it is of none.
        """
        wanted = _ATTRIBUTE.pack(_ATTRIBUTE.size + 4, _RTA_DST) + address.packed
        # The entry of the table itself: the route to an own address would always lead to the loopback interface.
        question = _ROUTE.pack(socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH) + wanted
        self._kernel.send(_HEADER.pack(_HEADER.size + len(question), _RTM_GETROUTE, _NLM_F_REQUEST, 0, 0) + question)
        answer = self._kernel.recv(_ROOM)
        _, kind, *_ = _HEADER.unpack_from(answer)
        if kind == _NLMSG_ERROR:
            (number,) = struct.unpack_from("=i", answer, _HEADER.size)
            raise OSError(-number, os.strerror(-number))
        *_, route_type, _ = _ROUTE.unpack_from(answer, _HEADER.size)
        at = _HEADER.size + _ROUTE.size
        while route_type == _RTN_LOCAL and at < len(answer):
            size, name = _ATTRIBUTE.unpack_from(answer, at)
            if name == _RTA_OIF:
                (index,) = struct.unpack_from("=I", answer, at + _ATTRIBUTE.size)
                return int(index)
            at += (size + 3) // 4 * 4
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    def close(self) -> None:
        """Ask no more."""
        self._kernel.close()
