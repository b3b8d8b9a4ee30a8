"""One epoll over all direct sockets of an exchange, and the threads that read with it.

    sockets ── epoll ──┬── a thread that waits for replies polls it (`wait`)
                       ├── in the epoll of a user loop that awaits replies (`await_on`)
                       ├── in the epoll of an idle thread of the pool (`watch_idle`)
                       └── in the epoll of telegrad's own loop

`reader` decides which of them has the role. To move the role takes no wake-up: the inner epoll is
taken out of one epoll and put into another one, by the thread that comes or goes. So a thread that
begins to wait takes the role from an idle thread that goes on sleeping.

A thread that has just lost the role may still hand a message over. The role of one socket,
`begin_reading`, keeps the messages of a stream in order.

A thread that waits leaves the role once it has read several requests: others run those, and each
takes a wake-up of a thread. An idle thread runs the requests that it has read itself.

A thread that waits again and again, with little work between two waits, holds the role meanwhile.
So no other thread is woken for messages that it will read itself.
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
from asyncio import _get_running_loop
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, final

from telegrad.critical import critical
from telegrad.transport.io.burst import BurstWriter
from telegrad.transport.io.loop_watch import MOST_REQUESTS, LoopWatch
from telegrad.transport.io.pump import WaitGate
from telegrad.transport.io.reader import NOBODY, Holder, ReaderRole
from telegrad.transport.io.shield import Shield
from telegrad.transport.io.spin import LONGEST_SLEEP, Spin
from telegrad.transport.loop import LoopThread, handing_context

LONGEST_POLL = 3600.0  # seconds; the kernel counts milliseconds in an int
# Seconds of work between two waits for which a thread holds the role. Messages may wait for as
# long, and for `LOOK_SECONDS` more. To wake another thread for each takes some 50 us of processor
# time, and a thread that computes loses the interpreter's lock to it.
SHORT_SECONDS = 0.002
SHORT_IN_A_ROW = 2  # pieces of such work; short and long ones may take turns
# Seconds for which such a thread does not look at the sockets again: a look costs 10 us.
LOOK_SECONDS = 0.001


class Source(Protocol):
    """The reading end of one socket."""

    def read(self) -> int:
        """Reads arrived messages, unless another thread does; stops the socket when it has failed.

        Returns:
            The number of messages that brought requests.
        """

    def resume(self) -> None:
        """Writes what waits, unless another thread does; on the loop."""


@final
@dataclass(slots=True)
class _Progress:
    """The counts by which a tick finds out who does not come to read.

    Attributes:
        holds: The number of times that a hold began or went on.
        holds_seen: That number at the last tick.
        reads: The number of times that a thread has read.
        reading: The threads that read now; each operation is atomic.
        unread: The number of reads at the last tick, if a socket could be read then.
    """

    holds: int = 0
    holds_seen: int = 0
    reads: int = 0
    reading: set[int] = field(default_factory=set)
    unread: int | None = None


@final
class SocketReader:
    """The direct sockets of one exchange.

    Args:
        loop: The loop that reads when nobody else does.
        spin: Seconds for which a thread looks before it sleeps.

    Attributes:
        bursts: The messages that wait to be written together; written by the next thread that
            begins to read.
        longest_spin: Seconds for which a thread looks at most.
    """

    def __init__(self, loop: LoopThread, spin: float) -> None:
        self.bursts = BurstWriter(loop)
        self._loop = loop
        self.longest_spin = spin
        self._context: contextvars.Context = handing_context()  # the context of the waiter
        self._idle_context: contextvars.Context = handing_context()
        self._spin, self._idle_spin = Spin(spin), Spin(spin)
        self._sources: dict[int, Source] = {}
        self._shield = Shield()  # for the waiter, the only thread that looks at it
        self._role_lock = threading.Lock()  # guards all below
        self._role = ReaderRole()
        self._progress = _Progress()
        self._watches: dict[int, LoopWatch] = {}  # by the number of the loop
        self._polls: _Polls | None = None  # made for the first socket
        self._armed: select.epoll | None = None  # holds the sockets; None while a thread waits
        self._closed = False

    # On the loop.

    def add(self, descriptor: int, source: Source) -> None:
        """Watches a socket."""
        with critical.section, self._role_lock:
            if self._closed:
                return
            if self._polls is None:
                self._polls = _Polls()
                asyncio.get_running_loop().add_reader(self._polls.own.fileno(), self._read_on_loop)
                self._arm()
            self._sources[descriptor] = source
            self._polls.sockets.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Stops watching a socket; its descriptor may be closed after this. Idempotent."""
        # The source goes first: a thread that has just polled the descriptor finds none, and
        # another socket may have its number soon.
        if self._sources.pop(descriptor, None) is not None:
            self.stop(descriptor)

    def resume(self) -> None:
        """Writes what waits on all sockets."""
        self.bursts.write()
        for source in list(self._sources.values()):
            source.resume()

    def tick(self) -> None:
        """Takes the role from threads and loops that do not come to read; forgets closed loops."""
        progress = self._progress
        if self._role.held and progress.holds == progress.holds_seen:
            self.release(self._role.waiter)
        progress.holds_seen = progress.holds
        with critical.section, self._role_lock:
            # Not forgotten before: one wait later the thread that left the role to others would
            # take it again, and the thread that sleeps would have no reader.
            self._role.shared = NOBODY
            self._take_from_stuck()
        for number, watch in tuple(self._watches.items()):
            if watch.loop.is_closed():
                with critical.section, self._role_lock:
                    self._role.await_ends(number)
                    self._arm()
                    del self._watches[number]
                watch.close()
            elif watch.is_stuck():
                self.end_await(watch)

    def _take_from_stuck(self) -> None:
        """Takes the role from a thread that has not come to read since the last tick.

        A handler of a signal, or a finaliser, may have interrupted its poll, and block: on a lock,
        say, of a thread whose reply nobody else would read. Holds the lock.
        """
        polls, role, progress = self._polls, self._role, self._progress
        seen, progress.unread = progress.unread, None
        threads = role.holder in (Holder.WAITER, Holder.IDLE) and not role.held
        if polls is None or self._closed or progress.reading or not threads:
            return
        progress.unread = progress.reads if polls.sockets.poll(0) else None
        if progress.unread is not None and progress.unread == seen:
            role.take_away()
            self._arm()

    def close(self) -> None:
        """Ends all waits and watches nothing any more. Idempotent."""
        with critical.section, self._role_lock:
            polls = self._polls
            if self._closed or polls is None:
                self._closed = True
                return
            self._closed = True
            asyncio.get_running_loop().remove_reader(polls.own.fileno())
            watches = tuple(self._watches.values())
            polls.wake_all()
            self._arm()
            self._watches.clear()
        for watch in watches:
            watch.close()

    def _read_on_loop(self) -> None:
        self._read(self._ready(Holder.OWN_LOOP))

    # From any thread.

    def stop(self, descriptor: int) -> None:
        """Stops watching a socket that has failed, or is to be removed. Idempotent."""
        with critical.section, self._role_lock:
            if self._polls is not None and not self._polls.closed:
                with contextlib.suppress(FileNotFoundError):
                    self._polls.sockets.unregister(descriptor)

    # In a thread that waits for replies.

    def wait(self, gate: WaitGate, seconds: float, *, stay: bool = False) -> None:
        """Reads until a gate opens, in the thread that waits at it, or until others do better.

        Returns early, with the gate shut, where another thread waits already, and after several
        requests: the caller has to wait at the gate after that.

        Args:
            gate: The gate at which this thread waits.
            seconds: The longest wait.
            stay: True to hold the role after this wait, as `hold` does.
        """
        me, outer = threading.get_ident(), self._shield
        with Shield() as shield, critical.role:
            if self.bursts.waiting:
                self.bursts.write()
            with critical.section, self._role_lock:
                polls = self._polls
                held = self._role.held and self._role.waiter == me
                # A handler of a signal may wait while this thread polls, and reads in its place.
                nested = self._role.waiter == me and not held
                if polls is None or self._closed or not self._role.wait_begins(me):
                    return
                self._arm()
                # Counted while this thread may poll: `close` would else close the descriptors under
                # it, and other files would get their numbers.
                polls.users += 1
            self._shield = shield
            # The user loop of this thread stands still meanwhile, and must not get the role back.
            alone = nested or _get_running_loop() is not None
            try:
                # Set before the gate is looked at: a thread that opens the gate after that look
                # finds this, and ends the poll.
                gate.wake = self._wake_waiter
                self._read_until(gate, seconds, math.inf if alone else MOST_REQUESTS)
            finally:
                gate.wake = None
                self._shield = outer
                with critical.section, self._role_lock:
                    polls.users -= 1
                    self._progress.holds += 1
                    if self._role.waiter == me:
                        self._role.wait_ends(me, holds=(stay or held) and not gate.shut)
                    if self._role.waiter and not self._role.held:
                        polls.wake_waiter()  # a handler's wait ends: the outer reply may be here
                    self._arm()

    def hold(self) -> None:
        """Takes the role for waits that this thread begins soon, unless another thread waits.

        What comes between those waits stays in the sockets, and wakes no other thread. The thread
        has to call `release` after them. A thread that begins to wait takes the role from it, and
        a tick takes back what is held too long.
        """
        with critical.section, self._role_lock:
            if self._polls and not self._closed and self._role.hold_begins(threading.get_ident()):
                self._progress.holds += 1
                self._arm()

    def look(self) -> None:
        """Holds the role, as `hold` does, and reads what has come; never waits."""
        me, role = threading.get_ident(), self._role
        with Shield():
            with critical.section, self._role_lock:
                polls = self._polls
                if polls is None or self._closed or not role.hold_begins(me):
                    return
                self._progress.holds += 1
                self._arm()
                if not (ready := polls.sockets.poll(0)):
                    return
                role.wait_begins(me)  # nobody takes the role from a thread that reads
            try:
                self._context.run(self._read, ready)
            finally:
                with critical.section, self._role_lock:
                    role.wait_ends(me, holds=True)
                    self._arm()

    def release(self, thread: int) -> None:
        """Ends the hold of a thread, if it has one. Idempotent."""
        # Nearly always another thread has the role, or none: that takes no lock.
        if self._role.waiter == thread:
            with critical.section, self._role_lock:
                if self._role.waiter == thread:
                    self._role.hold_ends()
                    self._arm()

    def _read_until(self, gate: WaitGate, seconds: float, most: float) -> None:
        polls, shield, ends = self._polls, self._shield, time.monotonic() + seconds
        assert polls is not None
        requests, me = 0, threading.get_ident()
        while gate.shut and requests < most and not self._closed and self._role.waiter == me:
            if (left := ends - time.monotonic()) <= 0:
                return
            try:
                critical.role.release()  # a handler of a signal may wait while this thread polls
                ready = shield.wait(self._spin.poll, polls.sockets.poll, min(left, LONGEST_SLEEP))
            finally:
                if not critical.role._is_owned():  # a handler may have raised before
                    critical.role.acquire()
            requests += self._context.run(self._read, ready)

    def _wake_waiter(self) -> None:
        """Wakes the thread that waits, if another thread, or a signal handler, opened its gate."""
        with critical.section, self._role_lock:
            waiter, polls = self._role.waiter, self._polls
            # The thread that reads often opens its own gate, and looks at that next. An event would
            # end its next poll for nothing.
            inside = waiter == threading.get_ident() and not self._shield.polling
            if waiter and polls is not None and not inside:
                polls.wake_waiter()

    # In an idle thread of the pool.

    def watch_idle(self, gate: WaitGate) -> None:
        """Reads in an idle thread until its gate opens.

        Returns at once, with the gate shut, where there is no socket. One thread does this at a
        time.
        """
        with critical.role:
            with critical.section, self._role_lock:
                polls = self._polls
                if polls is None or self._closed:
                    return
                self._role.idle_begins(threading.get_ident())
                self._arm()
                polls.users += 1
            try:
                if self.bursts.waiting:
                    self.bursts.write()
                gate.wake = self._wake_idle
                while gate.shut and not self._closed:
                    for descriptor, _ in self._idle_spin.poll(polls.idle.poll, LONGEST_POLL):
                        if descriptor == polls.idle_event:
                            polls.forget_idle_wake()
                        else:
                            self._idle_context.run(self._read, self._ready(Holder.IDLE))
            finally:
                gate.wake = None
                with critical.section, self._role_lock:
                    self._role.idle_ends()
                    polls.users -= 1
                    self._arm()

    def _wake_idle(self) -> None:
        with critical.section, self._role_lock:
            if self._polls is not None:
                self._polls.wake_idle()

    # On a user loop.

    def await_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None] | None:
        """Makes the loop of this thread a reader until the returned function is called.

        Args:
            loop: The user loop on which a reply is awaited.

        Returns:
            A function that ends it; None where telegrad's own loop reads anyway, or there is no
            socket.
        """
        watch = self._watches.get(id(loop))
        if watch is None or watch.loop is not loop:
            if self._loop.is_loop_thread():
                return None
            with critical.section, self._role_lock:
                if self._closed or self._polls is None or watch is not None:
                    return None  # the tick forgets a loop whose number this one has
                watch = self._watches[id(loop)] = LoopWatch(self, loop, self.longest_spin)
        watch.begin()
        return watch.end

    def begin_await(self, watch: LoopWatch) -> None:
        """Gives a loop the role, unless a thread waits."""
        with critical.section, self._role_lock:
            if not (self._closed or watch.closed):
                self._role.await_begins(id(watch.loop))
                self._arm()

    def end_await(self, watch: LoopWatch) -> None:
        """Takes the role back from a loop; from any thread, idempotent."""
        with critical.section, self._role_lock:
            self._role.await_ends(id(watch.loop))
            self._arm()

    def read_in_loop(self, watch: LoopWatch) -> int:
        """Reads arrived messages if a loop has the role; returns how many had requests."""
        return self._read(self._ready(Holder.USER_LOOP, id(watch.loop)))

    # For the thread that has the role.

    def _ready(self, holder: Holder, loop: int = NOBODY) -> list[tuple[int, int]]:
        """Returns the sockets that can be read, if that reader has the role."""
        with critical.section, self._role_lock:
            # The epoll that woke this thread may be out of date: the role may have gone to another
            # reader, and the messages with it.
            polls, role = self._polls, self._role
            mine = role.holder is holder and (loop == NOBODY or loop == role.user_loop)
            return polls.sockets.poll(0) if mine and polls is not None and not self._closed else []

    def _read(self, ready: list[tuple[int, int]]) -> int:
        requests = 0
        self._progress.reads += 1
        self._progress.reading.add(me := threading.get_ident())
        try:
            with critical.role:
                for descriptor, _ in ready:
                    if (source := self._sources.get(descriptor)) is not None:
                        requests += source.read()
                    elif (polls := self._polls) is not None:
                        with critical.section, self._role_lock:
                            polls.forget_waiter_wake(descriptor)
        finally:
            self._progress.reading.discard(me)
        return requests

    def _arm(self) -> None:
        """Puts the sockets into the epoll of the reader that has the role. Holds the lock."""
        polls, role = self._polls, self._role
        if polls is None or polls.closed:
            return
        holder = role.holder
        if self._closed or holder is Holder.WAITER:
            epoll = None  # the thread polls the sockets itself
        elif holder is Holder.USER_LOOP:
            epoll = self._watches[role.user_loop].epoll
        else:
            epoll = polls.idle if holder is Holder.IDLE else polls.own
        if epoll is not self._armed:
            # A message that comes between the two steps is not lost: the new epoll tells at once of
            # what is there.
            if self._armed is not None:
                self._armed.unregister(polls.sockets.fileno())
            if epoll is not None:
                epoll.register(polls.sockets.fileno(), select.EPOLLIN)
            self._armed = epoll
        if self._closed:
            polls.close_unused()


