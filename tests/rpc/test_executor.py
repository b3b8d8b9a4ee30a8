"""The pool: concurrent, growing, never deadlocked by nested waits."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from telegrad.rpc.future.future import Future
from telegrad.rpc.pool import executor as executor_module
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.executor import NESTED_SHARE, TURNS, Executor
from telegrad.rpc.pool.leader import Leader
from telegrad.transport import Gate, LoopThread


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    loop = LoopThread("test-loop").acquire()
    deadlines = Deadlines(loop)
    yield deadlines
    deadlines.close()
    loop.release()


def make(deadlines: Deadlines, num_threads: int, **options: Any) -> Executor:
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
    deadlines.close()  # nothing ticks: no thread is added because work has waited
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

    before = executor.exhausted()
    futures = [run(executor, hold) for _ in range(2)]
    entered.wait(20)
    assert [before, executor.exhausted()] == [False, True]
    assert not executor.exhausted(nested=True)
    gate.set()
    for future in futures:
        future.wait(10)
    executor.close()


def held(executor: Executor, gate: threading.Event) -> Future[object]:
    """Occupies a thread in a wait that is not telegrad's; returns once it does."""
    entered = threading.Event()

    def hold() -> bool:
        entered.set()
        return gate.wait(20)

    future = run_root(executor, hold)
    assert entered.wait(20)
    return future


