"""What the parts of the aggregator hand to each other."""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum

from p4sgd.hw.net.packet import PACKET
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.drop import VERDICT, Drop
from p4sgd.hw.spec.job import MAX_PORTS
from p4sgd.hw.spec.packet import ROUND_BITS
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["JOB", "MAC_BITS", "OUTCOME", "STATE", "Kind", "admitted", "member", "own_item", "slot_item"]

MAC_BITS = 48


class Kind(enum.Enum, shape=unsigned(2)):
    """What is to be done with a slot."""

    LOOK = 0
    """Nothing: its state is shown."""
    PARTIAL = 1
    ACK = 2
    RESET = 3
    """Make it fresh; its round is that of the item."""


JOB = data.StructLayout(
    {"serving": 1, "number": 8, "workers": MAX_WORKERS.bit_length(), "group_mac": MAC_BITS, "ports": MAX_PORTS}
)
"""Settings of a job; stable while it is served."""


def member(config: AggregatorConfig) -> data.StructLayout:
    """A worker of a job."""
    return data.StructLayout({"mac": MAC_BITS, "port": config.port_bits})


def own_item(config: AggregatorConfig) -> data.StructLayout:
    """What the aggregator itself does with a slot, LOOK or RESET."""
    return data.StructLayout({"kind": Kind, "address": config.job_bits + config.slot_bits, "round": ROUND_BITS})


def admitted(config: AggregatorConfig) -> data.StructLayout:
    """A frame after all checks but those of its slot.

    ``arrived``: there is one. ``ours``: it is a PARTIAL or an ACK of a job here; ``probe``: it is a PROBE; else
    ``drop`` says why it is neither. ``place`` is where its job is, if ``has_job``. ``verdict`` is that of
    :data:`p4sgd.hw.spec.drop.VERDICT`; ``member`` is the worker that its shard should be. ``port`` is the one that it
    came in through.
    """
    return data.StructLayout(
        {
            "arrived": 1,
            "ours": 1,
            "probe": 1,
            "drop": Drop,
            "has_job": 1,
            "place": config.job_bits,
            "job": JOB,
            "verdict": len(VERDICT),
            "member": member(config),
            "port": config.port_bits,
            "packet": PACKET,
        }
    )


def slot_item(config: AggregatorConfig) -> data.StructLayout:
    """What comes to the slots, one a cycle.

    ``address`` says which slot of which job: the slot is the lower part. The rest is of the packet and its job.
    """
    return data.StructLayout(
        {
            "kind": Kind,
            "address": config.job_bits + config.slot_bits,
            "round": ROUND_BITS,
            "shard": (MAX_WORKERS - 1).bit_length(),
            "workers": MAX_WORKERS.bit_length(),
        }
    )


STATE = data.StructLayout({"round": ROUND_BITS, "aggregated": MAX_WORKERS, "acknowledged": MAX_WORKERS})
"""A slot as others see it; as :class:`p4sgd.sim.network.aggregator.SlotState`."""

OUTCOME = data.StructLayout(
    {
        "begins": 1,
        "joins": 1,
        "acknowledges": 1,
        "full": 1,
        "clear": 1,
        "to_all": 1,
        "stale": 1,
        "duplicate": 1,
    }
)
"""What comes of a packet.

``begins``: its values are the sums of a new round; ``joins``: they are added; ``acknowledges``: its shard has the sums.
``full`` or ``clear`` is the answer, to all or to its sender. ``stale`` and ``duplicate`` say why it is dropped.
"""
