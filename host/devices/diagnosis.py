"""Diagnosis of network errors: probes to the aggregator, and an explanation of why workers gave up waiting."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from p4sgd.host.aggregators.seats import Seat
from p4sgd.host.devices.device import WorkerName, name_workers
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.packet import KEYED_VERSION, ROUND_BITS, VERDICT, VERSION, DropReason
from p4sgd.hw.spec.register_map import RegisterClient

PROBES = 32
"""Unanswered probes after which the aggregator counts as silent. On a link that loses half of the round trips that is
wrong once in 4,000 million times."""

_READS = 250
"""How often to poll for an echo in a simulated network: each read lets some cycles pass, an echo takes a few dozen."""

_OWN_PROBE = 0
"""Number of the probe that a worker sends on its own when it gives up (`registers.PROBE`)."""


@dataclass(frozen=True)
class Echo:
    """The answer to a probe about a slot: what the aggregator knows."""

    failed: tuple[DropReason, ...]  # checks of `VERDICT` that packets of this worker fail
    port: int  # at which the probe entered the aggregator
    version: int  # of the aggregator's packet format
    workers: int  # of the job, 0 if the aggregator does not serve it
    slots: int  # that the aggregator has for a job
    expected: int  # MAC address that it expects of the worker's shard, 0 if it knows no such shard
    round: int  # of the slot
    aggregated: int  # bitmap of the shards whose partials the slot has received
    acknowledged: int  # bitmap of the shards that have acknowledged its sums
    cycles: int  # from the probe to the answer


def probe(client: RegisterClient, *, slot: int, number: int, echo_s: float) -> Echo | None:
    """Have a worker send a probe about a slot; returns the answer, or None if none comes.

    ``number``, 1 to 255, differs from that of the previous probe. ``echo_s`` are seconds to wait
    (`NetworkSettings.echo_s`); 0 in a simulated network.
    """
    client.write(registers.PROBE, slot=slot, number=number, broadcast=0)
    return _wait_for_echo(client, number, echo_s)


def _wait_for_echo(client: RegisterClient, number: int, echo_s: float) -> Echo | None:
    end, polls = time.monotonic() + echo_s, 0
    while True:
        # In seconds, poll once more in the end: this process may have been suspended since the last poll.
        is_last = time.monotonic() >= end if echo_s else (polls := polls + 1) == _READS
        head = client.read(registers.ECHO)
        if head["came"] and head["number"] == number:
            break
        if is_last:
            return None
    about = client.read(registers.ECHO_JOB)
    return Echo(
        failed=tuple(check for bit, check in enumerate(VERDICT) if head["verdict"] >> bit & 1),
        port=head["port"],
        version=head["version"],
        workers=about["workers"],
        slots=client.read(registers.ECHO_SLOTS)["value"],
        expected=client.read_pair(registers.ECHO_EXPECTED),
        round=about["round"],
        aggregated=client.read(registers.ECHO_AGGREGATED)["value"],
        acknowledged=client.read(registers.ECHO_ACKNOWLEDGED)["value"],
        cycles=client.read(registers.ECHO_CYCLES)["value"],
    )


@dataclass(frozen=True)
class GiveUpReport:
    """Why a worker gave up, as far as it knows: the packet that was not answered."""

    slot: int
    round: int
    partial: bool  # whether that is a PARTIAL, rather than an ACK
    workers: int  # of its job
    echo: Echo | None  # the aggregator's answer about the slot; None if it does not answer
    version: int  # of its packets
    highest_version: int  # that it speaks

    def __str__(self) -> str:
        return f"(slot {self.slot}, round {self.round})"

    @property
    def absent(self) -> frozenset[int] | None:
        """Shards whose packets the aggregator lacks; None if its round is impossible, given this worker's."""
        assert self.echo is not None
        ahead = (self.echo.round - self.round) % (1 << ROUND_BITS)
        if ahead == 0:
            come = self.echo.aggregated if self.partial else self.echo.acknowledged
        elif self.partial and ahead == (1 << ROUND_BITS) - 1:
            come = 0  # no PARTIAL has begun the round
        elif not self.partial and ahead == 1:
            come = -1  # all have acknowledged, and one has begun the next round
        else:
            return None
        return frozenset(shard for shard in range(self.workers) if not come >> shard & 1)

    @property
    def lacks_parent(self) -> bool:
        """Whether the aggregator has all that its workers sent, and waits for its parent, if it has one."""
        assert self.echo is not None
        come = self.echo.aggregated if self.partial else self.echo.acknowledged
        return self.echo.round == self.round and come == (1 << self.workers) - 1


