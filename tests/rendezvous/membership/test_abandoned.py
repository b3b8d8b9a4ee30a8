"""A coordinator that workers have given up, and that comes back: as values, in every order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telegrad.rendezvous.membership import (
    Ended,
    GivenUp,
    Joined,
    Lost,
    Membership,
    Message,
    Refused,
    Released,
    Reserved,
    Running,
    Stands,
    Welcome,
)
from telegrad.types import WorkerInfo
from tests.rendezvous.membership.membership_values import full, member, one, request, session

ASKING = WorkerInfo("store.asking", 1, 4711)  # the line of a worker that has given up its own
AGAIN = WorkerInfo("store.again", 1, 4712)  # and of one that comes in its place


def test_nobody_hears_of_who_gave_up_the_coordinator() -> None:
    membership = full()
    assert membership.abandoned(session(1), "fenced") == []
    assert membership.members == (member(0), member(2))
    assert membership.abandoned_by == (member(1).info,)
    assert membership.lost(session(1), "silent") == []
    assert membership.gave_up(session(0), member(1).info, "silent") == []
    assert membership.lost(session(2), "killed") == [Lost(session(0), member(2).info, "killed")]


def test_who_asks_over_another_line_has_given_it_up() -> None:
    membership = full()
    assert membership.asks(session(1), 2) == [Stands(session(1), True)]
    assert not membership.abandoned_by
    assert membership.asks(ASKING, 2) == [Ended(session(1)), Stands(ASKING, None)]
    assert membership.abandoned_by == (member(1).info,)
    assert membership.asks(ASKING, 2) == [Stands(ASKING, None)]
    assert membership.asks(session(0), 1) == [Stands(session(0), True)]


def test_nobody_can_join_any_more() -> None:
    membership = full()
    membership.reserve(session(7))
    membership.abandoned(session(1), "fenced")
    words = (
        "'w1' gave up the coordinator of this job, which was stopped or cut off for too long, and "
        "went on without it; nobody can join this job any more, start it anew"
    )
    refused = Refused(AGAIN, "RendezvousError", words)
    assert membership.join(AGAIN, request(1, incarnation=9)) == [refused]
    assert membership.reserve(AGAIN) == [refused]
    on_top = membership.join(session(7), request(3, name="worker3"))
    assert on_top == [dataclasses.replace(refused, session=session(7))]
    for r in (0, 2):
        membership.abandoned(session(r), "fenced")
    last = one(
        membership.join(AGAIN, request(1, incarnation=9)), Refused
    )  # it does not begin anew either
    assert last.message.startswith("'w1' and 2 more gave up")


def test_who_waits_to_be_welcomed_is_refused() -> None:
    membership = Membership(3)
    membership.join(session(0), dataclasses.replace(request(0), start_when=1))
    membership.join(session(1), request(1))
    refused = one(membership.abandoned(session(0), "fenced"), Refused)
    assert refused.session == session(1)
    assert membership.members == ()


def test_who_gives_up_before_it_is_welcomed_only_goes() -> None:
    membership = Membership(3)
    membership.join(session(0), request(0))
    membership.join(session(1), request(1))
    membership.abandoned(session(1), "fenced")
    assert membership.abandoned_by == ()
    membership.join(AGAIN, request(1, incarnation=9))
    assert membership.members == (member(0), member(1, 9))


def test_shutdown_waits_only_for_those_who_did_not_give_up() -> None:
    membership = full()
    membership.shut_down(session(0))
    assert membership.abandoned(session(1), "fenced") == [Running(session(0), 4, ("w2",))]
    assert membership.shut_down(session(2)) == [Released(session(0)), Released(session(2))]
    membership = full()
    for r in (0, 2):
        membership.shut_down(session(r))
    told = membership.abandoned(session(1), "fenced")
    assert told == [Released(session(0)), Released(session(2))]


@pytest.mark.parametrize("host", [None, 0])
def test_who_was_given_up_as_well_is_evicted_where_others_go_on(host: int | None) -> None:
    """Both have decided; the job is where the coordinator is, with w2."""
    membership = full(host=host)
    membership.lost(session(1), "silent")
    for incarnation, name in ((1, "w0"), (2, "w1")):  # only they may ask
        assert membership.names_of(incarnation) == {name}
    assert membership.names_of(99) == set()
    assert membership.asks(ASKING, 2) == [Stands(ASKING, False)]
    assert membership.abandoned_by == ()


@pytest.mark.parametrize("host", [None, 0])
def test_a_coordinator_that_has_lost_all_was_cut_off_itself(host: int | None) -> None:
    membership = full(host=host)
    for r in (0, 1, 2):
        if r != host:
            membership.lost(session(r), "silent")
    assert membership.asks(ASKING, 2) == [Stands(ASKING, None)]
    assert membership.abandoned_by == (member(1).info,)
    refused = one(membership.reserve(session(7)), Refused)
    assert "'w1' gave up" in refused.message
    assert membership.asks(ASKING, 3) == [Stands(ASKING, None)]


def test_a_coordinator_that_has_lost_all_and_begun_anew_goes_on() -> None:
    """A place that was taken by another one is not given back."""
    membership = full(2, host=0)
    membership.lost(session(1), "silent")
    membership.join(AGAIN, request(1, world_size=2, incarnation=9))
    assert membership.asks(ASKING, 2) == [Stands(ASKING, False)]
    assert membership.abandoned_by == ()


def test_who_was_never_here_abandons_nobody() -> None:
    membership = full(1)
    assert membership.asks(ASKING, 99) == [Stands(ASKING, False)]
    membership.shut_down(session(0))
    assert membership.asks(ASKING, 99) == [Stands(ASKING, None)]
    assert membership.abandoned_by == ()


class Job:
    """A coordinator and the workers of three ranks, each of which may give the other end up.

    What one end decides the other hears later, in any order, by one of the ways there are: the
    refusal of a dial, or a question over another line.
    """

    def __init__(self, host: int | None) -> None:
        self.host = host
        self.membership = Membership(3, host)
        self.number = [0] * 3  # of the process that has this rank
        self.joined = [False] * 3  # as the worker sees it
        self.left_it: set[WorkerInfo] = set()  # workers that have given up the coordinator
        self.dropped: set[WorkerInfo] = set()  # whom the coordinator gave up before it heard that
        self.goes_on: set[WorkerInfo] = set()  # of whom it heard that before it gave them up
        self.evicted: set[WorkerInfo] = set()
        self.answered: set[WorkerInfo] = set()

    def line(self, r: int) -> WorkerInfo:
        return WorkerInfo(f"store.{r}", r, self.number[r])

    def info(self, r: int) -> WorkerInfo:
        return member(r, 100 * self.number[r] + r + 1).info

    @property
    def seated(self) -> set[WorkerInfo]:
        return {each.info for each in self.membership.members}

    def tell(self, messages: Sequence[Message]) -> None:
        """Checks what the coordinator says; each worker reads it while it holds the line."""
        for message in messages:
            assert not isinstance(message, GivenUp)
            if isinstance(message, Lost):
                assert message.info not in self.goes_on
            if self.goes_on:
                assert not isinstance(message, Welcome | Joined | Reserved)
            r = message.session.rank
            if message.session != self.line(r) or self.info(r) in self.left_it:
                continue
            if isinstance(message, Welcome):
                self.joined[r] = True
            elif isinstance(message, Refused):
                assert self.goes_on
                self.begin_again(r)

    def begin_again(self, r: int) -> None:
        """The process ends, and another one comes in its place."""
        self.number[r] += 1
        self.joined[r] = False

    def step(self, what: str, r: int) -> None:
        info, line = self.info(r), self.line(r)
        if what == "join" and info not in self.seated and not self.joined[r]:
            self.tell(
                self.membership.join(line, request(r, world_size=3, incarnation=info.incarnation))
            )
        elif what == "dies":
            self.begin_again(r)
            self.tell(self.membership.lost(line, "its process is gone"))
        elif what == "is given up" and info in self.seated:
            self.dropped.add(info)
            self.tell(self.membership.lost(line, "silent"))
        elif what == "gives up" and self.joined[r] and info not in self.evicted:
            self.left_it.add(info)
        elif what == "refuses a dial" and info in self.left_it & self.seated:
            self.goes_on.add(info)
            self.tell(self.membership.abandoned(line, "fenced"))
        elif what == "is refused" and self.joined[r] and info in self.dropped - self.left_it:
            self.evicted.add(info)
        elif what == "asks" and info in self.left_it - self.answered:
            self.ask(r)

    def ask(self, r: int) -> None:
        info = self.info(r)
        if info in self.seated:
            self.goes_on.add(info)
        others = [each for each in self.seated - {info} if each.rank != self.host]
        if not others:
            self.goes_on.add(info)
        *messages, answer = self.membership.asks(WorkerInfo("asks", r, 5000), info.incarnation)
        self.tell(messages)
        assert isinstance(answer, Stands)
        assert answer.member is (None if info in self.goes_on else False)
        self.answered.add(info)
        if answer.member is False:
            self.evicted.add(info)


STEPS = ["join", "dies", "is given up", "gives up", "refuses a dial", "is refused", "asks"]


@given(st.sampled_from([None, 0]), st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2))))
def test_nobody_is_ordered_about_who_gave_up_the_coordinator(
    host: int | None, steps: list[tuple[str, int]]
) -> None:
    """Who gave up whom first decides, in whatever order and way it is heard of.

    Nobody is told that a worker is lost which gave up the coordinator first, nor is it evicted;
    and nobody joins after that was heard. Whom the coordinator gave up first is evicted.
    """
    job = Job(host)
    for r in range(3):
        job.step("join", r)
    for what, r in steps:
        job.step(what, r)
    for r in range(3):
        for what in ("is refused", "asks", "refuses a dial"):
            job.step(what, r)
    for info in job.evicted:
        assert info in job.dropped
        assert info not in job.goes_on
    assert {info.incarnation for info in job.goes_on} == {
        info.incarnation for info in job.membership.abandoned_by
    }
    for r in range(3):
        assert not (job.joined[r] and job.info(r) in job.left_it & job.seated)
