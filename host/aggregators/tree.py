"""Two levels of aggregators as one: those of racks, and the one above, which adds up what these have."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from p4sgd.host.aggregators.cluster_file import Cluster
from p4sgd.host.aggregators.controller import Controller, SlotView
from p4sgd.host.aggregators.fpga import BoardAggregator
from p4sgd.host.aggregators.seats import Seat, seats_of
from p4sgd.host.boards.mac import BoardMac
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import ROUND_BITS

_ROUNDS = 1 << ROUND_BITS


class Tree:
    """The controller of all aggregators of a cluster file with racks; it closes theirs.

    Towards everybody else it is one aggregator: a job has all workers as members, in the order of the file, each with
    its port of its rack's aggregator. All parts serve a job in the same place. ``parts`` are the controllers by name,
    the top one first. Raises UserError if that has fewer slots than one of a rack: it would drop packets of the others.
    """

    def __init__(self, cluster: Cluster, top: Controller, racks: Sequence[Controller]) -> None:
        self.cluster = cluster
        self._top, self._racks = top, racks
        self.parts: Mapping[str, Controller] = {"top": top} | {f"rack {rack}": each for rack, each in enumerate(racks)}
        for name, part in self.parts.items():
            if part.slots > top.slots:
                raise UserError(
                    f"the aggregator of {name} has {part.slots} slots, the top one only {top.slots}: start that with "
                    f"--slots {part.slots}"
                )
        self._index = {worker.local_mac: index for index, worker in enumerate(cluster.workers)}
        self.slots = min(part.slots for part in self.parts.values())
        self.jobs = min(part.jobs for part in self.parts.values())
        self.most = min(part.most for part in self.parts.values())

    def set_mac(self, mac: int) -> None:
        """Give each part its address in the cluster file; ``mac`` is one of these."""
        for part, address in zip(self.parts.values(), (self.cluster.aggregator, *self.cluster.racks), strict=True):
            part.set_mac(address.address)

    def begin(self, place: int, job: Job, first_round: int) -> None:
        """See `Controller.begin`. The top aggregator is the last to serve it, and the first to end it: what the top one
        serves without a rack is left of a job, for `served`, and none that another program is beginning."""
        with contextlib.ExitStack() as begun:
            for part, its in self._split(job):
                part.begin(place, its, first_round)
                begun.callback(_end_quietly, part, place)
            begun.pop_all()

    def end(self, place: int) -> None:
        """See `Controller.end`. A job of another number in this place of a part goes on. Parts that cannot be reached
        keep no other from ending it; the error of the first of them is raised then."""
        errors, number = list[P4sgdError](), None
        for part in self.parts.values():
            try:
                job = part.served().get(place)
                if job is not None and number in (None, job.number):
                    number = job.number
                    part.end(place)
            except P4sgdError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def served(self) -> dict[int, Job]:
        """See `Controller.served`. A rack whose aggregator was started again, and so has lost a job, counts with all of
        its workers: when one of these joins, what is left of the job is ended. Of jobs of several numbers in a place,
        only one counts, which `end` would end."""
        parts = [part.served() for part in self.parts.values()]
        found = {}
        for place in sorted(set[int]().union(*parts)):
            jobs = [part.get(place) for part in parts]
            number = next(job.number for job in jobs if job is not None)
            found[place] = self._joined(*(job if job is not None and job.number == number else None for job in jobs))
        return found

    def counters(self) -> dict[str, int]:
        """The sums of the parts' counters."""
        counted = [part.counters() for part in self.parts.values()]
        names = dict.fromkeys(name for each in counted for name in each)
        return {name: sum(each.get(name, 0) for each in counted) for name in names}

    def read_slots(self, place: int, slots: range) -> list[SlotView]:
        """See `Controller.read_slots`. Shards of a rack count as missing, too, while only its own packet is missing at
        the top."""
        job = self.served().get(place)
        seats = [] if job is None else self._seats(job)
        racks = {seat.rack for seat in seats if seat.rack is not None}
        parts = [self._top, *(self._racks[rack] for rack in sorted(racks))]
        found = []
        for views in zip(*(part.read_slots(place, slots) for part in parts), strict=True):
            now = views[0].round
            for view in views:
                now = view.round if (view.round - now) % _ROUNDS < _ROUNDS // 2 else now
            top, *others = [view if view.round == now else SlotView(now, 0, 0) for view in views]
            own = dict(zip(sorted(racks), others, strict=True))
            pairs = [(shard, seat, top if seat.rack is None else own[seat.rack]) for shard, seat in enumerate(seats)]
            aggregated = sum(_has(seat, its.aggregated, top.aggregated) << shard for shard, seat, its in pairs)
            acknowledged = sum(_has(seat, its.acknowledged, top.acknowledged) << shard for shard, seat, its in pairs)
            found.append(SlotView(now, aggregated, acknowledged))
        return found

    def check_process(self) -> None:
        """See `Controller.check_process`, of all parts."""
        for part in self.parts.values():
            part.check_process()

    def close(self) -> None:
        """Close the connections to all parts."""
        with contextlib.ExitStack() as closing:
            for part in self.parts.values():
                closing.callback(part.close)

    def _seats(self, job: Job) -> list[Seat]:
        indices = [self._index.get(member.mac) for member in job.members]
        return seats_of(None if index is None else self.cluster.workers[index].rack for index in indices)

    def _split(self, job: Job) -> Iterator[tuple[Controller, Job]]:
        """The parts that serve a job, the top one last, and what each serves."""
        seats, cluster = self._seats(job), self.cluster
        racks = sorted({seat.rack for seat in seats if seat.rack is not None})
        uppers = [Member(cluster.racks[rack].address, cluster.racks[rack].port) for rack in racks]
        uppers += [member for member, seat in zip(job.members, seats, strict=True) if seat.rack is None]
        for shard, rack in enumerate(racks):
            its = [member for member, seat in zip(job.members, seats, strict=True) if seat.rack == rack]
            parent = Parent(cluster.aggregator.address, cluster.racks[rack].uplink, shard, len(uppers))
            yield self._racks[rack], _job_of(job, its, parent)
        yield self._top, _job_of(job, uppers)

    def _joined(self, top: Job | None, *racks: Job | None) -> Job:
        """The job that was split into these."""
        (one, *_) = (job for job in (top, *racks) if job is not None)
        uppers = [] if top is None else list(top.members)
        members: list[Member] = []
        for rack, (address, job) in enumerate(zip(self.cluster.racks, racks, strict=True)):
            own = Member(address.address, address.port)
            if job is not None:
                members += job.members
            elif own in uppers:
                its = [worker for worker in self.cluster.workers if worker.rack == rack]
                members += [Member(worker.local_mac, worker.port) for worker in its]
            uppers = [member for member in uppers if member != own]
        members = sorted(members + uppers, key=lambda member: self._index.get(member.mac, len(self._index)))
        return _job_of(one, members)


def macs_of(controller: Controller) -> dict[tuple[str, int], BoardMac]:
    """The MACs of aggregators on boards, by the name of the aggregator and the port."""
    if isinstance(controller, Tree):
        parts = {f"the aggregator of {name}": part for name, part in controller.parts.items()}
    else:
        parts = {"the aggregator": controller}
    boards = {name: part for name, part in parts.items() if isinstance(part, BoardAggregator)}
    return {(name, port): mac for name, part in boards.items() for port, mac in part.macs.items()}


def _has(seat: Seat, own: int, top: int) -> bool:
    """Whether a shard's bit is set in its aggregator, and its rack's at the top if all of the rack's are."""
    everyone = (1 << seat.workers) - 1
    is_in = bool(own >> seat.shard & 1)
    return is_in and (seat.uplink is None or own & everyone != everyone or bool(top >> seat.uplink & 1))


def _job_of(job: Job, members: Sequence[Member], parent: Parent | None = None) -> Job:
    """The job for other members."""
    ports = sum(1 << port for port in {member.port for member in members})
    return Job(job.number, tuple(members), job.group_mac, ports, job.key, parent)


def _end_quietly(part: Controller, place: int) -> None:
    with contextlib.suppress(P4sgdError, UserError):
        part.end(place)
