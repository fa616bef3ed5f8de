"""Jobs and their workers: what is right, and what is refused."""

import pytest

from p4sgd.hw.spec.job import Job, Member

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
        *(({"members": (Member(1, 0),) * count}, f"has 1 to 32 workers, not {count}") for count in (0, 33)),
        ({"group_mac": 0x0250_3453_4700}, "0x025034534700 is no address of a group"),
        ({"group_mac": 1 << 48 | 1 << 40}, "is no address of a group"),
        *(({"ports": ports}, "a bitmap of ports has 32 bits") for ports in (1 << 32, -1)),
        *(({"key": key}, "key has 64 bits") for key in (1 << 64, -1)),
    ],
)
def test_jobs_that_cannot_be(wrong, says):
    with pytest.raises(ValueError, match=says):
        Job(**RIGHT | wrong)


@pytest.mark.parametrize(("mac", "port"), [(1 << 48, 0), (-1, 0), (0, 32), (0, -1)])
def test_workers_that_cannot_be(mac, port):
    with pytest.raises(ValueError, match="must be 0 to 31" if mac == 0 else "has 48 bits"):
        Member(mac, port)
