"""The event loop threads of telegrad: one for every socket of the process, one for user code.

The thread that owns the sockets is shared by all agents of a process, because gRPC binds its
objects to the loop that made them and a loop per agent would cost a thread per agent. It is
counted: the first `acquire` starts it, the last `release` ends it. `shared_loop_thread` is the one
documented exception to "nothing is global". Its loop is kept for the next start: gRPC never forgets
a loop, and may bring an event for a loop that has ended. It is asyncio's own, also where uvloop is
installed: uvloop has no selector that could poll before it sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import os
import selectors
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, TypeVarTuple, final

from telegrad.critical import INTERRUPTING, critical, in_section, interrupts
from telegrad.errors import BlockingCallError
from telegrad.transport.background import BackgroundThread
from telegrad.transport.host import start_thread

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The longest wait of the last release for the thread's end; cancelled tasks take milliseconds.
STOP_SECONDS = 5.0
LONGEST_SLEEP = 3600.0  # of a loop without a timer
# Records that wait for slow handlers: about 1 KB each.
MOST_RECORDS = 10_000
# A signal that comes just before a thread falls asleep is handled when it wakes (see `io.spin`).
LONGEST_NAP = 1.0
FLUSH_SECONDS = 0.5  # for which the end of the loop waits for handlers of log records


class Looks(Protocol):
    """Polls for a while before a thread sleeps; `Spin` is the one."""

    def poll(self, poll: Callable[[float], list[T]], timeout: float) -> list[T]:
        """Polls until something is there or the time is over; returns what is there."""


@final
class _Selector(selectors.DefaultSelector):
    """The selector of the loop of a LoopThread, which polls before it sleeps while that says so."""

    def __init__(self, thread: LoopThread) -> None:
        super().__init__()
        self._thread = thread

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        looks = self._thread.looks
        if looks is None or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        return looks.poll(super().select, LONGEST_SLEEP if timeout is None else timeout)


@final
class _Executor(ThreadPoolExecutor):
    """The threads beside a loop; it takes work also while the interpreter ends.

    Python's own executors take none from the end of the main thread on. The agents that nobody has
    shut down leave after that, and their goodbyes may need a name looked up or a file removed.
    """

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs a function in one of its threads, or in a new one if those take no more."""
        try:
            return super().submit(function, *args, **kwargs)
        except RuntimeError:
            running: Future[T] = Future()

        def run() -> None:
            try:
                running.set_result(function(*args, **kwargs))
            except BaseException as error:  # at the top of a thread
                running.set_exception(error)

        threading.Thread(target=run, name="telegrad-last-words", daemon=True).start()
        return running


