"""A worker's settings against those of the aggregator, as an echo tells them."""

from p4sgd.host.devices.doctor.finding import Finding, Result
from p4sgd.host.devices.probe import Echo
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.drop import Drop
from p4sgd.hw.spec.packet import VERSION, mac_text
from p4sgd.hw.spec.register_map import RegisterClient

__all__ = ["enough_resend_cycles", "examine_settings"]

_CHECK = "settings"

_WAYS = 2
"""How often a packet's way there and back should fit into RESEND_CYCLES: it may have to wait for others on the way."""


def examine_settings(worker: int, client: RegisterClient, config: WorkerConfig, echo: Echo) -> list[Finding]:
    """Say what of a worker's packets the aggregator would not take, and why.

    Parameters
    ----------
    worker
        Index of the worker.
    client, config
        Its registers and its size.
    echo
        What the aggregator answered to a probe about the worker's last slot.

    Returns
    -------
    A finding for each setting that is wrong, else one that all are right.
    """
    who = client.read(registers.JOB)
    local = client.read_pair(registers.LOCAL_MAC)
    problems = []
    if echo.version != VERSION:
        problems.append(
            (
                f"the aggregator speaks version {echo.version} of the packet format, the worker version {VERSION}",
                "generate both anew with the same version of p4sgd",
            )
        )
    problems += [_explain(check, who, local, config, echo) for check in echo.failed]
    evidence: dict[str, int | str] = {"job": who["job"], "shard": who["shard"], "workers": who["workers"]}
    evidence |= {"slots": config.slots, "version": VERSION, "port": echo.port, "local_mac": mac_text(local)}
    differences: dict[str, int | str] = {"aggregator_workers": echo.workers, "aggregator_slots": echo.slots}
    differences |= {"aggregator_version": echo.version, "aggregator_expects": mac_text(echo.expected)}
    findings = [
        Finding(worker, _CHECK, Result.FAILED, evidence | differences, problem, remedy) for problem, remedy in problems
    ]
    resend_cycles = client.read(registers.RESEND_CYCLES)["value"]
    if resend_cycles < enough_resend_cycles(echo):
        evidence |= {"resend_cycles": resend_cycles, "cycles": echo.cycles}
        findings.append(Finding(worker, _CHECK, Result.WARNING, evidence, *_explain_haste(resend_cycles, echo)))
    return findings or [Finding(worker, _CHECK, Result.PASSED, evidence)]


def enough_resend_cycles(echo: Echo) -> int:
    """RESEND_CYCLES with which a worker sends nothing again that is only late."""
    return _WAYS * echo.cycles


def _explain_haste(resend_cycles: int, echo: Echo) -> tuple[str, str]:
    """Problem and remedy if a worker does not wait long enough for answers."""
    return (
        f"it sends packets again after {resend_cycles} cycles, less than {_WAYS} times the {echo.cycles} that an "
        "answer takes: it sends again what is only late",
        f"give it RESEND_CYCLES of {enough_resend_cycles(echo)} at least",
    )


def _explain(check: Drop, who: dict[str, int], local: int, config: WorkerConfig, echo: Echo) -> tuple[str, str]:
    """Problem and remedy of a check that the worker's packets fail."""
    if check is Drop.JOB:
        return f"the aggregator serves no job {who['job']}", "begin the job at the aggregator, under this number"
    if check is Drop.WORKERS:
        return (
            f"the job has {who['workers']} workers, to the aggregator {echo.workers}",
            f"begin the job at the aggregator with {who['workers']} workers",
        )
    if check is Drop.SHARD:
        return (
            f"the aggregator's job of {echo.workers} workers has no shard {who['shard']}",
            "begin the job at the aggregator with all workers",
        )
    if check is Drop.SLOT:
        return (
            f"the worker has {config.slots} slots, the aggregator only {echo.slots}",
            "generate the aggregator with as many slots",
        )
    if echo.expected != local:
        return (
            f"its address is {mac_text(local)}, the aggregator expects shard {who['shard']} at "
            f"{mac_text(echo.expected)}",
            f"note {mac_text(local)} as that of shard {who['shard']} in the aggregator's table",
        )
    return (
        f"it is behind port {echo.port}, the aggregator expects shard {who['shard']} behind another",
        f"note port {echo.port} as that of shard {who['shard']} in the aggregator's table, or move the cable",
    )
