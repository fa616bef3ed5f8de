"""Controllers by kind of aggregator."""

import importlib
from types import ModuleType

from p4sgd.host.control.address import ControlAddress
from p4sgd.host.errors import UserError
from p4sgd.host.switch.cluster_file import Cluster
from p4sgd.host.switch.controller import Controller

__all__ = ["open_controller"]


def open_controller(cluster: Cluster) -> Controller:
    """The controller of a cluster's aggregator.

    Raises
    ------
    UserError
        If there is no controller of this kind here.
    P4sgdError
        If the aggregator cannot be reached.
    """
    aggregator = cluster.aggregator
    if aggregator.kind == "socket":
        from p4sgd.host.switch.software.client import SoftwareAggregator

        return SoftwareAggregator(ControlAddress.parse(aggregator.control))
    opened: Controller
    if aggregator.kind == "bmv2":
        opened = _module("p4runtime", aggregator.kind).open_p4runtime(aggregator)
        return opened
    if aggregator.kind == "tofino":
        opened = _module("bfruntime", aggregator.kind).open_bfruntime(aggregator)
        return opened
    from p4sgd.host.devices.xrt.aggregator import BoardAggregator

    assert aggregator.board is not None
    return BoardAggregator(aggregator.board, rs_fec=cluster.network.rs_fec)


def _module(name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(f"p4sgd.host.switch.{name}")
    except ModuleNotFoundError as error:
        raise UserError(f"an aggregator of kind {kind} needs {error.name}, which is not installed") from None
