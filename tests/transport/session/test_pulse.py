"""The pulse of a connection: which signs of life it counts, and when it judges at all."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from telegrad.transport.session.liveness import BEATS_PER_BOUND, Pulse
from telegrad.wire import Heartbeat
from tests.repeated import on_examples

BOUND = 10.0
TICK = 0.25
START = 100.0
# Until a silent peer is lost: the bound, and the time until the next question and tick are due.
AT_MOST = BOUND + BOUND / BEATS_PER_BOUND + 3 * TICK


class End:
    """One end of a connection: ticks as the exchange does, and writes the beats that are due.

    Attributes:
        pulse: The pulse.
        now: The time.
        acknowledged: Up to which number the peer has receipts.
        chunks: Those taken from the lanes here, and there; None while there is no stream.
        written: The beats that were written, each with its time.
    """

    def __init__(self, bound: float = BOUND) -> None:
        self.pulse = Pulse(bound)
        self.now = START
        self.acknowledged = 0
        self.chunks: tuple[int, int] | None = (0, 0)
        self.written: list[tuple[float, Heartbeat]] = []

    def tick(self) -> bool:
        """Lets the time of one tick pass; returns whether the peer is lost."""
        self.now += TICK
        lost = self.pulse.tick(self.now, self.acknowledged, self.chunks)
        if self.is_due():
            beat = self.pulse.beat(self.now, lag=0.0, busy=0, chunks=0)
            assert beat is not None
            assert not self.is_due()
            self.written.append((self.now, beat))
        return lost

    def is_due(self) -> bool:
        """Whether the pulse wants a beat written."""
        return self.pulse.beat_due

    def lost_after(self, most: float = 10 * BOUND) -> float:
        """Returns the seconds until the peer is lost if nothing else happens."""
        began = self.now
        while self.now < began + most:
            if self.tick():
                return self.now - began
        return math.inf

    def takes_there(self) -> None:
        """The peer says that it took a chunk."""
        here, there = self.chunks or (0, 0)
        self.chunks = here, there + 1

    def takes_here(self) -> None:
        """A chunk of the peer's arrives."""
        here, there = self.chunks or (0, 0)
        self.chunks = here + 1, there

    def answers(self) -> None:
        """The peer answers the last question."""
        self.pulse.heard(Heartbeat(sent=0.0, echo=self.written[-1][1].sent), self.now)


SIGNS = ["receipt", "chunk there", "answer", "dial answered", "opened"]


def give(end: End, sign: str) -> None:
    """Makes the peer give a sign of life."""
    if sign == "receipt":
        end.acknowledged += 1
    elif sign == "chunk there":
        end.takes_there()
    elif sign == "answer" and end.written:
        end.answers()
    elif sign == "dial answered":
        end.pulse.answered(end.now)
    elif sign == "opened":
        end.chunks = 0, 0
        end.pulse.opened(end.now)


EVENTS = st.lists(st.tuples(st.sampled_from([*SIGNS, "spare", "question"]), st.integers(0, 200)))


@on_examples(EVENTS)
def test_nobody_is_lost_before_somebody_wants_to_reach_them(events: list[tuple[str, int]]) -> None:
    end = End()
    for event, ticks in events:
        if event == "spare":
            end.pulse.spare(BOUND + 1.0)
        elif event == "question":
            end.pulse.heard(Heartbeat(sent=end.now), end.now)
        elif event != "opened":
            give(end, event)
        for _ in range(ticks):
            assert not end.tick()
        assert not end.written
        assert end.pulse.beat(end.now, lag=0.0, busy=0, chunks=0) is None
        assert end.pulse.silence(end.now) == 0.0
        assert end.pulse.silence_words(end.now) == ""


@on_examples(st.lists(st.tuples(st.sampled_from(SIGNS), st.integers(1, int(0.9 * BOUND / TICK)))))
def test_signs_within_the_bound_keep_a_peer_alive_and_silence_loses_it(
    signs: list[tuple[str, int]],
) -> None:
    """The signs come in any order and at any distance below the bound."""
    end = End()
    life = end.pulse.begin(end.now)
    assert end.pulse.silence_words(end.now)
    answered = 0
    for sign, ticks in [("", 1), *signs]:
        # The second answer to a question is no sign.
        seen = sign != "answer" or len(end.written) > answered
        answered = len(end.written) if sign == "answer" else answered
        give(end, sign)
        for tick in range(ticks):
            assert not end.tick(), (sign, tick)
        if seen:
            assert end.pulse.silence(end.now) <= ticks * TICK
    assert end.pulse.begin(end.now) is life
    assert 0.0 < end.lost_after() <= AT_MOST
    assert end.pulse.silence(end.now) >= BOUND
    assert "silent for" in end.pulse.silence_words(end.now)


