"""Jobs and their workers: what is right, and what is refused."""

import pytest

from p4sgd.hw.spec.job import Job, Member

RIGHT = {"number": 255, "members": (Member(1, 0),) * 32, "group_mac": 1 << 40, "ports": (1 << 32) - 1}


@pytest.mark.parametrize("workers", [1, 3, 32])
def test_everyone(workers):
    assert Job(0, (Member(5, 1),) * workers, (1 << 48) - 1, 0).everyone == sum(1 << shard for shard in range(workers))


def test_the_largest():
    assert Job(**RIGHT).members[31] == Member(1, 0)
    assert Member((1 << 48) - 1, 31).port == 31


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"number": 256}, "number must be 0 to 255, not 256"),
        ({"number": -1}, "number must be 0 to 255, not -1"),
        ({"members": ()}, "a job has 1 to 32 workers, not 0"),
        ({"members": (Member(1, 0),) * 33}, "a job has 1 to 32 workers, not 33"),
        ({"group_mac": 0x0250_3453_4700}, "0x025034534700 is no address of a group"),
        ({"group_mac": 1 << 48 | 1 << 40}, "is no address of a group"),
        ({"ports": 1 << 32}, "a bitmap of ports has 32 bits"),
        ({"ports": -1}, "a bitmap of ports has 32 bits"),
    ],
)
def test_jobs_that_cannot_be(wrong, says):
    with pytest.raises(ValueError, match=says):
        Job(**RIGHT | wrong)


@pytest.mark.parametrize(("mac", "port"), [(1 << 48, 0), (-1, 0), (0, 32), (0, -1)])
def test_workers_that_cannot_be(mac, port):
    with pytest.raises(ValueError, match="must be 0 to 31" if mac == 0 else "has 48 bits"):
        Member(mac, port)
