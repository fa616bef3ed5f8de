"""`p4sgd doctor --self-test` on a machine with boards: what is wrong is found, and named."""

import contextlib
import json

import pytest
from support.command_line import run
from support.xrt import TINY, Machine, bdf_of, make_xclbin

from p4sgd.host.boards import mac, xrt
from p4sgd.host.doctor import selftest as doctor
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.selftest import CLOCK, KERNEL, Sizes, after_reset, cage_registers

SMALL = WorkerConfig.small()
MIB = 1 << 20


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(mac, "_TRY_S", 0.05)
    monkeypatch.setattr(mac, "_OTHER_FEC_S", 0.05)
    monkeypatch.setattr(doctor, "_CLOCK_S", 0.02)
    with contextlib.closing(Machine(tmp_path, 2, channel_bytes=2 * MIB)) as found:
        found.install(monkeypatch)
        yield found
        assert not found.open_handles


@pytest.fixture
def xclbin(tmp_path):
    """A self-test for two engines of two ports, one of labels, and two cages."""
    return make_xclbin(tmp_path / "selftest.xclbin", SMALL, kernel=KERNEL, macs=2)


def examine(xclbin, *words, board=f"xrt:{bdf_of(0)}", status=0):
    """Result and problem of each check that has not passed."""
    done = run("doctor", "--self-test", xclbin, "--board", board, "--memory", 1, *words, "--json", status=status)
    document = json.loads(done.stdout)
    assert document["healthy"] == (status == 0)
    return {found["check"]: (found["result"], found["problem"]) for found in document["findings"] if found["problem"]}


def test_boards_that_are_as_they_should_be(machine, xclbin):
    """All of the machine. By hand: after 75 cycles a beat of 8 bytes in each cycle of 4 ns, which is 2,000 MB/s."""
    document = json.loads(run("doctor", "--self-test", xclbin, "--memory", 1, "--json").stdout)
    assert document["healthy"]
    names = ["clock", *(f"memory {port}" for port in range(5)), "cage 0", "cage 1"]
    assert [(found["board"], found["check"]) for found in document["findings"]] == [
        (f"xrt:{bdf_of(board)}", name) for board in range(2) for name in names
    ]
    assert {found["result"] for found in document["findings"]} == {"passed"}
    evidence = {found["check"]: found["evidence"] for found in document["findings"]}
    assert float(evidence["clock"]["megahertz"]) == pytest.approx(250, rel=0.01)
    runs = ("alone", "short_bursts", "together", "single_beats", "store")
    assert [name for name in evidence["memory 0"] if name.endswith("mb_per_s")] == [f"{run}_mb_per_s" for run in runs]
    assert evidence["memory 0"]["alone_mb_per_s"] == pytest.approx(2000, rel=0.01)
    assert evidence["memory 0"]["latency_ns"] == pytest.approx(300, rel=0.01)
    assert "store_mb_per_s" not in evidence["memory 1"], "a worker does not write there"
    assert "together_mb_per_s" not in evidence["memory 4"], "labels"
    assert (evidence["cage 1"]["sent"], evidence["cage 1"]["lost"]) == (10_000_000, 0)
    assert float(evidence["cage 1"]["million_frames_per_s"]) == pytest.approx(142, rel=0.01)


