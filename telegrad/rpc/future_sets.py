"""Sets of futures: all of them, each as it is completed, or the first that succeed.

The futures may be of calls and plain ones in any mixture, and used from any thread or loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, final

from telegrad.errors import BlockingCallError, CallTimeoutError
from telegrad.rpc.blocking import Wait, check_not_inherited, comes_from
from telegrad.rpc.drive import drive_of, drive_on
from telegrad.rpc.future import Future, new_future
from telegrad.rpc.gate import Gate
from telegrad.rpc.listener import Listener, Waker
from telegrad.rpc.loop_waker import Arrival
from telegrad.rpc.race import Race, checked_k
from telegrad.rpc.timeouts import seconds
from telegrad.rpc.unread import origin_of_caller
from telegrad.transport import on_own_loop

__all__ = ["AsCompleted", "as_completed", "collect_all", "first_n", "wait_all"]

T = TypeVar("T")


def collect_all(futures: Iterable[Future[T]]) -> Future[list[Future[T]]]:
    """Returns a future of the list of `futures`, completed once all of them are, failed or not.

    Args:
        futures: What is waited for; whoever reads the list reads their errors.

    Raises:
        TypeError: One of them is no Future.
    """
    collected = _checked(futures, "collect_all")
    dispatch = next((f._dispatch for f in collected if f._dispatch is not None), None)
    result: Future[list[Future[T]]] = new_future(dispatch, f"collect_all of {len(collected)}")
    comes_from(result, tuple(collected))
    lock = threading.Lock()
    missing = len(collected)

    def count() -> None:
        nonlocal missing
        with lock:
            missing -= 1
            complete = missing == 0
        if complete:
            result.try_set_result(collected)

    for future in collected:
        future.hand_on()
        future.call_when_done(count)
    if not collected:
        result.set_result(collected)
    return result


def wait_all(futures: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Blocks until all futures are completed and returns their values, in order.

    Args:
        futures: What is waited for.
        timeout: Seconds for all of them together; None waits until they are completed.

    Raises:
        CallTimeoutError: Some were not completed in time.
        WaitCycleError: What completes one of them waits for this very wait.
        BlockingCallError: On an event loop that telegrad runs.
        TypeError: One of them is no Future.
        BaseException: The error of the first future that fails, as soon as it fails.
    """
    limit = seconds(timeout, math.inf)
    waited = _checked(futures, "wait_all")
    if on_own_loop() and not all(future.done() for future in waited):
        raise BlockingCallError(
            "wait_all() would block a loop of telegrad's; write `await rpc.collect_all(futures)`"
        )
    gate = Gate()
    countdown = _Countdown(len(waited), gate)
    told: list[tuple[Future[T], Waker]] = []  # of many that are waited for some are done by now
    for future in waited:
        if future.done():
            countdown.tell(future)
        else:
            told.append((future, partial(countdown.tell, future)))
            future.call_when_done(told[-1][1])
    started, late = time.monotonic(), False
    try:
        drive = drive_of(tuple(waited))
        late = not gate.wait(limit, *waited, drive=drive) and countdown.left > 0
        if late:
            raise _not_all(waited, countdown.left, time.monotonic() - started)
        if countdown.failed is not None:
            countdown.failed.value()
        return [future.value() for future in waited]
    except BaseException:
        for future, tell in told:
            future._forget(tell)
        if not late:
            for future in waited:
                future.hand_on()  # one error stands for all
        raise


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> AsCompleted[T]:
    """Returns an iterator over futures in the order in which they are completed, failed or not.

    Plain (`for`) and asynchronous (`async for`), from any thread or loop; several may share one.

    Args:
        futures: One that occurs twice comes twice.
        timeout: Seconds from now for all of them together; None waits until they are completed.

    Raises:
        TypeError: One of them is no Future. While it iterates: CallTimeoutError when they are not
            completed in time, and BlockingCallError where `for` would block a loop that telegrad
            runs.

    Example:
        >>> first, second = Future(), Future()
        >>> second.set_result("second"), first.set_result("first")
        (None, None)
        >>> [future.value() for future in as_completed([first, second])]
        ['first', 'second']
    """
    return AsCompleted(_checked(futures, "as_completed"), seconds(timeout, math.inf))


