"""The controller of an aggregator on an FPGA, simulated or real."""

from collections.abc import Callable

from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
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

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address."""
        self._client.write_pair(registers.MAC, mac)

    def set_member(self, place: int, shard: int, *, mac: int, port: int) -> None:
        """Say who a shard of a job is; not while the job is served."""
        self._client.write_pair(registers.MEMBER_MAC, mac)
        self._client.write(registers.MEMBER, place=place, shard=shard, port=port)

    def begin(self, place: int, *, number: int, workers: int, group_mac: int, ports: int, first_round: int) -> None:
        """Serve a job of which the members are set: with all slots fresh, from this round on."""
        job, group_low, group_high, port_mask = registers.job_registers(place)
        self.end(place)
        self._client.write(job, number=number, workers=workers)
        self._client.write_pair((group_low, group_high), group_mac)
        self._client.write(port_mask, value=ports)
        self._client.write(registers.BEGIN, place=place, round=first_round)
        while self._client.read(registers.JOBS)["clearing"]:
            pass

    def end(self, place: int) -> None:
        """Serve a job no longer."""
        self._client.write(registers.END, place=place)

    def counters(self) -> dict[str, int]:
        """All counters, of one moment."""
        self._client.write(registers.SNAPSHOT)
        return self._client.read_counters(registers.counters(self.config))

    def look(self, place: int, slot: int) -> dict[str, int]:
        """A slot's round, and the bitmaps of the shards that it has partials and acknowledgements of."""
        self._client.write(registers.LOOK, place=place, slot=slot)
        while not (shown := self._client.read(registers.SLOT_ROUND))["ready"]:
            pass
        return {
            "round": shown["round"],
            "aggregated": self._client.read(registers.SLOT_AGGREGATED)["value"],
            "acknowledged": self._client.read(registers.SLOT_ACKNOWLEDGED)["value"],
        }
