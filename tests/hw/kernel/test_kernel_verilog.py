"""The Verilog of the kernels has the ports that the vendor's tools and the lists beside it speak of."""

import gc
import re

import pytest
from support.verilog_ports import instances_of, ports_of

from p4sgd.hw.kernel.kernels import WorkerKernel
from p4sgd.hw.kernel.verilog import WORKER_KERNEL, aggregator_kernel, cmac_kernel, worker_kernel
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import modules
from p4sgd.hw.worker.worker import ENGINE

AGGREGATOR = AggregatorConfig(slots=16, jobs=2, ports=2)
SLICES = (0, 1, 3, 0, 2)


@pytest.fixture(scope="module")
def worker():
    return worker_kernel(WorkerConfig.small(), build_id=7, slices=SLICES)


@pytest.mark.parametrize("kind", ["worker", "aggregator", "cmac"])
def test_the_list_of_ports_is_that_of_the_verilog(kind, worker):
    match kind:
        case "worker":
            kernel = worker
        case "aggregator":
            kernel = aggregator_kernel(AGGREGATOR)
        case "cmac":
            kernel = cmac_kernel()
    listed = {name: (direction, bits) for name, direction, bits in kernel.ports}
    assert ports_of(kernel.text, kernel.top) == listed
    assert len(kernel.ports) == len(listed)


def test_the_aggregator_has_a_pair_of_streams_a_port():
    buses = {port.name.rpartition("_")[0] for port in aggregator_kernel(AGGREGATOR).ports}
    streams = {f"axis_{way}{port}" for way in ("rx", "tx") for port in range(2)}
    assert buses == {"ap", "ap_rst", "s_axi_control"} | streams


def test_every_bus_of_the_worker_is_there(worker):
    """Clock and reset, registers, two memories an engine of which one is written to, labels, and the two streams."""
    names = {port.name for port in worker.ports}
    buses = {name.rpartition("_")[0] for name in names}
    assert buses == {"ap", "ap_rst", "s_axi_control", "axis_tx", "axis_rx", *(f"m_axi_gmem{i}" for i in range(5))}
    assert {name for name in names if name.startswith("ap_")} == {"ap_clk", "ap_rst_n"}
    assert {name for name in names if name.endswith("_awvalid")} == {
        "s_axi_control_awvalid",
        "m_axi_gmem0_awvalid",
        "m_axi_gmem2_awvalid",
    }
    widths = [port.bits for port in worker.ports if port.name.endswith("_rdata")]
    assert widths == [32, 64, 64, 64, 64, 256]


def test_an_engine_is_written_once(worker):
    assert list(modules(worker.text)).count(ENGINE) == 1
    assert worker.text.count(f"  {ENGINE} ") == 2


def test_memories_have_their_slices_which_are_kept(worker):
    found = instances_of(worker.text, rf"\{WORKER_KERNEL}.component")
    slices = {f"gmem{memory}_slice{place}" for memory, count in enumerate(SLICES) for place in range(count)}
    assert set(found) == {"worker"} | slices
    marked = re.findall(r'^\(\* keep_hierarchy = "yes" \*\)\nmodule (\S+) ', worker.text, re.MULTILINE)
    assert set(marked) == {found[name] for name in slices}


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_slices_of_some_memories_are_refused():
    with pytest.raises(ValueError, match="slices must be of 5 memories, not 4"):
        WorkerKernel(WorkerConfig.small(), slices=(0, 1, 3, 0))
    gc.collect()  # here, where the warning of it is ignored
