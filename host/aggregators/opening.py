"""Opening the controller of an aggregator by its kind."""

import contextlib

from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster
from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.links.opening import UDP
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlAddress


def open_controller(cluster: Cluster) -> Controller:
    """Open the controller of a cluster's aggregator, or of all if there are racks. Only what these kinds need is
    imported.

    Raises UserError if the process, board or file that the cluster file names is not there or in use, a package is not
    installed, or the top aggregator has too few slots; P4sgdError if an aggregator does not answer as one of this
    version should. Both name the rack, if it is one's. A BMv2 is not connected to before the first call.
    """
    if not cluster.racks:
        return _open(cluster.aggregator, cluster)
    from p4sgd.host.aggregators.tree import Tree

    with contextlib.ExitStack() as opened:
        top = opened.enter_context(contextlib.closing(_open(cluster.aggregator, cluster)))
        racks = []
        for rack, each in enumerate(cluster.racks):
            try:
                racks.append(opened.enter_context(contextlib.closing(_open(each, cluster))))
            except (P4sgdError, UserError) as error:
                error.args = (f"racks[{rack}]: {error}",)
                raise
        tree = Tree(cluster, top, racks)
        opened.pop_all()
    return tree


def _open(aggregator: AggregatorAddress, cluster: Cluster) -> Controller:
    if aggregator.kind == "socket":
        from p4sgd.host.aggregators.software import SoftwareAggregator

        interface = UDP + udp_address_text(aggregator.address) if cluster.udp else "LINK"
        return SoftwareAggregator(ControlAddress.parse(aggregator.control), cluster.token, interface=interface)
    if aggregator.kind == "bmv2":
        from p4sgd.host.aggregators.p4runtime import P4RuntimeController

        return P4RuntimeController(aggregator.control, device_id=aggregator.device_id, tls=aggregator.tls)
    if aggregator.kind == "tofino":
        from p4sgd.host.aggregators.bfruntime import BfRuntimeController

        return BfRuntimeController(aggregator.control, device_id=aggregator.device_id)
    from p4sgd.host.aggregators.fpga import BoardAggregator

    assert aggregator.board is not None
    ports = cluster.ports_of(aggregator)
    return BoardAggregator(aggregator.board, rs_fec=cluster.network.rs_fec, ports=ports)