def first_n(futures: Iterable[Future[T]], k: int) -> Future[list[Future[T]]]:
    """Returns a future of the first `k` of `futures` that succeed, in the order in which they do.

    The others are left alone. An error of one that was not needed is nobody's.

    Args:
        futures: Of calls, or plain ones.
        k: From 0 to the number of futures.

    Returns:
        It fails with NotEnoughResultsError as soon as fewer than `k` can succeed.

    Raises:
        TypeError: One of them is no Future, or `k` no integer.
        ValueError: `k` is negative, or more than there are futures.

    Example:
        >>> slow, fast = Future(), Future()
        >>> fast.set_result("fast")
        >>> first_n([slow, fast], 1).wait() == [fast]
        True
    """
    raced = _checked(futures, "first_n")
    result = Race(raced, checked_k(k, len(raced)), f"first_n of {len(raced)}").start()
    comes_from(result, Wait(tuple(raced)))
    origin = origin_of_caller(sys._getframe(1))
    if origin is not None:
        result.watch(origin, None)
    return result


@final
class AsCompleted(Generic[T]):
    """What `as_completed` returns.

    Args:
        futures: What is waited for.
        limit: Seconds for all of them.
    """

    __slots__ = ("_arrivals", "_futures", "_limit", "_started")

    def __init__(self, futures: list[Future[T]], limit: float) -> None:
        self._arrivals = _Arrivals()
        self._futures: dict[int, Future[T]] = dict(enumerate(futures))  # guarded by its lock
        self._limit = limit
        self._started = time.monotonic()
        for place, future in enumerate(futures):
            future.call_when_done(_Arrival(self._arrivals, place))

    def __iter__(self) -> Iterator[Future[T]]:
        return self

    def __aiter__(self) -> AsyncIterator[Future[T]]:
        return self

    def __next__(self) -> Future[T]:
        """Blocks until the next one is completed; see `as_completed`."""
        while self._futures:
            gate = Gate()
            found = self._take(gate.open)
            if found is not None:
                return found
            check_not_inherited(self._futures.values())
            if on_own_loop():
                self._forget(gate.open)
                raise BlockingCallError(
                    "as_completed() would block a loop of telegrad's; write "
                    "`async for future in rpc.as_completed(futures)`"
                )
            try:
                left = max(self._seconds_left(), 0.0)
                drive = drive_of(self._next_source())
                if not gate.wait(left, first_of=self._futures.values(), drive=drive):
                    raise self._too_late()
            except BaseException:
                self._forget(gate.open)
                raise
        raise StopIteration

    async def __anext__(self) -> Future[T]:
        """Waits on the running asyncio loop, whichever that is."""
        loop = asyncio.get_running_loop()
        while self._futures:
            awakened = Arrival(loop, self._futures.values())
            found = self._take(awakened.arrive)
            if found is not None:
                return found
            check_not_inherited(self._futures.values())
            left = self._seconds_left()
            ends = drive_on(loop, self._next_source())
            try:
                async with asyncio.timeout(None if left == math.inf else left):
                    await awakened
            except TimeoutError:
                raise self._too_late() from None
            finally:
                for end in ends:
                    end()
                self._forget(awakened.arrive)
        raise StopAsyncIteration

    def __del__(self) -> None:
        self._arrivals.gone = True

    def _take(self, wake: Waker) -> Future[T] | None:
        """Returns one that is completed; else None.

        Then `wake` is called once there is one, or none is left.
        """
        arrivals, found = self._arrivals, None
        sleepers: list[Waker] = []
        with arrivals.lock:
            if arrivals.places:
                found = self._futures.pop(arrivals.places.popleft())
            else:
                arrivals.sleepers.append(wake)
            if not self._futures:  # nothing will come for those who share this, or for this one
                sleepers, arrivals.sleepers = arrivals.sleepers, []
        for each in sleepers:
            each()
        return found

    def _forget(self, wake: Waker) -> None:
        with self._arrivals.lock, contextlib.suppress(ValueError):
            self._arrivals.sleepers.remove(wake)

    def _next_source(self) -> object:
        """Returns that of the first one that is not completed: to look at all takes long."""
        with self._arrivals.lock:
            return next((f._source for f in self._futures.values() if not f.done()), None)

    def _seconds_left(self) -> float:
        return self._limit - (time.monotonic() - self._started)

    def _too_late(self) -> CallTimeoutError:
        elapsed = time.monotonic() - self._started
        with self._arrivals.lock:
            pending = [future for future in self._futures.values() if not future.done()]
        among = f", among them {pending[0]._label}" if pending else ""
        return CallTimeoutError(
            f"{len(pending)} futures were not done {elapsed:.3g} s after as_completed(){among}; "
            "they go on",
            phase="waiting",
            elapsed=elapsed,
        )


