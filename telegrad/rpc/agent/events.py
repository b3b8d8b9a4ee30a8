"""Callbacks on workers that join, leave and are lost: one at a time, in the order of the events.

    coordinator: joined ──▶ known ──▶ on_join
    session: said goodbye, or coordinator: left ──▶ on_leave      each for a known worker, once
    session: silent, gone, or coordinator: lost ──▶ on_loss

News of an arrival and of a loss travel separately and may overtake each other. If the loss of a
worker is heard of first, neither is told. If a worker comes back, it is told only after its
predecessor was told as gone. When all shut down together nobody leaves anybody, and nothing is
told.
"""

from __future__ import annotations

import enum
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import EvictedError, WorkerLostError
from telegrad.rendezvous import Member, keep_newest
from telegrad.rpc.agent.core import AgentCore, current_agent
from telegrad.rpc.base.contained import Contained
from telegrad.rpc.base.life import GRACEFUL
from telegrad.transport import get_logger
from telegrad.types import WorkerInfo

_logger = get_logger(__name__)

Remove: TypeAlias = Callable[[], None]


class _Kind(enum.Enum):
    JOIN = "on_join"
    LEAVE = "on_leave"
    LOSS = "on_loss"


@final
class MembershipEvents:
    """For the library: tells the user about the other workers; attached to the agent.

    All methods may be called from any thread.

    Args:
        own: This worker.
        submit: Runs a function in the pool.
    """

    def __init__(self, own: WorkerInfo, submit: Callable[..., None]) -> None:
        self._own = own
        self._submit = submit
        self._lock = threading.Lock()  # guards all below; never held while a callback runs
        self._known: set[WorkerInfo] = set()
        self._gone: dict[WorkerInfo, None] = {}
        self._held: list[WorkerInfo] = []  # they came before the loss of their predecessors
        self._callbacks: dict[object, tuple[_Kind, Callable[..., object]]] = {}
        self._events: deque[tuple[_Kind, tuple[Any, ...]]] = deque()
        self._running = False
        self._closed = False

    def begin(self, members: Iterable[WorkerInfo]) -> None:
        """Takes the workers that were there from the start; no callback hears of them."""
        with critical.section, self._lock:
            self._known.update(set(members) - self._gone.keys())

    def joined(self, worker: WorkerInfo) -> None:
        """Takes an arrival."""
        with critical.section, self._lock:
            if worker in self._known or worker in self._gone or worker in self._held:
                return
            self._held.append(worker)
            start = self._push_joins()
        if start:
            self._submit(self._tell)

    def lost(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Takes a loss of any kind."""
        if isinstance(error, EvictedError):  # this worker itself is lost; `evicted` tells so
            return
        with critical.section, self._lock:
            self._gone[worker] = None
            keep_newest(self._gone)
            if worker in self._held:
                self._held.remove(worker)
            if worker not in self._known:
                return
            self._known.discard(worker)
            start = self._push_gone(worker, error) | self._push_joins()
        if start:
            self._submit(self._tell)

    def evicted(self, error: EvictedError) -> None:
        """Takes the news that this worker was given up."""
        with critical.section, self._lock:
            start = self._push(_Kind.LOSS, self._own, error)
        if start:
            self._submit(self._tell)

    def close(self) -> None:
        """Stops telling."""
        with critical.section, self._lock:
            self._closed = True
            self._events.clear()
            self._callbacks.clear()

    def add(self, kind: _Kind, callback: Any) -> Remove:
        """Registers a callback; returns a function that removes it."""
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            raise TypeError(
                f"{kind.value} takes a plain function, which runs in a thread of the pool, not "
                f"{callback!r}"
            )
        key = object()
        with critical.section, self._lock:
            self._callbacks[key] = (kind, callback)

        def remove() -> None:
            with critical.section, self._lock:
                self._callbacks.pop(key, None)

        return remove

    def _push_gone(self, worker: WorkerInfo, error: WorkerLostError) -> bool:
        """Queues the loss of a worker, as `_push` does."""
        if not error.left:
            return self._push(_Kind.LOSS, worker, error)
        return error.reason != GRACEFUL and self._push(_Kind.LEAVE, worker)

    def _push_joins(self) -> bool:
        """Queues the arrivals that need not wait, as `_push` does."""
        start = False
        for worker in tuple(self._held):
            if not any(known.name == worker.name for known in self._known):
                self._held.remove(worker)
                self._known.add(worker)
                start |= self._push(_Kind.JOIN, worker)
        return start

    def _push(self, kind: _Kind, *args: object) -> bool:
        """Queues an event; returns True if the caller has to start telling. Holds the lock."""
        if self._closed:
            return False
        self._events.append((kind, args))
        start, self._running = not self._running, True
        return start

    def _tell(self) -> None:
        """Runs callbacks until there is no event left; in the pool, one thread at a time."""
        while True:
            with critical.section, self._lock:
                if not self._events:
                    self._running = False
                    return
                kind, args = self._events.popleft()
                callbacks = [call for of, call in self._callbacks.values() if of is kind]
            for callback in callbacks:
                with Contained(_logger, "a callback of rpc.%s failed: %r", kind.value, callback):
                    callback(*args)


def attach_to(agent: AgentCore) -> None:
    """For the library: puts the callbacks on an agent."""
    events = MembershipEvents(agent.info, agent.pool.submit)
    agent.attachments.attach(events)
    agent.inbox.on_loss_at_once(events.lost)
    agent.life.after_close(events.close)


def on_join(callback: Callable[[WorkerInfo], object]) -> Remove:
    """Calls `callback(worker)` for each worker that joins from now on.

    That is a worker that was not there when `init_rpc` returned (see `RpcOptions.start_when`), one
    on top of the job, or one that comes back, with a new incarnation. `get_worker_infos()`, called
    after this, returns the workers that are there already.

    Callbacks of `on_join`, `on_leave` and `on_loss` run in a thread of the pool, one at a time and
    in the order of the events, so they may call other workers; a callback that blocks delays the
    later ones. Their exceptions are logged.

    Args:
        callback: A plain function.

    Returns:
        A function that removes the callback. No call of it begins afterwards.

    Raises:
        TypeError: The callback is no plain function.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     stop = rpc.on_join(lambda worker: print(worker.name, "joined"))
        ...     stop()  # the callback is removed
    """
    return current_agent().attachments[MembershipEvents].add(_Kind.JOIN, callback)


def on_leave(callback: Callable[[WorkerInfo], object]) -> Remove:
    """Calls `callback(worker)` for each worker that leaves from now on.

    That is a worker that says goodbye while this one goes on: by `shutdown(graceful=False)`, or
    since its program ends. Calls that wait for it raise WorkerLostError as for a lost one. When all
    shut down together nobody is told. See `on_join` for the thread of callbacks, and the rest.

    Args:
        callback: A plain function.

    Returns:
        A function that removes the callback.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     stop = rpc.on_leave(lambda worker: print(worker.name, "left"))
        ...     stop()  # the callback is removed
    """
    return current_agent().attachments[MembershipEvents].add(_Kind.LEAVE, callback)


def on_loss(callback: Callable[[WorkerInfo, WorkerLostError], object]) -> Remove:
    """Calls `callback(worker, error)` for each worker that is lost from now on.

    That is a worker that went without a goodbye: its process is gone, it was silent for
    `RpcOptions.lost_after`, or the coordinator has dropped it. If the coordinator has dropped this
    worker, the callback gets this worker itself and an EvictedError. See `on_join` for the thread
    of callbacks, and the rest.

    Args:
        callback: A plain function.

    Returns:
        A function that removes the callback.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     stop = rpc.on_loss(lambda worker, error: print(worker.name, "is lost"))
        ...     stop()  # the callback is removed
    """
    return current_agent().attachments[MembershipEvents].add(_Kind.LOSS, callback)


# -- news of other workers, from the coordinator to the agent ------------------------------------


@final
class JobEvents:
    """For the library: passes the coordinator's news to the agent, once this worker was welcomed.

    Attributes:
        agent: The agent; None while it is not there yet.
    """

    def __init__(self) -> None:
        self.agent: AgentCore | None = None

    def on_member_joined(self, member: Member) -> None:
        """Called for each worker that joins."""
        if self.agent is not None:
            self.agent.learn([(member.info, member.endpoints)])
            self.agent.attachments[MembershipEvents].joined(member.info)

    def on_member_lost(
        self, info: WorkerInfo, reason: str, left: bool, fenced: bool = False
    ) -> None:
        """Called when a worker has left, was dropped, or (fenced) gave up this one."""
        if self.agent is not None and info != self.agent.info:
            self.agent.exchange.fence(info, reason, left=left, fenced=fenced)

    def on_coordinator_lost(self, error: WorkerLostError) -> None:
        """Called when the coordinator is lost, or goes on without this worker."""
        if self.agent is not None and isinstance(error, EvictedError) and self.agent.evict(error):
            self.agent.attachments[MembershipEvents].evicted(error)
