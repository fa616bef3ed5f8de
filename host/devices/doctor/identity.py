"""Whether workers are who only one of them can be: what the aggregator says of two that are the same misleads."""

from collections.abc import Sequence

from p4sgd.host.devices.doctor.finding import Finding, Result
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.packet import GROUP_BIT, mac_text
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["examine_identities"]


def examine_identities(clients: Sequence[RegisterClient]) -> list[Finding]:
    """Look for shards and addresses that two workers have, and for addresses of groups.

    Parameters
    ----------
    clients
        Registers of the workers, by shard index.

    Returns
    -------
    A finding ``settings`` for each that is wrong.
    """
    findings = []
    shards: dict[int, int] = {}
    macs: dict[int, int] = {}
    for worker, client in enumerate(clients):
        shard, mac = client.read(registers.JOB)["shard"], client.read_pair(registers.LOCAL_MAC)
        evidence: dict[str, int | str] = {"shard": shard, "local_mac": mac_text(mac)}
        problems = []
        if (other := shards.setdefault(shard, worker)) != worker:
            problems.append((f"it is shard {shard}, and so is worker {other}", "give each a shard of its own in JOB"))
        if (other := macs.setdefault(mac, worker)) != worker:
            problem = f"its address is {mac_text(mac)}, and so is that of worker {other}"
            problems.append((problem, "give each an address of its own in LOCAL_MAC"))
        if mac >> GROUP_BIT & 1:
            problem = f"its address {mac_text(mac)} is that of a group: no switch forwards answers there to it alone"
            problems.append((problem, "give it the address of a single host in LOCAL_MAC"))
        findings += [Finding(worker, "settings", Result.FAILED, evidence, *problem) for problem in problems]
    return findings
