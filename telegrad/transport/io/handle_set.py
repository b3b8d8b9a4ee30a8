"""The sockets of an exchange that threads read themselves; whoever leads waits for all of them.

    sockets ── epoll ──┬── a thread that has nothing else to do: the leader (`lead`)
       │               └── an epoll around it ── the loop, while nobody leads
       └── a thread that waits for one peer takes that one out meanwhile (`pause`)

A thread that waits for replies leaves the sockets once it has read several requests: others do
those, and to hand one over takes a wake-up of a thread, which who leads does not need.

The leader reads and hands over; what it has read for itself to do it does after that, and before it
does what may take long it leaves the sockets to the loop (Schmidt et al., "Leader/Followers", PLoP
2000; here the loop follows).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from telegrad.transport.io.pump import Gate
from telegrad.transport.io.spin import Shield, Spin
from telegrad.transport.loop import LoopThread, handing_context

__all__ = ["Handle", "HandleSet"]

NOBODY = 0  # no thread has this number
LONGEST_POLL = 3600.0  # seconds; the kernel counts milliseconds in an int
MOST_REQUESTS = 4  # that a thread reads in one wait for replies


class Handle(Protocol):
    """What reads one socket."""

    def read(self) -> int:
        """Reads what is there, unless somebody else does; pauses itself when it has failed.

        Returns:
            How many messages brought requests.
        """


class Gathering(Protocol):
    """Keeps what is posted for a while, and its socket from being watched."""

    def end_gathering(self) -> None:
        """Writes that, and has the socket watched."""


@final
class HandleSet:
    """The sockets of one exchange.

    Args:
        loop: Who reads when nobody leads.
        spin: Seconds for which the leader looks before it sleeps.

    Attributes:
        gathering: Whose sockets are not watched, as somebody posts.
    """

    def __init__(self, loop: LoopThread, spin: float) -> None:
        self._loop = loop
        self._spin = Spin(spin)
        self._context: contextvars.Context = handing_context()  # in which the leader reads
        self._handles: dict[int, Handle] = {}
        self.gathering: set[Gathering] = set()
        self._shield = Shield()  # of the leader, which alone looks at it
        self._lock = threading.Lock()  # guards the next six
        self._leader = NOBODY
        self._polling = False  # or the leader does something else, and may be replaced
        self._sockets: select.epoll | None = None
        self._around: select.epoll | None = None
        self._event = -1  # wakes the leader
        self._deferred: list[Callable[[], None]] = []

    # On the loop.

    def add(self, descriptor: int, handle: Handle) -> None:
        """Watches a socket."""
        self._handles[descriptor] = handle
        with self._lock:
            sockets = self._sockets or self._open()
            sockets.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Watches a socket no more; its descriptor may be closed after this."""
        if self._handles.pop(descriptor, None) is not None:
            self.pause(descriptor)

    def close(self) -> None:
        """Ends the leader's wait and watches nothing any more. Idempotent."""
        with self._lock:
            sockets, around, event = self._sockets, self._around, self._event
            if sockets is None or around is None:
                return
            asyncio.get_running_loop().remove_reader(around.fileno())
            self._around = None
            if self._polling:
                os.eventfd_write(event, 1)  # who leads closes
            else:
                self._close_all(sockets, event)
            around.close()

    # From any thread.

    def pause(self, descriptor: int) -> None:
        """Takes a socket out, for whoever has the reader's role; idempotent."""
        with self._lock:
            if self._sockets is not None:
                try:  # noqa: SIM105 - every call does this, and `suppress` costs as much again
                    self._sockets.unregister(descriptor)
                except FileNotFoundError:
                    pass

    def resume(self, descriptor: int) -> None:
        """Puts it back; it is open, and watched."""
        with self._lock:
            if self._sockets is not None:
                try:  # noqa: SIM105
                    self._sockets.register(descriptor, select.EPOLLIN)
                except FileExistsError:
                    pass

    def lead(self, gate: Gate, seconds: float, most: float = math.inf) -> None:
        """Reads whatever comes until the gate is open, and leads on until `leave`.

        Args:
            gate: Where this thread waits.
            seconds: How long it would; 0 reads what is there, whether or not the gate is open.
            most: Messages with requests, after which it returns as well.

        Returns at once where another thread leads, or there is nothing to read from.
        """
        is_inner = self._polling and self._leader == threading.get_ident()
        if is_inner:
            most = math.inf  # a signal handler waits, in the thread that leads: nobody else can
        sockets = self._begin()
        if sockets is None:
            return
        outer = self._shield
        try:
            with Shield() as shield:
                self._shield = shield
                self._do_deferred()
                if not seconds:
                    self._context.run(self._read, sockets.poll(0))
                    return
                deadline = time.monotonic() + seconds
                gate.wake_with(self._wake)
                requests = 0
                while not gate.is_open() and requests < most and self._around is not None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return
                    ready = shield.wait(self._spin.poll, sockets.poll, min(left, LONGEST_POLL))
                    requests += self._context.run(self._read, ready)
        finally:
            gate.wake_with(None)
            self._shield = outer
            if is_inner:
                os.eventfd_write(self._event, 1)  # the gate of who led before may be open
            else:
                self._end(sockets)

    def lead_for(self, gate: Gate, seconds: float) -> None:
        """Leads until the gate is open, or others do better; at once over where another thread leads."""
        for each in tuple(self.gathering):
            each.end_gathering()
        try:
            self.lead(gate, seconds, MOST_REQUESTS)
        finally:
            if self._leader == threading.get_ident():
                self.leave()

    def moved(self, size: int) -> None:
        """Hears that big parts of so many bytes went, or came, for which a wait may last longer."""
        self._spin.moved(size)

    def leave(self) -> None:
        """Has the loop read from now on, unless the leader does at this moment; from any thread."""
        with self._lock:
            if self._leader != NOBODY and not self._polling:
                self._leader = NOBODY
                if self._around is not None and self._sockets is not None:
                    self._around.register(self._sockets.fileno(), select.EPOLLIN)
        self._do_deferred()

    def defer(self, write: Callable[[], None]) -> bool:
        """Has something written soon, if this thread leads on: when it reads again, or leaves."""
        with self._lock:
            defers = self._leader == threading.get_ident() and not self._polling
            if defers:
                self._deferred.append(write)
        return defers

    def _do_deferred(self) -> None:
        if self._deferred:
            with self._lock:
                deferred, self._deferred = self._deferred, []
            writes = iter(deferred)
            try:
                for write in writes:
                    write()
            finally:  # one failed: the others have their streams' turns
                for write in writes:
                    self._loop.call_soon(write)

    def _begin(self) -> select.epoll | None:
        me = threading.get_ident()
        with self._lock:
            if self._around is None or self._sockets is None or self._leader not in (NOBODY, me):
                return None
            if self._leader == NOBODY:
                self._leader = me
                self._around.unregister(self._sockets.fileno())
            self._polling = True
            return self._sockets

    def _end(self, sockets: select.epoll) -> None:
        with self._lock:
            self._polling = False
            if self._around is None:
                self._close_all(sockets, self._event)

    def _wake(self) -> None:
        """Wakes the leader, if its gate was opened by another thread."""
        with self._lock:
            me = self._leader == threading.get_ident()
            if self._polling and (not me or self._shield.polling):  # or a signal handler opened it
                os.eventfd_write(self._event, 1)

    def _read(self, ready: list[tuple[int, int]]) -> int:
        requests = 0
        for descriptor, _ in ready:
            if descriptor == self._event:
                with contextlib.suppress(BlockingIOError):  # another was as quick
                    os.eventfd_read(descriptor)
            elif (handle := self._handles.get(descriptor)) is not None:
                requests += handle.read()
        return requests

    def _readable(self) -> None:
        """Reads what is there; on the loop."""
        with self._lock:
            sockets = self._sockets if self._leader == NOBODY else None
        if sockets is not None:
            self._read(sockets.poll(0))

    def _open(self) -> select.epoll:
        """Makes what watches, for the first socket. Holds the lock."""
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sockets, self._around = select.epoll(), select.epoll()
        self._sockets.register(self._event, select.EPOLLIN)
        self._around.register(self._sockets.fileno(), select.EPOLLIN)
        asyncio.get_running_loop().add_reader(self._around.fileno(), self._readable)
        return self._sockets

    def _close_all(self, sockets: select.epoll, event: int) -> None:
        """Closes what the leader polls. Holds the lock."""
        if self._sockets is not None:
            self._sockets = None
            sockets.close()
            os.close(event)