def flip(port, bit):
    """Changes one bit of what a port reads or writes, always the same."""

    def change(number, content):
        if number == port:
            content.reshape(-1)[bit // 8] ^= 1 << bit % 8

    return change


def lose_address_bit(port, content):
    """As if port 1 had lost the lowest bit of an address."""
    if port == 1:
        beats = content.reshape(-1, 8)
        beats[1::2] = beats[0::2]


HALF = {3: lambda ports: len(ports) / 2}
"""Port 3 is slow while others run."""

FAULTS = [  # of a board; the check that finds it, and what that says
    ({"read": flip(2, 64 * 5 + 33)}, "memory 2", "reads 1 of 131,072 beats wrong, in words 1; the first is beat 5"),
    ({"read": lose_address_bit}, "memory 1", "beat 0 comes where beat 1 belongs"),
    ({"swapped": (1, 2)}, "memory 1", "they are those of memory port 2 (engine 1, port 0)"),
    ({"errors": {3: 7}}, "memory 3", "answers with 7 errors"),
    ({"slow": {0: 1.5}}, "memory 0", "reads only 67% of a beat a cycle alone"),
    ({"slow": {4: 3}}, "memory 4", "memory port 4 (labels) reads only 33% of a beat a cycle alone"),
    ({"slow": HALF}, "memory 3", "reads only 50% of a beat a cycle while the others"),
    ({"slow": HALF, "short": {3: 1.05}}, "memory 3", "50% of a beat a cycle in long bursts, and 95% in bursts of 16"),
    ({"written": flip(2, 70)}, "memory 2", "131,072 beats; then the host reads 1 of them wrong, the port"),
    ({"frames": {1: {"received": -3}}}, "cage 1", "of 10,000,000 frames 3 were lost, and 0 came back wrong"),
    ({"frames": {0: {"received": -1, "wrong": 1}}}, "cage 0", "0 were lost, and 1 came back wrong"),
    ({"frames": {0: {"missing": 2}}}, "cage 0", "frames came back out of order"),
    ({"loopback": {"there": False}}, "cage 1", "its transceivers do not receive what they send themselves"),
    ({"loopback": {"power_good": 7, "there": False}}, "cage 0", "no power: 0b0111"),
    # What never ends is given up.
    ({"stuck": {1: 17, 3: 0}}, "board", "of 131,072 beats memory port 1 has had 17, and none in the last 10,000"),
    ({"frames": {1: {"sending": 1, "sent": -9_999_000}}}, "board", "10,000,000 frames cage 1 has had 1,000, and none"),
    ({"clock": 0}, "board", "the kernel's clock stands still"),
]
WARNINGS = [
    ({"clock": 200}, "clock", "has 200 MHz, not 250"),
    ({"frames": {1: {"cycles": 10_000_000}}}, "cage 1", "million frames a second, of 142"),
    ({"single": {0: 1.3}}, "memory 0", "reads 77% of a beat a cycle if it reads 1 of 8 planes"),
]


@pytest.mark.parametrize(
    ("result", "faults", "check", "problem"),
    [("failed", *each) for each in FAULTS] + [("warning", *each) for each in WARNINGS],
)
def test_what_is_wrong_is_named(machine, xclbin, result, faults, check, problem):
    machine.boards[0].faults = faults
    found = examine(xclbin, status=int(result == "failed"))
    assert found[check][0] == result
    assert problem in found[check][1]
    both = {"cage 0", "cage 1"}
    others = {"swapped": {"memory 1", "memory 2"}, "loopback": both, "clock": both & found.keys() | {check}}
    assert set(found) == others.get(next(iter(faults)), {check})


def measure(board, **files):
    """Write files of XRT's driver, as its show functions print them."""
    folder = xrt.DRIVER / bdf_of(board) / "xmc.u.2"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("fpga", "hbm", "power", "level", "problems"),
    [
        (100, 95, 225_400_000, 2, []),
        (101, 95, 149_000_000, 1, ["the FPGA has 101 °C"]),
        (54, 100, 75_600_000, 0, ["the HBM has 100 °C", "the card takes 76 W"]),
        (0, "n/a", 0, 7, []),
    ],
)
def test_a_card_that_is_too_hot_or_takes_too_much_power(machine, xclbin, fpga, hbm, power, level, problems):
    """Power is in µW; 0 is a sensor that the card has not. Levels of power are XRT's three."""
    measure(0, xmc_fpga_temp=fpga, xmc_hbm_temp=hbm, xmc_power=power, max_power=level)
    words = ("--self-test", xclbin, "--board", f"xrt:{bdf_of(0)}", "--memory", 1, "--json")
    done = run("doctor", *words, status=int(bool(problems)))
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "card"]
    assert [each["problem"].partition(", more than")[0] for each in found if each["problem"]] == problems
    assert found[0]["evidence"] == {
        "fpga_celsius": fpga or "unknown",
        "hbm_celsius": hbm if fpga else "unknown",
        "watts": round(power / 1e6) or "unknown",
        "most_watts": {0: 75, 1: 150, 2: 225}.get(level, "unknown"),
    }


def test_what_is_wrong_in_memory_itself(machine, xclbin):
    """The host reads it wrong, too."""
    call = machine._xrtBOSync

    def spoil(buffer, direction, size, offset):
        done = call(buffer, direction, size, offset)
        found = machine._handles[buffer]
        if direction == 0 and found.channel is machine.boards[0].channels[2]:
            found.allocation.data[3] ^= 0x80
        return done

    machine._xrtBOSync = spoil
    _, problem = examine(xclbin, status=1)["memory 1"]
    assert "in words 0; the first is beat 0, which the host reads wrong, too" in problem


