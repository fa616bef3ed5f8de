"""The Verilog of the kernels has the ports that the vendor's tools and the lists beside it speak of."""

import gc
import re

import pytest
from support.verilog_ports import instances_of, ports_of

from p4sgd.hw.kernel.kernels import WorkerKernel
from p4sgd.hw.kernel.verilog import WORKER_KERNEL, worker_kernel
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import modules
from p4sgd.hw.worker.worker import ENGINE

SLICES = (0, 1, 3, 0, 2)


@pytest.fixture(scope="module")
def worker():
    return worker_kernel(WorkerConfig.small(), build_id=7, slices=SLICES)


def test_ports_of_the_worker(worker):
    """Clock and reset, registers, two memories an engine of which one is written to, labels, and the two streams."""
    listed = {name: (direction, bits) for name, direction, bits in worker.ports}
    assert ports_of(worker.text, worker.top) == listed
    assert len(worker.ports) == len(listed)
    buses = {name.rpartition("_")[0] for name in listed}
    assert buses == {"ap", "ap_rst", "s_axi_control", "axis_tx", "axis_rx", *(f"m_axi_gmem{i}" for i in range(5))}
    written = {name.removesuffix("_awvalid") for name in listed if name.endswith("_awvalid")}
    assert written == {"s_axi_control", "m_axi_gmem0", "m_axi_gmem2"}
    assert [port.bits for port in worker.ports if port.name.endswith("_rdata")] == [32, 64, 64, 64, 64, 256]
    # To modifiable and bufferable memory, without locks and priority, of one ID (UG1037).
    assigned = re.findall(r"^  assign m_axi_gmem0_a[rw](id|lock|cache|prot|qos) = (.*);", worker.text, re.MULTILINE)
    values = {("id", "1'h0"), ("lock", "1'h0"), ("cache", "4'h3"), ("prot", "3'h0"), ("qos", "4'h0")}
    assert (set(assigned), len(assigned)) == (values, 2 * len(values))


def test_an_engine_is_written_once_and_slices_are_kept(worker):
    assert list(modules(worker.text)).count(ENGINE) == 1
    assert worker.text.count(f"  {ENGINE} ") == 2
    found = instances_of(worker.text, WORKER_KERNEL)
    slices = {f"gmem{memory}_slice{place}" for memory, count in enumerate(SLICES) for place in range(count)}
    assert set(found) == {"worker"} | slices
    marked = re.findall(r'^\(\* keep_hierarchy = "yes" \*\)\nmodule (\S+) ', worker.text, re.MULTILINE)
    assert set(marked) == {found[name] for name in slices}


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_slices_of_some_memories_are_refused():
    with pytest.raises(ValueError, match="slices must be of 5 memories, not 4"):
        WorkerKernel(WorkerConfig.small(), slices=(0, 1, 3, 0))
    gc.collect()  # here, where the warning of it is ignored
