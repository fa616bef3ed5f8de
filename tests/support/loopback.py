"""Addresses of this machine for tests of UDP."""

import os
import socket
from ipaddress import IPv4Address

import pytest


def loopback(host):
    """An address that no other process of these tests has; ``host`` is its last byte."""
    address = IPv4Address(127 << 24 | (os.getpid() & 0xFFFF) << 8 | host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((str(address), 0))
            tried.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address.packed)  # knows whether lo is up
        except OSError as error:
            pytest.skip(f"needs loopback addresses ({error.strerror}): ip link set lo up")
    return address