@final
class Stay:
    """Waits of one thread that holds the reader's role while it does little between two of them.

    After long work it holds the role no more: others read while it works. For one thread at a time.

    Args:
        reader: The reader.
    """

    def __init__(self, reader: SocketReader) -> None:
        self._reader = reader
        self._ended = 0.0  # the time of the end of the last wait, or look
        self._looked = 0.0  # the time at which it read last
        self._in_a_row = 0  # pieces of work that were short
        self._gate: WaitGate | None = None  # of the last wait

    def wait(self, gate: WaitGate, seconds: float) -> None:
        """Reads until a gate opens, as `SocketReader.wait` does.

        A second call with the same gate goes on with its wait: no work lies between them.
        """
        if gate is not self._gate:
            self._gate = gate
            if not self._is_soon(time.monotonic()):
                self.end()
        self._reader.wait(gate, seconds, stay=self._in_a_row >= SHORT_IN_A_ROW)
        self._ended = self._looked = time.monotonic()

    def look(self) -> None:
        """Reads what has come, unless another thread waits, or it did so just now; never waits."""
        now = time.monotonic()
        if not self._is_soon(now):
            self.end()
        elif now - self._looked >= LOOK_SECONDS:
            self._reader.look()
            self._looked = now = time.monotonic()
        self._ended = now

    def end(self) -> None:
        """Gives the role up, in the thread that waited; idempotent."""
        self._reader.release(threading.get_ident())

    def _is_soon(self, now: float) -> bool:
        """Returns True if there was little work before this wait, and before the last one."""
        short = now - self._ended < SHORT_SECONDS
        self._in_a_row = self._in_a_row + 1 if short else 0
        return self._in_a_row >= SHORT_IN_A_ROW


