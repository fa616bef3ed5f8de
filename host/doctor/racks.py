"""The check of the links between two levels of aggregators."""

from collections.abc import Mapping

from p4sgd.host.aggregators.controller import shards_of
from p4sgd.host.aggregators.tree import Tree
from p4sgd.host.doctor.finding import Evidence, Finding, Problem, judge

Counts = Mapping[str, Mapping[str, int]]
"""Counters by name of the part of a tree."""


def count_parts(tree: Tree) -> Counts:
    """The counters of all parts, before AllReduces that `examine_racks` judges."""
    return {name: part.counters() for name, part in tree.parts.items()}


def examine_racks(tree: Tree, before: Counts) -> list[Finding]:
    """Find racks that have sent sums to the top aggregator since ``before`` and got no answer, and why.

    The last AllReduce, if it failed, is still in the slots.
    """
    counts = {
        name: {counter: count - before[name].get(counter, 0) for counter, count in counted.items()}
        for name, counted in count_parts(tree).items()
    }
    above = tree.parts["top"]
    jobs = above.served()
    members = {member.mac for job in jobs.values() for member in job.members}
    seen, answered = set[int](), set[int]()  # of whom the top aggregator has sums, and whom it has sent those of all
    for place, job in jobs.items():
        for view in above.read_slots(place, range(tree.slots)):
            came = {job.members[shard].mac for shard in shards_of(view.aggregated)}
            seen |= came
            answered |= came if view.aggregated == job.everyone else set()
    findings = []
    for rack, address in enumerate(each.address for each in tree.cluster.racks):
        if address not in members:  # none of its workers takes part
            continue
        top, own = counts["top"], counts[f"rack {rack}"]
        evidence: Evidence = {
            "rack": rack,
            "partials_to_parent": own["PARTIALS_TO_PARENT"],
            "fulls_to_all": own["FULLS_TO_ALL"],
            "foreign": own["DROPPED_SOURCE"],
            "foreign_at_top": top["DROPPED_SOURCE"],
        }
        is_silent = own["PARTIALS_TO_PARENT"] and not own["FULLS_TO_ALL"]
        problem = None
        if is_silent and address in answered:
            problem = _why_unheard(rack, own)
        elif is_silent and address not in seen:
            problem = _why_unseen(rack, top)
        findings += judge(None, "rack", evidence, problem)
    return findings


def _why_unheard(rack: int, own: Mapping[str, int]) -> Problem:
    """Why a rack does not have the sums that the top aggregator has sent."""
    who = f"the aggregator of rack {rack}"
    if own["DROPPED_SOURCE"]:
        return Problem(
            f"{who} drops the top aggregator's answers: they come in by another port than its uplink",
            f"correct uplink of racks[{rack}] in the cluster file, or move the cable",
        )
    return Problem(
        f"{who} gets no answer, though the top aggregator has sent it: the way down is dead",
        f"check the cable of port of racks[{rack}] in the cluster file, in both directions",
    )


def _why_unseen(rack: int, top: Mapping[str, int]) -> Problem:
    """Why the top aggregator has nothing of what a rack has sent."""
    who = f"the aggregator of rack {rack}"
    if top["DROPPED_SOURCE"]:
        return Problem(
            f"the top aggregator drops what {who} sends: it comes in by another port than the rack's",
            f"correct port of racks[{rack}] in the cluster file, or move the cable",
        )
    return Problem(
        f"nothing that {who} sends comes to the top aggregator: the link between them is down",
        f"check the cable of its port uplink, and the networks between them: racks[{rack}] of the cluster file",
    )
