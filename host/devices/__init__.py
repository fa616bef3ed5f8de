"""The devices by name: an emulated cluster, simulated Verilog, and a cluster of real workers.

Opening a device imports only what that device needs.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p4sgd.host.devices.device import Device, Worker
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.run import MAX_WORKERS, MOST_WORKERS

__all__ = ["CLUSTER", "DEVICES", "Device", "DeviceKind", "Worker", "has_network", "open_device"]


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device and the class that implements it, called with ``(config, workers, **options)``."""

    summary: str  # one line, for lists of devices
    module: str
    class_name: str
    has_network: bool  # its workers send packets
    distributed: bool = False  # its workers may be used by several processes (ranks)
    # Name of its workers' default configuration; without effect if they report their own.
    configuration: str = "small"  # quick to simulate


CLUSTER = "cluster"
"""Name of the device that a cluster file describes."""

DEVICES: Mapping[str, DeviceKind] = {
    "emulator": DeviceKind(
        "exact and fast, on this machine",
        "p4sgd.sim.emulator",
        "EmulatedDevice",
        has_network=False,
        distributed=True,
        configuration="u280",
    ),
    "rtl": DeviceKind(
        "the generated Verilog, simulated: exact and slow", "p4sgd.host.devices.rtl", "RtlDevice", has_network=True
    ),
    CLUSTER: DeviceKind(
        "boards or processes and an aggregator on a real network, by a cluster file",
        "p4sgd.host.devices.cluster",
        "ClusterDevice",
        has_network=True,
        distributed=True,
    ),
}
"""The kinds of devices by the name that the user gives; the first is the default."""


def open_device(name: str, config: WorkerConfig | None, workers: int, **options: Any) -> Device:
    """Open one of `DEVICES` with so many workers, 1 to 32, or up to 992 in racks; its class documents the options.

    ``config`` is that of every worker; None is allowed for devices whose workers report their own. A `UserError` if the
    name is unknown or the number of workers is out of range; a `P4sgdError` if the device cannot be opened.
    """
    if name not in DEVICES:
        raise UserError(f"there is no device {name!r}: choose one of {', '.join(DEVICES)}")
    most = MOST_WORKERS if name == "cluster" else MAX_WORKERS
    if not 1 <= workers <= most:
        raise UserError(f"workers must be 1 to {most}, not {workers}")
    kind = DEVICES[name]
    device: Device = getattr(importlib.import_module(kind.module), kind.class_name)(config, workers, **options)
    return device


def has_network(device: Device) -> bool:
    """Whether the workers of a device send packets."""
    return device.name in DEVICES and DEVICES[device.name].has_network
