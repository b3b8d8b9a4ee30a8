from __future__ import annotations

import asyncio
import queue
import resource
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from telegrad.errors import BlockingCallError
from telegrad.transport import LoopThread, on_own_loop, shared_loop_thread
from telegrad.transport.loop import LONGEST_SLEEP
from tests.conftest import Programs

T = TypeVar("T")

AT_EXIT = """
import asyncio, atexit
from telegrad.transport import LoopThread

loop = LoopThread("test-loop").acquire()

async def looks_up():
    await asyncio.get_running_loop().run_in_executor(None, print, "looked up")
    await asyncio.get_running_loop().run_in_executor(None, lambda: 1 / 0)

def say_goodbye():
    try:
        loop.run(looks_up())
    except ZeroDivisionError:
        print("and failed")

atexit.register(say_goodbye)
"""


def test_it_runs_while_somebody_needs_it() -> None:
    loop = LoopThread("test-loop")
    with pytest.raises(RuntimeError, match="acquire"):
        _ = loop.loop
    loop.acquire().acquire()
    first = loop.loop
    loop.release()
    assert loop.loop is first
    loop.release()
    assert first.is_closed()
    loop.release()  # one too many changes nothing
    loop.acquire()
    assert loop.loop is not first
    loop.release()


def test_run_and_call_soon() -> None:
    loop = LoopThread("test-loop").acquire()
    called = threading.Event()

    async def where() -> tuple[str, bool]:
        return threading.current_thread().name, on_own_loop()

    try:
        assert loop.run(where()) == ("test-loop", True)
        loop.call_soon(called.set)
        assert called.wait(20)
        assert not loop.is_loop_thread()
        assert not on_own_loop()
    finally:
        loop.release()
    loop.call_soon(called.clear)  # nobody is there any more
    assert called.is_set()


def test_what_may_block_runs_beside_it_while_the_interpreter_ends(programs: Programs) -> None:
    """Python's own executors take nothing by then, and the agent still says goodbye."""
    assert programs.run(["python", programs.script(AT_EXIT)]) == "looked up\nand failed\n"


def test_an_interrupted_run_cancels_its_coroutine() -> None:
    loop = LoopThread("test-loop").acquire()
    began, ended = threading.Event(), threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        assert began.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            loop.run(forever())
        assert ended.wait(20)
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
        loop.release()


def test_a_run_that_is_interrupted_as_it_begins_cancels_its_coroutine() -> None:
    """The coroutine went on for ever: its future was not there to be cancelled."""
    loop = LoopThread("test-loop", keep_loop=True).acquire()  # asyncio's own, which can be patched
    asyncio_loop = loop.loop
    began, ended = threading.Event(), threading.Event()
    post = asyncio_loop.call_soon_threadsafe

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted_post(*args: Any, **kwargs: Any) -> Any:
        patch.undo()
        post(*args, **kwargs)
        assert began.wait(20)
        raise KeyboardInterrupt

    try:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(asyncio_loop, "call_soon_threadsafe", interrupted_post)
            loop.run(forever())
        assert ended.wait(20)
    finally:
        loop.release()
        asyncio_loop.close()


def test_blocking_on_it_is_refused() -> None:
    loop, other = LoopThread("test-loop").acquire(), LoopThread("test-other").acquire()

    async def nothing() -> None: ...

    async def block() -> None:
        other.run(nothing())

    try:
        with pytest.raises(BlockingCallError, match="to_thread"):
            loop.run(block())
    finally:
        loop.release()
        other.release()


async def wait_forever(started: threading.Event, cancelled: threading.Event) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()


def test_a_time_out_cancels() -> None:
    loop = LoopThread("test-loop").acquire()
    started, cancelled = threading.Event(), threading.Event()
    try:
        while not started.is_set():  # what has not begun when the time is over never does
            with pytest.raises(TimeoutError):
                loop.run(wait_forever(started, cancelled), 0.01)
        assert cancelled.wait(20)
    finally:
        loop.release()


def test_what_still_runs_is_cancelled_at_the_end() -> None:
    loop = LoopThread("test-loop").acquire()
    started, cancelled = threading.Event(), threading.Event()
    loop.call_soon(lambda: asyncio.ensure_future(wait_forever(started, cancelled)))
    assert started.wait(20)
    loop.release()
    assert cancelled.is_set()


def test_there_is_one_for_the_process() -> None:
    assert shared_loop_thread() is shared_loop_thread()


def test_a_kept_loop_takes_what_comes_after_its_end() -> None:
    """gRPC may bring an event for a loop whose thread has ended; a closed loop raised there."""
    thread = LoopThread("kept", keep_loop=True)
    thread.acquire()
    loop = thread.loop
    thread.release()
    late = threading.Event()
    loop.call_soon_threadsafe(late.set)
    assert not loop.is_closed()
    thread.acquire()
    assert thread.loop is loop
    assert late.wait(20)
    thread.release()
    loop.close()


class Looks:
    """Notes how long the loop would sleep."""

    def __init__(self) -> None:
        self.slept: queue.Queue[float] = queue.Queue()

    def poll(self, poll: Callable[[float], list[T]], timeout: float) -> list[T]:
        self.slept.put(timeout)
        return poll(timeout)


def test_a_kept_loop_polls_before_it_sleeps_as_long_as_that_is_asked() -> None:
    thread, looks = LoopThread("kept", keep_loop=True).acquire(), Looks()
    loop = thread.loop

    async def nothing() -> None: ...

    try:
        thread.looks = looks
        loop.call_soon_threadsafe(lambda: loop.call_later(60.0, int))
        assert 0 < looks.slept.get(timeout=20) <= LONGEST_SLEEP
        thread.run(nothing())
        thread.looks = None
        thread.run(nothing())  # it sleeps for the last time while it is asked
        thread.run(nothing())
        count = looks.slept.qsize()
        thread.run(nothing())
        assert looks.slept.qsize() == count
    finally:
        thread.release()
        loop.close()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("keep", [False, True])
def test_an_exit_on_it_does_not_end_it(
    error: type[BaseException], keep: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loop = LoopThread("test-loop", keep_loop=keep).acquire()

    def leave() -> None:
        raise error("out")

    async def leave_in_a_task() -> None:
        leave()

    async def leave_when_cancelled() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            leave()

    async def start() -> list[asyncio.Task[None]]:
        return [asyncio.create_task(leave_when_cancelled()) for _ in range(3)]

    async def name() -> str:
        return threading.current_thread().name

    inner = loop.loop
    thread = next(each for each in threading.enumerate() if each.name == "test-loop")
    loop.call_soon(leave)
    with pytest.raises(error):
        loop.run(leave_in_a_task())
    assert loop.run(name()) == "test-loop"
    left = loop.run(start())

    def stop_and_leave() -> None:
        """In one turn of the loop: that it is to stop is not forgotten."""
        loop.release()
        inner.call_soon(leave)

    loop.call_soon(stop_and_leave)
    thread.join(20)
    assert not thread.is_alive()
    assert all(task.done() and isinstance(task.exception(), error) for task in left)
    # uvloop takes those of one turn together.
    assert any(f"test-loop raised {error.__name__}" in said for said in caplog.messages)
    if keep:
        inner.close()


def test_a_loop_without_a_thread_names_the_limit_and_starts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counted as started, and the next user waited for it."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = LoopThread()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr(resource, "getrlimit", lambda _: (7, 7))
        with pytest.raises(RuntimeError, match="`ulimit -u` allows it 7 threads of its user"):
            loop.acquire()
    loop.acquire().release()
