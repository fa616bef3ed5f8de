"""The layout of packets in hardware; benches of endpoint and aggregator compare their bits, right and wrong ones."""

import pytest
from amaranth.hdl import Fragment, Module, Signal

from p4sgd.hw.net.packet import PACKET, build, parse
from p4sgd.hw.spec.packet import FIELDS, FRAME_BYTES


def test_layout_has_every_field_and_no_other():
    names = [field.name for field in FIELDS]
    assert [*list(PACKET.members)[:-1], *(f"value{i}" for i in range(8))] == names
    assert PACKET.size == 8 * FRAME_BYTES
    m = Module()
    with pytest.raises(KeyError, match="no field color"):
        build(m, color=1)
    Fragment.get(m, None)  # an unused module would warn
    with pytest.raises(ValueError, match="512 bits, not 100"):
        parse(Signal(100))
