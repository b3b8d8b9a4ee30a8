"""The pool: concurrent, growing, never deadlocked by nested waits."""

from __future__ import annotations

import contextvars
import logging
import queue
import resource
import threading
from collections.abc import Callable
from typing import Any

import pytest

from telegrad.rpc.future.future import Future
from telegrad.rpc.pool import roster as roster_module
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.pool import Pool
from telegrad.testing import leaks
from telegrad.transport import WaitGate


def make(deadlines: Deadlines, num_threads: int, **options: Any) -> Pool:
    return Pool("test", num_threads, deadlines, contextvars.Context, **options)


def run(pool: Pool, func: object, *args: object) -> Future[object]:
    future: Future[object] = Future()
    assert callable(func)
    pool.submit(lambda: future.set_result(func(*args)))
    return future


def test_it_grows_at_once_when_a_wait_of_ours_blocks(deadlines: Deadlines) -> None:
    deadlines.close()  # nothing ticks: no thread is added because work has waited
    pool = make(deadlines, 1)

    def nested(depth: int) -> int:
        if depth == 0:
            return 0
        below = run(pool, nested, depth - 1)
        value = below.wait(10)
        assert isinstance(value, int)
        return value + 1

    assert run(pool, nested, 40).wait(20) == 40
    pool.close()


def test_it_grows_when_work_is_stalled_by_waits_that_are_not_ours(deadlines: Deadlines) -> None:
    pool = make(deadlines, 1)
    gate = threading.Event()
    stuck = [run(pool, gate.wait, 20) for _ in range(3)]
    assert run(pool, gate.set).wait(10) is None
    assert [future.wait(10) for future in stuck] == [True] * 3
    assert pool.threads >= 1
    pool.close()


def test_threads_above_the_number_end(deadlines: Deadlines) -> None:
    pool = make(deadlines, 2)
    barrier = threading.Barrier(8)
    futures = [run(pool, barrier.wait, 20) for _ in range(8)]
    for future in futures:
        future.wait(20)
    run(pool, int).wait(10)
    ended = threading.Event()
    while pool.threads > 2:
        assert not ended.wait(0.001)
    assert pool.threads == 2
    pool.close()


def held(pool: Pool, gate: threading.Event) -> Future[object]:
    """Occupies a thread in a wait that is not telegrad's; returns once it does."""
    entered = threading.Event()

    def hold() -> bool:
        entered.set()
        return gate.wait(20)

    future = run_root(pool, hold)
    assert entered.wait(20)
    return future


