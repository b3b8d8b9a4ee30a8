"""Follows the waits of a served call on this worker, to the calls that it needs before it can end.

     ServedCall ──▶ its thread or task ──▶ what that waits for ──▶ a Future
                └─▶ the Future that its value will be of ───────────┘ │
     Future ──▶ the future that it follows (then, a fetch) ◀──────────┤
            ──▶ all of several (collect_all, gather)                  │
            ──▶ the thread that is computing it (to_thread, then)     │
            ──▶ a PendingCall: a call of this worker's, served elsewhere
            ──▶ the NextItem of a stream: the call that yields it, if it has yielded all before
            ──▶ a ServedCall: the value of an RRef, being made here

Where the library does not know what completes a future, and where a wait may end for another reason
(a limit of its own, the first failure of several), the way ends: it is taken to end by itself.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from telegrad.rpc.blocking import NextItem, PoolThread, TaskRun, Wait
from telegrad.rpc.call_table import PendingCall
from telegrad.rpc.future import Future
from telegrad.rpc.served_call import ServedCall
from telegrad.rpc.wait_cycle import ServedId, Token
from telegrad.types import WorkerInfo

__all__ = ["Way", "served_id", "ways"]

# A call that waits for more than this at once is not looked at to the end.
MAX_THINGS = 10_000
# Of a function's or a future's name in the report.
MAX_TEXT = 160
# Packages whose scopes cancel the task that they are entered in.
FOREIGN_LIMITS = ("anyio", "async_timeout")


class Way(NamedTuple):
    """From a served call to one that it waits for.

    Attributes:
        token: See `wait_cycle.Step`.
        to: The call that it waits for.
        peer: Where that is served.
        breaks: The futures to fail in order to end it: all that a thread or task waits for on the
            way, or where none does, the last one. Never the value of an RRef itself.
        text: Who waits for what.
    """

    token: Token
    to: ServedId
    peer: WorkerInfo
    breaks: tuple[Future[Any], ...]
    text: str


class _Path(NamedTuple):
    """How a thing was come to."""

    token: Token = ()
    waited: tuple[Future[Any], ...] = ()  # by threads and tasks
    last: Future[Any] | None = None


_Place: TypeAlias = tuple[object, _Path]


def served_id(me: WorkerInfo, call: ServedCall) -> ServedId:
    """Returns how workers name a call that is served here."""
    return ServedId(me.incarnation, call.caller.incarnation, call.number, call.items)


def ways(
    me: WorkerInfo,
    call: ServedCall,
    is_mine: Callable[[PendingCall | ServedCall], bool],
    *,
    to_be_sure: bool = False,
) -> list[Way]:
    """Returns how a call waits at this moment; nothing when it runs. From any thread.

    Args:
        me: This worker.
        call: It is served here.
        is_mine: Tells whether a call was made, or is served, by this worker: futures of several
            may meet in one process.
        to_be_sure: Whether to look, which takes milliseconds, for limits that asyncio keeps.
    """
    found: list[Way] = []
    seen: dict[int, object] = {}  # keeps them alive, and so their ids apart
    places: list[_Place] = [(call.runner, _Path())]
    while places and len(seen) < MAX_THINGS:
        thing, path = places.pop()
        if isinstance(thing, weakref.ReferenceType):
            thing = thing()
        if thing is None or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, PoolThread | TaskRun):
            places += _of_wait(thing, path, to_be_sure=to_be_sure)
        elif isinstance(thing, Future):
            places += _of_future(thing, path)
        elif isinstance(thing, tuple):
            places += [(each, path) for each in reversed(thing)]
        elif isinstance(thing, Wait):
            places += [(each, path) for each in _alone(thing)]
        elif isinstance(thing, NextItem):
            pending = thing.reply._source
            if isinstance(pending, PendingCall) and is_mine(pending):
                to = _callee(me, pending)._replace(items=thing.number)
                what = f"item {thing.number} of the stream of {pending.record.function}"
                what = f"{what[:MAX_TEXT]} on {pending.peer.name!r}"
                found.append(_way(me, call, path, to, pending.peer, what))
        elif isinstance(thing, PendingCall) and is_mine(thing):
            to = _callee(me, thing)
            found.append(_way(me, call, path, to, thing.peer, thing.future._label))
        elif isinstance(thing, ServedCall) and is_mine(thing):
            what = f"the value that {thing.record.function} makes on {me.name!r}"
            found.append(_way(me, call, path, served_id(me, thing), me, what))
    return found


def _callee(me: WorkerInfo, call: PendingCall) -> ServedId:
    return ServedId(call.peer.incarnation, me.incarnation, call.number)


def _way(
    me: WorkerInfo, call: ServedCall, path: _Path, to: ServedId, peer: WorkerInfo, what: str
) -> Way:
    last = () if path.last is None else (path.last,)
    function = call.record.function[:MAX_TEXT]
    text = f"{function} on {me.name!r}, called by {call.caller.name!r}, waits for {what[:MAX_TEXT]}"
    return Way(path.token, to, peer, path.waited or last, text)


def _of_future(future: Future[Any], path: _Path) -> list[_Place]:
    if future.done():
        return []
    source = future._source
    if not isinstance(source, ServedCall):
        path = path._replace(last=future)
    return [(source, path)]


def _of_wait(thing: PoolThread | TaskRun, path: _Path, *, to_be_sure: bool) -> list[_Place]:
    wait: Wait | None = thing.wait
    if wait is None:
        return []
    if to_be_sure and isinstance(thing, TaskRun) and _has_limit(thing):
        return []
    return [
        (
            each,
            path._replace(token=(*path.token, wait.started), waited=(*path.waited, each)),
        )
        for each in _alone(wait)
    ]


def _alone(wait: Wait) -> list[Future[Any]]:
    """Returns the future that is left to wait for; of several any may fail, and so end the wait."""
    pending = [each for each in wait.futures if not each.done()]
    return pending if len(pending) == 1 else []


def _has_limit(run: TaskRun) -> bool:
    """Tells whether the task is inside an `asyncio.timeout`, a TaskGroup or the like.

    Nobody but those themselves knows of it.
    """
    task = run.task()
    if task is None:
        return True
    ends: dict[type, bool] = {}  # few classes, many objects
    for each in gc.get_objects():
        kind = type(each)
        may_end = ends.get(kind)
        if may_end is None:
            may_end = ends[kind] = _may_end_a_wait(kind)
        if may_end and _refers(each, task):
            if kind is asyncio.Timeout and each.when() is None:
                continue
            if kind is asyncio.TaskGroup and each._parent_task is not task:
                continue
            return True
    return False


def _may_end_a_wait(kind: type) -> bool:
    """Tells whether such objects may cancel a task, by a limit or as another task has failed."""
    if kind is asyncio.Timeout or issubclass(kind, asyncio.TaskGroup):
        return True
    module = getattr(kind, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in FOREIGN_LIMITS


def _refers(holder: object, task: object) -> bool:
    near = gc.get_referents(holder)
    return any(each is task for each in near) or any(
        any(value is task for value in (each.values() if isinstance(each, dict) else each))
        for each in near
        if isinstance(each, dict | set)
    )
