"""Several groups at once: made, asked for ranks, and left one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from telegrad import collectives as dist
from telegrad.collectives.groups.groups import MOST_GONE, add_gone
from telegrad.collectives.messages import GroupKey
from telegrad.errors import InvalidUseError
from telegrad.rpc import Limits, RpcOptions
from telegrad.testing import Cluster
from tests.collectives import remote_code
from tests.collectives.remote_code import refusal


def summed(group: dist.ProcessGroup | None) -> float:
    array = np.array([float(dist.get_rank())])
    dist.all_reduce(array, group=group)
    return float(array[0])


def makes_subgroups() -> list[float]:
    r = remote_code.begin()
    mine, every = dist.new_subgroups(2)
    assert [list(each.ranks) for each in every] == [[0, 1], [2, 3]]
    assert mine is every[r // 2]
    assert [each.rank for each in every] == [r % 2 if i == r // 2 else -1 for i in range(2)]
    alone, _ = dist.new_subgroups(1, mine)
    assert list(alone.ranks) == [r]
    crossed, every = dist.new_subgroups_by_enumeration([[3, 0], [1]])
    assert (crossed is None) is (r == 2)
    assert dist.get_process_group_ranks(every[0]) == [3, 0]
    if crossed is not None:
        assert dist.get_group_rank(crossed, r) == crossed.rank
        assert dist.get_global_rank(crossed, crossed.rank) == r
    upper = dist.split_group(None, [[3, 2]])
    assert (upper is None) is (r < 2)
    if upper is None:
        return [summed(mine), summed(alone)]
    inner = dist.split_group(upper, [[1], [0]])
    assert inner is not None
    assert list(inner.ranks) == [r]
    return [summed(mine), summed(alone), summed(upper)]


def test_subgroups() -> None:
    with Cluster(4) as cluster:
        assert cluster.run(makes_subgroups) == [
            [1.0, 0.0],
            [1.0, 1.0],
            [5.0, 2.0, 5.0],
            [5.0, 3.0, 5.0],
        ]


def with_wrong_arguments() -> None:
    r = remote_code.begin()
    verbs: Any = dist
    other = dist.new_group([1 - r]) if r else None
    wrong: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: verbs.new_subgroups(3),
            ValueError,
            "groups of 3 do not divide group 'world' of 2",
        ),
        (lambda: verbs.new_subgroups(0), ValueError, "groups of 0"),
        (lambda: verbs.new_subgroups("1"), TypeError, "'1'"),
        (lambda: verbs.new_subgroups_by_enumeration([[0], [0, 1]]), ValueError, r"\[0\] are in"),
        (lambda: verbs.new_subgroups_by_enumeration([[0], []]), ValueError, "at least one"),
        (lambda: verbs.split_group(None, [[0, 2]]), ValueError, r"\[2\] are not"),
        (lambda: verbs.split_group(None, [[0], [0]]), ValueError, r"\[0\] are in several"),
        (lambda: verbs.get_group_rank(None, 2), ValueError, "global_rank 2 is no member"),
        (lambda: verbs.get_global_rank(None, 2), ValueError, "ranks 0 to 1, not 2"),
        (lambda: verbs.get_global_rank(None, -1), ValueError, "not -1"),
        (lambda: verbs.get_global_rank(None, True), TypeError, "True"),
        (lambda: verbs.destroy_process_group("world"), TypeError, "ProcessGroup"),
    ]
    if other is not None:
        wrong += [
            (lambda: verbs.new_subgroups(1, other), ValueError, "no member of group"),
            (lambda: verbs.split_group(other, [[0]]), ValueError, "no member of group"),
        ]
    for call, error, words in wrong:
        with pytest.raises(error, match=words):
            call()
    assert summed(None) == 1.0  # nothing of all that was sent


def test_wrong_arguments() -> None:
    with Cluster(2) as cluster:
        cluster.run(with_wrong_arguments)


def disagrees() -> tuple[str, float]:
    """Rank 0 wants another group than the others; and then all want the same."""
    r = remote_code.begin(timeout=20.0)
    parts = [[0, 1], [2]] if r == 0 else [[0, 1, 2]]
    return refusal(lambda: dist.split_group(None, parts)), summed(dist.new_group([0, 1, 2]))


def test_ranks_that_want_different_groups() -> None:
    with Cluster(3) as cluster:
        for said, total in cluster.run(disagrees):
            assert said.startswith("CollectiveMismatchError: rank 0 ('worker0') called new_group(")
            assert "called new_group([0, 1, 2]); all members must make a group of the same" in said
            assert total == 3.0


def leaves_one_group() -> list[str]:
    r = remote_code.begin()
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    assert summed(second) == 1.0
    said = []
    if r == 0:
        dist.destroy_process_group(second)
        dist.destroy_process_group(second)
        said = [refusal(lambda: dist.barrier(second))]
    else:
        said = [refusal(lambda: dist.barrier(second))]
        dist.destroy_process_group(second)
    assert summed(first) == 1.0  # an earlier group of the same members goes on
    assert summed(dist.new_group([0, 1])) == 1.0
    assert summed(None) == 1.0
    assert dist.is_initialized()
    dist.destroy_process_group(dist.world_group())  # means all
    assert not dist.is_initialized()
    dist.destroy_process_group(first)
    return said


def test_a_group_is_left_alone() -> None:
    with Cluster(2) as cluster:
        (left,), (other,) = cluster.run(leaves_one_group)
    assert left.startswith("NotInitializedError: barrier() on group '[0, 1] #2' on rank 0"), left
    assert other.startswith("CollectiveMismatchError: barrier(), number 2 of group '[0, 1] #2'")
    assert "rank 0 ('worker0') left the group after 1 operations" in other


def test_the_groups_that_were_left_last_are_remembered() -> None:
    gone: dict[GroupKey, None] = {}
    keys = [GroupKey("members", number) for number in range(MOST_GONE + 2)]
    add_gone(gone, keys[:3])
    assert list(gone) == keys[:3]
    add_gone(gone, keys[3:])
    assert list(gone) == keys[2:]


@pytest.mark.parametrize("alone", [True, False])
def test_late_messages_to_a_group_that_was_left_are_dropped(alone: bool) -> None:
    """They would wait with those to groups that are yet to be made, of which there may be few."""
    groups: dict[int, dist.ProcessGroup] = {}

    def meet() -> None:
        group = groups[remote_code.begin()] = dist.new_group([0, 1])
        assert summed(group) == 1.0

    def leave(r: int) -> None:
        dist.destroy_process_group(groups[r] if alone else None)

    with Cluster(2, options=RpcOptions(limits=Limits(served_calls_per_peer=6))) as cluster:
        for _ in range(12):
            cluster.run(meet)
            for r in (1, 0):
                cluster.call(r, leave, r)


def test_without_a_group() -> None:
    assert not dist.is_initialized()


def test_the_rank_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert dist.get_node_local_rank() == dist.get_node_local_rank(fallback_rank=1) == 3
    monkeypatch.delenv("LOCAL_RANK")
    assert dist.get_node_local_rank(1) == 1
    with pytest.raises(InvalidUseError, match="telegrad run"):
        dist.get_node_local_rank()
