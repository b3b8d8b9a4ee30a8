"""The present waits of code that serves calls, and the futures that they wait for.

Two parts of the library need them. The pool needs to know that one of its threads is about to
block: a thread that waits delays nobody, neither for a thread nor for the bytes that its call was
admitted with. And the search for cycles (`deadlock/probe`) follows each wait to its future, and
from there to the source that will complete it, which the library records with `comes_from`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias, final

from telegrad.errors import AgentForkedError
from telegrad.rpc.base.ambient import forked_at

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
        begin_wait: Called when the thread waits: another one may take its place.
        end_wait: Called when the wait is over; the thread goes on, though another took its place.
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
    for thing in behind(futures) if forked else ():
        if isinstance(thing, Awaited) and thing._dispatch is not None and thing._made <= forked:
            raise AgentForkedError(
                f"{thing._label} was made before this process was forked, by an agent of its "
                "parent, which alone hears of it; wait for it there, and start processes with "
                "multiprocessing's 'spawn' method"
            )


def behind(things: Iterable[object]) -> Iterator[object]:
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
