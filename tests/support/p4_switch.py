"""A P4 program of `hw/switch` in the interpreter, told of jobs by the entries that controllers write."""

import shutil
from collections import Counter
from pathlib import Path

from p4sgd.build.generate.switch_program import sizes
from p4sgd.host.aggregators import tables as entries
from p4sgd.hw.spec.aggregator import NODE_RID, OUTCOME_BITS, AggregatorConfig, counters_of, group_of
from p4sgd.hw.spec.job import MAX_PORTS, Job
from support.p4 import Group, Program, unpruned

SOURCES = Path(__file__).parents[2] / "hw" / "switch"


def with_sizes(folder: Path, config: AggregatorConfig) -> Path:
    """The programs' sources with sizes, in a new folder."""
    shutil.copytree(SOURCES, folder, dirs_exist_ok=True)
    (folder / "p4sgd_sizes.p4").write_text(sizes(config, "a test"))
    return folder


class InterpretedSwitch:
    """A switch with one of the programs.

    ``folder``: an empty one, for the sources; ``groups``: ports of the multicast groups; ``global_rid``: on Tofino: the
    replication number of all nodes.
    """

    def __init__(self, folder: Path, architecture: str, config: AggregatorConfig) -> None:
        self.program = Program(with_sizes(folder, config) / f"p4sgd_{architecture}.p4")
        self._generation = 0
        self._jobs: dict[int, Job] = {}
        self._has_pruning = architecture == "tna"
        self.groups: dict[int, set[int]] = {}
        self.global_rid = 0

    def set_mac(self, mac: int) -> None:
        self._write(entries.own_entry(mac))

    def begin(self, place: int, job: Job, first_round: int) -> None:
        self.end(place)
        self._generation = entries.generation_after(self._generation)
        for entry in entries.member_entries(job):
            self._write(entry)
        self.groups[group_of(place)] = {port for port in range(MAX_PORTS) if job.ports >> port & 1}
        self._write(entries.serve_entry(place, job, first_round, self._generation))
        self._jobs[place] = job

    def end(self, place: int) -> None:
        if job := self._jobs.pop(place, None):
            self._write(entries.retire_entry(job.number, self._generation))
            for entry in entries.member_entries(job):
                del self.program.tables[entry.table].entries[tuple(entry.key.values())]

    def receive(self, frame: bytes, port: int) -> tuple[bytes, int] | None:
        """The frame that leaves, and the bitmap of the ports that it leaves through."""
        left = self.program.forward(frame, port, self._ports_of)
        if not left:
            return None
        (sent,) = {sent for _, sent in left}
        return sent, sum(1 << out for out, _ in left)

    def _ports_of(self, group: Group) -> list[int]:
        ports = sorted(self.groups[group])
        if not self._has_pruning:
            return ports
        return unpruned(group, ports, NODE_RID, [group.exclusion], self.global_rid)

    def outcomes(self) -> Counter[int]:
        """Frames by outcome."""
        found: Counter[int] = Counter()
        for index, count in self.program.counts.items():
            found[index % (1 << OUTCOME_BITS)] += count
        return found

    def counters(self) -> dict[str, int]:
        return counters_of(self.outcomes(), parents="parents" in self.program.tables)

    def _write(self, entry: entries.Entry) -> None:
        self.program.tables[entry.table].entries[tuple(entry.key.values())] = entry.action, list(entry.data.values())