def run_root(executor: Executor, func: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()
    assert executor.submit_call(
        contextvars.Context(), lambda: future.set_result(func()), nested=False
    )
    return future


def order_of(deadlines: Deadlines, *, nested: int, roots: int) -> list[str]:
    """Returns the order in which one thread takes what waits; the roots were submitted first."""
    deadlines.close()  # nothing ticks: there is never a second thread
    executor = make(deadlines, 1)
    order: list[str] = []
    gate = threading.Event()
    futures = [held(executor, gate)]
    futures += [run_root(executor, lambda: order.append("root")) for _ in range(roots)]
    futures += [run(executor, lambda: order.append("nested")) for _ in range(nested)]
    gate.set()
    for future in futures:
        future.wait(20)
    executor.close()
    return order


def test_what_others_wait_for_is_taken_before_root_calls(deadlines: Deadlines) -> None:
    assert order_of(deadlines, nested=3, roots=2) == ["nested"] * 3 + ["root"] * 2


def test_a_root_call_gets_its_turn_however_much_nested_work_there_is(deadlines: Deadlines) -> None:
    """It may be what a thread waits for unseen, with a condition."""
    order = order_of(deadlines, nested=3 * TURNS, roots=2)
    assert [place for place, what in enumerate(order) if what == "root"] == [TURNS, 2 * TURNS + 1]


def test_nested_work_gets_a_thread_where_root_calls_get_none(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two roots fill the pool and wait, unseen, for work that comes behind a third one."""
    executor = make(deadlines, 1, max_threads=2)
    gate = threading.Event()
    stuck = [held(executor, gate) for _ in range(2)]
    with monkeypatch.context() as patch:  # it came a moment ago, when the pool took it
        patch.setattr(Executor, "exhausted", lambda *_, **__: False)
        third = run_root(executor, lambda: executor.threads)
    assert (executor.exhausted(), executor.exhausted(nested=True)) == (True, False)
    assert run(executor, lambda: executor.threads).wait(20) == 3
    assert not third.done()
    gate.set()
    assert [future.wait(20) for future in stuck] == [True, True]
    third.wait(20)
    executor.close()


def test_nested_work_has_its_limit_too(deadlines: Deadlines) -> None:
    """A recursion over workers without an end must stop before the kernel's limit."""
    executor = make(deadlines, 1, max_threads=2)
    gate = threading.Event()
    entered = threading.Barrier(2 * NESTED_SHARE + 1)

    def hold() -> bool:
        entered.wait(20)
        return gate.wait(20)

    futures = [run(executor, hold) for _ in range(2 * NESTED_SHARE)]
    entered.wait(20)
    assert executor.exhausted(nested=True)
    later = run(executor, int)  # the library's own work waits, and is not refused
    assert executor.threads == 2 * NESTED_SHARE
    gate.set()
    assert [future.wait(20) for future in futures] == [True] * len(futures)
    assert later.wait(20) == 0
    executor.close()


def test_each_piece_of_work_has_a_context_of_its_own(deadlines: Deadlines) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    executor = make(deadlines, 1)
    run(executor, variable.set, 5).wait(10)
    assert run(executor, variable.get).wait(10) == 0
    executor.close()


def test_what_work_raises_is_logged(deadlines: Deadlines, caplog: pytest.LogCaptureFixture) -> None:
    deadlines.close()  # nothing ticks: one thread, so that the log is written before it goes on
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
        patch.setattr("telegrad.rpc.pool.executor._Thread.start", refuse)
        future = run(executor, int)
    assert "cannot grow" in caplog.text
    assert future.wait(10) == 0
    executor.close()


class Reading:
    """What a leader reads from: pieces of work that it enters itself, as calls are."""

    def __init__(self, submit: Callable[[Callable[[], object]], None]) -> None:
        self.submit = submit
        self.incoming: queue.SimpleQueue[list[Callable[[], object]] | None] = queue.SimpleQueue()
        self.leads = threading.Event()
        self.left = threading.Semaphore(0)
        self.on_glance: Callable[[], None] = lambda: None

    def lead(self, gate: Gate, seconds: float) -> None:
        """Reads until the gate is open."""
        if not seconds:
            self.on_glance()
            return
        gate.wake_with(lambda: self.incoming.put(None))
        self.leads.set()
        while not gate.is_open():
            for work in self.incoming.get(timeout=10) or ():
                self.submit(work)
        self.leads.clear()
        gate.wake_with(None)

    def leave(self) -> None:
        self.left.release()


def leading(deadlines: Deadlines, num_threads: int) -> tuple[Executor, Reading]:
    reading = Reading(lambda work: executor.submit(work))
    executor = make(deadlines, num_threads)
    executor.lead_with(reading.lead, reading.leave)
    executor.submit(int)  # its thread leads, once it has nothing to do
    assert reading.leads.wait(10)
    return executor, reading


def test_an_idle_thread_leads_and_does_what_it_reads(deadlines: Deadlines) -> None:
    executor, reading = leading(deadlines, 4)
    done: queue.Queue[int] = queue.Queue()
    for _ in range(20):
        reading.incoming.put([lambda: done.put(threading.get_ident())])
        assert done.get(timeout=10)
        assert reading.leads.wait(10)
    assert executor.threads == 1
    executor.close()


def test_the_leader_is_called_when_no_other_thread_is_idle(deadlines: Deadlines) -> None:
    executor, _ = leading(deadlines, 4)
    assert run(executor, int).wait(10) == 0
    assert executor.threads == 1
    executor.close()
    assert run(executor, int).wait(10) == 0  # in a thread of its own


def test_what_comes_at_once_is_done_by_one_thread_while_it_is_quick(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "QUICK_SECONDS", 10.0)
    deadlines.close()  # nobody looks how it goes on
    executor, reading = leading(deadlines, 4)
    done: queue.Queue[int] = queue.Queue()
    reading.incoming.put([lambda: done.put(threading.get_ident())] * 30)
    assert len({done.get(timeout=10) for _ in range(30)}) == 1
    assert executor.threads == 1
    executor.close()


def test_who_leads_reads_again_after_quick_work_and_leaves_nothing_to_the_loop(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "QUICK_SECONDS", 10.0)
    leader = Leader()
    monkeypatch.setattr(executor_module, "Leader", lambda: leader)
    deadlines.close()
    executor, reading = leading(deadlines, 4)
    while reading.left.acquire(blocking=False):
        pass
    done: queue.Queue[int] = queue.Queue()
    reading.incoming.put([lambda: done.put(threading.get_ident())] * 30)
    assert len({done.get(timeout=10) for _ in range(30)}) == 1
    assert reading.leads.wait(10)
    assert not reading.left.acquire(blocking=False)
    executor.close()


def test_others_take_over_when_the_last_of_many_takes_long(deadlines: Deadlines) -> None:
    """What it waits for may come where this thread has read."""
    executor, reading = leading(deadlines, 4)
    while reading.left.acquire(blocking=False):
        pass
    last: queue.Queue[bool] = queue.Queue()
    reading.incoming.put([int, int, lambda: last.put(reading.left.acquire(timeout=10))])
    assert last.get(timeout=20)
    executor.close()


def test_work_that_is_not_quick_gets_threads_at_once(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "SLOW_FROM", 0)
    deadlines.close()
    executor, reading = leading(deadlines, 4)
    barrier, passed = threading.Barrier(4), threading.Semaphore(0)

    def meet() -> None:
        barrier.wait(20)
        passed.release()

    reading.incoming.put([meet] * 4)
    assert all(passed.acquire(timeout=20) for _ in range(4))
    executor.close()


def test_others_take_over_when_the_first_of_many_takes_long(deadlines: Deadlines) -> None:
    executor, reading = leading(deadlines, 4)
    started, gate = threading.Event(), threading.Event()
    threads: queue.Queue[int] = queue.Queue()

    def long() -> None:
        started.set()
        assert gate.wait(20)

    def short() -> None:
        threads.put(threading.get_ident())

    reading.incoming.put([long, short, gate.set])
    assert started.wait(10)
    assert gate.wait(20)
    assert threads.get(timeout=10) != 0
    assert reading.left.acquire(timeout=10)  # nor does it keep what it reads from
    executor.close()


def test_a_leader_that_was_replaced_while_it_looked_leaves_what_it_took(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep the sockets, and what it does next may wait for what comes there."""
    monkeypatch.setattr(executor_module, "PACE_SECONDS", -1.0)  # it looks before each piece
    monkeypatch.setattr(executor_module, "QUICK_SECONDS", 10.0)
    leader = Leader()
    monkeypatch.setattr(executor_module, "Leader", lambda: leader)
    deadlines.close()
    executor, reading = leading(deadlines, 4)
    while reading.left.acquire(blocking=False):
        pass
    looked: list[bool] = []

    def on_glance() -> None:
        leader.stays = False  # the tick found it stuck, in this moment
        looked.append(True)

    reading.on_glance = on_glance
    last: queue.Queue[bool] = queue.Queue()
    reading.incoming.put([int, int, lambda: last.put(reading.left.acquire(timeout=10))])
    assert last.get(timeout=20)
    assert looked
    executor.close()


def test_a_wait_of_ours_lets_others_take_over(deadlines: Deadlines) -> None:
    deadlines.close()  # nothing ticks
    executor, reading = leading(deadlines, 4)
    first: Future[int] = Future()
    outcome: queue.Queue[int] = queue.Queue()
    reading.incoming.put([lambda: outcome.put(first.wait(20)), lambda: first.set_result(7)])
    assert outcome.get(timeout=20) == 7
    executor.close()


def test_a_thread_that_was_woken_for_what_another_did_takes_what_nobody_was_woken_for(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines.close()  # nothing ticks: nobody is woken for what waits
    tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
    monkeypatch.setattr(executor_module, "SimpleQueue", lambda: tokens)
    executor = make(deadlines, 2)
    monkeypatch.setattr(executor_module, "SLOW_FROM", -100)  # each piece of work gets a thread
    both = threading.Barrier(2)
    for future in [run(executor, both.wait, 10) for _ in range(2)]:
        future.wait(10)
    monkeypatch.setattr(executor_module, "SLOW_FROM", 100)
    gate = threading.Event()
    first = held(executor, gate)
    second = run(executor, lambda: None)  # left to the thread that runs
    tokens.put(True)  # for work that is done by now
    second.wait(10)
    gate.set()
    first.wait(10)
    assert {run(executor, lambda: 3).wait(10) for _ in range(10)} == {3}
    executor.close()


def test_the_leader_ends_with_the_pool(deadlines: Deadlines) -> None:
    executor, _ = leading(deadlines, 2)
    executor.close()
    deadline = time.monotonic() + 10
    while executor.threads and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not executor.threads