def diagnose_worker(client: RegisterClient, echo_s: float) -> GiveUpReport | None:
    """Read why a worker gave up; None if it did not.

    A worker that gives up probes the aggregator about the slot in question. If that probe is not answered, more are
    sent, to tell a dead network from one that loses many frames. ``echo_s`` is as in `probe`.
    """
    reason = client.read(registers.GIVEN_UP)
    if not reason["given_up"]:
        return None
    echo, slot = _wait_for_echo(client, _OWN_PROBE, echo_s), reason["slot"]
    for number in range(1, 1 + PROBES):
        echo = echo or probe(client, slot=slot, number=number, echo_s=echo_s)
    version, highest = (
        KEYED_VERSION if client.read(register)["value"] else VERSION
        for register in (registers.MERGE, registers.MERGE_MOST)
    )
    workers = client.read(registers.JOB)["workers"]
    return GiveUpReport(slot, reason["round"], bool(reason["partial"]), workers, echo, version, highest)


def explain_network_error(
    reports: Sequence[GiveUpReport | None],
    names: Sequence[WorkerName] | None = None,
    seats: Sequence[Seat] = (),
) -> tuple[str, frozenset[int]]:
    """Explain in one line why workers gave up, and find the shards that no longer answer, though others still do.

    ``reports`` are what `diagnose_worker` returns, by shard, and ``names`` what the workers are called. ``seats`` tell
    where they are if there are two levels of aggregators.

    The aggregator's echoes say which shards are missing there, or what is wrong with a worker's own settings. A worker
    that got an echo is still connected: it gave up itself, and others may lack its packets only because of that. So the
    explanations are tried from the most to the least specific.
    """
    named = [WorkerName(shard) for shard in range(len(reports))] if names is None else names
    given_up = {shard: report for shard, report in enumerate(reports) if report is not None}
    answered = {shard: report for shard, report in given_up.items() if report.echo is not None}
    if text := _explain_refusal(answered, named):
        return text, frozenset()
    absent = {shard: report.absent or frozenset() for shard, report in answered.items()}
    waiting_for_racks = frozenset[int]()
    if seats:
        absent, waiting_for_racks = _absent_in_racks(given_up, absent, seats)
    lost = {shard: answered[shard] for shard, lacking in absent.items() if shard in lacking}
    if lost:
        return _explain_loss_up(lost, named), frozenset()
    gone = frozenset().union(*absent.values()) - answered.keys()
    if gone:
        waiting = [shard for shard, lacking in absent.items() if lacking - answered.keys()]
        text = f"{_full(gone, named)} no longer answers: worker {_numbers(waiting, named)} waited for it in vain"
        return f"{text} {answered[waiting[0]]}", gone
    if waiting_for_racks and not any(absent.values()):
        first = answered[min(waiting_for_racks)]
        text = f"worker {_numbers(waiting_for_racks, named)} waited for the sums of the other racks in vain {first}"
        return f"{text}: a link between aggregators is down; p4sgd doctor tells which", frozenset()
    if answered:
        return _explain_delay(answered, absent, named), frozenset()
    if not given_up:
        return "a worker gave up waiting for the network, but no worker says any more what it was waiting for", gone
    where = next(iter(given_up.values()))
    if len(given_up) < len(reports):  # a link cut in the last round stops only its own worker
        text = f"{_full(given_up, named)} no longer reaches the aggregator, not even with a probe, while the other"
        return f"{text} workers ran to the end: check that link {where}", frozenset(given_up)
    text = f"the aggregator does not answer worker {_numbers(given_up, named)}, not even a probe"
    return f"{text}: its address is wrong, it does not run, or a link is down {where}", frozenset()


