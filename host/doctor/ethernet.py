"""The check of the Ethernet links of boards: what keeps a link down, and whether it loses frames."""

import time
from collections.abc import Mapping

from p4sgd.host.aggregators.controller import Controller
from p4sgd.host.aggregators.tree import macs_of
from p4sgd.host.devices.board_worker import BoardWorker
from p4sgd.host.doctor.finding import Evidence, Finding, Problem, Result, judge
from p4sgd.hw.spec.cmac import FEC_LANES, PCS_LANES, LinkState

_WATCH_S = 0.5
"""Time for which errors are counted: that of ten million codewords. Links may lose one frame in a thousand million
(IEEE 802.3 95.1.1), so none should be lost in it."""

_ERRORS = ("FEC_CORRECTED", "FEC_UNCORRECTED", "RX_BAD_FCS", "RX_BAD", "RX_OVERFLOWS", "LINK_LOSSES", "TX_FAULTS")
"""Counters of errors."""

_CABLE = "clean or replace the cable or its modules; for a long copper cable build the bitstream with --cable copper"


def examine_ethernet(boards: Mapping[int, BoardWorker], aggregator: Controller | None) -> list[Finding]:
    """Find out what keeps Ethernet links down or makes them lose frames: of workers on boards, by shard, and of
    aggregators that are boards. Links are watched for half a second."""
    if not (before := _links(boards, aggregator)):
        return []
    time.sleep(_WATCH_S)
    findings = []
    for (name, number), link in _links(boards, aggregator).items():
        evidence, problem = _examine(before.get((name, number), link), link)
        if name:
            evidence = {"aggregator_port": number, **evidence}
            problem = problem and problem._replace(text=f"port {number} of {name}: {problem.text}")
        findings += judge(None if name else number, "ethernet", evidence, problem)
    return findings


def _links(boards: Mapping[int, BoardWorker], aggregator: Controller | None) -> dict[tuple[str, int], LinkState]:
    """State of links by their end here: the name of an aggregator and its port, or no name and a worker's shard."""
    found = {("", shard): link for shard, board in sorted(boards.items()) if (link := board.link) is not None}
    return found | {end: mac.link_state() for end, mac in (macs_of(aggregator) if aggregator else {}).items()}


def _examine(before: LinkState, link: LinkState) -> tuple[Evidence, Problem | None]:
    status = link.status
    evidence: dict[str, int | str] = {name: status[name] for name in ("up", "aligned")}
    evidence["block_lock"] = f"{status['block_lock'].bit_count()} of {PCS_LANES}"
    evidence["rs_fec"] = "on" if link.rs_fec else "off"
    if link.rs_fec:
        if status["up"] and not any(link.counters.get(name) for name in ("FEC_CORRECTED", "FEC_UNCORRECTED")):
            evidence["rs_fec"] = "on, with nothing to correct so far"
        evidence["fec_lock"] = f"{status['fec_lock'].bit_count()} of {FEC_LANES}"
    evidence |= {name.lower(): link.counters[name] for name in _ERRORS if name in link.counters}
    if not status["up"]:
        evidence |= {name: value for name, value in status.items() if name not in evidence}
        return evidence, why_down(link)
    rises = {name: link.counters[name] - count for name, count in before.counters.items() if name in link.counters}
    return evidence, _why_lossy(link, rises)


def why_down(link: LinkState) -> Problem:
    """Problem of a link that is down."""
    status = link.status
    both_ends = f"give both ends the same RS-FEC (here {'on' if link.rs_fec else 'off'}: rs_fec of the cluster file)"
    if status["power_good"] != (1 << FEC_LANES) - 1:
        return Problem(
            f"its transceivers have no power: {status['power_good']:#06b} of them",
            "reset the board (xbutil reset); then suspect the clock that the bitstream gives the MAC",
        )
    if status["tx_reset"] or status["rx_reset"]:
        return Problem(
            "its MAC does not come out of reset",
            "check the transceivers' reference clock (156.25 MHz on a U280, else 161.13), then xbutil reset",
        )
    if status["aligned"] and status["remote_fault"]:
        return Problem(
            "it receives, but the other end reports that it receives nothing itself",
            f"check the cable's other direction, and {both_ends}",
        )
    again = "try again; if the result stays the same,"
    if status["aligned"]:
        return Problem("its link is coming up", f"{again} the link is unstable: check the cable")
    if link.other_end_fec is not None:
        return Problem(f"the other end sends {'with' if link.other_end_fec else 'without'} RS-FEC", both_ends)
    name, lanes = ("fec_lock", FEC_LANES) if link.rs_fec else ("block_lock", PCS_LANES)
    locked = status[name].bit_count()
    if not locked:
        return Problem(
            "it receives no valid signal from the other end: no light, or no lock on any lane",
            f"plug in the cable, enable the other end's port at 100G without auto-negotiation, and {both_ends}",
        )
    if locked < lanes:
        return Problem(f"it receives only {locked} of {lanes} lanes", _CABLE)
    return Problem(
        "it receives all lanes, but they do not align", f"{again} check what is between the two ends: {_CABLE}"
    )


def _why_lossy(link: LinkState, rises: Mapping[str, int]) -> Problem | None:
    """Problem of a link that is up but loses frames, given what was counted while it was watched."""
    within, remedy = f"within {_WATCH_S:g} s", _CABLE
    if not link.rs_fec:
        remedy = f"turn RS-FEC on at both ends (here: rs_fec of the cluster file) if both have it; {_CABLE}"
    if lost := rises.get("LINK_LOSSES", 0):
        text, remedy = f"its link was lost {lost} times {within}", _CABLE
    elif lost := rises.get("FEC_UNCORRECTED", 0):
        corrected, remedy = rises["FEC_CORRECTED"], _CABLE
        text = f"RS-FEC could not correct {lost} codewords {within}, and corrected {corrected}: frames are lost"
    elif link.status["hi_ber"]:
        text = "more than one bit in 10,000 arrives wrong (IEEE 802.3 82.2.19), so nothing is received"
    elif lost := rises.get("RX_BAD_FCS", 0):
        text = f"{lost} frames came with errors {within} and were dropped"
    else:
        return None
    return Problem(text, remedy, Result.WARNING)