@on_examples(st.sampled_from(["receipts", "chunks"]), st.integers(1, 50))
def test_counts_that_stand_still_are_no_signs(kind: str, count: int) -> None:
    end = End()
    end.pulse.begin(end.now)
    if kind == "receipts":
        end.acknowledged = count
    else:
        end.chunks = count, count
    end.tick()
    assert BOUND - TICK <= end.lost_after() <= AT_MOST


@on_examples(st.booleans(), st.floats(0.5, 3.0), st.floats(0.5, 3.0))
def test_the_longest_bound_counts(judges: bool, first: float, second: float) -> None:
    end = End()
    if judges:
        end.pulse.begin(end.now)
    for times in (first, second):
        end.pulse.spare(times * BOUND)
    end.pulse.begin(end.now)
    bound = max(1.0, first, second) * BOUND
    assert bound <= end.lost_after() <= bound + AT_MOST - BOUND


def test_while_chunks_come_the_bound_counts_twice() -> None:
    """That ends when they come no more, though their count stays high."""
    end = End()
    end.pulse.begin(end.now)
    while not end.tick():
        end.takes_here()
        assert end.now < START + 3 * BOUND
    assert 2 * BOUND < end.now - START <= 2 * BOUND + AT_MOST - BOUND
    end = End()
    end.pulse.begin(end.now)
    end.takes_here()
    assert end.lost_after() <= AT_MOST


@on_examples(st.integers(0, 100), st.integers(0, 100))
def test_the_chunks_of_a_new_stream_are_counted_from_zero(here: int, there: int) -> None:
    end = End()
    end.pulse.begin(end.now)
    end.chunks = here, there
    end.tick()
    end.chunks = None
    assert not end.tick()
    end.pulse.opened(end.now)
    assert end.pulse.beat_due
    end.chunks = 0, 1
    assert not end.tick()
    assert end.pulse.silence(end.now) == 0.0


@on_examples(st.booleans(), st.integers(0, 30))
def test_the_first_chunk_counts(opened: bool, ticks: int) -> None:
    """One that was taken there is a sign of life; one from there makes the bound longer."""
    silent, taken, brought = (End() for _ in range(3))
    for end in (silent, taken, brought):
        end.pulse.opened(end.now) if opened else end.pulse.begin(end.now)
        for _ in range(ticks):
            end.tick()
    taken.takes_there()
    brought.takes_here()
    for end in (silent, taken, brought):
        end.tick()
    assert taken.pulse.silence(taken.now) == 0.0
    assert brought.pulse.silence(brought.now) == silent.pulse.silence(silent.now) > 0.0
    lost = silent.lost_after()
    assert lost <= AT_MOST
    assert brought.lost_after() >= max(lost, BOUND - TICK)


def test_a_new_stream_begins_to_judge() -> None:
    end = End()
    end.pulse.opened(end.now)
    assert end.pulse.silence_words(end.now)
    assert end.lost_after() <= AT_MOST


def test_questions_are_asked_five_times_a_bound_and_only_over_a_stream() -> None:
    end = End()
    end.pulse.begin(end.now)
    end.chunks = None
    for _ in range(8):
        end.tick()
    assert not end.written
    end.chunks = 0, 0
    for _ in range(int(BOUND / TICK)):
        end.tick()
        end.answers()
    assert len(end.written) == BEATS_PER_BOUND
    assert all(beat.sent for _, beat in end.written)


def test_a_question_is_answered_at_once_and_an_answer_is_not() -> None:
    end = End()
    end.pulse.begin(end.now)
    end.tick()
    assert len(end.written) == 1
    end.answers()
    assert not end.is_due()
    end.pulse.heard(Heartbeat(sent=7.0), end.now)
    assert end.is_due()
    beat = end.pulse.beat(end.now, lag=0.5, busy=3, chunks=9)
    assert beat is not None
    assert (beat.sent, beat.echo) == (0.0, 7.0)
    assert (beat.lag, beat.busy, beat.chunks) == (0.5, 3, 9)
    assert not end.is_due()
