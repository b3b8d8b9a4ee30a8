"""Follows the waits of a served call on this worker, to the calls that it needs before it can end.

     ServedCall ──▶ its thread or task ──▶ what that waits for ──▶ a Future
                └─▶ the Future that its value will be of ───────────┘ │
     Future ──▶ the future that it follows (then, a fetch) ◀──────────┤
            ──▶ all of several (collect_all)                          │
            ──▶ any of several (gather, first_n)                      │
            ──▶ the thread that is computing it (to_thread, then)     │
            ──▶ a PendingCall: a call of this worker's, served elsewhere
            ──▶ the NextItem of a stream: the call that yields it, if it has yielded all before
            ──▶ a ServedCall: the value of an RRef, being made here
     task   ──▶ another task, those of a TaskGroup, what asyncio.gather or shield waits for

A wait that may end for several reasons waits for any of them: `asyncio.gather` ends when all are
done, or when one fails. A wait for any is followed to the calls behind each of them. If the library
does not know what completes a future, or if a wait has a limit of its own, it counts as one that
ends by itself. So does a wait for any of several, one of which ends by itself.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, final

from telegrad.critical import critical
from telegrad.rpc.base.served_call import ServedCall
from telegrad.rpc.call.pending_call import PendingCall
from telegrad.rpc.deadlock.protocol import Branch, ServedId, Token
from telegrad.rpc.future.awaited_future import AwaitedFuture
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.waits import NextItem, PoolThread, Wait
from telegrad.types import WorkerInfo

# -- the waits of asyncio tasks, as far as they can be seen --------------------------------------
#
# asyncio keeps no record of waits: a task knows the one future that wakes it. If that future is of
# `asyncio.gather` or `asyncio.shield`, another task, or ours, its source is known. Otherwise the
# innermost coroutine may be one that waits for tasks. A wait that is not recognised, in a future
# version of Python perhaps, counts as one that ends by itself.

# Packages whose scopes cancel the task that they are entered in.
FOREIGN_LIMITS = ("anyio", "async_timeout")


class TaskWait(NamedTuple):
    """The present wait of a task.

    Attributes:
        waker: The future that wakes it.
        things: Futures of asyncio, tasks among them, and waits for futures of telegrad's.
        needs_all: True if it needs each of the things, even if others fail; else any of them may
            end the wait.
        group: The TaskGroup whose block the task is about to leave; None for none.
    """

    waker: asyncio.Future[Any]
    things: tuple[object, ...]
    needs_all: bool = False
    group: asyncio.TaskGroup | None = None


@final
class Stamps:
    """The numbers of futures; no two futures ever have the same. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._known: weakref.WeakKeyDictionary[asyncio.Future[Any], int] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, future: asyncio.Future[Any]) -> int:
        """Returns the number of a future."""
        with critical.section, self._lock:
            found = self._known.get(future)
            if found is None:
                found = self._known[future] = next(self._numbers)
            return found


def wait_of(task: asyncio.Task[Any]) -> TaskWait | None:
    """Returns the wait of a task; None if it runs, has ended, or its wait is not recognised."""
    waker = getattr(task, "_fut_waiter", None)
    if not isinstance(waker, asyncio.Future) or waker.done() or task.cancelling():
        return None
    things = behind(waker)
    return TaskWait(waker, things) if things else _of_coroutine(task, waker)


def behind(future: asyncio.Future[Any]) -> tuple[object, ...]:
    """Returns the things of which any completes a future of asyncio; empty if none is known."""
    if isinstance(future, AwaitedFuture):
        return (future.wait,)
    if isinstance(future, asyncio.Task):
        return (future,)
    children = getattr(future, "_children", None)  # of asyncio.gather
    if isinstance(children, list):
        return _pending_futures(children)
    inner = _shielded(future)
    return () if inner is None else (inner,)


def _pending_futures(futures: Iterable[Any]) -> tuple[object, ...]:
    """Returns the futures that are not done, in their order, once each."""
    return tuple({id(each): each for each in futures if not each.done()}.values())


