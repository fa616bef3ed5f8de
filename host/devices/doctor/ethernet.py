"""The Ethernet links that workers' MACs tell of."""

from collections.abc import Mapping

from p4sgd.host.devices.doctor.finding import Finding, Result
from p4sgd.host.devices.link_state import LinkState

__all__ = ["examine_ethernet"]

_CHECK = "ethernet"

_LANES = 0xF
"""Transceivers that a link needs power of."""

_EVIDENCE = ("RX_BAD", "RX_OVERFLOWS", "LINK_LOSSES", "TX_FAULTS")
"""Counters of what should not happen."""


def examine_ethernet(links: Mapping[int, LinkState]) -> list[Finding]:
    """Say of every link whether it is up, and else what keeps it down.

    Parameters
    ----------
    links
        Links by worker.
    """
    return [_judge(worker, link) for worker, link in sorted(links.items())]


def _judge(worker: int, link: LinkState) -> Finding:
    evidence: dict[str, int | str] = {"up": link.status["up"], "rs_fec": "on" if link.rs_fec else "off"}
    evidence |= {name.lower(): link.counters[name] for name in _EVIDENCE if name in link.counters}
    if link.status["up"]:
        return Finding(worker, _CHECK, Result.PASSED, evidence)
    evidence |= {name: value for name, value in link.status.items() if name != "up"}
    return Finding(worker, _CHECK, Result.FAILED, evidence, *_why_down(link))


def _why_down(link: LinkState) -> tuple[str, str]:
    """Problem and remedy."""
    status = link.status
    both_ends = f"give both ends the same RS-FEC (here {'on' if link.rs_fec else 'off'}: rs_fec of the cluster file)"
    if status["power_good"] != _LANES:
        return (
            f"its transceivers have no power: {status['power_good']:#06b} of them",
            "reset the board (xbutil reset); then suspect the image's clock for the MAC",
        )
    if status["tx_reset"] or status["rx_reset"]:
        return (
            "its MAC does not come out of reset",
            "see that the transceivers' reference clock runs (156.25 MHz), then reset the board (xbutil reset)",
        )
    if not status["aligned"]:
        return (
            "it receives nothing from the other end that it can make out",
            f"plug in the cable, have the other end's port up at 100G without auto-negotiation, and {both_ends}",
        )
    if status["remote_fault"]:
        return (
            "it receives, but the other end says that it does not",
            f"check the cable's other direction, and {both_ends}",
        )
    return "its link is coming up", "try again; if it stays so, the link comes and goes: check the cable"
