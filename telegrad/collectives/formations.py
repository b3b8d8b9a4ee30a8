"""Runs what `forming` decides: its messages, who waits for it, deadlines and losses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from telegrad.collectives.clock import Clock, Due, time_limit
from telegrad.collectives.failure import cause_for_others
from telegrad.collectives.forming import Action, Attempt, Failed, Formed, Forming, Send, State
from telegrad.collectives.messages import FORM, UNFORMED, FormMessage, GroupKey, UnformedMessage
from telegrad.errors import (
    BlockingCallError,
    CallTimeoutError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import Agent, Future, new_future, on_own_loop
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = ["Formations"]

_logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


@final
@dataclass(slots=True)
class _Formation:
    """A call of new_group that waits, or has found its key."""

    attempt: Attempt
    future: Future[GroupKey]
    clock: Clock
    cancel_timer: Callable[[], None] = _nothing
    key: GroupKey | None = None


@final
class Formations:
    """The groups that one agent forms with others.

    Args:
        agent: Its agent.
        over: Hears that a group has failed to form on another member, though it has here.
    """

    def __init__(self, agent: Agent, over: Callable[[GroupKey, BaseException], None]) -> None:
        self._agent = agent
        self._over = over
        self._lock = threading.Lock()  # guards all below
        self._forming = Forming(agent.info)
        self._formations: dict[Attempt, _Formation] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many calls wait for their group."""
        with self._lock:
            return sum(attempt.state is State.FORMING for attempt in self._formations)

    def form(self, members: Sequence[WorkerInfo], *, limit: float, warn_after: float) -> GroupKey:
        """Returns the key of a new group when every member forms it.

        Raises:
            CollectiveMismatchError: A member forms another group instead.
            WorkerLostError: A member is lost.
            CallTimeoutError: A member did not come in time.
            BlockingCallError: On an event loop that telegrad runs; nothing was sent.
            NotInitializedError: The agent was shut down.
        """
        if on_own_loop():
            raise BlockingCallError(
                "new_group() would block a loop of telegrad's; in an async def function write "
                "`await rpc.to_thread(new_group, ranks)`"
            )
        clock = Clock(time_limit(None, limit), warn_after)
        with self._lock:
            if self._closed:
                raise NotInitializedError(f"the agent {self._agent.name!r} was shut down")
            attempt, actions = self._forming.begin(members)
            future: Future[GroupKey] = new_future(None, _called(attempt))
            formation = self._formations[attempt] = _Formation(attempt, future, clock)
        self._perform(actions)
        for member in members:
            lost = self._agent.lost(member)
            if lost is not None:
                self.on_lost(member, lost)
        self._watch(formation)
        try:
            return future.wait()
        except BaseException as error:  # an interrupt, or what this attempt has failed with
            self._fail(formation, cause_for_others(error, _called(attempt)))
            raise

    def on_form(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Hears that a worker forms a group with this one; on the loop."""
        message = FormMessage.from_wire(self._agent.read(envelope))
        with self._lock:
            actions = self._forming.on_form(peer, message)
        self._perform(actions)

    def on_unformed(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Hears that this has failed; on the loop."""
        message = UnformedMessage.from_wire(self._agent.read(envelope))
        with self._lock:
            actions = self._forming.on_unformed(peer, message)
        self._perform(actions)

    def on_lost(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Ends the calls that wait for a lost worker."""
        with self._lock:
            actions = self._forming.lose(worker, error)
        self._perform(actions)

    def close(self, *, for_good: bool = False) -> None:
        """Ends all calls that wait.

        Args:
            for_good: Whether the agent has ended, so that no later call could wait to any end.
        """
        name = self._agent.name
        error = NotInitializedError(f"worker {name!r} has left its process groups")
        with self._lock:
            self._closed = self._closed or for_good
            waiting = [each for each in self._formations.values() if each.key is None]
        for formation in waiting:
            self._fail(formation, error)

    def _fail(self, formation: _Formation, cause: BaseException) -> None:
        with self._lock:
            actions = self._forming.fail(formation.attempt, cause)
        self._perform(actions)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, FormMessage() as message):
                    self._post(peer, FORM, message.to_wire())
                case Send(peer, UnformedMessage() as message):
                    self._post(peer, UNFORMED, message.to_wire())
                case Formed(attempt, key):
                    self._on_formed(attempt, key)
                case Failed(attempt, cause):
                    self._on_failed(attempt, cause)

    def _post(self, peer: WorkerInfo, kind: str, body: object) -> None:
        with suppress(WorkerLostError, UnknownWorkerError):  # `on_lost` tells of that too
            self._agent.post(peer, kind, body)

    def _on_formed(self, attempt: Attempt, key: GroupKey) -> None:
        with self._lock:
            formation = self._formations.get(attempt)
            if formation is None:
                return  # it has failed at the same time
            formation.key = key
            formation.cancel_timer()
        formation.future.try_set_result(key)

    def _on_failed(self, attempt: Attempt, cause: BaseException) -> None:
        with self._lock:
            formation = self._formations.pop(attempt)
            formation.cancel_timer()
            key = formation.key
        formation.future.try_set_exception(cause)
        if key is not None:
            self._over(key, cause)

    # Time; on the loop.

    def _watch(self, formation: _Formation) -> None:
        with self._lock:
            if formation.attempt.state is State.FORMING:
                delay = formation.clock.next()
                formation.cancel_timer = self._agent.after(delay, lambda: self._on_time(formation))

    def _on_time(self, formation: _Formation) -> None:
        attempt, clock = formation.attempt, formation.clock
        with self._lock:
            if attempt.state is not State.FORMING:
                return
            due = clock.due()
            missing = self._forming.missing(attempt)
        who = ", ".join(f"rank {worker.rank} ({worker.name!r})" for worker in missing)
        who = f"not called by {who}" if missing else "called by all members"
        where = f"{_called(attempt)} on rank {self._agent.rank} ({self._agent.name!r})"
        if due is not Due.EXPIRE:
            self._watch(formation)
        if due is Due.WARN:
            self._agent.submit(
                _logger.warning, "%s waits for %.3g s: %s", where, clock.elapsed, who
            )
        elif due is Due.EXPIRE:
            error = CallTimeoutError(
                f"{where} took longer than {clock.limit:.3g} s: {who}; give a longer timeout=, or "
                "math.inf",
                worker=", ".join(worker.name for worker in missing),
                function="collectives.new_group",
                phase="waiting",
                elapsed=clock.elapsed,
            )
            self._fail(formation, error)


def _called(attempt: Attempt) -> str:
    return f"new_group({list(attempt.ranks)})"
