"""Jobs and their workers: what is right, and what is refused."""

import pytest

from p4sgd.hw.spec.job import Job, Member, Parent

RIGHT = {"number": 255, "members": (Member((1 << 48) - 1, 31),) * 32, "group_mac": 1 << 40, "ports": (1 << 32) - 1}


@pytest.mark.parametrize("workers", [1, 3, 32])
def test_everyone(workers):
    assert Job(**RIGHT | {"members": RIGHT["members"][:workers]}).everyone == sum(
        1 << shard for shard in range(workers)
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *(({"number": number}, f"number must be 0 to 255, not {number}") for number in (256, -1)),
        *(({"members": (Member(1, 0),) * count}, f"has 1 to 992 workers, not {count}") for count in (0, 993)),
        ({"group_mac": 0x0250_3453_4700}, "0x025034534700 is no address of a group"),
        ({"group_mac": 1 << 48 | 1 << 40}, "is no address of a group"),
        *(({"ports": ports}, "a bitmap of ports has 32 bits") for ports in (1 << 32, -1)),
        *(({"key": key}, "key has 64 bits") for key in (1 << 64, -1)),
        ({"parent": Parent(0, 0, 0, 1)}, "with a parent has at most 31 workers"),
    ],
)
def test_jobs_that_cannot_be(wrong, says):
    with pytest.raises(ValueError, match=says):
        Job(**RIGHT | wrong)


@pytest.mark.parametrize(("mac", "port"), [(1 << 48, 0), (-1, 0), (0, 32), (0, -1)])
def test_workers_that_cannot_be(mac, port):
    with pytest.raises(ValueError, match="must be 0 to 31" if mac == 0 else "has 48 bits"):
        Member(mac, port)


@pytest.mark.parametrize("stand_in", [Member(1, 2), Member(2, 2, Member(3, 2))])
def test_stand_ins_that_cannot_be(stand_in):
    assert Member(1, 2, Member(2, 2)) == Member(1, 2)
    with pytest.raises(ValueError, match="stands in for another one"):
        Member(1, 2, stand_in)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mac": 1 << 48}, "has 48 bits"),
        ({"port": 32}, "port must be 0 to 31"),
        ({"workers": 0}, "has 1 to 32 workers, not 0"),
        ({"workers": 33}, "has 1 to 32 workers, not 33"),
        ({"shard": 2}, "shard must be 0 to 1, not 2"),
    ],
)
def test_parents_that_cannot_be(wrong, says):
    right = {"mac": 1, "port": 31, "shard": 1, "workers": 2}
    Parent(**right)
    with pytest.raises(ValueError, match=says):
        Parent(**right | wrong)


def test_a_parent_has_the_next_bit():
    job = Job(**RIGHT | {"members": RIGHT["members"][:31], "parent": Parent(0, 0, 0, 1)})
    assert (job.everyone, job.whole) == ((1 << 31) - 1, (1 << 32) - 1)
    assert Job(**RIGHT).whole == Job(**RIGHT).everyone == (1 << 32) - 1
