"""One heap of deadlines, ticked by the loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from telegrad.rpc.pool.deadlines import COMPACT_FROM, Deadlines
from telegrad.testing.leaks import wait_until_gone
from tests.rpc.future.plain_futures import objects_left_by


@contextmanager
def held_up(deadlines: Deadlines) -> Iterator[None]:
    """Has the loop tick nothing before the block is left: its moments may be over by then."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        leave.wait(20)

    deadlines.after(0.0, hold)
    assert entered.wait(20)
    try:
        yield
    finally:
        leave.set()


def test_in_order_whatever_the_order_of_entry(deadlines: Deadlines) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    now = time.monotonic()
    with held_up(deadlines):
        deadlines.at(now + 0.03, lambda: heard.put("late"))
        deadlines.at(now + 0.01, lambda: heard.put("early"))
    assert [heard.get(timeout=10), heard.get(timeout=10)] == ["early", "late"]


def test_cancelled_ones_are_not_called(deadlines: Deadlines) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    with held_up(deadlines):
        cancelled = deadlines.after(0.005, lambda: heard.put("cancelled"))
        cancelled.cancel()
        cancelled.cancel()
        deadlines.after(0.01, lambda: heard.put("kept"))
    assert heard.get(timeout=10) == "kept"
    deadlines.at(math.inf, lambda: heard.put("never")).cancel()


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_a_failing_callback_stops_no_other(
    deadlines: Deadlines, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """After a cancellation that one let through, no call met its deadline any more."""
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    def fail() -> None:
        raise error("it fails")

    with held_up(deadlines):
        deadlines.after(0.001, fail)
        deadlines.after(0.002, lambda: heard.put("same tick"))
    assert heard.get(timeout=10) == "same tick"
    deadlines.after(0.002, lambda: heard.put("later"))
    assert heard.get(timeout=10) == "later"
    wait_until_gone("silence", lambda: [] if error.__name__ in caplog.text else ["silence"], 10.0)


def test_cancelled_entries_do_not_pile_up(deadlines: Deadlines) -> None:
    each = objects_left_by(lambda: deadlines.after(60.0, lambda: None), 100) / 100
    left = objects_left_by(lambda: deadlines.after(60.0, lambda: None).cancel(), 10 * COMPACT_FROM)
    assert left <= (2 * COMPACT_FROM + 1) * each


def test_it_keeps_nothing_of_the_context_in_which_the_timer_was_armed(
    deadlines: Deadlines,
) -> None:
    """The timer arms the next one, and that the next: whoever began would be kept for ever."""

    class Held:
        pass

    variable: contextvars.ContextVar[Held] = contextvars.ContextVar("held")
    fired: queue.SimpleQueue[int] = queue.SimpleQueue()

    def arm() -> weakref.ref[Held]:
        held = Held()
        context = contextvars.Context()
        context.run(variable.set, held)
        context.run(deadlines.after, 0.001, lambda: fired.put(1))
        return weakref.ref(held)

    held = arm()
    deadlines.after(60.0, lambda: None)
    assert fired.get(timeout=20)
    deadlines.after(0.001, lambda: fired.put(2))
    assert fired.get(timeout=20)
    gc.collect()
    assert held() is None
