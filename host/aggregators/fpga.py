"""The controllers of an aggregator on an FPGA, simulated or on a board of this machine.

The controller of an aggregator on an FPGA, simulated or real.

The controller of an aggregator on a board of this machine.
"""

import contextlib
from collections.abc import Callable

from p4sgd.host.aggregators.controller import SlotView, why_not_begin, why_not_readdress
from p4sgd.host.errors import P4sgdError
from p4sgd.host.xrt.board import BoardAddress
from p4sgd.host.xrt.kernel import BoardKernel
from p4sgd.host.xrt.mac import open_mac
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.register_map import Register, RegisterClient, find_other_map

__all__ = ["KERNEL", "BoardAggregator", "FpgaAggregator"]


_CLEARING_READS = 16
"""How often to look, for each slot, whether all are fresh: one is made so in each cycle in which no frame comes, and a
read takes several."""

_LOOK_READS = 10_000
"""How often to look whether a slot is shown, which takes one cycle in which no frame comes."""

_FLOODED = (
    "It does such work where no frame comes in: see by its counters FRAMES and DROPPED_… whether somebody floods it"
)


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
        problem = find_other_map(
            self._client,
            registers.IDENTITY,
            registers.MAGIC,
            registers.ABI_VERSION,
            unknown="there is no aggregator: its first word",
            who="the aggregator has",
        )
        if problem is not None:
            raise P4sgdError(problem)
        size = self._client.read(registers.GEOMETRY)
        self.config = AggregatorConfig(
            slots=self._client.read(registers.SLOTS)["value"],
            jobs=size["jobs"],
            ports=size["ports"],
            udp=bool(size["udp"]),
        )

    @property
    def slots(self) -> int:
        """Slots of each job."""
        return self.config.slots

    @property
    def jobs(self) -> int:
        """Places."""
        return self.config.jobs

    def set_mac(self, mac: int) -> None:
        """Set the aggregator's own address.

        Raises
        ------
        P4sgdError
            If it is another than it has, and jobs are served: their workers would not be heard any more.
        """
        known = self._client.read_pair(registers.MAC)
        if mac == known:
            return
        if self._running():
            raise P4sgdError(why_not_readdress(known, mac))
        self._client.write_pair(registers.MAC, mac)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """Serve a job in a free place from this round on, with all slots fresh.

        Registers cannot tell two programs apart that write at the same time: a board's are one program's at a time.

        Raises
        ------
        P4sgdError
            If the place serves a job, if a job of this number is being served anywhere, if a port is not there, or if
            the slots do not become fresh.
        """
        self._check(place, job)
        settings, group_low, group_high, ports = registers.job_registers(place)
        self.end(place)  # what an earlier program may have been about to begin
        for shard, member in enumerate(job.members):
            self._client.write_pair(registers.MEMBER_MAC, member.mac)
            self._client.write(registers.MEMBER, place=place, shard=shard, port=member.port)
        self._client.write(settings, number=job.number, workers=len(job.members))
        self._client.write_pair((group_low, group_high), job.group_mac)
        self._client.write(ports, value=job.ports)
        self._client.write(registers.BEGIN, place=place, round=first_round)
        if not self._becomes(registers.JOBS, "clearing", 0, _CLEARING_READS * self.slots):
            self.end(place)
            raise P4sgdError(
                f"job {job.number} cannot begin: the aggregator does not get its {self.slots} slots fresh. "
                f"{_FLOODED}, or reset it"
            )

    def end(self, place: int) -> None:
        """Serve what is in a place no longer."""
        self._client.write(registers.END, place=place)

    def served(self) -> dict[int, Job]:
        """The jobs that are served, by place.

        Raises
        ------
        P4sgdError
            If the settings in a place are none of a job.
        """
        return {place: self._job(place) for place in self._running()}

    def counters(self) -> dict[str, int]:
        """All counters, of one moment."""
        self._client.write(registers.SNAPSHOT)
        return self._client.read_counters(registers.counters(self.config))

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """What slots of a place carry, one after the other."""
        return [self._look(place, slot) for slot in slots]

    def close(self) -> None:
        """Nothing is to be done: the registers are the owner's."""

    def _look(self, place: int, slot: int) -> SlotView:
        self._client.write(registers.LOOK, place=place, slot=slot)
        if not self._becomes(registers.SLOT_ROUND, "ready", 1, _LOOK_READS):
            raise P4sgdError(f"the aggregator does not show slot {slot} of place {place}. {_FLOODED}, or reset it")
        return SlotView(
            self._client.read(registers.SLOT_ROUND)["round"],
            self._client.read(registers.SLOT_AGGREGATED)["value"],
            self._client.read(registers.SLOT_ACKNOWLEDGED)["value"],
        )

    def _running(self) -> list[int]:
        """Places of the jobs that are served, whoever has begun them."""
        running = self._client.read(registers.JOBS)["running"]
        return [place for place in range(self.jobs) if running >> place & 1]

    def _job(self, place: int) -> Job:
        settings, group_low, group_high, ports = registers.job_registers(place)
        known = self._client.read(settings)
        members = tuple(self._member(place, shard) for shard in range(known["workers"]))
        group_mac = self._client.read_pair((group_low, group_high))
        try:
            return Job(known["number"], members, group_mac, self._client.read(ports)["value"])
        except ValueError as error:
            raise P4sgdError(f"place {place} serves what is no job: {error}; end it, or reset the aggregator") from None

    def _member(self, place: int, shard: int) -> Member:
        self._client.write(registers.LOOK_MEMBER, place=place, shard=shard)
        return Member(self._client.read_pair(registers.SHOWN_MAC), self._client.read(registers.SHOWN_PORT)["value"])

    def _check(self, place: int, job: Job) -> None:
        """Refuse a job that the hardware would take, and serve wrongly."""
        served = [(each, self._client.read(registers.job_registers(each)[0])["number"]) for each in self._running()]
        if (problem := why_not_begin(place, job, served)) is not None:
            raise P4sgdError(problem)
        last = max(job.ports.bit_length() - 1, *(member.port for member in job.members))
        if last >= self.config.ports:
            raise P4sgdError(
                f"job {job.number} cannot begin: it needs port {last} of the aggregator, which has {self.config.ports}"
            )

    def _becomes(self, register: Register, field: str, wanted: int, reads: int) -> bool:
        """Whether a field gets a value before it was read so often."""
        return any(self._client.read(register)[field] == wanted for _ in range(reads))


