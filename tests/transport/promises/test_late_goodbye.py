"""The end of a worker whose peer has not taken everything in time: told in words, and in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from telegrad.transport import shared_loop_thread
from telegrad.transport.session import exchange as module
from tests.transport.workers import (
    SECONDS,
    Floor,
    SlowReader,
    Worker,
    floor_of,
    meanwhile,
    wait_until,
)

FLOOD = 300  # messages, of which no socket and no window of gRPC holds a half
MESSAGE_BYTES = 60_000
TOLD = "'alice' ends before 'bob' has taken all that it sent; that took longer than 0.01 s"
REASON = "it left before it had sent everything; that took longer than 0.01 s (done here)"


@contextmanager
def deaf(alice: Worker, bob: Worker, gate: SlowReader | None) -> Iterator[None]:
    """Bob reads nothing of Alice's inside; over a direct socket somebody holds the reader's role."""
    loop = shared_loop_thread()
    stream = bob.connection(alice.info).stream
    assert stream is not None
    direct = stream.carrier.direct
    if gate is not None:
        gate.is_slow = True
        yield
        gate.is_slow = False
        loop.call_soon(gate.permits.release)  # for the message that is held
    else:
        assert direct is not None
        wait_until("the reader's role", direct.begin_reading)
        yield
        direct.end_reading()


@pytest.fixture(params=["local", "grpc"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Worker, Worker, SlowReader | None]]:
    """Alice has dialled Bob; both ends move a direct socket's messages, or gRPC's."""
    with floor_of(request.param) as floor:
        yield connected(floor, SlowReader(floor.transport()) if request.param == "grpc" else None)


def connected(floor: Floor, gate: SlowReader | None) -> tuple[Worker, Worker, SlowReader | None]:
    alice, bob = floor.worker("alice"), floor.worker("bob", transport=gate)
    alice.knows(bob)
    bob.exchange.connect(alice.info, alice.endpoints)
    alice.send(bob, 0)
    return alice, bob, gate


def flood(alice: Worker, bob: Worker) -> None:
    for call in range(1, FLOOD):
        alice.post(bob, call, document=bytes(MESSAGE_BYTES))


def test_who_takes_too_long_hears_that_the_other_has_left(
    pair: tuple[Worker, Worker, SlowReader | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker that had ended in order was reported as a process that was gone."""
    monkeypatch.setattr(module, "LAST_WORD_SECONDS", SECONDS)
    alice, bob, gate = pair
    with deaf(alice, bob, gate):
        flood(alice, bob)
        closing = meanwhile(lambda: alice.exchange.close(0.01, "done here"))
        wait_until("the end of the wait", lambda: TOLD in caplog.messages)
    closing.result(SECONDS)
    error = bob.recorder.wait_lost()
    assert error.left
    assert error.reason == REASON
    calls = bob.recorder.calls()
    assert calls == list(range(len(calls)))  # each once; the rest is reported lost
    assert len(calls) < FLOOD


def test_who_reads_nothing_does_not_hold_up_the_close(
    pair: tuple[Worker, Worker, SlowReader | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LAST_WORD_SECONDS", 0.01)
    alice, bob, gate = pair
    with deaf(alice, bob, gate):
        flood(alice, bob)
        alice.exchange.close(0.01, "done here")
    assert not bob.recorder.wait_lost().left
    calls = bob.recorder.calls()
    assert calls == list(range(len(calls)))
