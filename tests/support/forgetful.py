"""A protocol that is known to be wrong, to test the tests of the right one."""

from p4sgd.hw.spec.packet import PacketType
from p4sgd.sim.network.aggregator import Aggregator


class Forgetful(Aggregator):
    """The aggregator of the published prototypes: two kinds of round, told apart by nothing."""

    def _partial(self, slot, packet):
        if slot.acknowledged == self._all or slot.aggregated == 0:
            slot.aggregated = slot.acknowledged = 0
            slot.sums = (0,) * 8
        slot.round = packet.round
        if slot.aggregated & packet.bitmap:
            return self._answer_one(PacketType.FULL, packet, slot) if slot.aggregated == self._all else None
        slot.aggregated |= packet.bitmap
        slot.sums = tuple(a + b for a, b in zip(slot.sums, packet.values, strict=True))
        return self._answer_all(PacketType.FULL, packet, slot) if slot.aggregated == self._all else None

    def _acknowledge(self, slot, packet):
        slot.acknowledged |= packet.bitmap
        return self._answer_all(PacketType.CLEAR, packet, slot) if slot.acknowledged == self._all else None