def _absent_in_racks(
    given_up: dict[int, GiveUpReport], absent: dict[int, frozenset[int]], seats: Sequence[Seat]
) -> tuple[dict[int, frozenset[int]], frozenset[int]]:
    """Shards of the whole job for those of racks, and the shards whose aggregators wait for their parent.

    These lack what the aggregators of other racks lack, or else the workers there that get no answer.
    """
    below = {
        worker: frozenset(
            shard
            for shard, seat in enumerate(seats)
            if seat.rack == seats[worker].rack and seat.shard in lacking  # racks at the top tell themselves
        )
        for worker, lacking in absent.items()
    }
    waiting = frozenset(
        worker
        for worker in below
        if (seats[worker].rack is not None and given_up[worker].lacks_parent) or (absent[worker] and not below[worker])
    )
    silent = {shard: frozenset({shard}) for shard in given_up.keys() - below.keys()}

    def of_others(worker: int, lacking: Mapping[int, frozenset[int]]) -> frozenset[int]:
        return frozenset().union(*(its for shard, its in lacking.items() if seats[shard].rack != seats[worker].rack))

    others = {worker: of_others(worker, below) or of_others(worker, silent) for worker in waiting}
    return below | others, waiting


def _explain_refusal(answered: dict[int, GiveUpReport], names: Sequence[WorkerName]) -> str | None:
    """The aggregator drops everything that a worker sends, if it does."""
    for worker, report in answered.items():
        echo, name = report.echo, names[worker]
        assert echo is not None
        if not report.version <= echo.version <= report.highest_version:
            return (
                f"the aggregator speaks version {echo.version} of the packet format and drops what {name} sends, which "
                f"is of version {report.version}: generate both again with the same version of p4sgd"
            )
        if echo.failed:
            return f"the aggregator drops what {name} sends: it is {echo.failed[0].help}"
        if report.absent is None:
            return f"the aggregator is in round {echo.round}, not in that of {name} {report}: restart the job"
    return None


def _explain_loss_up(lost: dict[int, GiveUpReport], names: Sequence[WorkerName]) -> str:
    """Workers' probes reach the aggregator, but their PARTIAL or ACK did not."""
    first = next(iter(lost.values()))
    alike = [worker for worker, report in lost.items() if replace(report, echo=first.echo) == first]
    what = f"{'PARTIAL' if first.partial else 'ACK'} of {_full(alike, names)} {first}"
    remedy = "check that link, or allow more resends"
    if first.partial and first.version == KEYED_VERSION:
        remedy += ", or, if the network does not carry frames as long as these, train with --merge 1"
    return f"no {what} came to the aggregator, though a probe did: frames are lost on the way up; {remedy}"


def _explain_delay(
    answered: dict[int, GiveUpReport], absent: dict[int, frozenset[int]], names: Sequence[WorkerName]
) -> str:
    """All packets have come, or are of workers that wait for others."""
    for late, report in answered.items():
        waited = [
            worker
            for worker, other in answered.items()
            if other.partial and (other.slot, other.round) == (report.slot, report.round) and late in absent[worker]
        ]
        if waited:  # its PARTIAL has come meanwhile: otherwise it were lost on the way up
            what = f"worker {_numbers(waited, names)} had given up when its PARTIAL came {report}"
            return f"{names[late]} was late: {what}; find out what delayed it, or let workers wait longer"
    for worker, report in answered.items():
        if not absent[worker]:
            answer, last = ("FULL", "PARTIAL") if report.partial else ("CLEAR", "ACK")
            return (
                f"{names[worker]} gave up waiting for {answer} {report}, which the aggregator could send by now: the "
                f"last {last} came late, or frames are lost on the worker's way down; let workers wait longer, or "
                "check that link"
            )
    waits = ", ".join(
        f"worker {names[worker].number} for {_numbers(absent[worker], names)} {report}"
        for worker, report in answered.items()
    )
    return f"workers waited for each other in vain: {waits}; find out what delayed one, or let workers wait longer"


def _full(workers: Iterable[int], names: Sequence[WorkerName]) -> str:
    """Workers that something is wrong with: their addresses, too."""
    return name_workers(names[worker] for worker in sorted(workers))


def _numbers(workers: Iterable[int], names: Sequence[WorkerName]) -> str:
    return ", ".join(str(names[worker].number) for worker in sorted(workers))
