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

What may end for another reason is an alternative: `asyncio.gather` ends when all are done, or one
of them fails, and so it waits for any. A wait for any is followed to the calls behind each of them.
Where the library does not know what completes a future, and where a wait has a limit of its own,
the way ends: it is taken to end by itself, and so is a wait for any that such a way leads from.
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
# asyncio keeps no such record: a task knows the one future that wakes it. Of those that are
# `asyncio.gather`'s, `asyncio.shield`'s, another task, or ours, it can be told what completes them;
# of others the innermost coroutine may be one that waits for tasks. What is not recognised, in a
# future version of Python perhaps, is taken to end by itself.

# Packages whose scopes cancel the task that they are entered in.
FOREIGN_LIMITS = ("anyio", "async_timeout")


class TaskWait(NamedTuple):
    """The present wait of a task.

    Attributes:
        waker: The future that wakes it.
        things: Futures of asyncio, tasks among them, and waits for futures of telegrad's.
        needs_all: Whether it needs each of the things, whatever becomes of the others; else any of
            them may end the wait.
        group: The TaskGroup at the end of whose block the task is.
    """

    waker: asyncio.Future[Any]
    things: tuple[object, ...]
    needs_all: bool = False
    group: asyncio.TaskGroup | None = None


@final
class Stamps:
    """Numbers for futures, of which no two ever have the same; from any thread."""

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
    """Returns what a task waits for; None where it runs, has ended, or that cannot be told."""
    waker = getattr(task, "_fut_waiter", None)
    if not isinstance(waker, asyncio.Future) or waker.done() or task.cancelling():
        return None
    things = behind(waker)
    return TaskWait(waker, things) if things else _of_coroutine(task, waker)


def behind(future: asyncio.Future[Any]) -> tuple[object, ...]:
    """Returns what completes a future of asyncio's, any of it; nothing where that is not known."""
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
    """Returns those that are not done, in a lasting order, once each."""
    return tuple({id(each): each for each in futures if not each.done()}.values())


def _shielded(future: asyncio.Future[Any]) -> object:
    """Returns what `asyncio.shield` waits for: its callback alone knows."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        code: CodeType | None = getattr(callback, "__code__", None)
        if code is not None and code.co_qualname == "shield.<locals>._outer_done_callback":
            cells = dict(zip(code.co_freevars, callback.__closure__ or (), strict=False))
            inner = cells.get("inner")
            return None if inner is None else inner.cell_contents
    return None


def _of_coroutine(task: asyncio.Task[Any], waker: asyncio.Future[Any]) -> TaskWait | None:
    """Looks for a coroutine of asyncio's that waits for tasks, innermost in this one."""
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
    """Returns what runs at the end of the block of a TaskGroup; in 3.13 it is another method."""
    ends = (getattr(asyncio.TaskGroup, name, None) for name in ("__aexit__", "_aexit"))
    return {end.__code__ for end in ends if end is not None}


def _in_order(futures: Iterable[Any]) -> tuple[object, ...]:
    """Returns the pending ones of a set, whose order may change when it grows."""
    return tuple(sorted(_pending_futures(tuple(futures)), key=id))


