"""The coordinator's side of membership, as values."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.rendezvous.membership import (
    GivenUp,
    Joined,
    JoinRequest,
    Known,
    Lost,
    Member,
    Membership,
    Message,
    Progress,
    Refused,
    Released,
    Reserved,
    Roster,
    Running,
    StartWhen,
    Welcome,
)
from telegrad.types import WorkerInfo
from tests.rendezvous.membership.membership_values import full, member, one, only, request, session


def test_all_are_welcomed_when_the_last_one_comes() -> None:
    membership = Membership()
    assert membership.join(session(2), request(2)) == [
        Progress(session(2), 1, (2,), 3, (), ("w2",))
    ]
    assert len(membership.join(session(0), request(0))) == 2
    members = (member(0), member(1), member(2))
    assert membership.join(session(1), request(1)) == [
        Welcome(session(r), members) for r in range(3)
    ]
    assert membership.complete
    assert membership.members == members


@pytest.mark.parametrize(
    ("rank", "name", "words"),
    [
        (1, "w0", "the name 'w0' is taken by rank 0 ('w0'); names must differ by more than case"),
        (1, "W0", "the name 'W0' is taken by rank 0 ('w0'); names must differ by more than case"),
        (0, "other", "rank 0 is taken by 'w0'; give 'other' a rank of its own"),
        (0, "w0", "another living worker is 'w0' (rank 0); start it once, or give this one a name"),
    ],
)
def test_duplicates(rank: int, name: str, words: str) -> None:
    membership = Membership()
    membership.join(session(0), request(0))
    refused = one(membership.join(session(1), request(rank, name=name)), Refused)
    assert refused.error == "DuplicateNameError"
    assert refused.message.startswith(words)


def test_all_hear_of_a_rank_that_was_refused_for_its_name() -> None:
    membership = Membership()
    membership.join(session(0), request(0))
    refused = one(membership.join(session(1), request(1, name="w0")), Refused)
    told = membership.join(session(2), request(2))
    assert [each.errors for each in told if isinstance(each, Progress)] == [
        ((1, f"a second one was refused: {refused.message}"),)
    ] * 2


def test_two_processes_that_say_they_host_the_coordinator_are_both_refused() -> None:
    """Each waited for rank 1, which both should have been."""
    membership = Membership(host=0)
    first = replace(request(0), process="pid 7 on a")
    membership.join(session(0), first)
    membership.join(session(2), request(2))
    told = membership.join(session(1), replace(first, incarnation=9, process="pid 8 on b"))
    refused = [each for each in told if isinstance(each, Refused)]
    assert [each.session for each in refused] == [session(1), session(0)]
    assert {each.error for each in refused} == {"DuplicateNameError"}
    words = "(RANK=0 is that of pid 7 on a and of pid 8 on b)"
    assert all(each.message.endswith(words) for each in refused)
    assert [each.info.rank for each in membership.members] == [2]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_stays_if_a_second_one_comes(rank: int) -> None:
    membership = full(host=0)
    told = membership.join(session(7), request(rank, incarnation=9))
    assert [each.session for each in told if isinstance(each, Refused)] == [session(7)]
    assert len(membership.members) == 3


def test_world_size_mismatch() -> None:
    membership = Membership()
    membership.join(session(0), request(0))
    refused, progress = membership.join(session(1), request(1, world_size=4))
    assert isinstance(refused, Refused)
    assert refused.error == "RendezvousError"
    assert "world size mismatch: 'w1' (rank 1) says 4, the job has 3" in refused.message
    assert isinstance(progress, Progress)
    assert progress.session == session(0)
    assert progress.errors == ((1, "refused by the coordinator: it says world size 4"),)
    refused = one(
        membership.join(session(4), request(4, world_size=5)), Refused
    )  # of no rank of this job
    welcomes = membership.join(session(1), request(1))
    assert [each.errors for each in welcomes if isinstance(each, Progress)] == [(), ()]
    refused = one(Membership(2).join(session(1), request(1, world_size=4)), Refused)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request(3), "rank 3 is out of range"),
        (request(-1), "rank -1 is out of range"),
        (request(0, world_size=0), "world_size must be at least 1"),
        (request(0, name="a b"), "worker name"),
    ],
)
def test_bad_requests(bad: JoinRequest, words: str) -> None:
    membership = Membership()
    refused = one(membership.join(session(0), bad), Refused)
    assert refused.error == "ValueError"
    assert words in refused.message
    assert membership.members == ()


def test_one_session_has_one_seat() -> None:
    membership = Membership()
    membership.join(session(0), request(0))
    assert membership.join(session(0), request(0)) == []
    refused = one(membership.join(session(0), request(1)), Refused)
    assert "joined already as 'w0'" in refused.message


def test_loss_before_complete_frees_the_place_and_is_remembered() -> None:
    membership = Membership()
    membership.join(session(0), request(0))
    membership.join(session(1), request(1))
    progress = one(membership.lost(session(1), "dial refused"), Progress)
    assert progress.joined == (0,)
    assert progress.errors == ((1, "joined as 'w1' and was lost again: dial refused"),)
    [first, _] = membership.join(session(8), request(1, incarnation=9))
    assert isinstance(first, Progress)
    assert first.errors == ()


def test_what_was_seen_of_a_missing_rank_is_told() -> None:
    membership = Membership()
    membership.join(session(0), request(0))
    progress = one(membership.note(2, "has another token"), Progress)
    assert progress.errors == ((2, "has another token"),)
    assert membership.note(2, "has another token") == []
    assert membership.note(0, "is there") == []
    assert membership.note(3, "no such rank") == membership.note(-1, "nor this") == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_newcomer_hears_once_that_all_know_it(order: tuple[int, ...]) -> None:
    """Those that were told of it have said so, are lost, or have given up the coordinator."""
    membership = full(4)
    membership.lost(session(3), "killed")
    newcomer = request(3, world_size=4, incarnation=9)
    welcome = one(only(membership.join(session(9), newcomer), Welcome), Welcome)
    assert not welcome.known
    ends: list[Callable[[], list[Message]]] = [
        lambda: membership.knows(session(0), 9),
        lambda: membership.lost(session(1), "silent"),
        lambda: membership.abandoned(session(2), "fenced"),
    ]
    for i in order:
        assert membership.knows(session(0), 4) == []  # its predecessor
        assert membership.knows(session(9), 9) == []  # itself
        messages = only(ends[i](), Known)
        assert messages == ([Known(session(9))] if i == order[-1] else [])


def test_one_that_waits_hears_so_after_its_welcome() -> None:
    membership = Membership()
    membership.join(session(0), dataclasses.replace(request(0), start_when=1))
    assert only(membership.join(session(1), request(1)), Welcome) == []
    assert membership.knows(session(0), 2) == []  # w1 is not welcomed yet
    first, second = only(membership.join(session(2), request(2)), Welcome)
    assert isinstance(first, Welcome)
    assert isinstance(second, Welcome)
    assert (first.known, second.known) == (True, False)
    assert membership.knows(session(0), 3) == [Known(session(2))]


def test_shutdown_waits_for_all() -> None:
    membership = full()
    assert membership.shut_down(session(0)) == [Running(session(0), 3, ("w1", "w2"))]
    membership.shut_down(session(1))
    assert membership.shut_down(session(2)) == [Released(session(r)) for r in range(3)]
    assert membership.members == ()


def test_who_waits_in_shutdown_hears_of_a_replacement() -> None:
    membership = full()
    membership.lost(session(1), "killed")
    membership.shut_down(session(0))
    messages = membership.join(session(9), request(1, incarnation=9))
    assert only(messages, Running) == [Running(session(0), 4, ("w1", "w2"))]


def test_shutdown_of_nobody_is_answered() -> None:
    assert Membership().shut_down(session(5)) == [Released(session(5))]


def test_the_job_begins_anew_after_the_last_one_is_gone() -> None:
    membership = full()
    for r in range(3):
        membership.lost(session(r), "left")
    assert not membership.complete
    assert membership.world_size is None
    membership = Membership(3)
    membership.join(session(0), request(0))
    membership.lost(session(0), "left")
    assert membership.world_size == 3


def test_a_worker_on_top_gets_the_next_rank_and_is_told_to_all() -> None:
    membership = full(2)
    late = session(7)
    assert membership.reserve(late) == [Reserved(late, "worker2", 2, 2)]
    newcomer = Member(WorkerInfo("worker2", 2, 9), ("x://2",))
    messages = membership.join(late, request(2, name="worker2", world_size=2, incarnation=9))
    assert messages == [
        Welcome(late, (member(0), member(1), newcomer), known=False),
        Joined(session(0), newcomer),
        Joined(session(1), newcomer),
    ]
    assert membership.world_size == 2


def test_places_on_top_are_kept_for_their_session_and_free_again() -> None:
    membership = full(1)
    a, b, c = session(7), session(8), session(9)
    assert membership.reserve(a) == [Reserved(a, "worker1", 1, 1)]
    assert membership.reserve(b, "helper") == [Reserved(b, "helper", 2, 1)]
    assert membership.reserve(b, "Helper2") == [Reserved(b, "Helper2", 2, 1)]
    refused = one(membership.join(c, request(1, name="worker1", world_size=1)), Refused)
    assert "rank 1 is out of range for a world size of 1" in refused.message
    membership.lost(a, "killed")
    assert membership.reserve(c) == [Reserved(c, "worker1", 1, 1)]
    membership.join(c, request(1, name="worker1", world_size=1))
    membership.lost(c, "killed")
    assert membership.reserve(a) == [Reserved(a, "worker1", 1, 1)]


def test_names_on_top_are_distinct_from_all_others() -> None:
    membership = Membership()
    membership.join(session(0), request(0, name="Worker1", world_size=1))
    assert membership.reserve(session(7)) == [Reserved(session(7), "worker2", 2, 1)]
    for name, words in [
        ("worker1", "the name 'worker1' is taken by rank 0 ('Worker1')"),
        ("WORKER2", "the name 'WORKER2' is taken by rank 2 ('worker2')"),
    ]:
        refused = one(membership.reserve(session(8), name), Refused)
        assert refused.error == "DuplicateNameError"
        assert words in refused.message
    refused = one(membership.reserve(session(8), "a b"), Refused)
    assert refused.error == "ValueError"


def test_a_job_that_begins_anew_keeps_no_reservation() -> None:
    membership = full(1)
    membership.reserve(session(7))
    membership.shut_down(session(0))
    one(membership.join(session(7), request(1, name="worker1", world_size=1)), Refused)
    assert membership.members == ()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "join", "lost", "shutdown"]),
            st.integers(1, 4),
            st.sampled_from(["", "a", "B", "b", "worker2"]),
        ),
        max_size=40,
    )
)
def test_places_on_top_are_never_given_twice(events: list[tuple[str, int, str]]) -> None:
    membership = full(1)
    places: dict[int, Reserved] = {}
    members: set[int] = set()
    for event, n, name in events:
        if event == "reserve" and n not in members:
            [answer] = membership.reserve(session(n), name)
            places.pop(n, None)
            if isinstance(answer, Reserved):
                places[n] = answer
        elif event == "join" and n not in members:
            place = places.get(n)
            asked = request(
                place.rank if place else 1, name=place.name if place else "x", world_size=1
            )
            answer = membership.join(session(n), asked)[0]
            assert isinstance(answer, Refused if place is None else Welcome)
            if place is not None:
                members.add(n)
        elif event == "lost":
            membership.lost(session(n), "killed")
            places.pop(n, None)
            members.discard(n)
        elif event == "shutdown" and n in members:
            assert not only(membership.shut_down(session(n)), Released)  # rank 0 still runs
        held = [(place.rank, place.name.lower()) for place in places.values()]
        assert len({rank for rank, _ in held}) == len({each for _, each in held}) == len(held)
        assert {m.info.rank for m in membership.members} == {0} | {places[n].rank for n in members}


@given(st.permutations([("joined", 9), ("lost", 9), ("lost", 2), ("joined", 1), ("joined", 2)]))
def test_a_roster_is_right_in_any_order(events: list[tuple[str, int]]) -> None:
    roster = Roster()
    reported: list[tuple[str, int]] = []
    for kind, incarnation in events * 2:
        info = member(1, incarnation)
        news = roster.joined(info) if kind == "joined" else roster.lost(info.info)
        if news:
            reported.append((kind, incarnation))
    assert [m.info.incarnation for m in roster.members] == [1]
    assert len(reported) == len(set(reported))
    for i in (2, 9):
        assert ("joined", i) not in reported[reported.index(("lost", i)) :]


# -- who gave up whom -------------------------------------------------------------------------


def test_who_was_given_up_is_told_and_nobody_else() -> None:
    membership = full()
    told = membership.gave_up(session(0), member(1).info, "silent")
    assert told == [GivenUp(session(1), member(0).info, "silent")]
    assert membership.members == (member(0), member(1), member(2))
    assert membership.splits == 1


def test_a_pair_is_told_once() -> None:
    """The other one says the same, once it was told, or has found out by itself."""
    membership = full()
    membership.gave_up(session(0), member(1).info, "silent")
    assert membership.gave_up(session(0), member(1).info, "silent") == []
    assert membership.gave_up(session(1), member(0).info, "it has given up this worker") == []
    assert membership.splits == 1


def test_what_says_nothing_of_two_members() -> None:
    membership = full()
    for who, whom in ((3, 1), (0, 3), (0, 0)):
        assert membership.gave_up(session(who), member(whom).info, "silent") == []
    assert membership.gave_up(session(0), member(1, incarnation=99).info, "silent") == []
    assert membership.splits == 0


def test_who_still_joins_is_told_after_the_welcome() -> None:
    membership = Membership()
    early = dataclasses.replace(request(0), start_when=1)
    membership.join(session(0), early)
    membership.join(session(1), request(1))
    assert membership.gave_up(session(0), member(1).info, "refused") == []
    told = membership.join(session(2), request(2))
    to_one = [message for message in told if message.session == session(1)]
    assert [type(message) for message in to_one] == [Welcome, GivenUp]


def test_a_replacement_was_given_up_by_nobody() -> None:
    membership = full()
    membership.gave_up(session(0), member(1).info, "silent")
    membership.lost(session(1), "killed")
    assert membership.splits == 0
    again = WorkerInfo("store.again", 1, 7)
    told = membership.join(again, request(1, incarnation=50))
    assert not only(told, GivenUp)
    assert membership.gave_up(session(0), member(1, 50).info, "silent") == [
        GivenUp(again, member(0).info, "silent")
    ]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["give up", "give up", "die", "join", "to it", "from it"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(STEPS)
def test_all_pairs_agree_under_every_order(steps: list[tuple[str, int, int]]) -> None:
    """Four workers give each other up, die and come back; each line keeps its order, no more.

    Once all was heard that was said, each pair of members agrees whether it is lost to each other.
    """
    membership = Membership(4)
    number = [0] * 4  # of the process that has this rank
    said: list[deque[WorkerInfo]] = [deque() for _ in range(4)]  # not heard by the coordinator
    told: list[deque[Message]] = [deque() for _ in range(4)]  # not heard by the worker
    lost: list[set[WorkerInfo]] = [set() for _ in range(4)]  # what each has given up
    heard: list[list[WorkerInfo]] = [[] for _ in range(4)]
    known: set[WorkerInfo] = set()  # who has joined: nobody gives up whom he has never heard of

    def line(r: int) -> WorkerInfo:
        return WorkerInfo(f"store.{r}", r, number[r])

    def info(r: int) -> WorkerInfo:
        return member(r, 100 * number[r] + r + 1).info

    def send(messages: Sequence[Message]) -> None:
        for message in messages:
            r = message.session.rank
            if message.session == line(r):
                told[r].append(message)

    def join(r: int) -> None:
        known.add(info(r))
        send(membership.join(line(r), request(r, world_size=4, incarnation=info(r).incarnation)))

    def give_up(r: int, whom: WorkerInfo) -> None:
        if whom not in lost[r]:
            lost[r].add(whom)
            said[r].append(whom)

    def to_it(r: int) -> None:
        send(membership.gave_up(line(r), said[r].popleft(), "silent"))

    def from_it(r: int) -> None:
        message = told[r].popleft()
        if isinstance(message, GivenUp):
            heard[r].append(message.by)
            give_up(r, message.by)
        elif isinstance(message, Lost):
            lost[r].add(message.info)

    for r in range(4):
        join(r)
    for step, r, other in steps:
        if step == "give up" and r != other and {info(r), info(other)} <= known:
            give_up(r, info(other))
        elif step == "die":
            gone = line(r)
            number[r] += 1
            for table in (said[r], told[r], lost[r], heard[r]):
                table.clear()
            send(membership.lost(gone, "killed"))
        elif step == "join" and info(r) not in [m.info for m in membership.members]:
            join(r)
        elif step == "to it" and said[r]:
            to_it(r)
        elif step == "from it" and told[r]:
            from_it(r)
    while any(said) or any(told):
        for r in range(4):
            if said[r]:
                to_it(r)
            if told[r]:
                from_it(r)
    seated = [m.info.rank for m in membership.members]
    pairs = {frozenset((a, b)) for a in seated for b in seated if info(b) in lost[a]}
    for a, b in itertools.permutations(seated, 2):
        assert (info(b) in lost[a]) == (info(a) in lost[b])
    for r in range(4):
        assert len(heard[r]) == len(set(heard[r]))
    assert membership.splits == len(pairs)


# -- ranks whose process has ended ---------------------------------------------------------------


def wants(rank: int, start_when: StartWhen = None) -> JoinRequest:
    return dataclasses.replace(request(rank), start_when=start_when)


def test_who_waits_for_a_rank_that_has_ended_is_refused() -> None:
    membership = Membership()
    membership.join(session(0), wants(0))
    membership.join(session(2), wants(2, 2))
    words = (
        "rank 1 ended (exit code 0) without joining; have every rank call rpc.init_rpc(), or start "
        "as many as do"
    )
    assert membership.ended(1, "exit code 0") == [
        Refused(session(0), "RendezvousError", words),
        Lost(session(2), member(0).info, f"it was refused: {words}"),
    ]
    assert [each.info.rank for each in membership.members] == [2]
    one(only(membership.join(session(0), wants(0)), Refused), Refused)  # and whoever comes later
    welcomed = only(membership.join(session(0), wants(0, 2)), Welcome)  # two are enough for these
    assert [each.session for each in welcomed] == [session(0)]


def test_a_rank_that_gave_up_has_not_ended_without_joining() -> None:
    membership = Membership()
    membership.join(session(0), wants(0))
    membership.join(session(1), wants(1))
    progress = one(membership.lost(session(1), "its time was over (1 s)", left=True), Progress)
    assert progress.gave_up == ((1, "w1"),)
    assert progress.errors == ((1, "joined as 'w1' and gave up: its time was over (1 s)"),)
    refused = one(membership.ended(1, "exit code 1"), Refused)
    assert refused.message.startswith("rank 1 ended (exit code 1) after it gave up waiting; ")


def test_a_rank_that_ends_as_a_member_is_missed_when_its_line_is_lost() -> None:
    membership = Membership()
    membership.join(session(0), wants(0))
    membership.join(session(1), wants(1))
    assert membership.ended(1, "exit code 0") == []
    messages = membership.lost(session(1), "gone", left=True)
    assert [each.session for each in messages if isinstance(each, Refused)] == [session(0)]
    assert membership.members == ()


def test_an_end_after_the_job_was_complete_concerns_nobody() -> None:
    membership = full()
    assert membership.ended(1, "exit code 0") == []
    messages = membership.lost(session(1), "gone", left=True)
    assert not only(messages, Refused)
    assert only(membership.join(session(7), request(1, name="again")), Welcome)


def test_a_process_that_joins_after_all_has_not_ended() -> None:
    membership = Membership()
    membership.ended(1, "exit code 0")
    membership.join(session(1), wants(1))
    assert not only(membership.join(session(0), wants(0)), Refused)
    assert len(only(membership.join(session(2), wants(2)), Welcome)) == 3
