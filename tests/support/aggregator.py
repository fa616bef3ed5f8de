"""Setting an aggregator up in a bench, and packets of its workers."""

from typing import Any

from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType
from support.axi import LiteMaster, Registers

MAC = 0x0250_0000_0001
"""The aggregator's address."""


def packet_of(job: Job, kind: PacketType, shard: int, slot: int = 0, number: int = 1, values: Any = (0,) * 8) -> Packet:
    """What a worker of a job sends to the aggregator in the round of this number."""
    workers, source = len(job.members), job.members[shard].mac
    return Packet(kind, job.number, slot, number, shard, workers, 1 << shard, tuple(values), MAC, source)


class Host(Registers):
    """Sets the aggregator up through its registers; ``master`` moves words, if not those of the port ``control``."""

    def __init__(self, dut, config: AggregatorConfig, stall: float = 0.0, *, master: Any = None) -> None:
        self.config = config
        super().__init__(master or LiteMaster(dut, "control", stall))

    async def write_pair(self, pair, value: int) -> None:
        for half, word in zip(pair, (value & 0xFFFFFFFF, value >> 32), strict=True):
            await self.write(half, value=word)

    async def set_mac(self) -> None:
        await self.write_pair(registers.MAC, MAC)

    async def begin(self, place: int, job: Job, first_round: int) -> None:
        """Have a job served; returns when it is."""
        settings, *group_mac, ports = registers.job_registers(place)
        await self.write(registers.END, place=place)
        up = job.parent
        for shard, member in enumerate((*job.members, up) if up else job.members):
            await self.write_pair(registers.MEMBER_MAC, member.mac)
            await self.write(registers.MEMBER, place=place, shard=shard, port=member.port)
        above = {"parent_workers": up.workers, "parent_shard": up.shard} if up else {}
        await self.write(settings, number=job.number, workers=len(job.members), **above)
        await self.write(ports, value=job.ports)
        await self.write_pair(group_mac, job.group_mac)
        await self.write(registers.BEGIN, place=place, round=first_round)
        while (await self.read(registers.JOBS))["clearing"]:
            pass
        assert (await self.read(registers.JOBS))["running"] >> place & 1

    async def counters(self) -> dict[str, int]:
        """All counters of one moment."""
        await self.write(registers.SNAPSHOT)
        return await self.read_counters(registers.counters(self.config))

    async def look(self, place: int, slot: int) -> tuple[int, int, int]:
        """Round and bitmaps of a slot."""
        await self.write(registers.LOOK, place=place, slot=slot)
        while not (shown := await self.read(registers.SLOT_ROUND))["ready"]:
            pass
        bitmaps = [await self.read(r) for r in (registers.SLOT_AGGREGATED, registers.SLOT_ACKNOWLEDGED)]
        return shown["round"], *(bitmap["value"] for bitmap in bitmaps)

    async def look_member(self, place: int, shard: int) -> Member:
        """The worker noted as a shard of a job."""
        await self.write(registers.LOOK_MEMBER, place=place, shard=shard)
        low, high, port = [(await self.read(r))["value"] for r in (*registers.SHOWN_MAC, registers.SHOWN_PORT)]
        return Member(low | high << 32, port)