KERNEL = "p4sgd_aggregator"
"""Name of the kernel."""


class BoardAggregator(FpgaAggregator):
    """An aggregator on a board; its port i is the board's cage i.

    Parameters
    ----------
    address
        The board.
    rs_fec
        Whether its links have forward error correction.

    Raises
    ------
    UserError
        As of `BoardKernel`.
    P4sgdError
        Then and later, as of `BoardKernel` and `FpgaAggregator`; also if jobs are served over links that this would
        change.
    """

    def __init__(self, address: BoardAddress, *, rs_fec: bool) -> None:
        name = f"aggregator at {address}"
        with contextlib.ExitStack() as opened:
            kernel = opened.enter_context(contextlib.closing(BoardKernel(name, address, KERNEL)))
            super().__init__(kernel.read_register, kernel.write_register)
            macs = []
            for port in range(self.config.ports):
                if (mac := open_mac(name, address, port)) is not None:
                    opened.callback(mac.close)
                    macs.append(mac)
            if self._running() and any(mac.rs_fec != rs_fec for mac in macs):
                raise P4sgdError(
                    f"{name} serves jobs over links with RS-FEC {'off' if rs_fec else 'on'}: end them first, or say "
                    f"rs_fec = {str(not rs_fec).lower()} in the cluster file"
                )
            for mac in macs:
                mac.set_rs_fec(rs_fec)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Give the board back. The aggregator goes on."""
        self._opened.close()
