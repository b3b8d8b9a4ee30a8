"""The pool: concurrent, growing, never deadlocked by nested waits."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator

import pytest

from telegrad.rpc.deadlines import Deadlines
from telegrad.rpc.executor import Executor
from telegrad.rpc.future import Future
from telegrad.transport import LoopThread


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    loop = LoopThread("test-loop").acquire()
    deadlines = Deadlines(loop)
    yield deadlines
    deadlines.close()
    loop.release()


def make(deadlines: Deadlines, num_threads: int, **options: int) -> Executor:
    return Executor("test", num_threads, deadlines, contextvars.Context, **options)


def run(executor: Executor, func: object, *args: object) -> Future[object]:
    future: Future[object] = Future()
    assert callable(func)
    executor.submit(lambda: future.set_result(func(*args)))
    return future


def test_work_runs_concurrently(deadlines: Deadlines) -> None:
    executor = make(deadlines, 4)
    barrier = threading.Barrier(4)
    futures = [run(executor, barrier.wait, 10) for _ in range(4)]
    assert sorted(str(future.wait(10)) for future in futures) == ["0", "1", "2", "3"]
    executor.close()


def test_it_grows_at_once_when_a_wait_of_ours_blocks(deadlines: Deadlines) -> None:
    executor = make(deadlines, 1)

    def nested(depth: int) -> int:
        if depth == 0:
            return 0
        below = run(executor, nested, depth - 1)
        value = below.wait(10)
        assert isinstance(value, int)
        return value + 1

    assert run(executor, nested, 40).wait(20) == 40
    executor.close()


def test_it_grows_when_work_is_stalled_by_waits_that_are_not_ours(deadlines: Deadlines) -> None:
    executor = make(deadlines, 1)
    gate = threading.Event()
    stuck = [run(executor, gate.wait, 20) for _ in range(3)]
    assert run(executor, gate.set).wait(10) is None
    assert [future.wait(10) for future in stuck] == [True] * 3
    assert executor.threads >= 1
    executor.close()


def test_threads_above_the_number_end(deadlines: Deadlines) -> None:
    executor = make(deadlines, 2)
    barrier = threading.Barrier(8)
    futures = [run(executor, barrier.wait, 20) for _ in range(8)]
    for future in futures:
        future.wait(20)
    run(executor, int).wait(10)
    ended = threading.Event()
    while executor.threads > 2:
        assert not ended.wait(0.001)
    assert executor.threads == 2
    executor.close()


def test_exhausted_at_the_limit(deadlines: Deadlines) -> None:
    executor = make(deadlines, 1, max_threads=2)
    gate = threading.Event()
    entered = threading.Barrier(3)

    def hold() -> None:
        entered.wait(20)
        gate.wait(20)

    futures = [run(executor, hold) for _ in range(2)]
    before = executor.exhausted
    entered.wait(20)
    assert [before, executor.exhausted] == [False, True]
    gate.set()
    for future in futures:
        future.wait(10)
    executor.close()


def test_each_piece_of_work_has_a_context_of_its_own(deadlines: Deadlines) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    executor = make(deadlines, 1)
    run(executor, variable.set, 5).wait(10)
    assert run(executor, variable.get).wait(10) == 0
    executor.close()


def test_what_work_raises_is_logged(deadlines: Deadlines, caplog: pytest.LogCaptureFixture) -> None:
    executor = make(deadlines, 1)

    def leave() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR):
        executor.submit(leave)
        assert run(executor, int).wait(10) == 0
    assert "SystemExit" in caplog.text
    executor.close()


def test_work_after_close_still_runs(deadlines: Deadlines) -> None:
    executor = make(deadlines, 1)
    executor.close()
    executor.close()
    assert run(executor, int).wait(10) == 0


def test_a_thread_that_cannot_start_is_not_counted(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was counted as idle for ever, and the work that was meant for it was never taken."""
    executor = make(deadlines, 2)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("telegrad.rpc.executor._Thread.start", refuse)
        future = run(executor, int)
    assert "cannot grow" in caplog.text
    assert future.wait(10) == 0
    executor.close()
