"""Controllers of an aggregator on an FPGA, by its registers: in a simulation, or on a board of this machine."""

import contextlib
from collections.abc import Callable, Collection

from p4sgd.host.aggregators.controller import SlotView, why_not_begin, why_not_readdress
from p4sgd.host.boards.kernel import BoardAddress
from p4sgd.host.boards.mac import BoardMac, open_mac
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.register_map import Register, RegisterClient, find_other_map

_CLEARING_READS, _SHOW_READS = 16, 10_000
"""Reads to wait until a slot is cleared, and until one is shown: each takes one cycle without an incoming frame."""

_FLOODED = (
    "It does such work only while no frame comes in: its counters FRAMES and DROPPED_… show whether it is being flooded"
)


class FpgaAggregator:
    """Controller of an aggregator by its registers (:mod:`p4sgd.hw.spec.aggregator`).

    Registers are accessed by ``read(offset) -> word`` and ``write(offset, word)``. Raises P4sgdError if they are not
    those of an aggregator, or of another version.
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
        if size["udp"]:
            raise P4sgdError("the aggregator was generated for packets in UDP: generate it again, without --udp")
        slots = self._client.read(registers.SLOTS)["value"]
        self.config = AggregatorConfig(slots, size["jobs"], size["ports"])
        self.slots, self.jobs = self.config.slots, self.config.jobs

    most = 0
    """Hardware speaks version 1 of the packet only."""

    def set_mac(self, mac: int) -> None:
        known = self._client.read_pair(registers.MAC)
        if mac == known:
            return
        if self._running():
            raise P4sgdError(why_not_readdress(known, mac, udp=False))
        self._client.write_pair(registers.MAC, mac)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """As `Controller.begin`. Two programs could not be told apart, but a board admits one only.

        A job that the hardware would accept but serve wrongly is refused.
        """
        served = [(each, self._client.read(registers.job_registers(each)[0])["number"]) for each in self._running()]
        if (problem := why_not_begin(place, job, served, parents=True)) is not None:
            raise P4sgdError(problem)
        up = job.parent
        noted = [(each.mac, each.port) for each in job.members] + ([(up.mac, up.port)] if up else [])
        last = max(job.ports.bit_length() - 1, *(port for _, port in noted))
        if last >= self.config.ports:
            raise P4sgdError(
                f"job {job.number} cannot begin: it needs port {last} of the aggregator, which has {self.config.ports}"
            )
        settings, group_low, group_high, ports = registers.job_registers(place)
        self.end(place)  # an earlier program may have been interrupted here
        for shard, (mac, port) in enumerate(noted):
            self._client.write_pair(registers.MEMBER_MAC, mac)
            self._client.write(registers.MEMBER, place=place, shard=shard, port=port)
        above = {"parent_workers": up.workers, "parent_shard": up.shard} if up else {}
        self._client.write(settings, number=job.number, workers=len(job.members), **above)
        self._client.write_pair((group_low, group_high), job.group_mac)
        self._client.write(ports, value=job.ports)
        self._client.write(registers.BEGIN, place=place, round=first_round)
        if not self._wait_for(registers.JOBS, "clearing", 0, _CLEARING_READS * self.slots):
            self.end(place)
            raise P4sgdError(
                f"job {job.number} cannot begin: the aggregator does not finish clearing its {self.slots} slots. "
                f"{_FLOODED}; otherwise reset it"
            )

    def end(self, place: int) -> None:
        self._client.write(registers.END, place=place)

    def served(self) -> dict[int, Job]:
        return {place: self._job(place) for place in self._running()}

    def counters(self) -> dict[str, int]:
        self._client.write(registers.SNAPSHOT)
        return self._client.read_counters(registers.counters(self.config))

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        found = []
        for slot in slots:
            self._client.write(registers.LOOK, place=place, slot=slot)
            if not self._wait_for(registers.SLOT_ROUND, "ready", 1, _SHOW_READS):
                raise P4sgdError(
                    f"the aggregator does not show slot {slot} of place {place}. {_FLOODED}; otherwise reset it"
                )
            bitmaps = (registers.SLOT_AGGREGATED, registers.SLOT_ACKNOWLEDGED)
            round_ = self._client.read(registers.SLOT_ROUND)["round"]
            found.append(SlotView(round_, *(self._client.read(each)["value"] for each in bitmaps)))
        return found

    def check_process(self) -> None:
        """Do nothing: a board has none."""

    def close(self) -> None:
        """Do nothing: the caller owns the access to the registers."""

    def _running(self) -> list[int]:
        running = self._client.read(registers.JOBS)["running"]
        return [place for place in range(self.jobs) if running >> place & 1]

    def _job(self, place: int) -> Job:
        settings, group_low, group_high, ports = registers.job_registers(place)
        known = self._client.read(settings)
        noted = []
        for shard in range(known["workers"] + bool(known["parent_workers"])):
            self._client.write(registers.LOOK_MEMBER, place=place, shard=shard)
            port = self._client.read(registers.SHOWN_PORT)["value"]
            noted.append((self._client.read_pair(registers.SHOWN_MAC), port))
        group_mac = self._client.read_pair((group_low, group_high))
        try:
            parent = None
            if known["parent_workers"]:
                parent = Parent(*noted.pop(), known["parent_shard"], known["parent_workers"])
            members = tuple(Member(mac, port) for mac, port in noted)
            return Job(known["number"], members, group_mac, self._client.read(ports)["value"], parent=parent)
        except ValueError as error:
            raise P4sgdError(f"place {place} serves no valid job: {error}; end it, or reset the aggregator") from None

    def _wait_for(self, register: Register, field: str, wanted: int, reads: int) -> bool:
        return any(self._client.read(register)[field] == wanted for _ in range(reads))


KERNEL = "p4sgd_aggregator"
"""Name of the kernel."""


class BoardAggregator(FpgaAggregator):
    """Controller of an aggregator on a board of this machine, whose port i is the board's cage i.

    ``rs_fec`` is whether the links have forward error correction, ``ports`` are those with a cable. Raises as
    `open_kernel` and `FpgaAggregator`, and P4sgdError if jobs are served over links whose correction would change.
    """

    def __init__(self, address: BoardAddress, *, rs_fec: bool, ports: Collection[int]) -> None:
        name = f"aggregator at {address}"
        with contextlib.ExitStack() as opened:
            kernel = opened.enter_context(contextlib.closing(address.open_kernel(name, KERNEL)))
            super().__init__(kernel.read_register, kernel.write_register)
            macs: dict[int, BoardMac] = {}
            for port in range(self.config.ports):
                if (mac := open_mac(name, address, port)) is not None:
                    opened.callback(mac.close)
                    macs[port] = mac
            if self._running() and any(mac.rs_fec != rs_fec for mac in macs.values()):
                raise P4sgdError(
                    f"{name} serves jobs over links with RS-FEC {'off' if rs_fec else 'on'}: end them first, or set "
                    f"rs_fec = {str(not rs_fec).lower()} in the cluster file"
                )
            for mac in macs.values():
                mac.set_rs_fec(rs_fec)
            self.macs = {port: mac for port, mac in macs.items() if port in ports}
            """The MACs of ports with a cable, by port; none if the xclbin has none."""
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Release the board. The aggregator keeps serving its jobs."""
        self._opened.close()
