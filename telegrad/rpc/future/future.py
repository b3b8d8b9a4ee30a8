"""Futures: made anywhere, used from any thread, awaited from any event loop.

A future that an agent makes may be completed with a *thunk*: the reply as it arrived, decoded once
by the first thread that needs the value. So the loop thread never touches array bytes.

    pending ──▶ value
       │  ├───▶ error
       │  └───▶ cancelled
       └──▶ thunk ──▶ resolving ──▶ value | error        (`done()` from `thunk` on)

asyncio's functions take it for a future of their own while a loop runs (`asyncio.isfuture`): they
ask for `get_loop`, `result`, `cancelled` and `remove_done_callback`, which are here for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import sys
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import CodeType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast, final, overload

from telegrad.critical import INTERRUPTING, critical, in_section
from telegrad.errors import BlockingCallError, CallCancelledError, InvalidUseError
from telegrad.rpc.base.ambient import find_agent, forked_at
from telegrad.rpc.base.contained import Contained
from telegrad.rpc.base.failure import fresh_copy, without_frames
from telegrad.rpc.base.frames import cut_own_frames, users_frames
from telegrad.rpc.base.limits import not_done, seconds
from telegrad.rpc.future.awaited_future import AwaitedFuture
from telegrad.rpc.future.gate import Gate
from telegrad.rpc.future.reads import reads_of
from telegrad.rpc.future.unread import (
    Origin,
    Report,
    Reports,
    origin_of_caller,
    reports_of,
)
from telegrad.rpc.future.waits import (
    Awaited,
    Dispatch,
    check_not_inherited,
    comes_from,
    pool_thread,
)
from telegrad.transport import (
    MAIN,
    Shield,
    barred,
    get_logger,
    handing,
    hands_over,
    put_off,
    refuse_to_block,
)

# -- wakers that may lose their purpose before the future that they wait for is completed --------

Waker: TypeAlias = Callable[[], None]
T = TypeVar("T")

MANY_WAKERS = 64  # from so many on, stale ones are looked for; fewer are not worth a look


class Combination(Protocol):
    """Several futures, of which it hears; it may be over before they are all completed."""

    over: bool  # True if it wants to hear no more, or is gone


@final
class Listener(partial[None]):
    """Calls `combination.hear(place)` when a future is completed: `Listener(hear, place)`.

    `hear` must not block, raise or look at the value.
    """

    @property
    def stale(self) -> bool:
        """True if the combination is over."""
        owner: Combination = self.func.__self__  # type: ignore[attr-defined]
        return owner.over


def drop_stale(wakers: list[Waker]) -> None:
    """Removes the stale ones of many wakers of a future whenever their number has doubled."""
    if len(wakers) & (len(wakers) - 1):
        return
    for each in list(wakers):
        if isinstance(each, Listener) and each.stale:
            take_out(wakers, each)


def take_out(entries: list[Any], entry: object) -> bool:
    """Removes an entry of a list; returns False if another thread has taken it."""
    try:
        entries.remove(entry)
    except ValueError:
        return False
    return True


def take_last(entries: list[T]) -> Iterator[T]:
    """Takes all entries of a list, the last one first; other threads may take some of them."""
    while entries:
        try:
            yield entries.pop()
        except IndexError:
            return


def check_callback(callback: object) -> None:
    """Checks a callback that a user gives.

    Raises:
        TypeError: The callback is not callable.
    """
    if not callable(callback):
        raise TypeError(f"a callback must be callable, not {callback!r}")


# ------------------------------------------------------------------------------------------------

U = TypeVar("U")

_logger = get_logger(__name__)

UNNAMED = "a future"
AWAIT = "write `await future` in an async def function"
STATES = ("pending", "done, not decoded", "done, not decoded", "done", "failed", "cancelled")

_EMPTY: Final = cast("list[Any]", ())  # in place of a list, in a future that needs none
_TAKEN: Final[list[bool]] = []  # of all completed futures; nothing is ever put into it

_PENDING, _THUNK, _RESOLVING, _VALUE, _ERROR, _CANCELLED = range(6)


@final
class _DoneCallback:
    """A done callback of a user's, run with its future; its exceptions are logged."""

    __slots__ = ("_future", "callback")

    def __init__(self, future: Future[Any], callback: Callable[[Any], object]) -> None:
        self._future = future
        self.callback = callback

    def __call__(self) -> None:
        label = self._future._label
        with Contained(_logger, "a done callback of %s failed: %r", label, self.callback):
            self.callback(self._future)


