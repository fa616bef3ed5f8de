"""`p4sgd train`, `doctor` and `info` on a machine with boards."""

import contextlib
import json

import pytest
from support.command_line import run
from support.xrt import SHELL, TINY, Machine, bdf_of, make_xclbin

from p4sgd.host.aggregators.fpga import BoardAggregator
from p4sgd.host.aggregators.membership import Membership
from p4sgd.host.boards import mac
from p4sgd.host.boards import xrt as finding
from p4sgd.host.boards.xrt import XrtAddress
from p4sgd.host.doctor import ethernet
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member

WORKERS = 3


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with contextlib.closing(Machine(tmp_path, WORKERS)) as found:
        found.install(monkeypatch)
        yield found


@pytest.fixture
def xclbin(tmp_path):
    return make_xclbin(tmp_path / "worker.xclbin", TINY)


JOB = ("train", "breast_cancer", "--epochs", "2", "--batch", "32", "--json")


def emulated(*words):
    return json.loads(run(*JOB, "--workers", WORKERS, "--config", "tiny", *words).stdout)["weights_sha256"]


def test_training_ends_with_the_emulators_weights_and_goes_on(machine, xclbin, tmp_path):
    options = ("--device", "cluster", "--cluster", machine.cluster_file(xclbin))
    document = json.loads(run(*JOB, *options, "--checkpoint", tmp_path / "run.checkpoint").stdout)
    assert document["weights_sha256"] == emulated()
    assert document["epochs"][0]["counters"][2]["PACKETS_SENT"] > 0
    assert not machine.open_handles
    document = json.loads(run("train", "--resume", tmp_path / "run.checkpoint", "--epochs", 3, "--json").stdout)
    assert document["weights_sha256"] == emulated("--epochs", "3")


@pytest.fixture
def both(tmp_path):
    """A worker and an aggregator, and no MAC, as in an image for Vitis' emulator."""
    both = make_xclbin(tmp_path / "both.xclbin", TINY, macs=0)
    aggregator = make_xclbin(
        tmp_path / "aggregator.xclbin", AggregatorConfig(slots=16, jobs=2, ports=4), kernel="p4sgd_aggregator", macs=0
    )
    documents = [json.loads(path.read_text()) for path in (both, aggregator)]
    documents[0]["kernels"] |= documents[1]["kernels"]
    both.write_text(json.dumps(documents[0]))
    return both


def test_an_aggregator_on_a_board(machine, both, monkeypatch):
    """Board 0 has the aggregator besides its worker."""
    lines = ['kind = "fpga"', f'control = "xrt:{bdf_of(0)}"', f'xclbin = "{both}"']
    options = ("--device", "cluster", "--cluster", machine.cluster_file(both, aggregator=lines))
    assert json.loads(run(*JOB, *options).stdout)["weights_sha256"] == emulated()
    assert not machine.open_handles
    assert not machine.server.aggregator.jobs
    monkeypatch.setattr(Membership, "end", lambda membership: None)  # as if the program were killed
    run(*JOB, *options)
    (served,) = machine.server.aggregator.jobs.values()
    document = json.loads(run("switch", "clear", *options[2:], "--json").stdout)
    assert document == {"place": 0, "job": served.number}, "what another program has begun is seen"
    assert not machine.server.aggregator.jobs


def test_the_doctor_finds_a_cable_in_another_port(machine, xclbin):
    words = ("doctor", "--device", "cluster", "--cluster")
    assert "the cluster can train" in run(*words, machine.cluster_file(xclbin)).stdout
    said = run(*words, machine.cluster_file(xclbin, ports=[0, 2, 1]), status=1).stdout
    assert "worker 1" in said
    assert "port" in said
    assert not machine.open_handles


CABLES = [  # of board 1, whether training works, and the problem
    ({"there": False}, False, "no valid signal"),
    ({"rs_fec": 0}, False, "the other end sends without RS-FEC"),
    ({"fec_lock": 0b0111}, False, "only 3 of 4 lanes"),
    ({"skewed": True}, False, "they do not align"),
    ({"remote_fault": 1}, False, "other end reports that it receives nothing"),
    ({"power_good": 0b0111, "there": False}, False, "no power: 0b0111"),
    ({"rx_reset": 1, "there": False}, False, "does not come out of reset"),
    ({"hi_ber": 1}, True, "more than one bit in 10,000 arrives wrong"),
    ({"errors": {"LINK_LOSSES": 2}}, True, "its link was lost 2 times"),
    ({"errors": {"FEC_CORRECTED": 5, "FEC_UNCORRECTED": 3}}, True, "correct 3 codewords within 0 s, and corrected 5"),
    ({"errors": {"RX_BAD_FCS": 4}}, True, "4 frames came with errors"),
    ({"errors": {"FEC_CORRECTED": 50}}, True, ""),
]


def test_the_doctor_looks_at_cards(machine, xclbin):
    """One is too hot; the others have no sensors."""
    controller = finding.DRIVER / bdf_of(1) / "xmc.u.2"
    controller.mkdir()
    (controller / "xmc_hbm_temp").write_text("100\n")
    done = run("doctor", "--device", "cluster", "--cluster", machine.cluster_file(xclbin), "--json", status=1)
    (found,) = (each for each in json.loads(done.stdout)["findings"] if each["check"] == "card")
    assert (found["worker"], found["result"]) == (1, "failed")
    assert "HBM has 100 °C" in found["problem"]


