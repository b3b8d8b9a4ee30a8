"""A message is begun where it is posted, one at a time; what comes meanwhile goes as soon as that left."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from telegrad.transport import LoopThread
from telegrad.transport.base import Carrier, CarrierClosedError, Sending
from telegrad.transport.grpc.writes import Writes
from telegrad.transport.io.pump import KEPT_BYTES, TaskPump
from tests.transport.workers import SECONDS, Floor

T = TypeVar("T")


class Way(Sending):
    """A message on its way, until the test says that it left."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._calls: list[Callable[[Any], object]] = []
        self._done = False
        self._error: CarrierClosedError | None = None
        self.heard = threading.Event()

    def done(self) -> bool:
        return self._done

    def result(self) -> None:
        self.heard.set()
        if self._error is not None:
            raise self._error

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        self._calls.append(call)
        if self._done:
            self._loop.call_soon(call, self)

    def leave(self, error: CarrierClosedError | None = None) -> None:
        """On the loop."""
        self._done, self._error = True, error
        for call in self._calls:
            self._loop.call_soon(call, self)


class Slow(Carrier):
    """What was begun, in which thread; nothing leaves by itself."""

    description = "slow"
    begins_anywhere = True

    def __init__(self, loop: LoopThread) -> None:
        self.loop = loop
        self.begun: queue.Queue[tuple[bytes, str, Way]] = queue.Queue()
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = threading.Event()

    def begin(self, message: bytes) -> Sending:
        if self.closed.is_set():
            raise CarrierClosedError("closed")
        way = Way(self.loop)
        self.begun.put((message, threading.current_thread().name, way))
        return way

    async def send(self, message: bytes) -> None:
        way = Way(self.loop)
        self.begun.put((message, "sent", way))

    async def receive(self) -> bytes:
        return await self.came.get()

    async def close(self) -> None:
        self.closed.set()


class Posted:
    """The connection's end: gives the turn to whoever posts while nobody has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: deque[bytes] = deque()
        self._woken = True  # a stream begins with the turn
        self.came: queue.Queue[bytes] = queue.Queue()
        self.failures: queue.Queue[BaseException] = queue.Queue()
        self.left = 0
        self.ending = False
        self.react: Callable[[bytes], None] = lambda message: None

    def post(self, pump: TaskPump, message: bytes) -> None:
        with self._lock:
            self.waiting.append(message)
            woken, self._woken = self._woken, True
        if not woken:
            pump.wake()

    def next_message(self) -> bytes | None:
        with self._lock:
            if not self.waiting:
                self._woken = False
                return None
            parts = [self.waiting.popleft() for _ in range(len(self.waiting))]
            return b" ".join(parts)

    def written(self) -> None:
        self.left += 1

    def take(self, message: bytes) -> bool:
        self.came.put(message)
        self.react(message)
        return False

    def failed(self, error: BaseException) -> None:
        self.failures.put(error)


class End:
    """A pump on a carrier of the test's."""

    def __init__(self) -> None:
        self.loop = LoopThread("pump-test").acquire()
        self.frames = Posted()
        self.tasks: set[asyncio.Task[None]] = set()
        self.carrier = self.on_loop(lambda: Slow(self.loop))
        self.pump = TaskPump(self.carrier, self.frames, self.loop, self.spawn, 0.001)
        self.on_loop(lambda: self.pump.start(b""))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.ensure_future(coroutine))

    def on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self.loop.run(call(), SECONDS)

    def post(self, message: bytes) -> None:
        self.frames.post(self.pump, message)

    def hear(self, message: bytes) -> None:
        self.on_loop(lambda: self.carrier.came.put_nowait(message))
        assert self.frames.came.get(timeout=SECONDS) == message

    def begun(self) -> tuple[bytes, str, Way]:
        return self.carrier.begun.get(timeout=SECONDS)

    def leave(self, way: Way, error: CarrierClosedError | None = None) -> None:
        self.on_loop(lambda: way.leave(error))


@pytest.fixture
def end() -> Iterator[End]:
    made = End()
    yield made
    made.on_loop(lambda: made.pump.let_go(None))
    made.loop.release()


HERE = threading.current_thread().name


def test_the_loop_polls_from_a_message_to_the_next_one_that_comes(end: End) -> None:
    end.hear(b"1")
    polls = [end.loop.looks is not None]
    end.post(b"a")
    end.leave(end.begun()[2])
    polls.append(end.loop.looks is not None)
    end.hear(b"2")
    polls.append(end.loop.looks is not None)
    assert polls == [False, True, False]


def test_a_message_on_one_stream_leaves_the_loop_polling_for_another(end: End) -> None:
    class Others:
        def poll(self, poll: Callable[[float], list[T]], timeout: float) -> list[T]:
            return poll(timeout)

    others = end.loop.looks = Others()
    end.hear(b"1")
    assert end.loop.looks is others


