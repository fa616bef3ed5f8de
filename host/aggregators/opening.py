"""Opening the controller of an aggregator by its kind."""

from p4sgd.host.aggregators.cluster_file import Cluster
from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.links.opening import UDP
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlAddress


def open_controller(cluster: Cluster) -> Controller:
    """Open the controller of a cluster's aggregator. Only what this kind of aggregator needs is imported.

    Raises UserError if the process, board or file that the cluster file names is not there or in use, or a package is
    not installed; P4sgdError if the aggregator does not answer as one of this version should. A BMv2 is not connected
    to before the first call.
    """
    aggregator = cluster.aggregator
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
    ports = {worker.port for worker in cluster.workers}
    return BoardAggregator(aggregator.board, rs_fec=cluster.network.rs_fec, ports=ports)