def limited(tasks: Iterable[asyncio.Task[Any]], groups: Iterable[asyncio.TaskGroup] = ()) -> bool:
    """Tells whether one of the tasks is inside an `asyncio.timeout`, a TaskGroup or the like.

    Nobody but those themselves knows of it: the objects that refer to the tasks are looked for,
    which takes milliseconds.

    Args:
        tasks: May be cancelled by such a scope.
        groups: At the end of which the tasks wait, for all that is in them.
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
    """Tells whether an object may cancel a task, by a limit or as another task has failed."""
    kind = type(holder)
    if isinstance(holder, asyncio.Timeout):
        return holder.when() is not None
    return issubclass(kind, asyncio.TaskGroup) or (
        str(kind.__module__).partition(".")[0] in FOREIGN_LIMITS
    )


# ------------------------------------------------------------------------------------------------

# A call that waits for more than this at once is not looked at to the end.
MAX_THINGS = 10_000
# Nor are futures that follow each other in a chain that is longer.
MAX_DEPTH = 100
# A wait that any of so many may end is followed once some of them are done.
MAX_ALTERNATIVES = 64
# Of waits for any of some, each of which needs all of others, so many combinations.
MAX_COMBINATIONS = 16
# Of a function's or a future's name in the report, and how many of them for one wait.
MAX_TEXT = 160
MAX_TEXTS = 3


class WaitPath(NamedTuple):
    """From a served call to those of which any may end its wait.

    Attributes:
        token: See `wait_cycle.Step`.
        branches: The calls that it waits for.
        breaks: The futures to fail in order to end it: all that a thread or task waits for on the
            way, or where none does, the last one. Never the value of an RRef itself.
        text: Who waits for what.
    """

    token: Token
    branches: tuple[Branch, ...]
    breaks: tuple[Future[Any], ...]
    text: str


class _Clause(NamedTuple):
    """A condition for the end of a thing: one of the calls has to end before.

    Attributes:
        token: Of the waits that it consists of.
        ends: The calls, and in words what is waited for of them.
        waited: Futures for which threads and tasks wait, on the way there.
        last: The future before each call.
        tasks: What waits on the way.
        groups: At whose end they do.
    """

    token: Token
    ends: tuple[tuple[Branch, str], ...]
    waited: tuple[Future[Any], ...] = ()
    last: tuple[Future[Any], ...] = ()
    tasks: tuple[asyncio.Task[Any], ...] = ()
    groups: tuple[asyncio.TaskGroup, ...] = ()


# All of them have to be fulfilled; nothing where it may happen by itself.
_Clauses: TypeAlias = tuple[_Clause, ...]


def served_id(me: WorkerInfo, call: ServedCall) -> ServedId:
    """Returns how workers name a call that is served here."""
    return ServedId(me.incarnation, call.caller.incarnation, call.number, call.items)


def ways(
    me: WorkerInfo,
    call: ServedCall,
    is_mine: Callable[[PendingCall | ServedCall], bool],
    stamps: Stamps,
    *,
    to_be_sure: bool = False,
) -> list[WaitPath]:
    """Returns how a call waits at this moment; nothing when it runs. From any thread.

    Args:
        me: This worker.
        call: It is served here.
        is_mine: Tells whether a call was made, or is served, by this worker: futures of several
            may meet in one process.
        stamps: Names the futures that wake tasks.
        to_be_sure: Whether to look, which takes milliseconds, for limits that asyncio keeps.
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
    """One look at how a call waits."""

    def __init__(
        self,
        me: WorkerInfo,
        is_mine: Callable[[PendingCall | ServedCall], bool],
        stamps: Stamps,
    ) -> None:
        self._me = me
        self._is_mine = is_mine
        self._stamps = stamps
        # With each thing, which keeps its id its own. What is found again while it is followed
        # waits for itself without any call: nothing is known of how that ends.
        self._known: dict[int, tuple[object, _Clauses]] = {}
        self._depth = 0

    def clauses(self, thing: object) -> _Clauses:
        """Returns what must happen before a thing can."""
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
        """Of a thread or task; its wait is one that a cycle can be ended at."""
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
        """Each of them must happen."""
        return tuple(clause for thing in things for clause in self.clauses(thing))

    def _any(self, things: tuple[object, ...]) -> _Clauses:
        """One of them must happen: none of them can while any clause of each is not fulfilled."""
        if len(things) == 1:
            return self.clauses(things[0])
        if len(things) > MAX_ALTERNATIVES:
            return ()
        found: list[_Clauses] = []
        for thing in things:
            found.append(self.clauses(thing))
            if not found[-1]:
                return ()  # it may happen by itself
        combinations = itertools.islice(itertools.product(*found), MAX_COMBINATIONS)
        return tuple(_joined(each) for each in combinations) if found else ()


def _joined(clauses: tuple[_Clause, ...]) -> _Clause:
    return _Clause(
        *(tuple(itertools.chain.from_iterable(parts)) for parts in zip(*clauses, strict=True))
    )


def _callee(me: WorkerInfo, call: PendingCall) -> ServedId:
    return ServedId(call.peer.incarnation, me.incarnation, call.number)
