"""What is remembered of groups that were left, as values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from telegrad.collectives.groups import MOST_MEMBERSHIPS, GoneGroups
from telegrad.collectives.messages import GroupKey


def test_groups_that_come_and_go_take_no_more_room_with_time() -> None:
    gone = GoneGroups()
    for number in range(1, 10_001):
        gone.add([GroupKey("the same members", -number), GroupKey("the same members", 3 * number)])
    assert len(gone) == 1
    for number in range(10_000):
        gone.add([GroupKey(f"members {number}", 1)])
    assert len(gone) == MOST_MEMBERSHIPS
    assert GroupKey("members 9999", 1) in gone
    assert GroupKey("members 0", 1) not in gone


@given(st.lists(st.lists(st.integers(1, 3), max_size=4), max_size=12))
def test_each_that_was_left_is_gone_and_no_later_one(generations: list[list[int]]) -> None:
    """Of two memberships, the groups of each generation are left at once."""
    gone, epochs, left = GoneGroups(), {"a": 0, "b": 0}, []
    for steps in generations:
        keys = []
        for step in steps:
            members = "ab"[step % 2]
            epochs[members] += step
            keys.append(GroupKey(members, epochs[members]))
            keys.append(GroupKey(members, -epochs[members]))
        gone.add(keys)
        left += keys
        assert all(key in gone for key in left)
        for members, epoch in epochs.items():
            assert GroupKey(members, epoch + 1) not in gone
            assert GroupKey(members, -epoch - 1) not in gone