def _shielded(future: asyncio.Future[Any]) -> object:
    """Returns the future that `asyncio.shield` waits for, which only its callback refers to."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        code: CodeType | None = getattr(callback, "__code__", None)
        if code is not None and code.co_qualname == "shield.<locals>._outer_done_callback":
            cells = dict(zip(code.co_freevars, callback.__closure__ or (), strict=False))
            inner = cells.get("inner")
            return None if inner is None else inner.cell_contents
    return None


def _of_coroutine(task: asyncio.Task[Any], waker: asyncio.Future[Any]) -> TaskWait | None:
    """Returns the wait of a task whose innermost coroutine is one of asyncio's that waits."""
    inner: Any = None
    following: Any = task.get_coro()
    while inspect.iscoroutine(following):
        inner, following = following, following.cr_await
    frame = None if inner is None else inner.cr_frame
    if frame is None:
        return None
    if inner.cr_code in _ends_of_groups():
        group: Any = frame.f_locals.get("self")
        if group is None or getattr(group, "_aborting", True):
            return None
        return TaskWait(waker, _in_order(getattr(group, "_tasks", ())), group=group)
    waiting = getattr(asyncio.tasks._wait, "__code__", None)  # type: ignore[attr-defined]
    if inner.cr_code is waiting:
        found = frame.f_locals
        if found.get("timeout") is None:
            needs_all = found.get("return_when") == asyncio.ALL_COMPLETED
            return TaskWait(waker, _in_order(found.get("fs", ())), needs_all)
    return None


def _ends_of_groups() -> set[CodeType]:
    """Returns the code at the end of the block of a TaskGroup; in 3.13 it is another method."""
    ends = (getattr(asyncio.TaskGroup, name, None) for name in ("__aexit__", "_aexit"))
    return {end.__code__ for end in ends if end is not None}


def _in_order(futures: Iterable[Any]) -> tuple[object, ...]:
    """Returns the pending futures of a set in a fixed order; that of a set may change."""
    return tuple(sorted(_pending_futures(tuple(futures)), key=id))


def limited(tasks: Iterable[asyncio.Task[Any]], groups: Iterable[asyncio.TaskGroup] = ()) -> bool:
    """Returns True if one of the tasks is inside an `asyncio.timeout`, a TaskGroup or the like.

    Only these scopes know that they may cancel a task. So this looks for the objects that refer to
    the tasks, which takes milliseconds.

    Args:
        tasks: The tasks that wait.
        groups: The TaskGroups whose end the tasks wait for; these do not count.
    """
    known, held = list(groups), list[object](tasks)
    for _ in range(3):  # a scope refers to the task, or to a set of tasks, perhaps in its dict
        holders = gc.get_referrers(*held)
        for each in holders:
            if _may_end_a_wait(each) and not any(each is group for group in known):
                return True
        held = [each for each in holders if type(each) in (dict, set)]
    return False


def _may_end_a_wait(holder: object) -> bool:
    """Returns True if an object may cancel a task, by a limit or as another task has failed."""
    kind = type(holder)
    if isinstance(holder, asyncio.Timeout):
        return holder.when() is not None
    return issubclass(kind, asyncio.TaskGroup) or (
        str(kind.__module__).partition(".")[0] in FOREIGN_LIMITS
    )


# ------------------------------------------------------------------------------------------------

# Of the things that one call waits for, at most so many are looked at.
MAX_THINGS = 10_000
# Futures may follow each other in a chain; at most so many of one chain are looked at.
MAX_DEPTH = 100
# A wait that any of more things may end is not followed until some of them are done.
MAX_ALTERNATIVES = 64
# The most combinations of a wait for any of several things, each of which needs all of others.
MAX_COMBINATIONS = 16
MAX_TEXT = 160  # characters of a function's or a future's name in the report
MAX_TEXTS = 3  # names for one wait


