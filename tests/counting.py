"""Counts what workers send each other and give to their pools, and what a process runs for it."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

from telegrad.rpc.deadlock.probe import WaitProbes
from telegrad.rpc.pool.pool import Pool
from telegrad.transport.session.connection import Connection
from telegrad.transport.session.loopback import Loopback

__all__ = ["Cost", "Work", "counted"]

# C functions of Python's that enter the kernel, or may.
SYSTEM = frozenset(
    {
        *("socket.sendmsg", "socket.send", "socket.recv_into", "socket.recvmsg_into"),
        *("socket.recvmsg", "epoll.poll", "epoll.register", "epoll.unregister", "epoll.modify"),
        *("poll.poll", "eventfd_read", "eventfd_write", "sched_yield", "signal"),
        *("SimpleQueue.get", "getpid"),
    }
)
WAKES = frozenset({"eventfd_write", "SimpleQueue.put"})  # of other threads

# On a machine with too much to do, a wait may be so long that the workers look at it, and ask each other.
KINDS = ("reply", "rpc", "rref", "autograd")
OF_WAITS = "rpc.wait"


class Work:
    """What was counted.

    Attributes:
        envelopes: By sender and kind, as `worker0 rpc.call`; replies as `worker0 reply`.
        hops: Pieces of work given to a pool, by worker.
    """

    def __init__(self) -> None:
        self.envelopes: Counter[str] = Counter()
        self.hops: Counter[str] = Counter()


@contextmanager
def counted() -> Iterator[Work]:
    """Counts in its block."""
    work = Work()
    to_peer, to_itself, enter = Connection.post, Loopback.post, Pool.submit_call

    def count(worker: str, envelope: Any) -> None:
        kind = "reply" if envelope.reply else envelope.kind
        if kind.partition(".")[0] in KINDS and not kind.startswith(OF_WAITS):
            work.envelopes[f"{worker} {kind}"] += 1

    def counted_post(connection: Connection, envelope: Any, **how: Any) -> None:
        count(connection._terms.credentials.identity.info.name, envelope)
        to_peer(connection, envelope, **how)

    def counted_post_to_itself(loopback: Loopback, envelope: Any) -> None:
        count(loopback._info.name, envelope)
        to_itself(loopback, envelope)

    def counted_enter(pool: Pool, context: Any, function: Any, *args: Any, **how: Any) -> bool:
        work.hops[pool._name] += getattr(function, "__func__", None) is not WaitProbes._look
        return enter(pool, context, function, *args, **how)

    with (
        mock.patch.object(Connection, "post", counted_post),
        mock.patch.object(Loopback, "post", counted_post_to_itself),
        mock.patch.object(Pool, "submit_call", counted_enter),
    ):
        yield work


class Cost:
    """What the threads of this process run between `begin` and `end`, where `note` is their profiler.

    Attributes:
        system: The C functions that enter the kernel, by name.
    """

    def __init__(self) -> None:
        self.system: Counter[str] = Counter()
        self._functions: Counter[int] = Counter()
        self._turns: Counter[int] = Counter()
        self._wakes: Counter[int] = Counter()
        self._counting = False

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Counts an event; for `sys.setprofile`, and `threading.setprofile` before threads begin."""
        if not self._counting:
            return
        thread = threading.get_ident()
        if event == "call":
            self._functions[thread] += 1
            self._turns[thread] += frame.f_code.co_name == "_run_once"
        elif event == "c_call":
            name = getattr(argument, "__qualname__", "")
            if name in SYSTEM:
                self.system[name] += 1
            self._wakes[thread] += name in WAKES

    def begin(self) -> None:
        """Counts from now on, from 0."""
        for each in (self._functions, self.system, self._turns, self._wakes):
            each.clear()
        self._counting = True

    def end(self) -> tuple[int, int, int, int]:
        """Ends it; returns functions of Python's, entries of the kernel, loops' turns, wake-ups."""
        self._counting = False
        counters = self._functions, self.system, self._turns, self._wakes
        functions, entries, turns, wakes = (sum(each.values()) for each in counters)
        return functions, entries, turns, wakes


def functions_of(run: Callable[[], Any]) -> list[str]:
    """Returns the names of the Python functions that one call of a function runs."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if event == "call":
            names.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return names
