"""The check of the Ethernet links of boards: what keeps a link down, and whether it loses frames."""

import time
from collections.abc import Mapping
from dataclasses import replace

from p4sgd.host.aggregators.fpga import BoardAggregator
from p4sgd.host.devices.device import Device
from p4sgd.host.doctor.finding import Finding, Result
from p4sgd.hw.spec.cmac import FEC_LANES, PCS_LANES, LinkState

__all__ = ["examine_ethernet", "why_down"]


_WATCH_S = 0.5
"""Time for which errors are counted: that of ten million codewords. Links may lose one frame in a thousand million
(IEEE 802.3 95.1.1), so none should be lost in it."""

_ERRORS = ("FEC_CORRECTED", "FEC_UNCORRECTED", "RX_BAD_FCS", "RX_BAD", "RX_OVERFLOWS", "LINK_LOSSES", "TX_FAULTS")
"""Counters of errors."""

_CABLE = "clean or replace the cable or its modules; for a long copper cable build the bitstream with --cable copper"


def examine_ethernet(device: Device) -> list[Finding]:
    """Check that every Ethernet link is up and free of errors, or find out what keeps it down.

    Parameters
    ----------
    device
        The cluster: its workers, and its aggregator if that is a board. Links are watched for `_WATCH_S` seconds.
    """
    if not (before := _links(device)):
        return []
    time.sleep(_WATCH_S)
    findings = []
    for (is_worker, number), link in _links(device).items():
        finding = _judge(before.get((is_worker, number), link), link)
        if is_worker:
            findings.append(replace(finding, worker=number))
            continue
        problem = f"port {number} of the aggregator: {finding.problem}" if finding.problem else ""
        findings.append(replace(finding, evidence={"aggregator_port": number, **finding.evidence}, problem=problem))
    return findings


def _links(device: Device) -> dict[tuple[bool, int], LinkState]:
    """State of links by their end here: whether that is a worker, and its shard, or the aggregator's port."""
    found = {(True, shard): link for shard, link in sorted((device.links or {}).items())}
    if isinstance(device.aggregator, BoardAggregator):
        found |= {(False, port): mac.link_state() for port, mac in device.aggregator.macs.items()}
    return found


def _judge(before: LinkState, link: LinkState) -> Finding:
    status = link.status
    evidence: dict[str, int | str] = {name: status[name] for name in ("up", "aligned")}
    evidence["block_lock"] = f"{status['block_lock'].bit_count()} of {PCS_LANES}"
    evidence["rs_fec"] = "on" if link.rs_fec else "off"
    if link.rs_fec:
        evidence["fec_lock"] = f"{status['fec_lock'].bit_count()} of {FEC_LANES}"
    evidence |= {name.lower(): link.counters[name] for name in _ERRORS if name in link.counters}
    if not status["up"]:
        evidence |= {name: value for name, value in status.items() if name not in evidence}
        return Finding(None, "ethernet", Result.FAILED, evidence, *why_down(link))
    rises = {name: link.counters[name] - count for name, count in before.counters.items() if name in link.counters}
    if (found := _why_lossy(link, rises)) is not None:
        return Finding(None, "ethernet", Result.WARNING, evidence, *found)
    return Finding(None, "ethernet", Result.PASSED, evidence)


def why_down(link: LinkState) -> tuple[str, str]:
    """Problem and remedy of a link that is down."""
    status = link.status
    both_ends = f"give both ends the same RS-FEC (here {'on' if link.rs_fec else 'off'}: rs_fec of the cluster file)"
    if status["power_good"] != (1 << FEC_LANES) - 1:
        return (
            f"its transceivers have no power: {status['power_good']:#06b} of them",
            "reset the board (xbutil reset); then suspect the clock that the bitstream gives the MAC",
        )
    if status["tx_reset"] or status["rx_reset"]:
        return (
            "its MAC does not come out of reset",
            "check the transceivers' reference clock (156.25 MHz on a U280, else 161.13), then xbutil reset",
        )
    if not status["aligned"]:
        return _why_not_aligned(link, both_ends)
    if status["remote_fault"]:
        return (
            "it receives, but the other end reports that it receives nothing itself",
            f"check the cable's other direction, and {both_ends}",
        )
    return "its link is coming up", "try again; if the result stays the same, the link is unstable: check the cable"


def _why_not_aligned(link: LinkState, both_ends: str) -> tuple[str, str]:
    """Problem and remedy of a link whose lanes are not all received and aligned."""
    status = link.status
    if link.other_end_fec is not None:
        return f"the other end sends {'with' if link.other_end_fec else 'without'} RS-FEC", both_ends
    name, lanes = ("fec_lock", FEC_LANES) if link.rs_fec else ("block_lock", PCS_LANES)
    locked = status[name].bit_count()
    if not locked:
        return (
            "it receives no valid signal from the other end: no light, or no lock on any lane",
            f"plug in the cable, enable the other end's port at 100G without auto-negotiation, and {both_ends}",
        )
    if locked < lanes:
        return f"it receives only {locked} of {lanes} lanes", _CABLE
    return (
        "it receives all lanes, but they do not align",
        f"try again; if the result stays the same, check what is between the two ends: {_CABLE}",
    )


def _why_lossy(link: LinkState, rises: Mapping[str, int]) -> tuple[str, str] | None:
    """Problem and remedy of a link that is up but loses frames, given what was counted while it was watched."""
    within = f"within {_WATCH_S:g} s"
    if lost := rises.get("LINK_LOSSES", 0):
        return f"its link was lost {lost} times {within}", _CABLE
    if lost := rises.get("FEC_UNCORRECTED", 0):
        corrected = rises["FEC_CORRECTED"]
        return f"RS-FEC could not correct {lost} codewords {within}, and corrected {corrected}: frames are lost", _CABLE
    remedy = _CABLE
    if not link.rs_fec:
        remedy = f"turn RS-FEC on at both ends (here: rs_fec of the cluster file) if both have it; {remedy}"
    if link.status["hi_ber"]:
        return "more than one bit in 10,000 arrives wrong (IEEE 802.3 82.2.19), so nothing is received", remedy
    if lost := rises.get("RX_BAD_FCS", 0):
        return f"{lost} frames came with errors {within} and were dropped", remedy
    return None