class WaitPath(NamedTuple):
    """A way from a served call to the calls of which any may end its wait.

    Attributes:
        token: See `wait_cycle.Step`.
        branches: The calls that it waits for.
        breaks: The futures to fail in order to end it: all that threads or tasks wait for on the
            way; if none waits, the last one. Never the value of an RRef itself.
        text: The wait in words.
    """

    token: Token
    branches: tuple[Branch, ...]
    breaks: tuple[Future[Any], ...]
    text: str


class _Clause(NamedTuple):
    """A condition for the end of a thing: one of the calls has to end before.

    Attributes:
        token: The names of the waits that it consists of.
        ends: The calls, each with the awaited thing in words.
        waited: The futures for which threads and tasks wait, on the way there.
        last: The future before each call.
        tasks: The tasks that wait on the way.
        groups: The TaskGroups whose end they wait for.
    """

    token: Token
    ends: tuple[tuple[Branch, str], ...]
    waited: tuple[Future[Any], ...] = ()
    last: tuple[Future[Any], ...] = ()
    tasks: tuple[asyncio.Task[Any], ...] = ()
    groups: tuple[asyncio.TaskGroup, ...] = ()


# The conditions for the end of a thing, all of which must hold; empty if it may end by itself.
_Clauses: TypeAlias = tuple[_Clause, ...]


def served_id(me: WorkerInfo, call: ServedCall) -> ServedId:
    """Returns the name of a call that is served here."""
    return ServedId(me.incarnation, call.caller.incarnation, call.number, call.items)


def ways(
    me: WorkerInfo,
    call: ServedCall,
    is_mine: Callable[[PendingCall | ServedCall], bool],
    stamps: Stamps,
    *,
    to_be_sure: bool = False,
) -> list[WaitPath]:
    """Returns the ways on which a call waits at this moment; none if it runs. From any thread.

    Args:
        me: This worker.
        call: The call, which is served here.
        is_mine: Returns True if this worker has made a call, or serves it: futures of several
            workers may meet in one process.
        stamps: The numbers of the futures that wake tasks.
        to_be_sure: True to look for limits that asyncio keeps, which takes milliseconds.
    """
    if call.runner is None:
        return []
    found = _Following(me, is_mine, stamps).clauses(call.runner)
    return [
        _way(me, call, clause)
        for clause in found
        if not (to_be_sure and clause.tasks and limited(clause.tasks, clause.groups))
    ]


def _way(me: WorkerInfo, call: ServedCall, clause: _Clause) -> WaitPath:
    branches = dict(clause.ends)
    texts = [text[:MAX_TEXT] for text in branches.values()]
    if len(texts) > MAX_TEXTS:
        texts[MAX_TEXTS:] = [f"{len(texts) - MAX_TEXTS} more"]
    function = call.record.function[:MAX_TEXT]
    what = " and ".join(texts)
    text = f"{function} on {me.name!r}, called by {call.caller.name!r}, waits for {what}"
    return WaitPath(clause.token, tuple(branches), clause.waited or clause.last, text)