@final
class _Polls:
    """The descriptors of a reader; guarded by its lock.

    Attributes:
        sockets: The epoll over all sockets, and over the descriptor that wakes the waiting thread.
        own: The epoll that telegrad's loop watches.
        idle: The epoll that an idle thread polls, with the descriptor that wakes that thread.
        idle_event: The descriptor that wakes the idle thread.
        users: Threads that may poll one of them.
        closed: True if they are closed.
    """

    __slots__ = ("_event", "closed", "idle", "idle_event", "own", "sockets", "users")

    def __init__(self) -> None:
        self.sockets, self.own, self.idle = select.epoll(), select.epoll(), select.epoll()
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        self._event = os.eventfd(0, flags)
        try:
            self.idle_event = os.eventfd(0, flags)
        except OSError:  # each try would leave one more open
            os.close(self._event)
            raise
        self.sockets.register(self._event, select.EPOLLIN)
        self.idle.register(self.idle_event, select.EPOLLIN)
        self.users = 0
        self.closed = False

    def wake_waiter(self) -> None:
        """Wakes the thread that waits, so that it looks at its gate."""
        if not self.closed:
            os.eventfd_write(self._event, 1)

    def wake_idle(self) -> None:
        """Wakes the idle thread, so that it looks at its gate."""
        if not self.closed:
            os.eventfd_write(self.idle_event, 1)

    def forget_waiter_wake(self, descriptor: int) -> None:
        """Reads the bytes that `wake_waiter` wrote, if that is the descriptor."""
        if descriptor == self._event and not self.closed:
            with contextlib.suppress(BlockingIOError):  # another thread has read them
                os.eventfd_read(descriptor)

    def forget_idle_wake(self) -> None:
        """Reads the bytes that `wake_idle` wrote."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.idle_event)

    def wake_all(self) -> None:
        """Wakes both, so that they see that all is closed."""
        self.wake_waiter()
        self.wake_idle()

    def close_unused(self) -> None:
        """Closes all of them, if no thread may poll one."""
        if not self.users and not self.closed:
            self.closed = True
            for each in (self.sockets, self.own, self.idle):
                each.close()
            os.close(self._event)
            os.close(self.idle_event)
