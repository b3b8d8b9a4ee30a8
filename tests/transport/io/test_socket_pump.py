"""Threads move the messages of a stream themselves; the loop does it when nobody else does."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from telegrad.testing import leaks
from telegrad.transport import LoopThread, hands_over
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.io.socket_pump import SocketPump
from telegrad.transport.io.socket_reader import SocketReader
from telegrad.transport.sockets.message_socket import DirectSocket
from tests.transport.socket_pairs import unix_pair
from tests.transport.workers import SECONDS, run_on

T = TypeVar("T")


class Gate:
    def __init__(self) -> None:
        self.shut = True
        self._wake: Callable[[], None] | None = None
        self.driven = threading.Event()

    @property
    def wake(self) -> Callable[[], None] | None:
        return self._wake

    @wake.setter
    def wake(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        if wake is not None:
            self.driven.set()

    def open(self) -> None:
        self.shut = False
        if self.wake is not None:
            self.wake()


class Frames:
    """The connection's end: what came, in which thread, and what is to go."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[bytes, threading.Thread]] = queue.Queue()
        self.to_go: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.failures: queue.Queue[BaseException] = queue.Queue()
        self.on_take: Callable[[bytes], None] = lambda message: None
        self.handing: list[bool] = []
        self.ending = False

    def next_message(self) -> bytes | None:
        try:
            return self.to_go.get_nowait()
        except queue.Empty:
            return None

    def written(self) -> None:
        pass

    def take(self, message: bytes) -> bool:
        self.handing.append(hands_over())
        self.on_take(message)
        self.came.put((message, threading.current_thread()))
        return message.startswith(b"request")

    def failed(self, error: BaseException) -> None:
        self.failures.put(error)


class Ends:
    """A pump, and the bare other end of its stream.

    Args:
        spin: Seconds for which who waits looks before it sleeps.
    """

    def __init__(self, spin: float = 0.0) -> None:
        self.here, self.there = unix_pair()
        self.loop = LoopThread("pump-test").acquire()
        self.frames, self.gate = Frames(), Gate()
        self.direct, self.other = DirectSocket(self.here), DirectSocket(self.there)
        self.reader = SocketReader(self.loop, spin)
        self.pump = self.on_loop(lambda: self.make(self.direct))
        self.on_loop(lambda: self.pump.start(b""))

    def make(self, end: DirectSocket) -> SocketPump:
        return SocketPump(end, self.frames, self.loop, self.reader)

    def on_loop(self, function: Callable[[], T]) -> T:
        return run_on(self.loop, function)

    def close(self) -> None:
        self.on_loop(lambda: self.pump.let_go(None))
        self.on_loop(self.reader.close)
        self.other.end()
        self.loop.release()

    def send(self, message: bytes) -> None:
        assert self.other.put(message)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with leaks.no_leaked_descriptors():
        made = Ends()
        try:
            yield made
        finally:
            made.close()


def drive(ends: Ends, seconds: float = SECONDS) -> threading.Thread:
    thread = threading.Thread(target=ends.reader.wait, args=(ends.gate, seconds))
    thread.start()
    assert ends.gate.driven.wait(SECONDS)
    return thread


def test_who_waits_reads_and_the_loop_goes_on_after_that(ends: Ends) -> None:
    ends.frames.on_take = lambda message: ends.gate.open() if message == b"mine" else None
    driver = drive(ends)
    ends.send(b"somebody else's")
    ends.send(b"mine")
    driver.join(SECONDS)
    ends.send(b"later")
    got = [ends.frames.came.get(timeout=SECONDS) for _ in range(3)]
    assert [message for message, _ in got] == [b"somebody else's", b"mine", b"later"]
    assert [thread is driver for _, thread in got] == [True, True, False]
    assert all(ends.frames.handing)
    assert not hands_over()


