"""Futures: made anywhere, used from any thread, awaited from any event loop.

A future that an agent makes may be completed with a *thunk*: the reply as it arrived, decoded once
by whichever thread first needs the value. So the loop thread never touches array bytes.

    pending ──▶ value
       │  └───▶ error
       └──▶ thunk ──▶ resolving ──▶ value | error        (`done()` from `thunk` on)
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast, final, overload

from telegrad.errors import BlockingCallError, CallTimeoutError
from telegrad.rpc.blocking import blocking_in_pool
from telegrad.rpc.fresh import fresh_copy, without_frames
from telegrad.rpc.timeouts import seconds
from telegrad.transport import on_own_loop
from telegrad.wire import register_refusal

__all__ = ["Dispatch", "Future", "collect_all", "new_future", "wait_all"]

T = TypeVar("T")
U = TypeVar("U")
Dispatch = Callable[[Callable[[], None]], None]

_logger = logging.getLogger(__name__)

UNNAMED = "a future"

_PENDING, _THUNK, _RESOLVING, _VALUE, _ERROR = range(5)


@final
class Future(Generic[T]):
    """A value that will be there later.

    Callbacks run in the user's thread that completes the future, else in the agent's pool, never
    on a loop of telegrad's; each in a copy of the `contextvars.Context` that added it.

    Example:
        >>> future = Future()
        >>> doubled = future.then(lambda done: 2 * done.value())
        >>> future.set_result(21)
        >>> doubled.wait()
        42
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_dispatch",
        "_error",
        "_label",
        "_lock",
        "_made",
        "_raised",
        "_resolved",
        "_state",
        "_thunk",
        "_value",
        "_wakers",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = _PENDING
        self._value: T | None = None
        self._error: BaseException | None = None
        self._raised = False
        self._thunk: Callable[[], T] | None = None
        self._resolved: threading.Event | None = None
        self._wakers: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._dispatch: Dispatch | None = None
        self._label = UNNAMED
        self._made = time.monotonic()

    def done(self) -> bool:
        """Tells whether it was completed, with a value or an error."""
        return self._state != _PENDING

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until it is completed and returns its value; may be called any number of times.

        Args:
            timeout: Seconds above 0; None and `math.inf` wait until it is completed. A call's
                future is completed at the call's own deadline at the latest.

        Raises:
            CallTimeoutError: It was not completed in time; it may be later.
            BlockingCallError: On an event loop that telegrad runs, while it is not done.
            BaseException: Whatever it was completed with.
        """
        limit = seconds(timeout, math.inf)
        if self._state == _PENDING:
            if on_own_loop():
                raise BlockingCallError(
                    f"wait() for {self._label} would block a loop of telegrad's; "
                    "write `await future` in an async def function"
                )
            self._block(limit)
        return self.value()

    def value(self) -> T:
        """Returns the value of a completed future, or raises its error; never blocks.

        Raises:
            RuntimeError: It is not done.
            BaseException: Whatever it was completed with.
        """
        state = self._settle()
        if state == _VALUE:
            return cast("T", self._value)
        raise self._fresh_error()

    def exception(self) -> BaseException | None:
        """Returns the error of a completed future, None when it has a value.

        Raises:
            RuntimeError: It is not done.
        """
        self._settle()
        return self._error

    def set_result(self, value: T) -> None:
        """Completes it with a value; a reply that it stands for is encoded before this returns.

        Raises:
            RuntimeError: It was completed before; its value stays.
        """
        if not self._complete(_VALUE, value=value):
            raise RuntimeError(self._completed_twice("set_result"))

    def set_exception(self, error: BaseException) -> None:
        """Completes it with an error, which keeps its class across `then` and across workers.

        Raises:
            TypeError: `error` is not an exception instance.
            RuntimeError: It was completed before; its value stays.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"set_exception takes an exception instance, not {error!r}")
        if not self._complete(_ERROR, error=error):
            raise RuntimeError(self._completed_twice("set_exception"))

    @overload
    def then(self, callback: Callable[[Future[T]], Future[U]]) -> Future[U]: ...
    @overload
    def then(self, callback: Callable[[Future[T]], U]) -> Future[U]: ...
    def then(self, callback: Callable[[Future[T]], Any]) -> Future[Any]:
        """Returns a future of what `callback(self)` returns, once this one is completed.

        A future that the callback returns is flattened; an exception that it raises becomes the
        error, of its own class. When this future is done the callback runs at once, here.

        Raises:
            TypeError: `callback` is not callable.
        """
        _check_callback(callback)
        child: Future[Any] = new_future(self._dispatch, f"then() of {self._label}")

        def run() -> None:
            try:
                outcome = callback(self)
            except BaseException as error:
                child.try_set_exception(error)
                return
            if isinstance(outcome, Future):
                outcome._follow(child)
            else:
                child.try_set_result(outcome)

        self._subscribe(run)
        return child

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Runs `callback(self)` once it is completed; what the callback raises is logged.

        Raises:
            TypeError: `callback` is not callable.
        """
        _check_callback(callback)

        def run() -> None:
            try:
                callback(self)
            except Exception:
                _logger.exception("a done callback of %s failed: %r", self._label, callback)

        self._subscribe(run)

    def __await__(self) -> Generator[Any, None, T]:
        """Waits on the running asyncio loop, whichever that is."""
        if self._state == _PENDING:
            loop = asyncio.get_running_loop()
            arrived = loop.create_future()

            def wake() -> None:
                with contextlib.suppress(RuntimeError):  # the awaiting loop was closed meanwhile
                    loop.call_soon_threadsafe(_set_if_waiting, arrived)

            self.call_when_done(wake)
            try:
                yield from arrived
            finally:
                self._forget(wake)
        return self.value()

    def __repr__(self) -> str:
        """Says what it stands for, how far it is, and how old."""
        state = ("pending", "done, not decoded", "done, not decoded", "done", "failed")[self._state]
        if self._state >= _VALUE:
            state += f" ({type(self._value if self._state == _VALUE else self._error).__name__})"
        what = "Future" if self._label == UNNAMED else f"Future of {self._label}"
        return f"<{what}: {state}, {self.age:.1f} s old>"

    def __reduce__(self) -> Any:
        raise TypeError("a Future cannot be pickled or copied; wait() for its value")

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._made

    # For the library: completion that may lose a race, and wakers that run on any thread.

    def try_set_result(self, value: T) -> bool:
        """Completes it unless it is completed; tells whether it did. For the library."""
        return self._complete(_VALUE, value=value)

    def try_set_exception(self, error: BaseException) -> bool:
        """Completes it unless it is completed; tells whether it did. For the library."""
        self._raised = True  # only copies are: by its frames a raised one refers to this future
        return self._complete(_ERROR, error=error)

    def try_set_thunk(self, thunk: Callable[[], T]) -> bool:
        """Completes it with a value that the first thread in need of it computes. For the library."""
        return self._complete(_THUNK, thunk=thunk)

    def call_when_done(self, waker: Callable[[], None]) -> None:
        """Calls `waker` in whichever thread completes it, a loop included. For the library.

        The waker must not block, raise or look at the value.
        """
        with self._lock:
            if self._state == _PENDING:
                self._wakers.append(waker)
                return
        waker()

    def _forget(self, waker: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._wakers.remove(waker)

    def _block(self, limit: float) -> None:
        started = time.monotonic()
        gate = threading.Lock()
        gate.acquire()
        waker = gate.release
        self.call_when_done(waker)
        with blocking_in_pool():
            arrived = gate.acquire(timeout=-1 if limit > threading.TIMEOUT_MAX else limit)
        if not arrived:
            self._forget(waker)
            elapsed = time.monotonic() - started
            raise CallTimeoutError(
                f"{self._label} was not done after {elapsed:.3g} s of wait(); "
                "it goes on, and may be waited for again",
                phase="waiting",
                elapsed=elapsed,
            )

    def _complete(
        self,
        state: int,
        *,
        value: T | None = None,
        error: BaseException | None = None,
        thunk: Callable[[], T] | None = None,
    ) -> bool:
        with self._lock:
            if self._state != _PENDING:
                return False
            self._value, self._error, self._thunk = value, error, thunk
            self._state = state
            wakers, self._wakers = self._wakers, []
            callbacks, self._callbacks = self._callbacks, []
        for waker in wakers:
            waker()
        for callback in callbacks:
            self._run(callback)
        return True

    def _settle(self) -> int:
        """Runs the thunk if nobody did, and returns the final state."""
        if self._state >= _VALUE:
            return self._state
        with self._lock:
            if self._state == _PENDING:
                raise RuntimeError(f"{self._label} is not done; wait() for it or await it")
            thunk, self._thunk = self._thunk, None
            if self._state == _THUNK:
                self._state = _RESOLVING
                self._resolved = threading.Event()
            resolved = self._resolved
        if thunk is None:
            if resolved is not None:
                resolved.wait()  # another thread decodes at this moment
            return self._state
        self._resolve(thunk)
        return self._state

    def _resolve(self, thunk: Callable[[], T]) -> None:
        try:
            self._value = thunk()
        except BaseException as error:
            self._error = without_frames(error)
            self._raised = True
            self._state = _ERROR
        else:
            self._state = _VALUE
        finally:
            resolved = self._resolved
            if resolved is not None:
                resolved.set()

    def _fresh_error(self) -> BaseException:
        """Each raise has an exception of its own, since a raise writes into its traceback."""
        error = self._error
        assert error is not None
        with self._lock:
            first, self._raised = not self._raised, True
        return error if first else fresh_copy(error).with_traceback(error.__traceback__)

    def _subscribe(self, run: Callable[[], None]) -> None:
        context = contextvars.copy_context()

        def callback() -> None:
            context.run(run)

        with self._lock:
            if self._state == _PENDING:
                self._callbacks.append(callback)
                return
        self._run(callback)

    def _run(self, callback: Callable[[], None]) -> None:
        if self._dispatch is not None and on_own_loop():
            self._dispatch(callback)
        else:
            callback()

    def _follow(self, child: Future[Any]) -> None:
        """Completes `child` with the outcome of this one."""

        def hand_on() -> None:
            error = self.exception()
            if error is None:
                child.try_set_result(self._value)
            else:
                child.try_set_exception(error)

        self._subscribe(hand_on)

    def _completed_twice(self, verb: str) -> str:
        return f"{verb}() on {self._label}, which is completed already; a future is completed once"


def new_future(dispatch: Dispatch | None, label: str) -> Future[Any]:
    """Returns a future that the library completes.

    Args:
        dispatch: Runs callbacks in the pool when it is completed on a loop of telegrad's.
        label: What it stands for, in errors.
    """
    future: Future[Any] = Future()
    future._dispatch = dispatch
    future._label = label
    return future


def collect_all(futures: Iterable[Future[T]]) -> Future[list[Future[T]]]:
    """Returns a future of the list of `futures`, completed once all of them are, failed or not."""
    collected = _checked(futures, "collect_all")
    dispatch = next((f._dispatch for f in collected if f._dispatch is not None), None)
    result: Future[list[Future[T]]] = new_future(dispatch, f"collect_all of {len(collected)}")
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
        BlockingCallError: On an event loop that telegrad runs.
        BaseException: The error of the first future that fails, as soon as it fails.
    """
    limit = seconds(timeout, math.inf)
    waited = _checked(futures, "wait_all")
    if on_own_loop() and not all(future.done() for future in waited):
        raise BlockingCallError(
            "wait_all() would block a loop of telegrad's; write `await rpc.collect_all(futures)`"
        )
    arrivals: SimpleQueue[int] = SimpleQueue()
    announcers = [_announcer(arrivals, place) for place in range(len(waited))]
    for future, announce in zip(waited, announcers, strict=True):
        future.call_when_done(announce)
    started = time.monotonic()
    try:
        with blocking_in_pool():
            for arrived in range(len(waited)):
                left = limit - (time.monotonic() - started)
                try:
                    place = arrivals.get(timeout=_queue_timeout(left))
                except Empty:
                    raise _not_all(waited, arrived, time.monotonic() - started) from None
                waited[place].value()
    except BaseException:
        for future, announce in zip(waited, announcers, strict=True):
            future._forget(announce)
        raise
    return [future.value() for future in waited]


def _announcer(arrivals: SimpleQueue[int], place: int) -> Callable[[], None]:
    return lambda: arrivals.put(place)


def _queue_timeout(left: float) -> float | None:
    return None if left > threading.TIMEOUT_MAX else max(left, 0.0)


def _not_all(waited: Sequence[Future[Any]], arrived: int, elapsed: float) -> CallTimeoutError:
    missing = next(future._label for future in waited if not future.done())
    return CallTimeoutError(
        f"{len(waited) - arrived} of {len(waited)} futures were not done after {elapsed:.3g} s "
        f"of wait_all(), among them {missing}",
        phase="waiting",
        elapsed=elapsed,
    )


def _checked(futures: Iterable[Future[T]], verb: str) -> list[Future[T]]:
    checked = list(futures)
    for place, future in enumerate(checked):
        if not isinstance(future, Future):
            raise TypeError(f"{verb} takes futures, but item {place} is {future!r}")
    return checked


def _check_callback(callback: object) -> None:
    if not callable(callback):
        raise TypeError(f"a callback must be callable, not {callback!r}")


def _set_if_waiting(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


register_refusal(
    Future,
    "a Future does not travel; mark the function that returns it with "
    "rpc.functions.async_execution, and its value is the reply",
)
