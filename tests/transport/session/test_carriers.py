"""When calls move past gRPC, and for how long they stay there after a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from telegrad.transport.channels.base import Counters
from telegrad.transport.session.carriers import (
    BARRED_SECONDS,
    CALM_SECONDS,
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    MOST_BROKEN_SOCKETS,
    DirectTries,
)
from telegrad.transport.session.terms import Terms
from tests.transport.workers import ManualClock


class Here:
    """Runs at once what is for a thread beside the loop."""

    def run_beside(self, function: Callable[..., object], *args: object) -> None:
        function(*args)


def tries_of(*peers: str) -> tuple[ManualClock, list[DirectTries]]:
    clock = ManualClock()
    terms = SimpleNamespace(clock=clock, loop=Here(), counters=Counters())
    return clock, [DirectTries(peer, cast("Terms", terms)) for peer in peers]


def stream(direct: str) -> Any:
    return SimpleNamespace(lanes=SimpleNamespace(way=SimpleNamespace(direct=direct)))


def test_a_stream_with_nowhere_to_go_is_never_due() -> None:
    _, (tries,) = tries_of("bob")
    assert tries.due(stream("tcps://10.0.0.5:1"))
    assert not tries.due(stream(""))


def test_a_port_that_cannot_be_reached_is_tried_again() -> None:
    """Soon at first, and once a minute in the end."""
    clock, (tries,) = tries_of("bob")
    pauses = []
    for _ in range(10):
        tries.stays("tcps://10.0.0.5:1", "tcps://10.0.0.5:1 does not answer")
        assert tries.kept == "tcps://10.0.0.5:1 cannot be reached: does not answer"
        began = clock.now
        while not tries.due(stream("tcps://10.0.0.5:1")):
            clock.now += 1.0
        pauses.append(clock.now - began)
    assert pauses[0] == FIRST_RETRY_SECONDS
    assert pauses[-1] == LONGEST_RETRY_SECONDS
    assert pauses == sorted(pauses)
    tries.moved()
    assert tries.kept == ""
    tries.stays("tcps://10.0.0.5:1", "does not answer")
    clock.now += FIRST_RETRY_SECONDS
    assert tries.due(stream("tcps://10.0.0.5:1"))


def test_the_log_has_one_line_for_each_peer(caplog: pytest.LogCaptureFixture) -> None:
    _, (bob, carol) = tries_of("bob", "carol")
    with caplog.at_level(logging.DEBUG, "telegrad.transport.session.carriers"):
        for tries in (bob, carol, bob, carol):
            tries.stays("tcps://10.0.0.5:1", "nobody listens")
    assert [(each.levelname, "bob" in each.getMessage()) for each in caplog.records] == [
        ("WARNING", True),
        ("DEBUG", False),
    ]


def test_breaks_that_follow_soon_bar_the_way_for_a_while() -> None:
    clock, (tries,) = tries_of("bob")
    for _ in range(MOST_BROKEN_SOCKETS):
        assert tries.may_move
        tries.moved()
        tries.broke()
        clock.now += 1.0
    assert not tries.may_move
    assert tries.kept == "too many sockets broke"
    clock.now += BARRED_SECONDS
    assert tries.may_move


def test_breaks_far_apart_bar_nothing() -> None:
    clock, (tries,) = tries_of("bob")
    for _ in range(10 * MOST_BROKEN_SOCKETS):
        tries.moved()
        clock.now += CALM_SECONDS
        tries.broke()
        assert tries.may_move


def test_an_end_that_refuses_bars_the_way_at_once() -> None:
    clock, (tries,) = tries_of("bob")
    tries.broke(given_up=True, why="the listener holds another token")
    assert not tries.may_move
    tries.stays("tcps://10.0.0.5:1", "it refuses")  # which shortens nothing
    clock.now += LONGEST_RETRY_SECONDS
    assert not tries.may_move