def test_what_was_read_behind_the_own_reply_is_handed_over_too(ends: Ends) -> None:
    ends.frames.on_take = lambda message: ends.gate.open()
    driver = drive(ends)
    header = (1).to_bytes(4, "big")
    assert ends.there.send(header + b"1" + header + b"2") == 10  # both in one read
    driver.join(SECONDS)
    got = [ends.frames.came.get(timeout=SECONDS) for _ in range(2)]
    assert [message for message, _ in got] == [b"1", b"2"]


def test_the_own_reply_wakes_nobody(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the gate in passing is the one who waits at it: there is nothing to tell."""
    woken: list[int] = []
    monkeypatch.setattr(os, "eventfd_write", lambda event, _: woken.append(event))
    ends.frames.on_take = lambda message: ends.gate.open()
    driver = drive(ends)
    ends.send(b"mine")
    driver.join(SECONDS)
    assert not woken


def test_the_other_end_s_end_reaches_the_connection(ends: Ends) -> None:
    driver = drive(ends)
    ends.other.end()
    assert isinstance(ends.frames.failures.get(timeout=SECONDS), CarrierClosedError)
    ends.gate.open()  # which a connection does whose peer is lost
    driver.join(SECONDS)
    assert not driver.is_alive()


def test_the_thread_that_posts_writes(ends: Ends) -> None:
    ends.frames.to_go.put(b"a")
    ends.frames.to_go.put(b"b")
    ends.pump.wake()
    assert [ends.other.take(), ends.other.take()] == [b"a", b"b"]


def test_what_the_socket_has_no_room_for_the_loop_sends(ends: Ends) -> None:
    sent = [bytes([place]) * 300_000 for place in range(20)]
    for message in sent:
        ends.frames.to_go.put(message)
    ends.pump.wake()
    got: list[bytes] = []
    leaks.wait_until_gone("messages", lambda: _left(ends, got, len(sent)), SECONDS)
    assert got == sent


def _left(ends: Ends, got: list[bytes], count: int) -> list[int]:
    while (message := ends.other.take()) is not None:
        got.append(message)
    return list(range(count - len(got)))


def test_a_last_message_leaves_behind_all_others(ends: Ends) -> None:
    ends.frames.to_go.put(b"a")
    ends.pump.wake()
    ends.on_loop(lambda: ends.pump.let_go(lambda: b"farewell"))
    assert [ends.other.take(), ends.other.take()] == [b"a", b"farewell"]


def test_ctrl_c_ends_a_wait_and_takes_nothing_away(ends: Ends) -> None:
    def interrupt() -> None:
        assert ends.gate.driven.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ends.reader.wait(ends.gate, SECONDS)
    thread.join(SECONDS)
    assert signal.getsignal(signal.SIGINT) is before
    ends.send(b"a")
    assert ends.frames.came.get(timeout=SECONDS)[0] == b"a"
    assert ends.frames.failures.empty()


def test_ctrl_c_waits_until_a_message_is_handed_over(ends: Ends) -> None:
    ends.frames.on_take = lambda message: signal.raise_signal(signal.SIGINT)
    held = ends.on_loop(lambda: ends.direct.begin_reading())  # or the loop would be first
    assert held
    ends.send(b"a")
    ends.direct.end_reading()
    with pytest.raises(KeyboardInterrupt):
        ends.reader.wait(ends.gate, SECONDS)
    assert ends.frames.came.get(timeout=SECONDS)[0] == b"a"
    assert ends.frames.failures.empty()


def test_another_exception_of_a_signal_s_ends_the_stream(ends: Ends) -> None:
    """It may have come between a message and its taker: what was under way comes once more."""

    def stop(message: bytes) -> None:
        raise SystemExit("as a handler of SIGTERM does")

    ends.frames.on_take = stop
    driver_error: list[BaseException] = []

    def body() -> None:
        try:
            ends.reader.wait(ends.gate, SECONDS)
        except SystemExit as error:
            driver_error.append(error)

    driver = threading.Thread(target=body)
    driver.start()
    assert ends.gate.driven.wait(SECONDS)
    ends.send(b"a")
    driver.join(SECONDS)
    assert len(driver_error) == 1
    assert isinstance(ends.frames.failures.get(timeout=SECONDS), CarrierClosedError)
