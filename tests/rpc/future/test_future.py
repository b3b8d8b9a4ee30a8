"""Futures: made anywhere, used from any thread, awaited from any loop."""

from __future__ import annotations

import copy
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from telegrad.errors import BlockingCallError, CallCancelledError, CallTimeoutError
from telegrad.rpc.future import gate as gates
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.verbs.combine import collect_all, wait_all
from telegrad.transport import LoopThread
from tests.rpc.future.plain_futures import complete_by, done, failed, objects_left_by, start


def completed_by(thunk: Callable[[], int]) -> Future[int]:
    """Returns a future whose value a thunk makes once it is read."""
    future: Future[int] = new_future(None, "a reply")
    complete_by(future, thunk)
    return future


def test_value_and_state() -> None:
    future: Future[int] = Future()
    assert not future.done()
    with pytest.raises(RuntimeError, match="is not done"):
        future.value()
    with pytest.raises(RuntimeError, match="is not done"):
        future.exception()
    future.set_result(3)
    assert future.done()
    assert future.value() == future.wait() == future.wait(1.0) == 3
    assert future.exception() is None


def test_completed_once() -> None:
    future = done(1)
    with pytest.raises(RuntimeError, match="completed once"):
        future.set_result(2)
    with pytest.raises(RuntimeError, match="completed once"):
        future.set_exception(ValueError())
    assert future.value() == 1


def test_set_exception_takes_instances_only() -> None:
    future: Future[int] = Future()
    with pytest.raises(TypeError, match="exception instance"):
        future.set_exception(ValueError)  # type: ignore[arg-type]
    assert not future.done()


def test_each_raise_is_fresh() -> None:
    error = ValueError("no")
    future = failed(error)
    assert future.exception() is error
    raised = []
    for _ in range(3):
        with pytest.raises(ValueError, match="no") as info:
            future.wait()
        raised.append(info.value)
    assert len({id(each) for each in [error, *raised]}) == 4


def raise_it(future: Future[Any]) -> None:
    with suppress(ValueError):
        future.wait()


@pytest.mark.parametrize("complete", ["set_exception", "try_set_exception"])
def test_a_failed_future_leaves_nothing_for_the_collector(complete: str) -> None:
    """An error that was set by `set_exception` was raised itself, and its frames kept the future."""
    future: Future[Any] = Future()
    getattr(future, complete)(ValueError("no"))
    gone = weakref.ref(future)
    gc.disable()
    try:
        raise_it(future)
        del future
        assert gone() is None
    finally:
        gc.enable()


def test_wait_times_out_and_may_be_repeated() -> None:
    future: Future[int] = Future()
    with pytest.raises(CallTimeoutError, match="not done after") as info:
        future.wait(0.001)
    assert info.value.elapsed >= 0.001
    future.set_result(1)
    assert future.wait(0.001) == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_timeouts_that_mean_nothing_are_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match=r"math\.inf"):
        done(1).wait(timeout)


def test_a_bool_is_no_timeout() -> None:
    with pytest.raises(TypeError, match="number of seconds"):
        done(1).wait(True)


def test_then_flattens_and_keeps_classes() -> None:
    class OwnError(Exception):
        pass

    def explode(_: Future[int]) -> int:
        raise OwnError("in then")

    assert done(2).then(lambda f: f.value() + 1).value() == 3
    assert done(2).then(lambda f: done(f.value() * 10)).value() == 20
    assert isinstance(done(2).then(explode).exception(), OwnError)
    assert isinstance(done(2).then(lambda _: failed(OwnError())).exception(), OwnError)
    assert failed(OwnError()).then(lambda _: "ignored").value() == "ignored"
    with pytest.raises(OwnError):
        failed(OwnError()).then(lambda f: f.value()).wait()


def test_then_of_a_pending_future_runs_where_it_is_completed() -> None:
    future: Future[int] = Future()
    where = future.then(lambda _: threading.get_ident())
    thread = start(lambda: future.set_result(1))
    assert where.wait() == thread.ident
    thread.join()


def test_then_flattens_a_pending_future() -> None:
    inner: Future[str] = Future()
    outer = done(1).then(lambda _: inner)
    assert not outer.done()
    inner.set_result("inner")
    assert outer.value() == "inner"


def test_callbacks_must_be_callable() -> None:
    with pytest.raises(TypeError, match="callable"):
        done(1).then(None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="callable"):
        done(1).add_done_callback(3)  # type: ignore[arg-type]


def test_errors_of_done_callbacks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    future: Future[int] = Future()
    heard = []
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda f: heard.append(f.value()))
    with caplog.at_level(logging.ERROR):
        future.set_result(4)
    assert heard == [4]
    assert "ZeroDivisionError" in caplog.text


def test_collect_all_waits_for_all_even_when_one_fails() -> None:
    first: Future[int] = Future()
    second: Future[int] = Future()
    both = collect_all([first, second])
    first.set_exception(ValueError("early"))
    assert not both.done()
    second.set_result(2)
    collected = both.value()
    assert collected == [first, second]
    assert collect_all([]).value() == []


