"""Released contexts are remembered in little space."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from telegrad.dist_autograd.ids import (
    MOST_RELEASED,
    ReleasedContexts,
    creator_of,
    make_context_id,
    number_of,
)
from telegrad.rendezvous import MOST_LOST
from telegrad.types import WorkerInfo

NUMBERS = st.integers(1, 30)


@given(st.integers(0, 2**62), st.integers(0, 2**40 - 1))
def test_ids_come_apart_again(incarnation: int, number: int) -> None:
    context_id = make_context_id(incarnation, number)
    assert (creator_of(context_id), number_of(context_id)) == (incarnation, number)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), NUMBERS, st.integers(0, 30))))
def test_what_is_released_stays_released(events: list[tuple[int, int, int]]) -> None:
    released = ReleasedContexts()
    expected: set[tuple[int, int]] = set()
    for creator, number, lowest in events:
        released.add(make_context_id(creator, number))
        released.rise(creator, lowest)
        expected |= {(creator, number), *((creator, n) for n in range(lowest))}
        for each in (1, 2):
            for n in range(1, 31):
                assert (make_context_id(each, n) in released) == ((each, n) in expected)


def test_little_is_remembered_one_by_one() -> None:
    released = ReleasedContexts()
    for number in range(1, 1001):
        released.rise(5, number + 1)  # as a release tells both
        released.add(make_context_id(5, number))
    assert len(released) == 0
    released.lose(WorkerInfo("creator", 0, 5))
    assert make_context_id(5, 10**6) in released
    assert make_context_id(6, 1) not in released


def test_the_last_of_the_lost_creators_are_remembered() -> None:
    released = ReleasedContexts()
    for creator in range(1, 3 * MOST_LOST):
        released.lose(WorkerInfo("creator", 0, creator))
        assert make_context_id(creator, 1) in released
    assert (
        sum(make_context_id(each, 1) in released for each in range(1, 3 * MOST_LOST)) == MOST_LOST
    )
    assert make_context_id(2 * MOST_LOST, 1) in released


def test_the_last_of_those_that_are_kept_singly_are_remembered() -> None:
    released, peer, other = ReleasedContexts(), WorkerInfo("peer", 1, 7), WorkerInfo("other", 2, 8)
    ids = [make_context_id(5, number) for number in range(2 * MOST_RELEASED)]
    for each in ids:
        released.add_for(peer, each)
    assert sum(released.is_over_for(peer, each) for each in ids) == MOST_RELEASED
    assert not any(each in released or released.is_over_for(other, each) for each in ids)
    for each in ids:
        released.add(each)
    assert sum(each in released for each in ids) == len(released) == MOST_RELEASED
    assert ids[-1] in released