class _Following:
    """One look at the waits of a call."""

    def __init__(
        self,
        me: WorkerInfo,
        is_mine: Callable[[PendingCall | ServedCall], bool],
        stamps: Stamps,
    ) -> None:
        self._me = me
        self._is_mine = is_mine
        self._stamps = stamps
        # By id, with the thing, which keeps that id. A thing that is found again while it is
        # followed waits for itself without any call: it counts as one that ends by itself.
        self._known: dict[int, tuple[object, _Clauses]] = {}
        self._depth = 0

    def clauses(self, thing: object) -> _Clauses:
        """Returns the conditions for the end of a thing."""
        if isinstance(thing, weakref.ReferenceType):
            thing = thing()
        known = self._known.get(id(thing))
        if known is not None:
            return known[1]
        if thing is None or len(self._known) >= MAX_THINGS or self._depth >= MAX_DEPTH:
            return ()
        self._known[id(thing)] = (thing, ())
        self._depth += 1
        found = self._of(thing)
        self._depth -= 1
        self._known[id(thing)] = (thing, found)
        return found

    def _of(self, thing: object) -> _Clauses:
        if isinstance(thing, Future):
            return self._of_future(thing)
        if isinstance(thing, PendingCall):
            return self._of_call(thing, _callee(self._me, thing), thing.future._label)
        if isinstance(thing, PoolThread):
            return self._of_wait(thing.wait)
        if isinstance(thing, tuple):
            return self._all(thing)
        if isinstance(thing, Wait):
            return self._any(_pending_futures(tuple(thing.futures)))
        if isinstance(thing, NextItem):
            return self._of_item(thing)
        if isinstance(thing, ServedCall) and self._is_mine(thing):
            what = f"the value that {thing.record.function} makes on {self._me.name!r}"
            return (_Clause((), ((Branch(served_id(self._me, thing), self._me), what),)),)
        if isinstance(thing, asyncio.Task):
            return self._of_task(thing)
        if isinstance(thing, asyncio.Future):
            return () if thing.done() else self._any(behind(thing))
        return ()

    def _of_future(self, future: Future[Any]) -> _Clauses:
        if future.done():
            return ()
        source = future._source
        found = self.clauses(source)
        if isinstance(source, ServedCall):
            return found
        return tuple(each if each.last else each._replace(last=(future,)) for each in found)

    def _of_call(self, call: PendingCall, to: ServedId, what: str) -> _Clauses:
        if not self._is_mine(call):
            return ()
        return (_Clause((), ((Branch(to, call.peer), what),)),)

    def _of_item(self, item: NextItem) -> _Clauses:
        call = item.reply._source
        if not isinstance(call, PendingCall):
            return ()
        name = f"item {item.number} of the stream of {call.record.function}"
        to = _callee(self._me, call)._replace(items=item.number)
        return self._of_call(call, to, f"{name[:MAX_TEXT]} on {call.peer.name!r}")

    def _of_wait(self, wait: Wait | None) -> _Clauses:
        """Returns the conditions of a thread's or task's wait, at which a cycle can be ended."""
        if wait is None:
            return ()
        pending = _pending_futures(tuple(wait.futures))
        waited = tuple(each for each in pending if isinstance(each, Future))
        return tuple(
            each._replace(token=(wait.started, *each.token), waited=(*waited, *each.waited))
            for each in self._any(pending)
        )

    def _of_task(self, task: asyncio.Task[Any]) -> _Clauses:
        wait = wait_of(task)
        if wait is None:
            return ()
        if isinstance(wait.things[0] if wait.things else None, Wait):
            found = self._of_wait(wait.things[0])  # type: ignore[arg-type]
        else:
            found = self._all(wait.things) if wait.needs_all else self._any(wait.things)
        stamp = self._stamps.of(wait.waker)
        groups = () if wait.group is None else (wait.group,)
        return tuple(
            each._replace(
                token=(stamp, *each.token),
                tasks=(task, *each.tasks),
                groups=(*groups, *each.groups),
            )
            for each in found
        )

    def _all(self, things: Iterable[object]) -> _Clauses:
        """Returns the conditions for the end of all things."""
        return tuple(clause for thing in things for clause in self.clauses(thing))

    def _any(self, things: tuple[object, ...]) -> _Clauses:
        """Returns the conditions for the end of any of the things.

        None of them can end while each has a condition that does not hold.
        """
        if len(things) == 1:
            return self.clauses(things[0])
        if len(things) > MAX_ALTERNATIVES:
            return ()
        found: list[_Clauses] = []
        for thing in things:
            found.append(self.clauses(thing))
            if not found[-1]:
                return ()  # it may end by itself
        combinations = itertools.islice(itertools.product(*found), MAX_COMBINATIONS)
        return tuple(_joined(each) for each in combinations) if found else ()


def _joined(clauses: tuple[_Clause, ...]) -> _Clause:
    return _Clause(
        *(tuple(itertools.chain.from_iterable(parts)) for parts in zip(*clauses, strict=True))
    )


def _callee(me: WorkerInfo, call: PendingCall) -> ServedId:
    return ServedId(call.peer.incarnation, me.incarnation, call.number)