def test_an_answer_is_begun_by_who_posts_it_and_others_are_left_to_the_loop(end: End) -> None:
    for asked, told, unasked in ((b"1", b"a", b"b"), (b"2", b"c", b"d")):
        end.hear(asked)
        end.post(told)
        message, thread, way = end.begun()
        assert (message, thread) == (told, HERE)
        end.leave(way)
        end.post(unasked)
        message, thread, way = end.begun()
        assert (message, thread) == (unasked, "pump-test")
        end.leave(way)


def test_what_is_posted_while_a_message_is_on_its_way_goes_as_one(end: End) -> None:
    end.hear(b"1")
    end.post(b"a")
    _, _, first = end.begun()
    end.hear(b"2")
    for message in (b"b", b"c", b"d"):
        end.post(message)
    end.on_loop(lambda: None)
    assert end.carrier.begun.empty()
    end.leave(first)
    message, thread, _ = end.begun()
    assert (message, thread) == (b"b c d", "pump-test")


def test_many_threads_begin_one_at_a_time_and_in_order(end: End) -> None:
    def answer(k: int) -> None:
        for n in range(200):
            end.carrier.loop.call_soon(end.carrier.came.put_nowait, b"?")
            end.post(b"%d:%d" % (k, n))

    threads = [threading.Thread(target=answer, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    got: list[bytes] = []
    while len(got) < 800:
        message, _, way = end.begun()
        assert end.carrier.begun.empty()  # nothing begins before it left
        got += message.split()
        end.leave(way)
    for k, thread in enumerate(threads):
        thread.join(SECONDS)
        mine = [each for each in got if each.startswith(b"%d:" % k)]
        assert [int(each.split(b":")[1]) for each in mine] == list(range(200))


@pytest.mark.parametrize("why", ["it ends", "it is big"])
def test_who_waits_for_the_last_message_hears_that_it_left(end: End, why: str) -> None:
    end.frames.ending = why == "it ends"
    end.hear(b"1")
    end.post(b"a" if end.frames.ending else bytes(KEPT_BYTES + 1))
    _, _, way = end.begun()
    end.leave(way)
    assert way.heard.wait(SECONDS)
    end.on_loop(lambda: None)
    assert end.frames.left == end.frames.ending


def test_nobody_is_woken_for_a_small_message_that_left(end: End) -> None:
    end.hear(b"1")
    end.post(b"a")
    _, _, way = end.begun()
    end.leave(way)
    end.on_loop(lambda: None)
    assert not way.heard.is_set()
    end.hear(b"2")
    end.post(b"b")
    end.begun()
    assert way.heard.is_set()


def test_a_message_that_cannot_leave_breaks_the_stream(end: End) -> None:
    end.hear(b"1")
    end.post(b"a")
    _, _, way = end.begun()
    broken = CarrierClosedError("broken")
    end.leave(way, broken)
    end.post(b"b")
    assert end.frames.failures.get(timeout=SECONDS) is broken


def test_a_farewell_comes_behind_all_that_was_taken(end: End) -> None:
    end.hear(b"1")
    taken = threading.Event()
    begin = end.carrier.begin

    def begin_slowly(message: bytes) -> Sending:
        way = begin(message)
        end.frames.waiting.append(b"b")  # posted by another thread meanwhile
        taken.set()
        return way

    end.carrier.begin = begin_slowly  # type: ignore[method-assign]
    end.post(b"a")
    assert taken.is_set()
    _, _, way = end.begun()
    end.on_loop(lambda: end.pump.let_go(lambda: b"farewell"))
    assert not end.carrier.closed.is_set()
    end.leave(way)
    assert [end.begun()[:2] for _ in range(2)] == [(b"b", "sent"), (b"farewell", "sent")]
    assert end.carrier.closed.wait(SECONDS)


def test_nothing_begins_after_the_end(end: End) -> None:
    end.hear(b"1")
    end.on_loop(lambda: end.pump.let_go(None))
    end.post(b"a")
    assert end.carrier.closed.wait(SECONDS)
    assert end.carrier.begun.empty()
    assert end.frames.failures.empty()


def test_an_interrupt_while_a_message_begins_breaks_the_stream(end: End) -> None:
    def interrupted(message: bytes) -> Sending:
        raise KeyboardInterrupt

    end.hear(b"1")
    end.carrier.begin = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        end.post(b"a")
    assert isinstance(end.frames.failures.get(timeout=SECONDS), CarrierClosedError)


def test_answers_over_grpc_leave_from_the_threads_that_post_them(
    grpc_floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    begin = Writes.begin

    def noted(self: Writes, message: bytes) -> Sending:
        threads.append(threading.current_thread().name)
        return begin(self, message)

    monkeypatch.setattr(Writes, "begin", noted)
    alice, bob = grpc_floor.pair()
    alice.post(bob, 1)
    bob.recorder.wait_envelopes(1)
    for n in range(1, 30):
        bob.post(alice, n)
        alice.recorder.wait_envelopes(n)
        alice.post(bob, n + 1)
        bob.recorder.wait_envelopes(n + 1)
    assert threads.count(HERE) > 30
    assert alice.recorder.calls() == list(range(1, 30))
    assert bob.recorder.calls() == list(range(1, 31))
