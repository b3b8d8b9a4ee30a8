from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from telegrad.transport.session.liveness import LEAST_TICKS, SPARED_TICKS, Liveness
from telegrad.wire import Heartbeat
from tests.repeated import on_examples

BOUND = 10.0
TICK = 0.25


def lost_at(liveness: Liveness, start: float, stop: float, *, answers: bool) -> float | None:
    """Ticks as the exchange does; returns when the peer was lost."""
    now = start
    while now < stop:
        now += TICK
        if liveness.tick(now):
            return now
        if liveness.due(now):
            beat = liveness.beat(now)
            if answers:
                liveness.heard(Heartbeat(sent=now, echo=beat.sent), now)
    return None


def test_what_merely_arrives_is_no_life() -> None:
    """Beats that answer nothing new may have been queued for long."""
    liveness = Liveness(100.0, lost_after=BOUND)
    beat = liveness.beat(100.0)
    liveness.heard(Heartbeat(sent=1.0, echo=beat.sent), 101.0)
    lost, now = False, 101.0
    while not lost:
        now += TICK
        if liveness.due(now):
            liveness.beat(now)
        liveness.heard(Heartbeat(sent=now, echo=beat.sent), now)
        lost = liveness.tick(now)
    assert 111.0 < now <= 113.0 + 2 * TICK


def test_without_a_bound_nobody_is_lost_and_questions_are_answered() -> None:
    liveness = Liveness(100.0, lost_after=math.inf)
    liveness.beat(100.0)
    assert lost_at(liveness, 100.0, 1e4, answers=False) is None
    liveness.heard(Heartbeat(sent=7.0, lag=2.0), 1e4)
    assert liveness.owes
    assert liveness.beat(1e4).echo == 7.0


def test_an_echo_of_what_was_never_sent_is_no_life() -> None:
    liveness = Liveness(100.0, lost_after=BOUND)
    liveness.heard(Heartbeat(sent=1.0, echo=1e9), 105.0)
    assert liveness.silence(105.0) == 5.0


def test_a_beat_echoes_the_last_question_heard() -> None:
    liveness = Liveness(100.0, lost_after=BOUND)
    assert liveness.beat(100.0).echo == 0.0
    liveness.heard(Heartbeat(sent=7.5), 100.0)
    liveness.heard(Heartbeat(sent=0.0, echo=1.0), 100.0)  # an answer, which asks nothing
    beat = liveness.beat(100.0, lag=0.25, busy=3)
    assert (beat.echo, beat.lag, beat.busy) == (7.5, 0.25, 3)


def test_questions_differ_while_the_clock_stands() -> None:
    liveness = Liveness(100.0, lost_after=BOUND)
    assert liveness.beat(100.0).sent < liveness.beat(100.0).sent


def test_a_question_is_owed_an_answer_and_an_answer_none() -> None:
    asker, other = (Liveness(100.0, lost_after=BOUND) for _ in range(2))
    other.beat(100.0)
    question = asker.beat(100.1)
    other.heard(question, 100.2)
    assert other.owes
    answer = other.beat(100.2)
    assert (answer.sent, answer.echo, other.owes) == (0.0, question.sent, False)
    asker.heard(answer, 100.3)
    assert (asker.owes, asker.silence(100.3)) == (False, 0.0)


def test_an_answer_asks_when_the_next_question_is_near() -> None:
    """So two idle peers need three beats a round, not four."""
    liveness = Liveness(100.0, lost_after=BOUND)
    liveness.beat(100.0)
    liveness.heard(Heartbeat(sent=1.0), 101.5)
    assert liveness.beat(101.5).sent == 101.5
    assert not liveness.due(103.4)


def test_slow_is_not_dead() -> None:
    """An answer takes three turns of a loop, each of them as late as the peer says."""
    liveness = Liveness(100.0, lost_after=BOUND)
    liveness.heard(Heartbeat(sent=1.0, echo=liveness.beat(100.0).sent, lag=2.0), 100.0)
    lost = lost_at(liveness, 100.0, 200.0, answers=False)
    assert lost is not None
    assert 118.0 < lost <= 118.5


def test_what_is_said_of_being_slow_is_believed_up_to_the_bound() -> None:
    liveness = Liveness(100.0, lost_after=BOUND)
    liveness.heard(Heartbeat(sent=1.0, echo=liveness.beat(100.0).sent, lag=1e9), 100.0)
    lost = lost_at(liveness, 100.0, 200.0, answers=False)
    assert lost is not None
    assert 122.0 < lost <= 122.5


def test_a_slow_peer_that_sends_chunks_has_twice_the_bound_and_no_more() -> None:
    liveness = Liveness(100.0, lost_after=BOUND)
    liveness.heard(Heartbeat(sent=1.0, echo=liveness.beat(100.0).sent, lag=1e9), 100.0)
    now = 100.0
    while not liveness.tick(now):
        now += TICK
        liveness.arrived(now)
        liveness.beat(now) if liveness.due(now) else None
    assert 121.0 < now <= 123.0


def test_who_overslept_does_not_count_it() -> None:
    """A process that was stopped reads what has arrived meanwhile before it gives anyone up."""
    liveness = Liveness(100.0, lost_after=BOUND)
    liveness.beat(100.0)
    liveness.tick(102.0)  # the next question is due
    assert not liveness.tick(160.0)
    lost = lost_at(liveness, 160.0, 200.0, answers=False)
    assert lost is not None
    assert 169.0 < lost < 171.0


