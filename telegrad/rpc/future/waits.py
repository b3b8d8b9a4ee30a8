"""The present waits of code that serves calls, and the futures that they wait for.

Two parts of the library need them. The pool needs to know that one of its threads is about to
block: a thread that waits delays nobody, neither for a thread nor for the bytes that its call was
admitted with. And the search for cycles (`deadlock/probe`) follows each wait to its future, and
from there to the source that will complete it, which the library records with `comes_from`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeAlias, final

from telegrad.errors import AgentForkedError
from telegrad.rpc.base.ambient import forked_at
from telegrad.rpc.base.served_call import last_served_call
from telegrad.transport import LONGEST_SLEEP

Dispatch: TypeAlias = Callable[[Callable[[], None]], None]


class Awaited:
    """A future, with the attributes that waits need; `Future` is the one."""

    __slots__ = ("_dispatch", "_made", "_source")

    _dispatch: Dispatch | None  # runs callbacks in a pool
    _made: float
    _source: object  # the object that will complete it

    @property
    def _label(self) -> str:
        raise NotImplementedError

    def done(self) -> bool:
        """Returns True if it was completed."""
        raise NotImplementedError

    def _forget(self, waker: Callable[[], None], /) -> None:
        raise NotImplementedError


@final
class Wait:
    """One wait without a limit of its own, which any of its futures may end.

    It waits for all of them, and the failure of one ends it; or for the first.

    Attributes:
        futures: The futures; those that are done do not count.
        started: The time of its start, in nanoseconds of `time.monotonic_ns`: two waits of one
            thread or task never have the same.
    """

    __slots__ = ("futures", "started")

    def __init__(self, futures: Collection[Awaited]) -> None:
        self.futures = futures
        self.started = time.monotonic_ns()


@final
class NextItem:
    """The source of the future that wakes a reader of a stream: the next item.

    Attributes:
        reply: The future of the request for the stream: the stream's end.
        number: The number of items that came before it.
    """

    __slots__ = ("number", "reply")

    def __init__(self, reply: Awaited, number: int) -> None:
        self.reply = reply
        self.number = number


@final
class PoolThread(threading.Thread):
    """A thread of a pool, which wants to know when the user function in it waits.

    It is not of `ABCMeta`, whose `isinstance` takes ten times as long, and each wait asks.

    Args:
        run: The work of the thread.
        begin_wait: Hears that the thread waits: another one may take its place.
        end_wait: Hears that the wait is over; the thread goes on, whoever took its place.
        name: Its name.

    Attributes:
        wait: The present wait; None while the thread runs, and in a wait that ends by itself.
    """

    def __init__(
        self,
        run: Callable[[], None],
        begin_wait: Callable[[], None],
        end_wait: Callable[[], None],
        name: str,
    ) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self.wait: Wait | None = None
        self._begin_wait, self._end_wait = begin_wait, end_wait
        self._waits = 0  # one inside another: callbacks and signal handlers wait, too

    def enter_wait(self) -> None:
        """Records that a wait begins."""
        self._waits += 1
        if self._waits == 1:
            self._begin_wait()

    def leave_wait(self) -> None:
        """Records that a wait is over."""
        self._waits -= 1
        if self._waits == 0:
            self._end_wait()


def pool_thread() -> PoolThread | None:
    """Returns this thread if it belongs to a pool."""
    thread = threading.current_thread()
    return thread if isinstance(thread, PoolThread) else None


def comes_from(future: Awaited, source: object) -> None:
    """Records the source that will complete a future, so that a wait for it can be followed.

    Args:
        future: The future, pending or just completed.
        source: The future or futures whose completion it waits for (as a `Wait` where the first
            failure of one will do), the `PendingCall` whose reply it stands for, the `NextItem` of
            a stream, the `ServedCall` that makes its value, or the thread or task that does. None
            while nothing is at work on it.
    """
    if isinstance(source, Awaited):
        source = weakref.ref(source)  # the call knows this future already: no circle
    future._source = source
    if future.done():
        future._source = None


def check_not_inherited(futures: Iterable[Awaited]) -> None:
    """Checks that no future can be completed only in the parent of this process.

    Futures of an agent of this process, or of none, may be waited for; so may completed ones.

    Raises:
        AgentForkedError: An agent of the parent made one of the futures, or one that it comes from.
    """
    forked = forked_at()
    for thing in _behind(futures) if forked else ():
        if isinstance(thing, Awaited) and thing._dispatch is not None and thing._made <= forked:
            raise AgentForkedError(
                f"{thing._label} was made before this process was forked, by an agent of its "
                "parent, which alone hears of it; wait for it there, and start processes with "
                "multiprocessing's 'spawn' method"
            )


def _behind(things: Iterable[object]) -> Iterator[object]:
    """Yields things, and what they wait for, and so on: pending futures and sources, once each."""
    paths, seen = [iter(things)], set[int]()
    while paths:
        for thing in paths[-1]:
            thing = thing() if isinstance(thing, weakref.ReferenceType) else thing
            if id(thing) in seen or (isinstance(thing, Awaited) and thing.done()):
                continue
            seen.add(id(thing))
            yield thing
            if isinstance(thing, Awaited):
                paths.append(iter((thing._source,)))
                break
            if isinstance(thing, tuple | Wait):
                paths.append(iter(tuple(thing.futures if isinstance(thing, Wait) else thing)))
                break
        else:
            paths.pop()


# -- the sockets that a waiting thread, or event loop, reads -------------------------------------
#
# Messages of workers that bypass gRPC (of this host, or by a direct port) need no other thread to
# be read. The thread that waits for a reply reads (`transport.io.reader`), until it has read
# several requests, which others run. The source of a future, which the library records with
# `comes_from`, tells if a message completes it.


class Reads(Protocol):
    """Lets a thread that waits for a reply read arrived messages; see `SocketReader`."""

    def wait(self, gate: Gate, seconds: float) -> None:
        """Reads in the calling thread until the gate opens, or for so long, or not at all."""

    def await_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None] | None:
        """Reads on the loop of the calling thread, until the returned function is called."""

    def hold(self) -> None:
        """Leaves arrived messages to the waits that the calling thread begins soon."""

    def release(self, thread: int) -> None:
        """Ends that for a thread; idempotent."""


class Driven:
    """For the library: the source of a future that a worker's message completes.

    Attributes:
        reads: Lets a waiting thread read arrived messages; None where nothing does.
    """

    __slots__ = ()

    reads: Reads | None


def reads_of(source: object) -> Reads | None:
    """Returns the reader of the message that completes a future in the end, or one of several.

    Args:
        source: The source of that future.
    """
    if isinstance(source, Driven):  # nearly all are
        return source.reads
    found = (each.reads for each in _behind((source,)) if isinstance(each, Driven))
    return next((reads for reads in found if reads is not None), None)


# -- a gate that one thread waits at until any other opens it ------------------------------------

Drive: TypeAlias = "Callable[[Gate, float], None]"


@final
class Gate:
    """A gate that is opened once, for one thread; a bare lock: an Event costs ten times as much.

    Attributes:
        shut: True until it is opened.
        wake: Wakes the thread when it waits for something else at this moment.
    """

    __slots__ = ("_cancelled", "_lock", "shut", "wake")

    def __init__(self) -> None:
        self._cancelled = False
        self._lock = threading.Lock()
        self._lock.acquire()
        self.shut = True
        self.wake: Callable[[], None] | None = None

    def open(self) -> None:
        """Lets the thread go on; in any thread, idempotent."""
        self.shut = False
        try:  # noqa: SIM105 - every reply opens one, and `suppress` costs as much as all the rest
            self._lock.release()
        except RuntimeError:  # it is open: the waiting thread's call was cancelled
            pass
        if (wake := self.wake) is not None:
            wake()

    def wait(
        self, limit: float, future: Awaited | None = None, *, drive: Drive | None = None
    ) -> bool:
        """Blocks until it is open; returns True if that happened within `limit` seconds.

        Outside served calls and the pool it costs next to nothing. A wait of a served call ends
        when that call is cancelled, unless the future is completed until then.

        Args:
            limit: Seconds; `math.inf` for no limit.
            future: The future that opens it.
            drive: The work of this thread meanwhile; called with the gate and the seconds.

        Raises:
            CallCancelledError: The call that this thread serves was cancelled.
            CallTimeoutError: Its time is over.
        """
        thread = threading.current_thread()
        pooled = thread if isinstance(thread, PoolThread) else None
        served = last_served_call()  # a thread may outlive the coroutine that it works for
        if served is not None:
            served.let_others_in()
            served.waits.add(self)
            if served.cancelled:  # perhaps before it knew of this wait
                self.cancel()
        if pooled is not None:
            outer = pooled.wait
            pooled.wait = Wait((future,)) if future is not None and limit == math.inf else None
            pooled.enter_wait()
        opened = False
        try:
            if drive is not None:
                started = time.monotonic()
                drive(self, limit)
                limit -= time.monotonic() - started
            opened = not self.shut or self._sleep(limit)
        finally:
            if pooled is not None:
                pooled.leave_wait()
                pooled.wait = outer
            if served is not None:
                served.waits.discard(self)
            if future is not None and (self._cancelled or not opened) and not future.done():
                future._forget(self.open)
        if served is not None and self._cancelled and (future is None or not future.done()):
            served.check()
        return opened

    def cancel(self) -> bool:
        """Opens it, since the call that the waiting thread serves was cancelled."""
        self._cancelled = True
        self.open()
        return True

    def _sleep(self, limit: float) -> bool:
        ends, nap = time.monotonic() + limit, min(limit, LONGEST_SLEEP)
        while not self._lock.acquire(timeout=max(0.0, nap)):
            if (limit := ends - time.monotonic()) <= 0:
                return False
            # Signals are the main thread's alone. Of thousands of nested calls each thread that
            # woke every second would take the interpreter's lock.
            main = threading.current_thread() is threading.main_thread()
            nap = min(limit, LONGEST_SLEEP if main else threading.TIMEOUT_MAX)
        return True


# -- the future of asyncio by which a task waits ---------------------------------------------------


class AwaitedFuture(asyncio.Future[None]):
    """A future of asyncio that a task awaits in the place of telegrad's; made on its loop.

    Args:
        loop: The loop that runs here.
        future: The future of telegrad.
        callback: The done callback that it runs, if no task awaits it.

    Attributes:
        wait: The wait for that future.
        callback: The done callback.
    """

    __slots__ = ("callback", "wait")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, future: Awaited, callback: object = None
    ) -> None:
        super().__init__(loop=loop)
        self.wait = Wait((future,))
        self.callback = callback

    def __call__(self) -> None:
        """Wakes the task, unless it has given up waiting; from any thread, never blocks."""
        loop = self.get_loop()
        if _get_running_loop() is loop:
            self._let_go()
        else:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        if not self.done():  # this loop may have read the reply itself, or the task was cancelled
            self.set_result(None)
