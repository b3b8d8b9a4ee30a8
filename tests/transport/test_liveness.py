from __future__ import annotations

from telegrad.transport.liveness import SPARED_TICKS, Liveness
from telegrad.wire import Heartbeat


def run(liveness: Liveness, start: float, stop: float, *, answers: bool) -> float | None:
    """Ticks every half second; returns when the peer was lost."""
    now = start
    while now < stop:
        now += 0.5
        if liveness.due(now):
            beat = liveness.beat(now)
            if answers:
                liveness.heard(Heartbeat(sent=now, echo=beat.sent), now)
        if liveness.tick(now):
            return now
    return None


def test_echoes_keep_it_alive() -> None:
    assert run(Liveness(100.0, lost_after=10.0), 100.0, 200.0, answers=True) is None


def test_silence_loses_it_after_the_bound() -> None:
    lost = run(Liveness(100.0, lost_after=10.0), 100.0, 200.0, answers=False)
    assert lost is not None
    assert 110.0 < lost <= 111.0


def test_what_merely_arrives_is_no_life() -> None:
    """Beats that echo nothing new may have been queued for long."""
    liveness = Liveness(100.0, lost_after=10.0)
    beat = liveness.beat(100.0)
    liveness.heard(Heartbeat(sent=1.0, echo=beat.sent), 101.0)
    for second in range(102, 111):
        liveness.heard(Heartbeat(sent=float(second), echo=beat.sent), float(second))
        assert not liveness.tick(float(second))
    assert not liveness.tick(111.0)
    assert liveness.tick(111.5)


def test_an_echo_of_what_was_never_sent_is_no_life() -> None:
    liveness = Liveness(100.0, lost_after=10.0)
    liveness.heard(Heartbeat(sent=1.0, echo=1e9), 105.0)
    assert liveness.silence(105.0) == 5.0


def test_a_beat_echoes_the_last_one_heard() -> None:
    liveness = Liveness(100.0, lost_after=10.0)
    assert liveness.beat(100.0).echo == 0.0
    liveness.heard(Heartbeat(sent=7.5), 100.0)
    beat = liveness.beat(100.0, lag=0.25, busy=3)
    assert (beat.echo, beat.lag, beat.busy) == (7.5, 0.25, 3)


def test_beats_differ_while_the_clock_stands() -> None:
    liveness = Liveness(100.0, lost_after=10.0)
    assert liveness.beat(100.0).sent < liveness.beat(100.0).sent


def test_slow_is_not_dead() -> None:
    liveness = Liveness(100.0, lost_after=10.0)
    liveness.heard(Heartbeat(sent=1.0, echo=liveness.beat(100.0).sent, lag=4.0), 100.0)
    lost = run(liveness, 100.0, 200.0, answers=False)
    assert lost is not None
    assert 114.0 < lost <= 115.0


def test_who_overslept_does_not_judge() -> None:
    """A process that was stopped reads what has arrived meanwhile before it gives anyone up."""
    liveness = Liveness(100.0, lost_after=10.0)
    beat = liveness.beat(100.0)
    assert not liveness.tick(160.0)
    liveness.heard(Heartbeat(sent=1.0, echo=beat.sent), 160.0)
    assert not liveness.tick(160.5)


def test_who_overslept_judges_some_ticks_later() -> None:
    """So that who has given up this side meanwhile can say so, when it is dialled again."""
    liveness = Liveness(100.0, lost_after=10.0)
    liveness.beat(100.0)
    assert not any(liveness.tick(160.0 + i / 2) for i in range(SPARED_TICKS))
    assert liveness.tick(162.0)


def test_who_oversleeps_again_and_again_judges_all_the_same() -> None:
    liveness = Liveness(100.0, lost_after=10.0)
    liveness.beat(100.0)
    assert not any(liveness.tick(160.0 + 60.0 * i) for i in range(SPARED_TICKS))
    assert liveness.tick(500.0)