@final
class _OwnLoopThread(threading.Thread):
    """Runs one of telegrad's loops; blocking verbs refuse to run in such a thread.

    Args:
        name: The thread's name.
        loop: The loop that it runs until `stop`, and then closes.
        keep: True to leave the loop open for the next thread.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, *, keep: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._own_loop = loop
        self._keep = keep
        self._stopped = False  # written on the loop alone

    def stop(self) -> None:
        """Ends it soon; from any thread."""
        self._own_loop.call_soon_threadsafe(self._stop_now)

    def run(self) -> None:
        """Runs the loop until it is stopped, cancels the tasks that are left, closes it."""
        loop = self._own_loop
        asyncio.set_event_loop(loop)
        try:
            with _Executor(thread_name_prefix="telegrad-resolver") as executor:
                loop.set_default_executor(executor)  # one that can be ended while the loop is kept
                while not self._stopped:
                    self._survive(loop.run_forever)
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                if tasks:
                    ended = loop.create_task(asyncio.wait(tasks, timeout=STOP_SECONDS))
                    while not ended.done():
                        self._survive(partial(loop.run_until_complete, ended))
            if not self._keep:
                self._survive(lambda: loop.run_until_complete(loop.shutdown_asyncgens()))
        finally:
            asyncio.set_event_loop(None)
            if not self._keep:
                loop.close()

    def _survive(self, run: Callable[[], object]) -> None:
        """Goes on after user code that wants to end the program: asyncio lets it out of the loop.

        Ctrl-C comes to the main thread alone.
        """
        try:
            run()
        except (SystemExit, KeyboardInterrupt) as error:
            _logger.warning(
                "a task or callback on %s raised %s; the loop goes on, as a worker ends by "
                "rpc.shutdown() alone",
                self.name,
                type(error).__name__,
                exc_info=error,
            )

    def _stop_now(self) -> None:
        self._stopped = True
        self._own_loop.stop()


def on_own_loop() -> bool:
    """For the library: returns True if the calling thread runs a loop of telegrad's.

    A verb that blocks there would stop the very loop that is to complete it.
    """
    if _get_running_loop() is None:  # the answer for nearly all callers, and a quick one
        return False
    return isinstance(threading.current_thread(), _OwnLoopThread)


def barred() -> bool:
    """For the library: returns True if the calling code must not block this thread."""
    if critical.section._is_owned() or critical.role._is_owned():
        return True
    return _get_running_loop() is not None and on_own_loop()  # each call asks: quick where it may


def refuse_to_block(what: str, instead: str) -> None:
    """For the library: raises BlockingCallError where a verb must not block; nothing was sent then.

    That is on a loop of telegrad's, and in code that interrupts telegrad: see `critical`.

    Args:
        what: The subject of the message: the call that would block.
        instead: The end of the message: what to do on a loop.
    """
    if interrupts():
        raise BlockingCallError(
            f"{what} would wait, with no end, in {INTERRUPTING}, nothing was sent; write "
            "rpc.rpc_async, which returns at once, or let another thread call"
        )
    if on_own_loop():
        raise BlockingCallError(
            f"{what} would block a loop of telegrad's, nothing was sent; {instead}"
        )


def refuse_in_section(what: str) -> None:
    """For the library: raises BlockingCallError for a thing that can be neither done nor put off.

    Args:
        what: The subject of the message: what would wait for a lock that this thread may hold.
    """
    if in_section():
        raise BlockingCallError(
            f"{what} would wait, with no end, in {INTERRUPTING}; let another thread call"
        )


_handing: contextvars.ContextVar[bool] = contextvars.ContextVar("telegrad_handing", default=False)


def handing_context() -> contextvars.Context:
    """Returns a new Context, in which a waiting thread hands over messages for other threads."""
    context = contextvars.Context()
    context.run(_handing.set, True)
    return context


def handing(function: Callable[[*Ts], object], *args: *Ts) -> None:
    """For the library: calls a function as a thread that hands messages over does.

    Callbacks of users run in the pool then. It is for a Context that ends with the function.
    """
    _handing.set(True)
    function(*args)


def hands_over() -> bool:
    """For the library: returns True if this thread hands arrived messages over, for any receiver.

    It does so on a loop of telegrad's, or in passing, while it waits for something itself. User
    code does not run there.
    """
    return _handing.get() or on_own_loop()


@final
class LoopThread:
    """An event loop in a daemon thread of its own, started and stopped by counting its users.

    All methods may be called from any thread.

    Args:
        name: The thread's name.
        keep_loop: True to start with the same loop again, which is never closed. Only such a loop
            heeds `looks`.

    Attributes:
        looks: Polls before the loop sleeps, as long as an answer is expected; None to sleep at
            once. Set from any thread, it holds from the next sleep on.
    """

    def __init__(self, name: str = "telegrad-loop", *, keep_loop: bool = False) -> None:
        self.looks: Looks | None = None
        self._name = name
        self._keep_loop = keep_loop
        self._begin_background()
        self._users_lock = threading.Lock()  # guards all below
        self._kept: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._users = 0
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: _OwnLoopThread | None = None
        self._ident: int | None = None  # of that thread, once it runs

    def _begin_background(self) -> None:
        make = partial(
            BackgroundThread,
            start_soon=self.call_soon,
            start_later=lambda seconds, start: self.loop.call_later(seconds, start),
            failed=_log_failure,
        )
        self._late = make(f"{self._name}-late", most=math.inf)
        self._records = make(f"{self._name}-log", most=MOST_RECORDS)

    def acquire(self) -> LoopThread:
        """Counts one more user; starts the thread for the first. Returns itself.

        Raises:
            RuntimeError: The system starts no more threads.
        """
        with critical.section, self._users_lock:
            if self._process != os.getpid():  # after fork() the thread is the parent's alone
                self._users, self._process, self._loop, self._thread = 0, os.getpid(), None, None
                self._kept = self._ident = None
                self._begin_background()
            if self._users == 0:
                self._start()
            self._users += 1
        return self

    def release(self) -> None:
        """Counts one user less; the last one stops the loop and waits until the thread ended.

        Tasks that still run on the loop are cancelled. Called on the loop itself, it does not wait
        for that, but for what was put off, and for handlers of log records, a few seconds at most.
        """
        with critical.section, self._users_lock:
            if self._process != os.getpid() or self._users == 0:
                return
            self._users -= 1
            if self._users > 0 or self._thread is None:
                return
            thread = self._thread
            self._loop = self._thread = self._ident = None
        self._late.flush(STOP_SECONDS)
        self._records.flush(FLUSH_SECONDS)
        thread.stop()
        if thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop.

        Raises:
            RuntimeError: No user has acquired it, or all users have released it.
        """
        loop = self._loop
        if loop is None:
            raise RuntimeError(f"the loop thread {self._name!r} does not run; acquire() it first")
        return loop

    def is_loop_thread(self) -> bool:
        """Returns True if the calling thread is the one that runs this loop."""
        return self._ident == threading.get_ident()

    def call_soon(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Makes the loop call a function soon; wakes the loop only from another thread.

        Once the loop has stopped nothing happens: callers that waited on it have been told so.
        """
        loop = self._loop
        if loop is None:
            return
        if self.is_loop_thread():
            loop.call_soon(function, *args)
            return
        with contextlib.suppress(RuntimeError):  # it was closed just now
            loop.call_soon_threadsafe(function, *args)

    def call(self, function: Callable[[*Ts], object], *args: *Ts) -> None:
        """Calls a function on the loop: at once on the loop's thread, soon from any other."""
        if self.is_loop_thread():
            function(*args)
        else:
            self.call_soon(function, *args)

    def run_beside(self, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Runs a function that may block in another thread; called on the loop."""
        return self.loop.run_in_executor(None, function, *args)

    def put_off(self, function: Callable[[], object]) -> None:
        """Runs a function in another thread, in order, in a copy of this Context; never blocks.

        For code that must not do it here, as it has interrupted a critical section.
        """
        if self._loop is None or self._process != os.getpid():  # a forked child has no such thread
            function()
            return
        self._late.put(partial(contextvars.copy_context().run, function))
        if self._users == 0:  # it was released meanwhile
            self._late.flush(0)

    def log(self, handle: Callable[[], object]) -> None:
        """Runs a function that hands over a log record, in another thread, in order."""
        if self._loop is None or self._process != os.getpid():
            handle()
            return
        self._records.put(handle)
        if self._users == 0:
            self._records.flush(0)

    def dropped_records(self) -> int:
        """Returns the number of log records that were dropped since the last call of this."""
        return self._records.count_dropped()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Runs a coroutine on the loop and blocks until it is done.

        Args:
            coroutine: The coroutine.
            timeout: Seconds after which it is cancelled; None for no limit.

        Raises:
            BlockingCallError: The caller is on one of telegrad's loops.
            TimeoutError: The coroutine took longer.
        """
        if in_section() or on_own_loop():
            coroutine.close()
            refuse_to_block(
                "a blocking function of telegrad's",
                "await its asynchronous counterpart, or call it through rpc.to_thread",
            )
        # Made before the loop hears of the coroutine: from then on a signal handler may raise here,
        # also where asyncio's `run_coroutine_threadsafe` has not returned its future yet.
        result: Future[T] = Future()
        loop = self.loop
        try:
            loop.call_soon_threadsafe(_run_for, result, coroutine, loop)
            ends = math.inf if timeout is None else time.monotonic() + timeout
            while not result.done() and (left := ends - time.monotonic()) > 0:
                wait((result,), min(left, LONGEST_NAP))
            return result.result(0)
        except BaseException:
            result.cancel()
            raise

    def _start(self) -> None:
        kept = self._idle_loop()
        loop = kept or self._new_loop()
        running = threading.Event()
        loop.call_soon(running.set)
        thread = _OwnLoopThread(self._name, loop, keep=self._keep_loop)
        try:
            start_thread(thread)
        except RuntimeError:
            if kept is None:
                loop.close()
            raise
        self._loop, self._thread = loop, thread
        if self._keep_loop:
            self._kept = loop, thread
        running.wait()
        self._ident = self._thread.ident

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        """Returns uvloop's for user code; the sockets' loop is asyncio's, as it may poll."""
        loop: asyncio.AbstractEventLoop
        if not self._keep_loop:
            loop = new_event_loop()
            return loop
        loop = asyncio.SelectorEventLoop(_Selector(self))
        # asyncio logs exceptions that nobody took: its handlers must not block the loop, either.
        loop.set_exception_handler(
            lambda loop, context: self.log(partial(loop.default_exception_handler, context))
        )
        return loop

    def _idle_loop(self) -> asyncio.AbstractEventLoop | None:
        """Returns the kept loop, once the thread that ran it last has ended."""
        if self._kept is None:
            return None
        loop, last = self._kept
        if last is threading.current_thread():
            return None
        last.join(STOP_SECONDS)
        return None if last.is_alive() else loop


def _run_for(
    result: Future[T], coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop
) -> None:
    """Runs a coroutine on the loop until it is done or its result is cancelled."""
    if result.cancelled():
        coroutine.close()
        return
    task = loop.create_task(coroutine)

    def cancel(result: Future[T]) -> None:
        if result.cancelled():
            loop.call_soon_threadsafe(task.cancel)

    def complete(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            result.cancel()
        if not result.set_running_or_notify_cancel():
            return
        error = task.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(task.result())

    result.add_done_callback(cancel)
    task.add_done_callback(complete)


def _log_failure(error: BaseException) -> None:
    _logger.error("work that was put off failed", exc_info=error)


_shared = LoopThread(keep_loop=True)


def shared_loop_thread() -> LoopThread:
    """Returns the loop thread that all agents of this process share for their sockets."""
    return _shared


def put_off(function: Callable[[], object]) -> None:
    """For the library: runs a function in another thread; see `LoopThread.put_off`."""
    _shared.put_off(function)
