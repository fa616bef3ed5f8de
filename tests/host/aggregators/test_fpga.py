"""The controller of an aggregator on an FPGA, on a model of its registers."""

from dataclasses import replace

import pytest

from p4sgd.host.aggregators.fpga import FpgaAggregator
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import GROUP_BIT

CONFIG = AggregatorConfig(slots=4, jobs=2, ports=2)


class Board:
    """Registers whose jobs begin and end on request, unless it ``sticks``. Reads are counted."""

    def __init__(self):
        self.words = {register.offset: register.reset for register in registers.after_reset(CONFIG)}
        self.members = {}
        self.running = 0
        self.sticks = False
        self.reads = 0

    def read(self, offset):
        self.reads += 1
        assert self.reads < 100_000, "the host looks without end"
        if offset == registers.JOBS.offset:
            return registers.JOBS.encode(running=self.running, clearing=int(self.sticks))
        if offset == registers.SLOT_ROUND.offset:
            return registers.SLOT_ROUND.encode(round=7, ready=int(not self.sticks))
        return self.words[offset]

    def write(self, offset, word):
        self.words[offset] = word
        if offset == registers.BEGIN.offset:
            self.running |= 1 << registers.BEGIN.decode(word)["place"]
        if offset == registers.MEMBER.offset:
            noted = registers.MEMBER.decode(word)
            mac = [self.words[half.offset] for half in registers.MEMBER_MAC]
            self.members[noted["place"], noted["shard"]] = *mac, noted["port"]
        if offset == registers.LOOK_MEMBER.offset:
            looked = registers.LOOK_MEMBER.decode(word)
            shown = self.members.get((looked["place"], looked["shard"]), (0, 0, 0))
            for register, value in zip((*registers.SHOWN_MAC, registers.SHOWN_PORT), shown, strict=True):
                self.words[register.offset] = value
        if offset == registers.END.offset:
            self.running &= ~(1 << registers.END.decode(word)["place"])


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def aggregator(board):
    return FpgaAggregator(board.read, board.write)


def job(number, port=0):
    return Job(number, (Member(0x0200_0000_0000 + number, port),), 1 << GROUP_BIT, 1 << port)


def test_a_number_is_served_in_one_place(board, aggregator):
    aggregator.begin(0, job(7), 1)
    for host in (aggregator, FpgaAggregator(board.read, board.write)):  # it does not matter which program has begun it
        with pytest.raises(P4sgdError, match="job 7 is being served already"):
            host.begin(1, job(7, port=1), 1)
    assert board.running == 0b01
    aggregator.begin(1, job(8), 1)
    with pytest.raises(P4sgdError, match="place 1 serves job 8: end that"):
        aggregator.begin(1, job(9), 1)
    aggregator.end(0)
    aggregator.begin(0, job(7, port=1), 1)
    assert FpgaAggregator(board.read, board.write).served() == {0: job(7, port=1), 1: job(8)}
    aggregator.end(0)
    aggregator.end(1)
    in_a_rack = replace(job(7), parent=Parent(0x0250_0000_0002, 1, shard=30, workers=32))
    aggregator.begin(1, in_a_rack, 1)
    assert aggregator.served() == {1: in_a_rack}


def test_settings_of_no_valid_job(board, aggregator):
    settings, *_ = registers.job_registers(1)
    board.words[settings.offset] = settings.encode(number=7, workers=0)
    board.running = 0b10
    with pytest.raises(P4sgdError, match=r"place 1 serves no valid job: a job has 1 to 992 workers, not 0.*end it"):
        aggregator.served()


def test_a_missing_port(board, aggregator):
    with pytest.raises(P4sgdError, match="job 7 cannot begin: it needs port 2 of the aggregator, which has 2"):
        aggregator.begin(0, job(7, port=2), 1)
    with pytest.raises(P4sgdError, match="job 7 cannot begin: it needs port 3 of the aggregator, which has 2"):
        aggregator.begin(0, replace(job(7), parent=Parent(1, 3, 0, 1)), 1)
    members = (replace(job(7).members[0], stand_in=job(8).members[0]),)
    with pytest.raises(P4sgdError, match=r"job 7 cannot begin: it has stand-ins, which only .* programs can have"):
        aggregator.begin(0, replace(job(7), members=members), 1)
    assert board.running == 0


def test_the_address_stays_while_jobs_are_served(board, aggregator):
    aggregator.set_mac(0x0250_0000_0001)
    aggregator.begin(1, job(7), 1)
    for host in (aggregator, FpgaAggregator(board.read, board.write)):
        host.set_mac(0x0250_0000_0001)
        with pytest.raises(P4sgdError, match=r"under .* address 02:50:.*:01, so it cannot become 02:50:.*:02: "):
            host.set_mac(0x0250_0000_0002)
    aggregator.end(1)
    aggregator.set_mac(0x0250_0000_0002)
    assert [board.words[half.offset] for half in registers.MAC] == [2, 0x0250]


def test_slots_that_do_not_become_fresh(board, aggregator):
    board.sticks = True
    with pytest.raises(P4sgdError, match=r"job 7 cannot begin: .* its 4 slots"):
        aggregator.begin(0, job(7), 1)
    assert board.running == 0
    assert aggregator.served() == {}


def test_a_slot_that_is_never_shown(board, aggregator):
    assert aggregator.read_slots(0, range(3))[2].round == 7
    board.sticks = True
    with pytest.raises(P4sgdError, match="the aggregator does not show slot 3 of place 0"):
        aggregator.read_slots(0, range(3, 4))