def test_ctrl_c_at_the_end_of_the_time_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **options: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(gates.Gate, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wait_all([Future()], timeout=1e-9)


def test_wait_all_gives_values_in_order_or_the_first_error() -> None:
    first: Future[int] = Future()
    thread = start(lambda: first.set_result(1))
    assert wait_all([first, done(2)]) == [1, 2]
    thread.join()
    pending: Future[int] = Future()
    with pytest.raises(KeyError):
        wait_all([pending, failed(KeyError("x"))])
    with pytest.raises(CallTimeoutError, match="1 of 2 futures"):
        wait_all([pending, done(1)], timeout=0.001)
    assert wait_all([]) == []
    with pytest.raises(TypeError, match="item 0"):
        wait_all([3])  # type: ignore[arg-type]


def test_a_thunk_runs_once_in_the_thread_that_needs_it() -> None:
    ran: list[int] = []

    def thunk() -> int:
        ran.append(threading.get_ident())
        return 8

    future = completed_by(thunk)
    assert future.done()
    assert not ran
    threads = [start(future.value) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert future.value() == 8
    assert len(ran) == 1


def test_a_thunk_may_fail() -> None:
    def thunk() -> int:
        raise KeyError("gone")

    future = completed_by(thunk)
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            future.wait()


def test_what_it_stands_for_is_a_format_of_what_it_is_about() -> None:
    assert "Future of 100 %s, pending" in repr(new_future(None, "100 %s")).replace(":", ",")
    about = new_future(None, "the call of %s on %r", "m:f", "w1")
    with pytest.raises(RuntimeError, match=r"^the call of m:f on 'w1' is not done"):
        about.value()


def test_on_a_loop_of_telegrads() -> None:
    loop = LoopThread("test-loop").acquire()
    dispatched: list[Callable[[], None]] = []
    try:
        pending: Future[int] = Future()

        async def wait() -> None:
            pending.wait()

        with pytest.raises(BlockingCallError, match="await future"):
            loop.run(wait())

        made_by_agent = new_future(dispatched.append, "a reply")
        child = made_by_agent.then(lambda f: f.value() + 1)

        async def complete() -> None:
            made_by_agent.try_set_result(1)

        loop.run(complete())
        assert not child.done()  # its callback waits for the pool
        for callback in dispatched:
            callback()
        assert child.value() == 2
    finally:
        loop.release()


def test_no_copies() -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.copy(done(1))


def test_wait_all_that_ends_early_leaves_nothing_with_those_that_are_pending() -> None:
    failed: Future[int] = Future()
    pending: Future[int] = Future()
    failed.set_exception(KeyError("no"))

    def wait() -> None:
        with suppress(KeyError):
            wait_all([failed, pending])

    assert objects_left_by(wait, 20) < 20


def test_wait_all_hands_on_the_other_errors_whatever_the_first_is() -> None:
    late, other = failed(CallTimeoutError("a call's own", phase="serving")), failed(KeyError("no"))
    assert other._unread is not None
    with pytest.raises(CallTimeoutError, match="a call's own"):
        wait_all([late, other])
    assert other._unread is None


def test_a_cancelled_future_is_in_no_circle_with_its_error() -> None:
    future: Future[int] = Future()
    future.cancel()
    with pytest.raises(CallCancelledError):
        future.wait()
    kept = future.exception()
    assert kept is not None
    assert kept.__traceback__ is None


@pytest.mark.parametrize("main", [True, False])
def test_only_the_main_thread_wakes_for_signals_while_it_waits(
    main: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of threads that woke every second kept an interpreter busy."""
    monkeypatch.setattr(gates, "LONGEST_SLEEP", 0.01)
    naps: list[float] = []

    class Lock:
        def acquire(self, timeout: float = 0.0) -> bool:
            naps.append(timeout)
            return len(naps) == 20

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Lock", Lock)
        gate = gates.Gate()
    naps.clear()
    if main:
        assert gate.wait(1000.0)
        assert max(naps) == 0.01
    else:
        thread = start(lambda: gate.wait(1000.0))
        thread.join(20)
        assert naps[0] == 0.01
        assert min(naps[1:]) > 900.0


def test_many_threads_that_read_one_reply_get_its_value() -> None:
    """A thread that completed it could let them go before the value was decoded."""
    with short_switches():
        for _ in range(30):
            future = new_future(None, "a future")
            gate, found = threading.Barrier(9), list[object]()

            def read(future: Any = future, gate: Any = gate, found: Any = found) -> None:
                gate.wait()
                found.append(future.wait(20))

            threads = [threading.Thread(target=read) for _ in range(8)]
            for thread in threads:
                thread.start()
            gate.wait()
            complete_by(future, lambda: sum(range(20_000)))
            for thread in threads:
                thread.join()
            assert found == [sum(range(20_000))] * 8


@contextmanager
def short_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
