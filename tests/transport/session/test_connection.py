"""What one envelope costs between `post` and the hand-over, counted in calls: no clock is asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, cast

from telegrad.transport.channels.base import Counters
from telegrad.transport.io.pump import Pump
from telegrad.transport.limits import ConnectionLimits
from telegrad.transport.security.tags import FrameTags
from telegrad.transport.session.connection import Connection
from telegrad.transport.session.stream import Stream
from telegrad.transport.session.terms import Terms
from telegrad.types import WorkerInfo
from telegrad.wire import NO_MEMORY, Envelope

KEYS = (b"a" * 32, b"b" * 32)
SMALL = bytes(90)  # an encoded call

# Of Python functions, from the post to the hand-over, for one envelope and for each further one of
# its frame. There were 46 and 18 once, and a round trip took 1.7 times as much of the processors.
MOST_CALLS = 17
MOST_FURTHER_CALLS = 5


class End:
    """One side, with a stream that is up; its pump does nothing."""

    def __init__(self, key: bytes, peer_key: bytes) -> None:
        self.got: list[Envelope] = []
        self.turns = 0
        loop = SimpleNamespace(is_loop_thread=lambda: True, call_soon=lambda *_: None)
        memory = lambda: NO_MEMORY  # noqa: E731
        lanes = SimpleNamespace(taken=0, heard=lambda _: None, wake=lambda: None, memory=memory)
        terms = SimpleNamespace(
            limits=ConnectionLimits(),
            lost_after=1e9,
            clock=time.monotonic,
            counters=Counters(),
            loop=loop,
            receiver=SimpleNamespace(
                on_envelope=lambda _, envelope: self.got.append(envelope),
                anywhere=(),
                memory=lambda kind, size: None,
                load=lambda: 0,
            ),
            reader=SimpleNamespace(bursts=SimpleNamespace(write=lambda: None)),
        )
        self.connection = Connection(
            WorkerInfo("peer", 1, 1), cast("Terms", terms), cast("Any", None)
        )
        tags = FrameTags(sending=key, receiving=peer_key)
        self.stream = Stream(cast("Any", None), tags, cast("Any", lanes))
        self.stream.pump = cast("Pump", SimpleNamespace(wake=self.wake))
        self.connection.opened(self.stream, 0)

    def wake(self) -> None:
        self.turns += 1

    def post(self, *envelopes: Envelope) -> int:
        """Posts envelopes; returns how often the pump was woken for them."""
        before = self.turns
        for envelope in envelopes:
            self.connection.post(envelope)
        return self.turns - before

    def write_to(self, other: End) -> int:
        """Writes until nothing is left, with the turn; returns how many frames."""
        frames = 0
        while (message := self.connection.next_message(self.stream)) is not None:
            other.connection.take(other.stream, message)
            frames += 1
        return frames


def two_ends() -> tuple[End, End]:
    a, b = End(*KEYS), End(*reversed(KEYS))
    a.write_to(b)
    b.write_to(a)
    a.write_to(b)
    return a, b


def call(number: int) -> Envelope:
    return Envelope("test.call", number, time_left=60.0, document=SMALL)


def calls_of(function: Callable[[], object]) -> list[str]:
    """Returns the functions of the library that one call of a function calls."""
    called: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("telegrad."):
            called.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return called


def test_an_envelope_takes_few_calls() -> None:
    a, b = two_ends()

    def send(*envelopes: Envelope) -> None:
        a.post(*envelopes)
        a.write_to(b)

    one, five = [call(1)], [call(number) for number in range(2, 7)]
    first, more = calls_of(lambda: send(*one)), calls_of(lambda: send(*five))
    assert len(first) <= MOST_CALLS, first
    assert len(more) - len(first) <= 4 * MOST_FURTHER_CALLS, more
    assert [each.call for each in b.got] == [1, 2, 3, 4, 5, 6]


def test_many_envelopes_go_in_one_frame_and_the_turn_is_over() -> None:
    a, b = two_ends()
    assert a.post(*map(call, range(1, 51))) == 1
    assert a.post(call(51)) == 0  # the turn is taken already
    assert a.write_to(b) == 1
    assert a.post(call(52)) == 1
    assert a.write_to(b) == 1
    assert [each.call for each in b.got] == list(range(1, 53))


def test_what_is_posted_while_a_message_leaves_is_written_next() -> None:
    a, b = two_ends()
    assert a.post(call(1)) == 1
    message = a.connection.next_message(a.stream)
    assert message is not None
    assert a.post(call(2)) == 0  # who writes has the turn still
    b.connection.take(b.stream, message)
    assert a.write_to(b) == 1
    assert [each.call for each in b.got] == [1, 2]


def test_what_was_moved_is_counted() -> None:
    a, b = two_ends()
    before = a.connection.moved()
    a.post(call(1), call(2))
    a.write_to(b)
    moved, theirs = a.connection.moved(), b.connection.moved()
    assert moved.envelopes_sent == theirs.envelopes_received == 2
    assert moved.writes == before.writes + 1
    assert moved.bytes_sent == theirs.bytes_received > before.bytes_sent + 2 * len(SMALL)
    a.connection.closed()
    assert a.connection.moved() == moved
