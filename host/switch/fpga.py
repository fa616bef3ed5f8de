"""The controller of an aggregator on an FPGA, simulated or real."""

from collections.abc import Callable

from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.controller import SlotView
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["FpgaAggregator"]


class FpgaAggregator:
    """Access to an aggregator by its registers (:mod:`p4sgd.hw.spec.aggregator`).

    Parameters
    ----------
    read
        ``read(offset) -> word``.
    write
        ``write(offset, word)``.

    Raises
    ------
    P4sgdError
        If what answers is no aggregator, or one of another version.
    """

    def __init__(self, read: Callable[[int], int], write: Callable[[int, int], None]) -> None:
        self._client = RegisterClient(read, write)
        magic, version, _ = (self._client.read(register)["value"] for register in registers.IDENTITY)
        if magic != registers.MAGIC:
            raise P4sgdError(f"there is no aggregator: its first word is {magic:#010x}, not {registers.MAGIC:#010x}")
        if version != registers.ABI_VERSION:
            raise P4sgdError(
                f"the aggregator has version {version} of the register map, this program needs "
                f"{registers.ABI_VERSION}: generate the hardware anew with this version of p4sgd"
            )
        size = self._client.read(registers.GEOMETRY)
        self.config = AggregatorConfig(
            slots=self._client.read(registers.SLOTS)["value"],
            jobs=size["jobs"],
            ports=size["ports"],
            udp=bool(size["udp"]),
        )
        self._begun: dict[int, Job] = {}

    @property
    def slots(self) -> int:
        """Slots of each job."""
        return self.config.slots

    @property
    def jobs(self) -> int:
        """Places."""
        return self.config.jobs

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address."""
        self._client.write_pair(registers.MAC, mac)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a place from this round on, with all slots fresh. What was in the place ends."""
        settings, group_low, group_high, ports = registers.job_registers(place)
        self.end(place)
        for shard, member in enumerate(job.members):
            self._client.write_pair(registers.MEMBER_MAC, member.mac)
            self._client.write(registers.MEMBER, place=place, shard=shard, port=member.port)
        self._client.write(settings, number=job.number, workers=len(job.members))
        self._client.write_pair((group_low, group_high), job.group_mac)
        self._client.write(ports, value=job.ports)
        self._client.write(registers.BEGIN, place=place, round=first_round)
        while self._client.read(registers.JOBS)["clearing"]:
            pass
        self._begun[place] = job

    def end(self, place: int) -> None:
        """Serve what is in a place no longer."""
        self._client.write(registers.END, place=place)

    def served(self) -> dict[int, Job]:
        """The jobs that are served, by place: those that this object has begun, as no register shows members."""
        running = self._client.read(registers.JOBS)["running"]
        return {place: job for place, job in sorted(self._begun.items()) if running >> place & 1}

    def counters(self) -> dict[str, int]:
        """All counters, of one moment."""
        self._client.write(registers.SNAPSHOT)
        return self._client.read_counters(registers.counters(self.config))

    def look(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry, one after the other."""
        return [self._look(place, slot) for slot in slots]

    def close(self) -> None:
        """Nothing is to be done: the registers are the owner's."""

    def _look(self, place: int, slot: int) -> SlotView:
        self._client.write(registers.LOOK, place=place, slot=slot)
        while not (shown := self._client.read(registers.SLOT_ROUND))["ready"]:
            pass
        return SlotView(
            shown["round"],
            self._client.read(registers.SLOT_AGGREGATED)["value"],
            self._client.read(registers.SLOT_ACKNOWLEDGED)["value"],
        )