def test_frames_leave_the_board_by_a_cable(machine, xclbin):
    """Then the cable matters, and in the end the loop-back is off."""
    machine.boards[0].cable = {"there": False}
    assert examine(xclbin) == {}
    assert "no valid signal" in examine(xclbin, "--cable", status=1)["cage 0"][1]
    machine.boards[0].cable = {}
    machine.boards[0].faults = {"loopback": {"there": False}}
    assert examine(xclbin, "--cable") == {}


def test_an_emulated_board(tmp_path, monkeypatch):
    """It has no MACs, and its clock is that of a simulation: the driver waits some cycles for it, not minutes."""
    xclbin = make_xclbin(tmp_path / "selftest.xclbin", TINY, kernel=KERNEL, macs=0)
    with contextlib.closing(Machine(tmp_path, 1, emulation=True, channel_bytes=2 * MIB)) as machine:
        machine.install(monkeypatch)
        document = json.loads(run("doctor", "--self-test", xclbin, "--board", "xrt:0", "--json").stdout)
        assert [found["check"] for found in document["findings"]] == ["memory 0", "memory 1", "cage 0", "cage 1"]
        machine.boards[0].faults = {"clock": 0.1, "frames": {1: {"received": -3}}}
        lost = examine(xclbin, board="xrt:0", status=1)["cage 1"]
        assert "of 1,000 frames 3 were lost, and 0 came back wrong" in lost[1]
        monkeypatch.setattr(doctor, "EMULATED_WAIT_S", 0.05)
        machine.boards[0].faults = {"clock": 0, "stuck": {0: 5}}
        assert "the kernel's clock stands still" in examine(xclbin, board="xrt:0", status=1)["board"][1]


def test_frames_are_waited_for_while_they_come():
    """By the kernel's clock: one every 8,000 cycles, and after the fifth none any more."""
    sizes = Sizes(engines=1, ports=1, beat_bytes=8, chunk_beats=1, cages=1)
    words = {register.offset: register.reset for register in after_reset(sizes)}
    received = cage_registers(0)["received"].offset

    def read(offset):
        if offset == CLOCK.offset:
            words[offset] += 1000
            words[received] = min(words[offset] // 8000, 5)
        return words[offset]

    words[CLOCK.offset] = 0
    client = RegisterClient(read, words.__setitem__)
    assert doctor.SelfTest("a board", client, lambda count: []).send([0], 8)[0]["received"] == 5
    assert 5 * 8000 + 10_000 <= words[CLOCK.offset] <= 5 * 8000 + 2 * 10_000 + 2 * 1000


def test_a_board_that_fails_does_not_hide_the_others(machine, xclbin):
    machine.boards[0].lost = True
    findings = json.loads(run("doctor", "--self-test", xclbin, "--memory", 1, "--json", status=1).stdout)["findings"]
    assert (findings[0]["board"], findings[0]["result"]) == (f"xrt:{bdf_of(0)}", "failed")
    assert "not on the bus" in findings[0]["problem"]
    assert {found["result"] for found in findings[1:]} == {"passed"}


def test_what_a_user_gets_wrong_is_one_line(machine, xclbin, tmp_path, monkeypatch):
    worker = make_xclbin(tmp_path / "worker.xclbin", TINY, number=2)
    for words, says in (
        (("--self-test", worker), "has no kernel p4sgd_selftest"),
        (("--self-test", tmp_path / "none.xclbin"), "cannot read the xclbin"),
        (("--self-test", xclbin, "--memory", 8), "no room for 8,388,608 bytes in bank 0"),
        (("--self-test", xclbin, "--board", "3b:00.1"), "'3b:00.1' is no board"),
        (("--self-test", xclbin, "--workers", 3), "--workers has no use with --self-test: leave it out"),
        (("--memory", 8), "--memory is for --self-test: leave it out"),
    ):
        done = run("doctor", *words, status=2)
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
    monkeypatch.setattr("p4sgd.host.boards.xrt.DRIVER", tmp_path / "none")
    assert "no board of this machine is ready" in run("doctor", "--self-test", xclbin, status=2).stderr
