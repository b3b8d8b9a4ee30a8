"""The ambient agent, which the verbs use if they are given none.

A ContextVar with a process default: a test runs twenty agents in one process and each of their pool
threads sees its own; a program that called `init_rpc` sees its one agent in every thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

from telegrad.critical import critical
from telegrad.errors import AgentForkedError, AlreadyInitializedError, NotInitializedError
from telegrad.transport import on_own_loop

if TYPE_CHECKING:
    from telegrad.rendezvous import CallOff
    from telegrad.rpc.base.attachments import Attachments
    from telegrad.rpc.base.life import Life

# With a busy thread a reply takes 3.2 ms, at Python's 5 ms 11.
SWITCH_INTERVAL = 0.0005


class Submits(Protocol):
    """A pool of threads."""

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in a thread, in a Context of its own."""


class AmbientAgent(Protocol):
    """The parts of an agent that the rooms below it use; `AgentCore` has them all."""

    @property
    def life(self) -> Life:
        """The state of the agent."""

    @property
    def pool(self) -> Submits:
        """The pool, which runs callbacks."""

    @property
    def attachments(self) -> Attachments:
        """The parts that upper packages keep on it."""


A = TypeVar("A", bound=AmbientAgent)


@final
class _Process:
    """The things that the agents of one process share: the default one and interpreter settings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.agent: AmbientAgent | None = None
        self.watches_forks = False
        self.forked_at = 0.0
        self.lives: weakref.WeakSet[Life] = weakref.WeakSet()  # of agents, which hear of a fork
        self.joins: set[CallOff] = set()  # each operation is atomic
        self.switching: set[object] = set()  # agents that need a low switch interval
        self.original_interval = 0.0


_process: ContextVar[_Process] = ContextVar("telegrad_process", default=_Process())  # noqa: B039
_ambient: ContextVar[AmbientAgent | None] = ContextVar("telegrad_agent", default=None)


def current_agent() -> AmbientAgent:
    """Returns the ambient agent: of this context, else of this process.

    Raises:
        NotInitializedError: There is none: `init_rpc` was not called, failed, or `shutdown` was
            called since.
        AgentForkedError: This process was forked from the one that the agent runs in.
    """
    agent = _ambient.get() or _process.get().agent
    if agent is None:
        raise NotInitializedError(
            "no agent runs in this process; call rpc.init_rpc() first, or "
            "collectives.init_process_group() (and not after rpc.shutdown()), or write `with "
            "agent.as_current():` around this where the program holds an rpc.Agent"
        )
    life = agent.life
    if life.ended:
        raise NotInitializedError(
            f"the agent {life.name!r} was shut down; call rpc.init_rpc() again, or make another "
            "rpc.Agent"
        )
    if life.forked:
        life.check_process()
    return agent


def watch_forks(life: Life) -> None:
    """Sets, in every process that is forked from this one, the time of the fork; in `life` too."""
    process = _process.get()
    with critical.section, process.lock:
        process.lives.add(life)
        first, process.watches_forks = not process.watches_forks, True
    if first and sys.platform != "win32":
        os.register_at_fork(after_in_child=_note_fork)


def _note_fork() -> None:
    process = _process.get()
    process.forked_at = time.monotonic()
    for life in list(process.lives):
        life.forked = True


def forked_at() -> float:
    """Returns the time at which this process was forked from one with an agent; 0 if it was not.

    The time is on the clock of `time.monotonic`.
    """
    return _process.get().forked_at


def find_agent() -> AmbientAgent | None:
    """For the library: returns the ambient agent, or None where `current_agent` would raise."""
    agent = _ambient.get() or _process.get().agent
    return None if agent is None or agent.life.forked or agent.life.ended else agent


def process_agent() -> AmbientAgent | None:
    """For the library: returns the agent that `init_rpc` made here, or before this was forked."""
    return _process.get().agent


def refuse_second() -> None:
    """For the library: checks that no agent of `init_rpc` runs in this process.

    Raises:
        AlreadyInitializedError: An agent runs.
        AgentForkedError: The agent is of the process that this one was forked from.
    """
    running = process_agent()
    if running is None:
        return
    life = running.life
    if life.pid != os.getpid():
        raise AgentForkedError(
            f"this process was forked from process {life.pid}, in which agent "
            f"{life.name!r} runs; start processes with multiprocessing's 'spawn' method"
        )
    raise AlreadyInitializedError(
        f"the agent {life.name!r} already runs in this process; "
        "call rpc.shutdown() before another rpc.init_rpc()"
    )


def set_process_agent(agent: AmbientAgent) -> None:
    """For the library: makes `agent` the default of this process.

    Raises:
        AlreadyInitializedError: There is one.
        AgentForkedError: There is one, of the process that this one was forked from.
    """
    process = _process.get()
    with critical.section, process.lock:
        refuse_second()
        process.agent = agent


def clear_process_agent(agent: AmbientAgent) -> None:
    """For the library: removes `agent` as the default of this process, if it is the default."""
    process = _process.get()
    with critical.section, process.lock:
        if process.agent is agent:
            process.agent = None


@contextlib.contextmanager
def joining(call_off: CallOff) -> Iterator[None]:
    """For the library: lets `shutdown` end a join, inside the block."""
    joins = _process.get().joins
    joins.add(call_off)
    try:
        yield
    finally:
        joins.discard(call_off)
        call_off.over.set()


def call_off_joins(limit: float) -> None:
    """For the library: ends the joins that still wait; returns when they have ended.

    Args:
        limit: The longest wait for their end, in seconds. It waits for nothing in a thread that
            joins itself, by a signal handler, or on an event loop that telegrad runs.
    """
    for call_off in list(_process.get().joins):
        if call_off() and call_off.thread != threading.get_ident() and not on_own_loop():
            call_off.over.wait(limit)


def enter_agent(agent: AmbientAgent) -> Token[AmbientAgent | None]:
    """Makes `agent` the ambient one of the current context, for contexts made to run a call."""
    return _ambient.set(agent)


@contextlib.contextmanager
def use_agent(agent: A) -> Iterator[A]:
    """For the library: makes `agent` the ambient one inside a `with` block, in this context alone.

    Users write `with agent.as_current():`.
    """
    token = _ambient.set(agent)
    try:
        yield agent
    finally:
        _ambient.reset(token)


def lower_switch_interval(agent: object) -> None:
    """Lowers the interpreter's thread switch interval until no agent needs it any more."""
    process = _process.get()
    with critical.section, process.lock:
        if not process.switching:
            process.original_interval = sys.getswitchinterval()
            sys.setswitchinterval(min(process.original_interval, SWITCH_INTERVAL))
        process.switching.add(agent)


def restore_switch_interval(agent: object) -> None:
    """Restores the interval from before the first agent, if this is the last one. Idempotent."""
    process = _process.get()
    with critical.section, process.lock:
        if agent in process.switching:
            process.switching.remove(agent)
            if not process.switching:
                sys.setswitchinterval(process.original_interval)