def run_root(pool: Pool, func: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()
    assert pool.submit_call(contextvars.Context(), lambda: future.set_result(func()), nested=False)
    return future


def test_nested_work_gets_a_thread_where_root_calls_get_none(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two roots fill the pool and wait, unseen, for work that comes behind a third one."""
    pool = make(deadlines, 1, max_threads=2)
    gate = threading.Event()
    stuck = [held(pool, gate) for _ in range(2)]
    with monkeypatch.context() as patch:  # it came a moment ago, when the pool took it
        patch.setattr(Pool, "exhausted", lambda *_, **__: False)
        third = run_root(pool, lambda: pool.threads)
    assert (pool.exhausted(), pool.exhausted(nested=True)) == (True, False)
    assert run(pool, lambda: pool.threads).wait(20) == 3
    assert not third.done()
    gate.set()
    assert [future.wait(20) for future in stuck] == [True, True]
    third.wait(20)
    pool.close()


def test_each_piece_of_work_has_a_context_of_its_own(deadlines: Deadlines) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    pool = make(deadlines, 1)
    run(pool, variable.set, 5).wait(10)
    assert run(pool, variable.get).wait(10) == 0
    pool.close()


def test_what_work_raises_is_logged(deadlines: Deadlines, caplog: pytest.LogCaptureFixture) -> None:
    deadlines.close()  # nothing ticks: one thread, so that the log is written before it goes on
    pool = make(deadlines, 1)

    def leave() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR):
        pool.submit(leave)
        assert run(pool, int).wait(10) == 0
    assert "SystemExit" in caplog.text
    pool.close()


def test_work_after_close_still_runs(deadlines: Deadlines) -> None:
    pool = make(deadlines, 1)
    pool.close()
    pool.close()
    assert run(pool, int).wait(10) == 0


def refuse_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_start_is_not_counted(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was counted as idle for ever, and the work that was meant for it was never taken."""
    pool = make(deadlines, 2)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("telegrad.rpc.future.waits.PoolThread.start", refuse_thread)
        future = run(pool, int)
    assert "cannot grow" in caplog.text
    assert future.wait(10) == 0
    pool.close()


def test_work_that_no_thread_will_take_is_refused_with_the_limit(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited for a thread until its time was over, and nobody said why; each try was logged."""
    pool, ran = make(deadlines, 2), list[int]()

    def submit(number: int) -> bool:
        return pool.submit_call(contextvars.Context(), ran.append, number, nested=False)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("telegrad.rpc.future.waits.PoolThread.start", refuse_thread)
        patch.setattr(resource, "getrlimit", lambda _: (2**30, 2**30))
        assert not submit(1)
        assert not submit(2)
        assert "`ulimit -v` allows it 1024 MiB of memory" in pool.shortage
    assert caplog.text.count("cannot grow") == 1
    assert submit(3)
    assert run(pool, int).wait(10) == 0
    pool.close()
    assert ran == [3]


class Watching:
    """What an idle thread watches: pieces of work come that it submits itself, as calls are."""

    def __init__(self, submit: Callable[[Callable[[], object]], None]) -> None:
        self.submit = submit
        self.incoming: queue.SimpleQueue[list[Callable[[], object]] | None] = queue.SimpleQueue()
        self.watched = threading.Event()

    def watch(self, gate: WaitGate) -> None:
        """Watches until the gate is open."""
        gate.wake = lambda: self.incoming.put(None)
        self.watched.set()
        while gate.shut:
            for work in self.incoming.get(timeout=10) or ():
                self.submit(work)
        self.watched.clear()
        gate.wake = None


def watching(deadlines: Deadlines, num_threads: int) -> tuple[Pool, Watching]:
    watching = Watching(lambda work: pool.submit(work))
    pool = make(deadlines, num_threads, watch=watching.watch)
    pool.submit(int)  # its thread watches, once it has nothing to do
    assert watching.watched.wait(10)
    return pool, watching


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expects each thread that took work back soon, however long that takes."""
    monkeypatch.setattr(roster_module, "QUICK_SECONDS", 10.0)


def test_an_idle_thread_watches_and_does_what_comes(deadlines: Deadlines) -> None:
    pool, watching_ = watching(deadlines, 4)
    done: queue.Queue[int] = queue.Queue()
    for _ in range(20):
        watching_.incoming.put([lambda: done.put(threading.get_ident())])
        assert done.get(timeout=10)
        assert watching_.watched.wait(10)
    assert pool.threads == 1
    pool.close()


def test_the_watcher_is_called_when_no_other_thread_is_idle(deadlines: Deadlines) -> None:
    pool, _ = watching(deadlines, 4)
    assert run(pool, int).wait(10) == 0
    assert pool.threads == 1
    pool.close()
    assert run(pool, int).wait(10) == 0  # in a thread of its own


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("watches", [True, False])
def test_what_comes_at_once_is_done_by_one_thread_while_it_is_quick(
    deadlines: Deadlines, watches: bool
) -> None:
    deadlines.close()  # nobody looks how it goes on
    pool, watching_ = watching(deadlines, 4)
    done: queue.Queue[int] = queue.Queue()
    work: list[Callable[[], object]] = [lambda: done.put(threading.get_ident())] * 30
    if watches:
        watching_.incoming.put(work)
    else:
        pool.submit(lambda: [run(pool, each) for each in work])
    assert len({done.get(timeout=10) for _ in range(30)}) == 1
    assert pool.threads == 1
    pool.close()


def test_work_that_comes_later_gets_a_thread_at_once(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_module, "QUICK_SECONDS", -1.0)  # as if all took long
    deadlines.close()
    pool, watching_ = watching(deadlines, 4)
    barrier, passed = threading.Barrier(4), threading.Semaphore(0)

    def meet() -> None:
        barrier.wait(20)
        passed.release()

    watching_.incoming.put([meet] * 4)
    assert all(passed.acquire(timeout=20) for _ in range(4))
    pool.close()


def test_others_take_over_when_the_first_of_many_takes_long(deadlines: Deadlines) -> None:
    pool, watching_ = watching(deadlines, 4)
    started, gate = threading.Event(), threading.Event()
    threads: queue.Queue[int] = queue.Queue()

    def long() -> None:
        started.set()
        assert gate.wait(20)

    watching_.incoming.put([long, lambda: threads.put(threading.get_ident()), gate.set])
    assert started.wait(10)
    assert gate.wait(20)
    assert threads.get(timeout=10) != 0
    pool.close()


def test_another_idle_thread_watches_while_the_first_one_works(deadlines: Deadlines) -> None:
    pool, watching_ = watching(deadlines, 4)
    gate = threading.Event()
    watching_.incoming.put([lambda: gate.wait(20)])
    leaks.wait_until_gone("watchers", lambda: [1] * watching_.watched.is_set(), 10)
    assert run(pool, int).wait(10) == 0  # in a new thread, which watches then
    assert watching_.watched.wait(10)
    gate.set()
    pool.close()


@pytest.mark.usefixtures("quick")
def test_a_wait_of_ours_lets_others_take_over(deadlines: Deadlines) -> None:
    deadlines.close()  # nothing ticks
    pool, watching_ = watching(deadlines, 4)
    first: Future[int] = Future()
    outcome: queue.Queue[int] = queue.Queue()
    watching_.incoming.put([lambda: outcome.put(first.wait(20)), lambda: first.set_result(7)])
    assert outcome.get(timeout=20) == 7
    pool.close()


def test_the_watcher_ends_with_the_pool(deadlines: Deadlines) -> None:
    pool, _ = watching(deadlines, 2)
    pool.close()
    leaks.wait_until_gone("threads", lambda: [1] * pool.threads, 10)
