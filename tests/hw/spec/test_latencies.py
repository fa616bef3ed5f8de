# amaranth: UnusedElaboratable=no
"""The terms of predicted cycles are the latencies of the components, of every size of a worker."""

import pytest

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.datapath.backward import Gradient
from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.datapath.model import Model
from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.primitives import AdderTree
from p4sgd.hw.spec import timing
from p4sgd.hw.spec.config import WorkerConfig

ENGINE_REGISTER = 1
"""An engine takes deltas in a register."""

CREDIT = 1
"""The scoreboard gives the credit for a chunk a cycle after its weights are written."""


@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
def test_forward(lanes):
    for engines in range(1, 33):
        config = WorkerConfig(engines=engines, lanes=lanes)
        parts = DotProduct.latency(config) + PartialSum.latency(config) + Endpoint.TX_LATENCY
        assert timing.forward_cycles(config) == parts


def test_backward_and_chaining():
    parts = Endpoint.RX_LATENCY + LossUnit.LATENCY + ENGINE_REGISTER + Gradient.BEGIN_LATENCY
    assert timing.backward_cycles() == parts
    assert timing.UPDATE_SPACING == Model.UPDATE_SPACING
    for precision in range(1, 9):
        parts = (precision - 1) + Gradient.LATENCY + Model.WRITE_LATENCY + CREDIT
        assert timing.chaining_cycles(precision) == parts


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 8, 9, 10, 27, 28, 64])
def test_a_tree_has_as_few_levels_as_its_adders_allow(terms):
    levels = AdderTree(terms, 4).latency
    assert timing.TREE_RADIX**levels >= terms
    assert levels == 0 or timing.TREE_RADIX ** (levels - 1) < terms


def test_the_aggregators_pipeline_empties_in_a_reset():
    """Its packets have flags without a reset."""
    assert Aggregator.LATENCY < timing.RESET_CYCLES