@final
class Future(Awaited, Generic[T]):
    """A value that will be there later.

    A done callback that was added on a running event loop runs on that loop. All other callbacks
    run in the user's thread that completes the future, else in the agent's pool, never on a loop
    of telegrad's. Each runs in a copy of the `contextvars.Context` that added it.

    On a running loop asyncio's functions (`wait`, `wait_for`, `gather`, `shield`, `as_completed`,
    `ensure_future`, `wrap_future`) take it as they take a future of that loop.

    Example:
        >>> future = Future()
        >>> doubled = future.then(lambda done: 2 * done.value())
        >>> future.set_result(21)
        >>> doubled.wait()
        42
    """

    # fmt: off
    __slots__ = (
        "__weakref__", "_about", "_callbacks", "_error", "_fails", "_instruction",
        "_on_cancel", "_readers", "_reports", "_resolver", "_state", "_thunk", "_undone", "_unread",
        "_value", "_wakers", "_words",
    )
    # fmt: on

    def __init__(self) -> None:
        self._begin(None, UNNAMED, ())
        # The library reads the errors of its own.
        origin = origin_of_caller(sys._getframe(1))
        self._unread: CodeType | None = None if origin is None else origin.code
        self._instruction = 0 if origin is None else origin.instruction

    def _begin(
        self,
        dispatch: Dispatch | None,
        words: str,
        about: tuple[object, ...],
        call: Callable[[], object] | None = None,
    ) -> None:
        self._undone = [True]  # emptied by the thread that completes it
        self._state = _PENDING
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thunk: list[Callable[[], T]] = _EMPTY  # taken by the thread that decodes
        self._fails = False  # True if the thunk will raise
        # The place where it was made, until its error is read or handed on, in two attributes: the
        # collector counts each tuple that is alive.
        self._unread, self._instruction = None, 0
        self._reports: Reports | None = None
        self._resolver = 0  # the thread that decodes
        self._readers: list[Waker] = _EMPTY  # of threads that wait for that one
        self._source: object = call  # the source that will complete it; see `comes_from`
        self._wakers: list[Waker] = []
        self._callbacks: list[Callable[[], None]] = []
        self._dispatch = dispatch
        self._on_cancel = call  # the function that `cancel()` calls, while it is pending
        self._words, self._about = words, about
        self._made = time.monotonic()

    def done(self) -> bool:
        """Returns True if it was completed, with a value or an error."""
        return self._state != _PENDING

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until it is completed and returns its value; may be called any number of times.

        An exception of a signal handler (Ctrl-C, an alarm's) ends the wait and leaves the future
        pending.

        Args:
            timeout: Seconds above 0; None and `math.inf` wait until it is completed. A call's
                future is completed at the call's own deadline at the latest.

        Raises:
            CallTimeoutError: It was not completed in time; it may be later.
            WaitCycleError: The source that completes it waits for this very wait.
            BlockingCallError: On an event loop that telegrad runs, while it is not done.
            BaseException: The error with which it was completed.
        """
        limit = math.inf if timeout is None else seconds(timeout, math.inf)
        if self._state == _PENDING:
            if barred():
                refuse_to_block(f"wait() for {self._label}", AWAIT)
            started = time.monotonic()
            try:
                if not self._block(limit):
                    raise not_done(self._label, time.monotonic() - started)
            except BaseException as error:
                cut_own_frames(error)
                raise
        if self._state != _VALUE and not self._has_value():
            raise self._fresh_error()
        self._unread = None
        return self._value  # type: ignore[return-value]  # None too where that is a T

    def value(self) -> T:
        """Returns the value of a completed future, or raises its error; never blocks.

        Raises:
            InvalidUseError: It is not done.
            BaseException: The error with which it was completed.
        """
        if self._has_value():
            return self._value  # type: ignore[return-value]
        raise self._fresh_error()

    def exception(self) -> BaseException | None:
        """Returns the error of a completed future, None when it has a value.

        On a running event loop each caller gets a copy: asyncio's functions raise it.

        Raises:
            InvalidUseError: It is not done.
        """
        if self._has_value() or _get_running_loop() is None:
            return self._error
        return self._fresh_error()

    def set_result(self, value: T) -> None:
        """Completes it with a value; a reply that it stands for is encoded before this returns.

        Args:
            value: Anything; it is not copied.

        Raises:
            InvalidUseError: It was completed before; its value stays.
        """
        if not self._complete(_VALUE, value=value):
            raise InvalidUseError(self._completed_twice("set_result"))

    def set_exception(self, error: BaseException) -> None:
        """Completes it with an error, which keeps its class across `then` and across workers.

        Args:
            error: An exception instance, not a class.

        Raises:
            TypeError: `error` is not an exception instance.
            InvalidUseError: It was completed before; its value stays.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"set_exception takes an exception instance, not {error!r}")
        if not self._complete(_ERROR, error=error):
            raise InvalidUseError(self._completed_twice("set_exception"))

    def cancel(self, msg: object = None) -> bool:
        """Completes it with `CallCancelledError`, unless it is completed; returns True if it did.

        A call that was not sent yet is withdrawn. Otherwise the callee is told: it cancels the
        coroutine, or marks the call that a thread runs (`rpc.current_call`), and cancels the waits
        of that thread. Its value, if there will be one, is dropped. Cancelling the future of `then`
        spares its callback, and cancels nothing that comes before it. Never blocks.

        Args:
            msg: The reason, for the error; None gives none.
        """
        self._unread = None  # the caller of `cancel` knows of it
        why = "" if msg is None else f": {msg}"
        error = CallCancelledError(f"{self._label} was cancelled{why}")
        return self._complete(_CANCELLED, error=error)

    def cancelled(self) -> bool:
        """Returns True if `cancel` completed it."""
        return self._state == _CANCELLED

    @overload
    def then(self, callback: Callable[[Future[T]], Future[U]]) -> Future[U]: ...
    @overload
    def then(self, callback: Callable[[Future[T]], U]) -> Future[U]: ...
    def then(self, callback: Callable[[Future[T]], Any]) -> Future[Any]:
        """Returns a future of the value of `callback(self)`, which runs once this one is completed.

        A future that the callback returns is flattened; an exception that it raises becomes the
        error, of its own class. When this future is done the callback runs at once, here.

        Args:
            callback: Takes this future, completed; its `value()` raises where that failed.

        Raises:
            TypeError: `callback` is not callable.
        """
        check_callback(callback)
        child: Future[Any] = new_future(self._dispatch, f"then() of {self._label}")
        if (origin := origin_of_caller(sys._getframe(1))) is not None:
            child._unread, child._instruction = origin
        child._reports = self._reports
        self._unread = None
        comes_from(child, self)

        def run() -> None:
            if child.done():  # cancelled
                return
            comes_from(child, pool_thread())
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
        """Runs `callback(self)` once it is completed; exceptions of the callback are logged.

        Where an event loop runs in this thread, the callback runs on that loop, in a later turn; it
        does not run if the loop is closed before. `then` is for work that needs no loop.

        Args:
            callback: Takes this future, completed; its value is dropped.

        Raises:
            TypeError: `callback` is not callable.
            AgentForkedError: An agent of the parent of this process made it.
        """
        check_callback(callback)
        loop = _get_running_loop()
        if loop is None:
            self._when_done(callback)
            return
        if forked_at():
            check_not_inherited((self,))
        run, arrived = _DoneCallback(self, callback), AwaitedFuture(loop, self, callback)
        arrived.add_done_callback(lambda _: run())
        self._call_when_done(arrived)

    def remove_done_callback(self, callback: Callable[[Future[T]], object]) -> int:
        """Forgets a done callback, unless the future is done; returns how often it was added."""

        def is_other(each: object) -> bool:
            own = each.args[0] if isinstance(each, partial) else each
            return not (isinstance(own, _DoneCallback | AwaitedFuture) and own.callback == callback)

        wakers, callbacks = self._wakers, self._callbacks
        removed = [take_out(wakers, each) for each in list(wakers) if not is_other(each)]
        removed += [take_out(callbacks, each) for each in list(callbacks) if not is_other(each)]
        return sum(removed)

    def __await__(self) -> Generator[Any, None, T]:
        """Waits on the asyncio loop that runs in this thread.

        Cancelling the task that waits here cancels this future; `asyncio.shield` prevents that.
        """
        if self._state == _PENDING:
            loop = asyncio.get_running_loop()
            if forked_at():
                check_not_inherited((self,))
            arrived = AwaitedFuture(loop, self)
            self._call_when_done(arrived)
            reads = reads_of(self._source)
            end = None if reads is None else reads.await_on(loop)
            try:
                yield from arrived
            except asyncio.CancelledError:
                self.cancel(
                    "a task that awaited it was cancelled; to cancel the wait alone, await "
                    "asyncio.shield(future)"
                )
                raise
            finally:
                if end is not None:
                    end()
                if self._state == _PENDING:
                    self._forget(arrived)
        elif self._state >= _ERROR:
            # It may have failed because the call that this task serves was cancelled. The loop has
            # yet to cancel the task, whose code is to see its own cancellation.
            yield
        if self._has_value():
            return self._value  # type: ignore[return-value]
        raise self._fresh_error()  # here, not in `value`: one frame

    def __repr__(self) -> str:
        """Returns its label, its state, and its age."""
        state = STATES[self._state]
        if _VALUE <= self._state <= _ERROR:
            state += f" ({type(self._value if self._state == _VALUE else self._error).__name__})"
        what = "Future" if self._label == UNNAMED else f"Future of {self._label}"
        return f"<{what}: {state}, {self.age:.1f} s old>"

    def __reduce__(self) -> Any:
        raise TypeError("a Future cannot be pickled or copied; wait() for its value")

    @property
    def age(self) -> float:
        """The seconds since it was made."""
        return time.monotonic() - self._made

    def try_set_result(self, value: T) -> bool:
        """Completes it with a value unless it is completed; returns True if it did.

        If several threads may complete a future, the first one wins.

        Args:
            value: Anything; it is not copied.
        """
        return self._complete(_VALUE, value=value)

    def try_set_exception(self, error: BaseException) -> bool:
        """Completes it with an error unless it is completed; returns True if it did.

        Args:
            error: An exception instance, as for `set_exception`.
        """
        return self._complete(_ERROR, error=error)

    # For asyncio's functions, which call these as they do with their own futures.

    _cancel_message = None

    @property
    def _asyncio_future_blocking(self) -> bool | None:
        """Not None where they may; without a running loop they make a task, which awaits this."""
        return None if _get_running_loop() is None else False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop that runs in this thread: any loop may wait for it.

        Raises:
            RuntimeError: No loop runs.
        """
        return asyncio.get_running_loop()

    def result(self) -> T:
        """Returns the same as `value`, for asyncio's functions.

        Raises:
            CancelledError: It was cancelled; that of asyncio.
            RuntimeError: It is not done.
            BaseException: The error with which it was completed.
        """
        if self.cancelled():
            raise self._make_cancelled_error()
        return self.value()

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        return asyncio.CancelledError(str(self._error))

    # For telegrad's own packages: thunks, and wakers that run on any thread.

    @property
    def _label(self) -> str:
        """The name in errors of the call that it stands for."""
        return self._words % self._about if self._about else self._words

    def _try_set_thunk(self, thunk: Callable[[], T], *, fails: bool = False) -> bool:
        """Completes it with a value that the first thread in need of it computes.

        Args:
            thunk: Computes the value, or raises the error.
            fails: True if it is known beforehand that the thunk will raise.
        """
        return self._complete(_THUNK, thunk=thunk, fails=fails)

    @property
    def _failed(self) -> bool:
        """True if it is known to have failed; decodes nothing. For the library."""
        return self._state >= _ERROR or (self._state != _VALUE and self._fails)

    def _watch(self, origin: Origin, reports: Reports | None) -> None:
        """Logs its error if nobody retrieves it; see `unread`. For the library."""
        self._reports = reports_of(find_agent()) if reports is None and self._failed else reports
        self._unread, self._instruction = origin

    def _hand_on(self) -> None:
        """Records that another object reports its error. For the library."""
        self._unread = None

    def _call_when_done(self, waker: Callable[[], None]) -> None:
        """Calls `waker` in the thread that completes it, a loop included.

        The waker must not block, raise or look at the value. A stale `Listener` is forgotten.
        """
        if self._state == _PENDING:
            if len(self._wakers) >= MANY_WAKERS:
                drop_stale(self._wakers)
            self._wakers.append(waker)
            # The thread that completes it meanwhile calls the waker, unless it is taken back here.
            if self._state == _PENDING or not take_out(self._wakers, waker):
                return
        waker()

    def _when_done(self, callback: Callable[[Future[T]], object]) -> None:
        """Does what `add_done_callback` does, but never on an event loop. For the library."""
        self._subscribe(_DoneCallback(self, callback))

    def _let_cancel(self, on_cancel: Callable[[], object]) -> None:
        """Sets the function that `cancel()` calls, once, when it has completed this.

        It must not block or raise; it is forgotten when the future is completed otherwise.
        """
        self._on_cancel = on_cancel
        if self._state != _PENDING:
            self._on_cancel = None

    def _lend(self, dispatch: Dispatch | None) -> None:
        """Sets the dispatcher of callbacks, if a loop completes a plain future. For the library."""
        self._dispatch = self._dispatch or dispatch

    def _forget(self, waker: Callable[[], None]) -> None:
        take_out(self._wakers, waker)

    def _block(self, limit: float) -> bool:
        """Blocks for `limit` seconds at most; returns True if it is completed. For the library."""
        if forked_at():
            check_not_inherited((self,))
        gate = Gate()
        self._call_when_done(gate.open)
        reads = reads_of(self._source)
        return gate.wait(limit, self, drive=None if reads is None else reads.wait)

    def _complete(
        self,
        state: int,
        *,
        value: T | None = None,
        error: BaseException | None = None,
        thunk: Callable[[], T] | None = None,
        fails: bool = False,
    ) -> bool:
        interrupts = critical.section._is_owned()  # a handler or finaliser completes it
        readers, thunks = (_EMPTY, _EMPTY) if thunk is None else ([], [thunk])
        source = self._source  # keeps it: a finaliser would run between the next steps
        try:
            # Nothing is called or allocated from here until the state is set: so no other thread
            # runs meanwhile, and no handler or finaliser. A thread that loses finds it done.
            del self._undone[0]
        except IndexError:
            return False
        self._undone = _TAKEN
        self._source = None  # it may refer to this future
        self._thunk, self._readers = thunks, readers
        self._value, self._error, self._fails = value, error, fails
        self._state = state
        on_cancel, self._on_cancel = self._on_cancel, None  # it may refer to this future, too
        del source
        if state != _CANCELLED:
            on_cancel = None
        try:
            if error is not None and self._unread is not None and self._reports is None:
                self._reports = reports_of(find_agent())
            if interrupts:
                put_off(partial(handing, _tell, self, on_cancel))
            elif on_cancel is not None or self._wakers or self._callbacks:
                _tell(self, on_cancel)
        except BaseException:  # of a signal handler: it spares no waiter
            _tell(self, on_cancel)
            raise
        return True

    def _has_value(self) -> bool:
        """Returns True if a completed one has a value, for a caller that will take the value."""
        if self._state < _VALUE:
            self._settle()
        self._unread = None
        return self._state == _VALUE

    def _settle(self) -> None:
        """Runs the thunk, or waits for the thread that runs it: the state is final afterwards."""
        if self._state == _PENDING:
            raise InvalidUseError(f"{self._label} is not done; wait() for it or await it")
        me, state = threading.get_ident(), _ERROR
        if self._resolver == me or in_section():
            raise BlockingCallError(f"{self._label} cannot be decoded in {INTERRUPTING}")
        try:
            thunk = self._thunk[0]  # as in `_complete`: nothing else runs between these steps
            del self._thunk[0]
        except IndexError:
            _await_reader(self)
            return
        self._resolver, self._state = me, _RESOLVING
        try:
            self._value = thunk()
            state = _VALUE
        except BaseException as error:
            self._error = error
            self._error = without_frames(error)
        finally:
            self._state, self._resolver = state, 0
            _wake(self._readers)

    def _fresh_error(self) -> BaseException:
        """Returns an exception for one raise: by its frames a raised one refers to this future."""
        error = self._error
        assert error is not None
        return fresh_copy(error).with_traceback(users_frames(error.__traceback__))

    def _subscribe(self, run: Callable[[], None]) -> None:
        callback = partial(contextvars.copy_context().run, run)
        if self._state == _PENDING:
            self._callbacks.append(callback)
            if self._state == _PENDING or not take_out(self._callbacks, callback):
                return
        self._run(callback)

    def _run(self, callback: Callable[[], None]) -> None:
        if hands_over():
            if critical.section._is_owned():
                put_off(partial(self._run, callback))
                return
            if self._dispatch is None and (agent := find_agent()) is not None:
                self._dispatch = agent.pool.submit
            if self._dispatch is not None:
                self._dispatch(callback)
                return
        callback()

    def __del__(self) -> None:
        try:
            code = self._unread
        except AttributeError:  # __init__ refused
            return
        if code is None or self._reports is None or not self._failed:
            return
        error = self._thunk[0] if self._thunk else self._error
        if error is not None:
            origin = Origin(code, self._instruction)
            self._reports.put(Report(self._label, origin, error))

    def _follow(self, child: Future[Any]) -> None:
        """Completes `child` with the outcome of this one."""

        def hand_on() -> None:
            error = self.exception()
            if error is None:
                child.try_set_result(self._value)
            else:
                child.try_set_exception(error)

        comes_from(child, self)
        self._subscribe(hand_on)

    def _completed_twice(self, verb: str) -> str:
        return f"{verb}() on {self._label}, which is completed already; a future is completed once"


def _tell(future: Future[Any], on_cancel: Callable[[], object] | None = None) -> None:
    """Calls all that wait for the completion of a future, in the order in which they came."""
    if on_cancel is not None:
        on_cancel()  # first: a callback may run for long
    exposed = threading.get_ident() in MAIN and not critical.role._is_owned()
    if not exposed and not future._callbacks:
        _wake(future._wakers)
        return
    with contextlib.ExitStack() as calls, Shield():  # a Ctrl-C in one of them spares the others
        _wake(future._wakers)
        for callback in take_last(future._callbacks):
            calls.callback(future._run, callback)


def _await_reader(future: Future[Any]) -> None:
    """Waits for the thread that decodes a future at this moment."""
    decoded = threading.Lock()
    decoded.acquire()
    future._readers.append(decoded.release)
    if future._state < _VALUE or not take_out(future._readers, decoded.release):
        decoded.acquire()


def _wake(wakers: list[Waker]) -> None:
    """Calls wakers, in the order in which they came."""
    if wakers:
        wakers.reverse()
    while wakers:
        try:
            waker = wakers[-1]
            del wakers[-1]
        except IndexError:  # another thread has taken its own back
            break
        waker()


def wait_or_cancel(future: Future[T]) -> T:
    """For the library: waits for a future that nobody else has; an interrupt cancels it.

    An exception of a signal handler (Ctrl-C, an alarm) may leave any wait, and so does the end of
    the call that this thread serves. A completed future stays as it is.
    """
    try:
        return future.wait()
    except BaseException:
        future.cancel()
        raise


def new_future(
    dispatch: Dispatch | None, label: str, *about: object, call: Callable[[], object] | None = None
) -> Future[Any]:
    """For the library: returns a future that the library completes.

    Args:
        dispatch: Runs callbacks in the pool when it is completed on a loop of telegrad's.
        label: The name in errors of the call that it stands for.
        *about: The arguments of `label`, if any: it is then a format, as for a logger.
        call: The call whose reply it stands for; cancelling the future calls this.
    """
    future: Future[Any] = Future.__new__(Future)
    future._begin(dispatch, label, about, call)
    return future


def later(dispatch: Dispatch | None, label: str, begin: Callable[[], Future[Any]]) -> Future[Any]:
    """For the library: begins a thing in another thread; returns the future of its value.

    For code that interrupts a critical section of this thread.

    Args:
        dispatch: As for `new_future`.
        label: The name in errors.
        begin: Begins it, in a copy of this Context, and returns its future; may raise its error.
    """
    future = new_future(dispatch, label)

    def run() -> None:
        try:
            begun = begin()
        except BaseException as error:  # for whoever waits
            future.try_set_exception(error)
            return
        future._let_cancel(begun.cancel)
        if future.cancelled():
            begun.cancel()
        begun._follow(future)

    put_off(run)
    return future