@final
class _Arrivals:
    """What an iterator is told, apart from its futures: they refer to this, and not in a circle.

    Attributes:
        lock: Guards `places` and `sleepers`.
        places: Of futures that are completed and were not taken, in order.
        sleepers: Who wants to hear of the next one.
        gone: Whether the iterator is garbage, or will be soon.
    """

    __slots__ = ("gone", "lock", "places", "sleepers")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.places: deque[int] = deque()
        self.sleepers: list[Waker] = []
        self.gone = False


@final
class _Arrival(Listener):
    """Announces one future to an iterator."""

    __slots__ = ("_arrivals", "_place")

    def __init__(self, arrivals: _Arrivals, place: int) -> None:
        self._arrivals = arrivals
        self._place = place

    def __call__(self) -> None:
        arrivals = self._arrivals
        with arrivals.lock:
            arrivals.places.append(self._place)
            sleepers, arrivals.sleepers = arrivals.sleepers, []
        for wake in sleepers:
            wake()

    @property
    def stale(self) -> bool:
        """Whether the iterator is gone."""
        return self._arrivals.gone


@final
class _Countdown:
    """Opens a gate: when all futures are completed, or the first of them has failed.

    Attributes:
        left: How many are not completed.
        failed: The first that is known to have failed.
    """

    __slots__ = ("_gate", "_lock", "failed", "left")

    def __init__(self, count: int, gate: Gate) -> None:
        self._lock = threading.Lock()
        self._gate = gate
        self.left = count
        self.failed: Future[Any] | None = None
        if not count:
            gate.open()

    def tell(self, future: Future[Any]) -> None:
        """Hears that one is completed; from any thread."""
        with self._lock:
            self.left -= 1
            first = self.failed is None
            if first and future.failed:
                self.failed = future
            over = first and (self.failed is not None or not self.left)
        if over:
            self._gate.open()


def _not_all(waited: Sequence[Future[Any]], left: int, elapsed: float) -> CallTimeoutError:
    missing = next((future._label for future in waited if not future.done()), "none any more")
    return CallTimeoutError(
        f"{left} of {len(waited)} futures were not done after {elapsed:.3g} s "
        f"of wait_all(), among them {missing}",
        phase="waiting",
        elapsed=elapsed,
    )


def _checked(futures: Iterable[Future[T]], verb: str) -> list[Future[T]]:
    given: object = futures
    if isinstance(given, Future):
        raise TypeError(f"{verb} takes several futures, not one; write [future]")
    checked = list(futures)
    for place, future in enumerate(checked):
        if not isinstance(future, Future):
            raise TypeError(f"{verb} takes futures, but item {place} is {future!r}")
    return checked
