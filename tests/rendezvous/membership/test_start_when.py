"""Whom a worker waits for when it joins: all, so many, or names; and who is told of whom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telegrad.rendezvous import JoinProgress
from telegrad.rendezvous.membership import (
    Joined,
    JoinRequest,
    Lost,
    Membership,
    Message,
    Progress,
    Refused,
    Released,
    Reserved,
    Running,
    StartWhen,
    Welcome,
)
from telegrad.types import WorkerInfo
from tests.rendezvous.membership.membership_values import one, session

N = 4


def join(membership: Membership, rank: int, start_when: StartWhen = None) -> list[Message]:
    request = JoinRequest(f"w{rank}", rank, N, rank + 1, (), start_when)
    return membership.join(session(rank), request)


def told(messages: Sequence[Message], kind: type[Message]) -> list[int]:
    return [message.session.rank for message in messages if isinstance(message, kind)]


def test_on_top_of_a_job_that_has_started() -> None:
    membership = Membership()
    join(membership, 0, 2)
    one(membership.reserve(session(9)), Refused)
    join(membership, 1, 2)
    assert membership.reserve(session(9)) == [Reserved(session(9), f"worker{N}", N, N)]
    request = JoinRequest(f"worker{N}", N, N, 99, (), 1)
    assert told(membership.join(session(9), request), Welcome) == [9]
    assert told(join(membership, 2, 4), Welcome) == [2]
    assert not membership.complete
    join(membership, 3)
    assert membership.complete


@pytest.mark.parametrize("wanted", [0, -1, N + 1])
def test_a_number_that_cannot_be(wanted: int) -> None:
    refused = one(join(Membership(), 0, wanted), Refused)
    assert refused.error == "ValueError"
    assert f"start_when={wanted} is out of range for a world size of {N}" in refused.message


CONDITIONS = st.one_of(
    st.none(),
    st.integers(1, N),
    st.lists(st.sampled_from([f"w{r}" for r in range(N)]), min_size=1, max_size=2).map(tuple),
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "lost", "shutdown", "ended"]), st.integers(0, N - 1), CONDITIONS
    ),
    max_size=40,
)


def is_met(wanted: StartWhen, there: Sequence[WorkerInfo], *, complete: bool) -> bool:
    """Returns True if a worker that waits for this many, or for these, has waited long enough."""
    if wanted is None:
        return complete or len(there) == N
    if isinstance(wanted, int):
        return len(there) >= wanted
    return {info.name for info in there}.issuperset(wanted)


ALL_JOIN = [("join", r, None) for r in range(N)]
ALL_LEAVE = [("shutdown", r, None) for r in range(N)]


@given(EVENTS)
# Who waits hears of those who have started, and of their loss; the news that no pair needs is not.
@example([("join", 0, 1), ("join", 1, None), ("join", 2, 1), ("lost", 0, None), ("join", 3, 3)])
@example([("join", 0, 1), ("join", 1, None), ("join", 2, None), ("lost", 1, None)])
# Shutdown waits for who still joins, and not for who never came.
@example([("join", 0, 1), ("join", 1, None), ("shutdown", 0, None), ("lost", 1, None)])
@example([("join", 0, 2), ("join", 1, 2), ("shutdown", 0, None), ("shutdown", 1, None)])
# It waits for a replacement, too.
@example([*ALL_JOIN, ("lost", 1, None), ("shutdown", 0, None), ("join", 1, None), *ALL_LEAVE])
# One that was refused stayed a member for good, for those who had started.
@example([("join", 0, 1), ("join", 1, None), ("join", 3, ("w2",)), ("ended", 2, None)])
# The refusal of the only worker that had not left is the last event of the job.
@example([("join", 0, 1), ("join", 1, None), ("shutdown", 0, None), ("ended", 2, None)])
def test_who_was_welcomed_knows_exactly_who_is_there(
    events: list[tuple[str, int, StartWhen]],
) -> None:
    """Who waits knows whoever was welcomed, and waits as long as it has to and no longer.

    All go when all have called shutdown.
    """
    membership = Membership()
    epoch = [0] * N
    conditions: dict[WorkerInfo, StartWhen] = {}
    knows: dict[WorkerInfo, set[WorkerInfo]] = {}
    expects: dict[WorkerInfo, set[WorkerInfo]] = {}  # of who waits: who may dial it already
    places: dict[WorkerInfo, WorkerInfo] = {}
    leaving: set[WorkerInfo] = set()
    once_complete = False

    def now(r: int) -> WorkerInfo:
        return WorkerInfo(f"store.{r}", r, epoch[r])

    def take(messages: Sequence[Message]) -> None:
        for message in messages:
            who = message.session
            match message:
                case Welcome():
                    assert who not in knows
                    found = [member.info for member in message.members]
                    assert is_met(conditions[who], found, complete=once_complete)
                    assert expects.pop(who) <= set(found)
                    knows[who] = set(found)
                case Joined():
                    has = knows.get(who, expects.get(who))
                    assert has is not None
                    assert message.member.info not in has
                    has.add(message.member.info)
                case Lost():
                    knows.get(who, expects.get(who, set())).remove(message.info)
                case Refused():  # as it waits for whoever has ended
                    assert who not in knows
                    del conditions[who], expects[who]
                    epoch[who.rank] += 1
                case Released():
                    leaving.remove(who)
                    del knows[who], conditions[who]
                    epoch[who.rank] += 1
                case Progress():
                    assert who not in knows
                case Running():
                    assert who in leaving

    for event, r, condition in events:
        who = now(r)
        if event == "join" and who not in conditions:
            conditions[who], expects[who] = condition, set()
            request = JoinRequest(f"w{r}", r, N, 10 * epoch[r] + r + 1, (), condition)
            places[who] = WorkerInfo(request.name, r, request.incarnation)
            take(membership.join(who, request))
        elif event == "shutdown" and who in knows and who not in leaving:
            leaving.add(who)
            take(membership.shut_down(who))
        elif event == "ended" and who not in conditions:
            take(membership.ended(r, "exit code 1"))
        elif event == "lost":
            known = conditions.pop(who, 0) != 0
            knows.pop(who, None)
            expects.pop(who, None)
            leaving.discard(who)
            epoch[r] += 1
            messages = membership.lost(who, "killed")
            assert known or not messages
            take(messages)
        there = {member.info for member in membership.members}
        assert there == {places[each] for each in conditions}
        assert all(found == there for found in knows.values())
        welcomed = {places[each] for each in knows}
        assert all(found == welcomed for found in expects.values())
        assert not leaving or set(conditions) != leaving
        once_complete = (once_complete and bool(there)) or len(there) == N
        for waiting in set(conditions) - set(knows):
            assert not is_met(conditions[waiting], [*there], complete=once_complete)


@pytest.mark.parametrize(
    ("start_when", "line", "missing"),
    [
        (
            None,
            "2/4 joined; waiting for ranks 1, 3; 9 s left",
            ("rank 1: never reached", "rank 3: lost"),
        ),
        (
            3,
            "2/4 joined; waiting for any 1 of ranks 1, 3; 9 s left",
            ("rank 1: never reached", "rank 3: lost"),
        ),
        (
            ("w0", "ps"),
            "2/4 joined; waiting for worker 'ps'; 9 s left",
            ("worker 'ps': never reached", "rank 3: lost"),
        ),
        (("w0",), "2/4 joined; 9 s left", ("rank 3: lost",)),
    ],
)
def test_the_words_say_who_is_missing(
    start_when: StartWhen, line: str, missing: tuple[str, ...]
) -> None:
    progress = JoinProgress(1, (0, 2), N, {3: "lost"}, ("w0", "w2"), start_when)
    assert progress.line(9.0) == line
    found = progress.missing_with_errors("grpc://h:1")
    assert len(found) == len(missing)
    assert all(each.startswith(words) for each, words in zip(found, missing, strict=True))
