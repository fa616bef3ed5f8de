"""A protocol that is known to be wrong, to test the tests of the right one."""

from p4sgd.hw.spec.packet import DropReason, PacketType
from support.aggregator_model import Aggregator


class Forgetful(Aggregator):
    """The aggregator of the published prototypes: two kinds of round, told apart by nothing."""

    def _partial(self, slot, packet, job):
        if slot.acknowledged == job.everyone or slot.aggregated == 0:
            slot.aggregated = slot.acknowledged = 0
            slot.sums = (0,) * 8
        slot.round = packet.round
        if slot.aggregated & packet.bitmap:
            complete = slot.aggregated == job.everyone
            return self._answer_one(PacketType.FULL, packet, slot, job) if complete else DropReason.DUPLICATE
        slot.aggregated |= packet.bitmap
        slot.sums = tuple(a + b for a, b in zip(slot.sums, packet.values, strict=True))
        return self._answer_all(PacketType.FULL, packet, slot, job) if slot.aggregated == job.everyone else None

    def _acknowledge(self, slot, packet, job):
        slot.acknowledged |= packet.bitmap
        return self._answer_all(PacketType.CLEAR, packet, slot, job) if slot.acknowledged == job.everyone else None
