"""The loop writes one message at a time; what is posted meanwhile goes as soon as that one left."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

import pytest

from telegrad.transport import LoopThread
from telegrad.transport.base import Carrier, CarrierClosedError
from telegrad.transport.io.pump import TaskPump
from tests.transport.workers import SECONDS, run_on

T = TypeVar("T")
Way: TypeAlias = "asyncio.Future[None]"  # of a message that leaves when the test says so


class Slow(Carrier):
    """The messages that are on their way; none leaves by itself."""

    description = "slow"

    def __init__(self) -> None:
        self.sending: queue.Queue[tuple[bytes, Way]] = queue.Queue()
        self.came: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = threading.Event()

    async def send(self, message: bytes) -> None:
        way: Way = asyncio.get_running_loop().create_future()
        self.sending.put((message, way))
        await way

    async def receive(self) -> bytes:
        return await self.came.get()

    async def close(self) -> None:
        self.closed.set()


class Posted:
    """The connection's end: gives the turn to whoever posts while nobody has it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._woken = True  # a stream begins with the turn
        self.came: queue.Queue[bytes] = queue.Queue()
        self.failures: queue.Queue[BaseException] = queue.Queue()
        self.left: queue.Queue[None] = queue.Queue()
        self.ending = False

    def post(self, pump: TaskPump, message: bytes) -> None:
        with self._lock:
            self._waiting.append(message)
            woken, self._woken = self._woken, True
        if not woken:
            pump.wake()

    def next_message(self) -> bytes | None:
        with self._lock:
            parts = [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._woken = bool(parts)
            return b" ".join(parts) or None

    def written(self) -> None:
        self.left.put(None)

    def take(self, message: bytes) -> bool:
        self.came.put(message)
        return False

    def failed(self, error: BaseException) -> None:
        self.failures.put(error)


class End:
    """A pump on a carrier of the test's."""

    def __init__(self) -> None:
        self.loop = LoopThread("pump-test").acquire()
        self.frames = Posted()
        self.tasks: set[asyncio.Task[None]] = set()
        self.carrier = self.on_loop(Slow)
        self.pump = TaskPump(self.carrier, self.frames, self.loop, self.spawn, 0.001)
        self.on_loop(lambda: self.pump.start(b""))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.ensure_future(coroutine))

    def on_loop(self, function: Callable[[], T]) -> T:
        return run_on(self.loop, function)

    def post(self, message: bytes) -> None:
        self.frames.post(self.pump, message)

    def hear(self, message: bytes) -> None:
        self.on_loop(lambda: self.carrier.came.put_nowait(message))
        assert self.frames.came.get(timeout=SECONDS) == message

    def sending(self) -> tuple[bytes, Way]:
        return self.carrier.sending.get(timeout=SECONDS)

    def leave(self, way: Way) -> None:
        self.on_loop(lambda: way.set_result(None))


@pytest.fixture
def end() -> Iterator[End]:
    made = End()
    yield made
    made.on_loop(lambda: made.pump.let_go(None))
    made.loop.release()


def test_the_loop_polls_from_a_message_to_the_next_one_that_comes(end: End) -> None:
    end.hear(b"1")
    polls = [end.loop.looks is not None]
    end.post(b"a")
    end.leave(end.sending()[1])
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


def test_what_is_posted_while_a_message_is_on_its_way_goes_as_one(end: End) -> None:
    end.post(b"a")
    message, way = end.sending()
    assert message == b"a"
    for each in (b"b", b"c", b"d"):
        end.post(each)
    end.on_loop(lambda: None)
    assert end.carrier.sending.empty()
    end.leave(way)
    assert end.sending()[0] == b"b c d"


def test_many_threads_post_and_one_message_is_sent_at_a_time_and_in_order(end: End) -> None:
    def answer(k: int) -> None:
        for n in range(200):
            end.post(b"%d:%d" % (k, n))

    threads = [threading.Thread(target=answer, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    got: list[bytes] = []
    while len(got) < 800:
        message, way = end.sending()
        assert end.carrier.sending.empty()  # nothing is sent before it left
        got += message.split()
        end.leave(way)
    for k, thread in enumerate(threads):
        thread.join(SECONDS)
        mine = [each for each in got if each.startswith(b"%d:" % k)]
        assert [int(each.split(b":")[1]) for each in mine] == list(range(200))


def test_an_end_that_waits_for_its_last_message_hears_that_it_left(end: End) -> None:
    for ending in (False, True):
        end.frames.ending = ending
        end.post(b"a")
        end.leave(end.sending()[1])
        end.post(b"b")
        end.leave(end.sending()[1])
    end.frames.left.get(timeout=SECONDS)
    end.frames.left.get(timeout=SECONDS)
    assert end.frames.left.empty()


def test_a_message_that_cannot_leave_breaks_the_stream(end: End) -> None:
    end.post(b"a")
    _, way = end.sending()
    broken = CarrierClosedError("broken")
    end.on_loop(lambda: way.set_exception(broken))
    assert end.frames.failures.get(timeout=SECONDS) is broken


@pytest.mark.parametrize("side", ["next_message", "take"])
def test_an_error_that_nobody_foresaw_breaks_the_stream(
    end: End, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(end.frames, side, fail)
    if side == "take":
        end.on_loop(lambda: end.carrier.came.put_nowait(b"1"))
    else:
        end.post(b"a")
    failure = end.frames.failures.get(timeout=SECONDS)
    assert isinstance(failure, CarrierClosedError)
    assert "no room" in str(failure)
    failed = end.on_loop(lambda: [task.exception() for task in end.tasks if task.done()])
    assert [type(error) for error in failed] == [MemoryError]


def test_a_farewell_comes_behind_the_message_on_its_way_and_nothing_comes_behind_it(
    end: End,
) -> None:
    end.post(b"a")
    _, way = end.sending()
    end.post(b"b")
    end.on_loop(lambda: end.pump.let_go(lambda: b"farewell"))
    assert not end.carrier.closed.is_set()
    end.leave(way)
    message, way = end.sending()
    assert message == b"farewell"
    end.leave(way)
    assert end.carrier.closed.wait(SECONDS)
    assert end.carrier.sending.empty()


def test_nothing_is_sent_after_the_end(end: End) -> None:
    end.on_loop(lambda: end.pump.let_go(None))
    end.post(b"a")
    assert end.carrier.closed.wait(SECONDS)
    assert end.carrier.sending.empty()
    assert end.frames.failures.empty()
