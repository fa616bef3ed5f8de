"""Setting an aggregator up in a bench, and frames for its ``rx``."""

from typing import Any

from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.register_map import RegisterClient
from support.axi import LiteMaster

MAC = 0x0250_0000_0001
"""The aggregator's address."""

KEEP = (1 << 64) - 1


def beat(frame: bytes, port: int, *, keep: int = KEEP, last: int = 1) -> int:
    """A payload of ``rx``."""
    return int.from_bytes(frame, "little") | keep << 512 | last << 576 | port << 577


class Host:
    """Sets the aggregator up through its registers; ``master`` moves words, if not those of the port ``control``."""

    def __init__(self, dut, config: AggregatorConfig, stall: float = 0.0, *, master: Any = None) -> None:
        self.config = config
        self._master = master or LiteMaster(dut, "control", stall)

    async def write(self, *writes) -> None:
        """Registers with their fields, in order."""
        words = []
        client = RegisterClient(lambda offset: 0, lambda offset, word: words.append((offset, word)))
        for register, fields in writes:
            client.write(register, **fields)
        for offset, word in words:
            await self._master.write(offset, word)

    async def read(self, register) -> dict[str, int]:
        return register.decode(await self._master.read(register.offset))

    async def set_mac(self, mac: int = MAC) -> None:
        low, high = registers.MAC
        await self.write((low, {"value": mac & 0xFFFFFFFF}), (high, {"value": mac >> 32}))

    async def begin(self, place: int, job: Job, first_round: int) -> None:
        """Have a job served; returns when it is."""
        settings, group_low, group_high, ports = registers.job_registers(place)
        await self.write((registers.END, {"place": place}))
        for shard, member in enumerate(job.members):
            await self.write(
                (registers.MEMBER_MAC[0], {"value": member.mac & 0xFFFFFFFF}),
                (registers.MEMBER_MAC[1], {"value": member.mac >> 32}),
                (registers.MEMBER, {"place": place, "shard": shard, "port": member.port}),
            )
        await self.write(
            (settings, {"number": job.number, "workers": len(job.members)}),
            (group_low, {"value": job.group_mac & 0xFFFFFFFF}),
            (group_high, {"value": job.group_mac >> 32}),
            (ports, {"value": job.ports}),
            (registers.BEGIN, {"place": place, "round": first_round}),
        )
        while (await self.read(registers.JOBS))["clearing"]:
            pass
        assert (await self.read(registers.JOBS))["running"] >> place & 1

    async def counters(self) -> dict[str, int]:
        """All counters of one moment."""
        await self.write((registers.SNAPSHOT, {}))
        found = {}
        for name, counter in registers.counters(self.config).items():
            low, high = counter.registers
            found[name] = (await self.read(low))["value"] | (await self.read(high))["value"] << 32
        return found

    async def look(self, place: int, slot: int) -> tuple[int, int, int]:
        """Round and bitmaps of a slot."""
        await self.write((registers.LOOK, {"place": place, "slot": slot}))
        while not (shown := await self.read(registers.SLOT_ROUND))["ready"]:
            pass
        bitmaps = [await self.read(r) for r in (registers.SLOT_AGGREGATED, registers.SLOT_ACKNOWLEDGED)]
        return shown["round"], *(bitmap["value"] for bitmap in bitmaps)

    async def look_member(self, place: int, shard: int) -> Member:
        """The worker noted as a shard of a job."""
        await self.write((registers.LOOK_MEMBER, {"place": place, "shard": shard}))
        low, high, port = [(await self.read(r))["value"] for r in (*registers.SHOWN_MAC, registers.SHOWN_PORT)]
        return Member(low | high << 32, port)