def test_the_doctor_looks_at_links(machine, xclbin, monkeypatch):
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.05)
    monkeypatch.setattr(ethernet, "_WATCH_S", 0.0)

    def links(file, status=0):
        words = ("doctor", "--device", "cluster", "--cluster", file, "--json")
        findings = json.loads(run(*words, status=status).stdout)["findings"]
        assert status == 0 or [each["check"] for each in findings if each["result"] == "failed"] == ["ethernet"]
        return {each["worker"]: each for each in findings if each["check"] == "ethernet"}

    file = machine.cluster_file(xclbin)
    found = links(file)
    assert list(found) == [0, 1, 2]
    assert found[0]["evidence"] == {
        **{"up": 1, "aligned": 1, "block_lock": "20 of 20", "fec_lock": "4 of 4"},
        "rs_fec": "on, with nothing to correct so far",
        **dict.fromkeys(("fec_corrected", "fec_uncorrected", "rx_bad_fcs", "rx_bad", "rx_overflows"), 0),
        **{"link_losses": 0, "tx_faults": 0},
    }
    for cable, trains, problem in CABLES:
        machine.boards[1].cable = cable
        link = links(file, 0 if trains else 1)[1]
        assert link["result"] == ("failed" if not trains else "warning" if problem else "passed"), cable
        assert problem in link["problem"]
        if "FEC_CORRECTED" in cable.get("errors", {}):
            assert link["evidence"]["rs_fec"] == "on"
        if cable.get("rs_fec") == 0:
            assert "RS-FEC (here on: rs_fec of the cluster file)" in link["remedy"]
        assert all(link["evidence"][name.lower()] >= count for name, count in cable.get("errors", {}).items())
    for board in machine.boards:
        board.cable = {"rs_fec": 0, "errors": {"RX_BAD_FCS": 1}}
    link = links(machine.cluster_file(xclbin, network="resend_us = 20000\nrs_fec = false"))[0]
    assert "turn RS-FEC on at both ends" in link["remedy"]


def test_links_without_error_correction(machine, xclbin):
    for board in machine.boards:
        board.cable = {"rs_fec": 0}
    file = machine.cluster_file(xclbin, network="resend_us = 20000\nrs_fec = false")
    options = ("--device", "cluster", "--cluster", file)
    assert json.loads(run(*JOB, *options).stdout)["weights_sha256"] == emulated()
    macs = [board.kernels["p4sgd_cmac_1"][0] for board in machine.boards]
    assert [each.resets for each in macs] == [1] * WORKERS
    run("doctor", *options)
    assert [each.resets for each in macs] == [1] * WORKERS  # they are as they should be


def test_links_of_an_aggregator(machine, xclbin, tmp_path):
    """Its own links change with the file, but not below jobs that it serves."""
    image = make_xclbin(
        tmp_path / "aggregator.xclbin", AggregatorConfig(slots=16, jobs=2, ports=2), kernel="p4sgd_aggregator", macs=2
    )
    lines = ['kind = "fpga"', f'control = "xrt:{bdf_of(2)}"', f'xclbin = "{image}"']

    def read_slots(rs_fec, status=0):
        file = machine.cluster_file(xclbin, aggregator=lines, network=f"rs_fec = {rs_fec}")
        return run("switch", "counters", "--cluster", file, status=status)

    read_slots("false")
    macs = [machine.boards[2].kernels[f"{name}_1"][0] for name in ("p4sgd_cmac", "p4sgd_cmac1")]
    assert [each.resets for each in macs] == [1, 1]
    with contextlib.closing(BoardAggregator(XrtAddress(bdf_of(2), image), rs_fec=False, ports=(0, 1))) as aggregator:
        aggregator.begin(0, Job(9, (Member(1 << 41, 0),), 3 << 40, 1), 1)
    read_slots("false")
    refusal = read_slots("true", status=1).stderr
    assert "serves jobs over links with RS-FEC off" in refusal
    assert "rs_fec = false in the cluster file" in refusal
    assert [each.resets for each in macs] == [1, 1]
    assert not machine.open_handles


def test_info_lists_boards(machine, monkeypatch):
    (finding.DRIVER / bdf_of(2) / "ready").write_text("0x0\n")
    document = json.loads(run("info", "--json").stdout)
    assert document["boards"] == [
        {"address": f"xrt:{bdf_of(board)}", "shell": SHELL, "ready": board < 2} for board in range(WORKERS)
    ]
    rows = [line.split() for line in run("info").stdout.splitlines() if line.strip().startswith("xrt:")]
    assert rows == [[f"xrt:{bdf_of(board)}", SHELL, "yes" if board < 2 else "no"] for board in range(WORKERS)]
    monkeypatch.setattr(finding, "DRIVER", finding.DRIVER / "none")
    assert json.loads(run("info", "--json").stdout)["boards"] == []
