"""Opening the controller of an aggregator by its kind."""

from p4sgd.host.aggregators.cluster_file import Cluster
from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.links.opening import UDP
from p4sgd.host.links.udp import udp_address_text
from p4sgd.host.rpc.address import ControlAddress


def open_controller(cluster: Cluster) -> Controller:
    """Open the controller of a cluster's aggregator. Only what this kind of aggregator needs is imported.

    Raises
    ------
    UserError
        If the aggregator process, the board or a file that the cluster file names is not there, if the process or the
        board is in use by other programs, or if a package that this kind needs is not installed. The command line exits
        with status 2.
    P4sgdError
        If the aggregator does not answer as one of this version should, or if a Tofino cannot be reached. A BMv2 is not
        connected to before the first call.
    """
    aggregator = cluster.aggregator
    if aggregator.kind == "socket":
        from p4sgd.host.aggregators.software import SoftwareAggregator

        interface = UDP + udp_address_text(aggregator.address) if cluster.udp else "LINK"
        return SoftwareAggregator(ControlAddress.parse(aggregator.control), cluster.token, interface=interface)
    if aggregator.kind == "bmv2":
        from p4sgd.host.aggregators.p4runtime import open_p4runtime

        return open_p4runtime(aggregator)
    if aggregator.kind == "tofino":
        from p4sgd.host.aggregators.bfruntime import open_bfruntime

        return open_bfruntime(aggregator)
    from p4sgd.host.aggregators.fpga import BoardAggregator

    assert aggregator.board is not None
    ports = {worker.port for worker in cluster.workers}
    return BoardAggregator(aggregator.board, rs_fec=cluster.network.rs_fec, ports=ports)