@pytest.mark.parametrize("late", [0.5, 1.0, 2.8, 9.0, 60.0])
def test_whoever_is_late_judges_after_so_many_ticks(late: float) -> None:
    """Not before, and not never."""
    liveness = Liveness(100.0, lost_after=BOUND)
    ticks = 0
    while not liveness.tick(100.0 + ticks * late):
        ticks += 1
    assert LEAST_TICKS <= ticks <= LEAST_TICKS + SPARED_TICKS + 1


def test_at_the_end_of_the_bound_a_late_tick_spares_the_peer() -> None:
    liveness = Liveness(100.0, lost_after=BOUND)
    assert lost_at(liveness, 100.0, 110.0, answers=False) is None
    for i in range(4):
        assert not liveness.tick(115.0 + i * TICK)
    liveness.heard(Heartbeat(sent=1.0, echo=liveness.beat(116.0).sent), 116.0)
    assert not liveness.tick(116.25)


# -- two ends, with loops that run late --------------------------------------------------------

Turns = Callable[[random.Random], float]  # seconds from one turn of a loop to the next


class End:
    """One end of a pair: each turn of its loop does what the last one has made ready."""

    def __init__(self, now: float, *, bound: float, turns: Turns, tells: bool) -> None:
        self.liveness = Liveness(now, lost_after=bound)
        self.turns = turns
        self.tells = tells
        self.wire: list[tuple[float, Heartbeat]] = []  # when it comes, and what
        self.turn = now
        self._taken: list[Heartbeat] = []
        self._writes = True
        self._next_tick = now
        self._lag = 0.0

    def run(self, now: float) -> tuple[Heartbeat | None, bool]:
        """Has one turn; returns what it writes and whether it gives the other end up."""
        written = None
        if self._writes:
            self._writes = False
            written = self.liveness.beat(now, lag=self._lag if self.tells else 0.0)
        for beat in self._taken:
            self.liveness.heard(beat, now)
            self._writes |= self.liveness.owes
        self._taken = [beat for at, beat in self.wire if at <= now]
        self.wire = [(at, beat) for at, beat in self.wire if at > now]
        lost = False
        if now >= self._next_tick:
            self._lag = max(now - self._next_tick, 0.9 * self._lag)
            self._next_tick = now + TICK
            lost = self.liveness.tick(now)
            self._writes |= self.liveness.due(now)
        return written, lost


def first_loss(
    seed: int, judge: Turns, peer: Turns, network: float, *, tells: bool, bounds: float = 15.0
) -> int | None:
    """Plays two ends; returns which gave the other up: 0 for the judge, 1 for its peer."""
    chance = random.Random(seed)
    start = 1000.0
    ends = [End(start, bound=BOUND, turns=each, tells=tells) for each in (judge, peer)]
    while True:
        me = 0 if ends[0].turn <= ends[1].turn else 1
        now = ends[me].turn
        if now > start + bounds * BOUND:
            return None
        written, lost = ends[me].run(now)
        if lost:
            return me
        if written is not None:
            wire = ends[1 - me].wire
            behind = wire[-1][0] if wire else now  # what is written later comes later
            wire.append((max(behind, now + chance.uniform(0, network)), written))
        ends[me].turn = now + ends[me].turns(chance)


def within(most: float) -> Turns:
    """Turns of a loop that is late by up to so much, often by all of it."""

    def seconds(chance: random.Random) -> float:
        return chance.choice([most, chance.uniform(0.001, most), chance.uniform(0.001, 0.05)])

    return seconds


def punctual(chance: random.Random) -> float:
    return chance.uniform(0.001, 0.02)


def overslept(chance: random.Random) -> float:
    return chance.choice([chance.uniform(0.001, 0.3), chance.uniform(0, 3), chance.uniform(0, 60)])


LATE = st.floats(0.01, BOUND / 5)
NETWORK = st.floats(0.0, BOUND / 5)
SEEDS = st.integers(0, 2**32)


@on_examples(SEEDS, LATE, LATE, NETWORK)
def test_who_turns_his_loop_is_not_given_up(
    seed: int, first: float, second: float, network: float
) -> None:
    """Both loops late by up to a fifth of the bound, the network as well."""
    assert first_loss(seed, within(first), within(second), network, tells=False) is None


@on_examples(SEEDS, LATE, NETWORK)
def test_a_punctual_judge_waits_for_a_late_peer(seed: int, late: float, network: float) -> None:
    assert first_loss(seed, punctual, lambda _: late, network, tells=False) is None


@on_examples(SEEDS, st.floats(0.01, 0.3 * BOUND), st.floats(0.0, BOUND / 2))
def test_who_says_that_he_is_late_has_more_time(seed: int, late: float, network: float) -> None:
    """Once it is said, that is: here the loop grows late after fifty turns."""
    turns = itertools.count()

    def later(chance: random.Random) -> float:
        return late if next(turns) > 50 else min(late, BOUND / 5)

    assert first_loss(seed, punctual, later, network, tells=True) is None


@on_examples(SEEDS, LATE, NETWORK)
def test_a_judge_that_oversleeps_gives_up_nobody(seed: int, late: float, network: float) -> None:
    """However late it is itself: the peer may say what it wants of the judge."""
    lost = first_loss(seed, overslept, within(late), network, tells=False, bounds=60.0)
    assert lost != 0


def test_a_peer_too_late_is_given_up() -> None:
    """The simulation can tell: seven tenths of the bound for each turn are too much."""
    assert first_loss(1, punctual, lambda _: 0.7 * BOUND, 0.0, tells=True) == 0
