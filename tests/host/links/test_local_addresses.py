"""Linux's table of local addresses, asked over netlink."""

import contextlib
import socket
from ipaddress import IPv4Address

import pytest
from support.namespace import Namespace

from p4sgd.host.links.udp import LocalAddresses


def test_interfaces_of_addresses():
    with contextlib.closing(Namespace()) as namespace:
        for index in range(2):
            namespace.pair(f"s{index}", f"w{index}")
            namespace.ip("address", "add", f"10.0.{index}.1/24", "dev", f"s{index}")
        namespace.ip("address", "add", "10.0.0.7/24", "dev", "s1")  # whose network is that of s0
        namespace.ip("route", "add", "default", "via", "10.0.1.254")
        known = {address: name for name, address in (("s0", "10.0.0.1"), ("s1", "10.0.1.1"), ("s1", "10.0.0.7"))}
        known |= {"127.0.0.1": "lo", "127.9.9.9": "lo"}
        with contextlib.closing(namespace.call(LocalAddresses)) as addresses:
            for address, name in known.items():
                right = namespace.call(socket.if_nametoindex, name)
                assert addresses.interface_of(IPv4Address(address)) == right
            for foreign in ("10.0.0.2", "8.8.8.8"):
                with pytest.raises(OSError, match="Cannot assign requested address"):
                    addresses.interface_of(IPv4Address(foreign))
            namespace.ip("route", "del", "default")
            with pytest.raises(OSError, match="unreachable"):
                addresses.interface_of(IPv4Address("8.8.8.8"))
