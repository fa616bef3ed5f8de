"""What fails in one rank fails in all; what must be the same is compared."""

from contextlib import nullcontext

import pytest
from support.ranks import run_ranks

from p4sgd.host.distributed.communicator import check_same, raise_on_all
from p4sgd.host.errors import P4sgdError, UserError


@pytest.mark.parametrize(("kind", "failing"), [(UserError, {0}), (P4sgdError, {1, 2}), (UserError, {0, 1, 2})])
def test_a_failure_in_some_ranks_is_one_of_all(kind, failing):
    done = []

    def run(ranks):
        def action():
            if ranks.rank in failing:
                raise kind(f"rank {ranks.rank} says no")
            done.append(ranks.rank)

        with pytest.raises(kind) as raised:
            raise_on_all(ranks, action)
        raise_on_all(ranks, None)
        return str(raised.value)

    said = run_ranks(3, run)
    assert said == [f"rank {rank if rank in failing else min(failing)} says no" for rank in range(3)]
    assert sorted(done) == sorted({0, 1, 2} - failing)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([{"--lr": "1"}, {"--lr": "1"}, {"--lr": "1"}], None),
        ([{"--lr": "1"}, {"--lr": "1"}, {"--lr": "2"}], "--lr: .* rank 2 has 2, rank 0 has 1"),
        ([{"a": "1", "b": "3"}, {"a": "1"}, {"b": "4"}], "b: .* rank 1 has none, rank 0 has 3"),
        ([{}, {"c": "5"}, {}], "c: .* rank 1 has 5, rank 0 has none"),
    ],
)
def test_what_must_be_the_same(facts, said):
    def run(ranks):
        with nullcontext() if said is None else pytest.raises(UserError, match=said):
            check_same(ranks, facts[ranks.rank])

    run_ranks(3, run)
