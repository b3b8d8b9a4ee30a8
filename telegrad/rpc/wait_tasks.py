"""What an asyncio task waits for, where that can be seen.

asyncio keeps no such record: a task knows the one future that wakes it. Of those that are
`asyncio.gather`'s, `asyncio.shield`'s, another task, or ours, it can be told what completes them;
of others the innermost coroutine may be one that waits for tasks. What is not recognised, in a
future version of Python perhaps, is taken to end by itself.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import threading
import weakref
from collections.abc import Iterable
from types import CodeType
from typing import Any, NamedTuple, final

from telegrad.rpc.loop_waker import Arrival

__all__ = ["Stamps", "TaskWait", "behind", "limited", "wait_of"]

# Packages whose scopes cancel the task that they are entered in.
FOREIGN_LIMITS = ("anyio", "async_timeout")


class TaskWait(NamedTuple):
    """What a task waits for.

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
        with self._lock:
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
    if isinstance(future, Arrival):
        return (future.wait,)
    if isinstance(future, asyncio.Task):
        return (future,)
    children = getattr(future, "_children", None)  # of asyncio.gather
    if isinstance(children, list):
        return _pending(children)
    inner = _shielded(future)
    return () if inner is None else (inner,)


def _pending(futures: Iterable[Any]) -> tuple[object, ...]:
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
    if inner.cr_code is getattr(asyncio.tasks._wait, "__code__", None):  # type: ignore[attr-defined]
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
    return tuple(sorted(_pending(tuple(futures)), key=id))


def limited(tasks: Iterable[asyncio.Task[Any]], groups: Iterable[asyncio.TaskGroup] = ()) -> bool:
    """Tells whether one of the tasks is inside an `asyncio.timeout`, a TaskGroup or the like.

    Nobody but those themselves knows of it: all objects are looked at, which takes milliseconds
    where they are few.

    Args:
        tasks: May be cancelled by such a scope.
        groups: At the end of which the tasks wait, for all that is in them.
    """
    left, known = list(tasks), list(groups)
    ends: dict[type, bool] = {}  # few classes, many objects
    for each in gc.get_objects():
        kind = type(each)
        may_end = ends.get(kind)
        if may_end is None:
            may_end = ends[kind] = _may_end_a_wait(kind)
        if not may_end or any(each is group for group in known):
            continue
        if any(_limits(each, task) for task in left):
            return True
    return False


def _limits(scope: Any, task: asyncio.Task[Any]) -> bool:
    if issubclass(type(scope), asyncio.TaskGroup):
        parent = getattr(scope, "_parent_task", None)  # one may be half made
        return parent is task or task in getattr(scope, "_tasks", ())
    if not _refers(scope, task):
        return False
    return not (type(scope) is asyncio.Timeout and scope.when() is None)


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
