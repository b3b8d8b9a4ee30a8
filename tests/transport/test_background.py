"""Functions that one thread of its own runs, in order, while there are any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from telegrad.transport import LoopThread
from telegrad.transport.background import BackgroundThread

SECONDS = 20.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("background-test").acquire()
    yield loop
    loop.release()


def made(loop: LoopThread, failed: list[BaseException], most: float) -> BackgroundThread:
    return BackgroundThread(
        "behind",
        loop.call_soon,
        lambda seconds, start: loop.loop.call_later(seconds, start),
        failed.append,
        most,
    )


def test_all_functions_run_in_order_whoever_puts_them_and_whenever(loop: LoopThread) -> None:
    behind, ran = made(loop, [], 1e6), list[tuple[int, int]]()

    def put(k: int) -> None:
        for n in range(300):
            behind.put(lambda k=k, n=n: ran.append((k, n)))  # type: ignore[misc]

    threads = [threading.Thread(target=put, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    behind.flush(SECONDS)
    assert len(ran) == 1200
    for k in range(4):
        assert [n for each, n in ran if each == k] == [*range(300)]


def test_the_oldest_of_too_many_are_dropped_and_counted(loop: LoopThread) -> None:
    behind, goes_on, ran = made(loop, [], 10), threading.Event(), list[int]()
    began = threading.Event()
    behind.put(lambda: (began.set(), goes_on.wait(SECONDS)))  # type: ignore[func-returns-value]
    assert began.wait(SECONDS)
    for n in range(25):
        behind.put(lambda n=n: ran.append(n))  # type: ignore[misc]
    goes_on.set()
    behind.flush(SECONDS)
    assert ran == [*range(15, 25)]
    assert (behind.count_dropped(), behind.count_dropped()) == (15, 0)


def test_a_function_that_fails_stops_no_other(loop: LoopThread) -> None:
    failed, ran = list[BaseException](), list[int]()
    behind = made(loop, failed, 10)
    behind.put(lambda: 1 / 0)
    behind.put(lambda: ran.append(1))
    behind.flush(SECONDS)
    assert ran == [1]
    assert [type(each) for each in failed] == [ZeroDivisionError]


def test_a_thread_that_is_not_to_be_had_is_asked_for_again(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, start = list[str](), threading.Thread.start

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "behind" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    behind, ran = made(loop, [], 10), threading.Event()
    behind.put(ran.set)
    assert ran.wait(SECONDS)
    assert refused
    behind.flush(SECONDS)


def test_what_comes_after_the_last_thread_runs_at_the_flush(loop: LoopThread) -> None:
    starts: list[Callable[[], None]] = []
    ran: list[int] = []
    behind = BackgroundThread("behind", starts.append, lambda *_: None, lambda _: None, 10)
    behind.put(lambda: ran.append(1))
    behind.flush(SECONDS)
    assert ran == [1]
