"""Interfaces of local addresses."""

import contextlib
import socket
from ipaddress import IPv4Address

from support.namespace import Namespace

from p4sgd.host.links.udp import interface_of


def test_interfaces_of_addresses():
    with contextlib.closing(Namespace()) as namespace:
        for index in range(2):
            namespace.pair(f"s{index}", f"w{index}")
            namespace.ip("address", "add", f"10.0.{index}.1/24", "dev", f"s{index}")
        namespace.ip("address", "add", "10.0.0.7/24", "dev", "s1", "label", "s1:7")  # whose network is that of s0
        known = {"10.0.0.1": "s0", "10.0.1.1": "s1", "10.0.0.7": "s1", "127.0.0.1": "lo", "127.9.9.9": "lo"}
        with namespace.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM) as opened:
            for address, name in known.items():
                assert interface_of(opened, IPv4Address(address)) == name
