"""The role of the reader of a worker's direct sockets, as a pure table of states and events.

A message should be read by the thread that it will wake. So a thread that waits for replies comes
first, a user loop that awaits replies comes next, then an idle thread of the pool, as requests wake
a thread of the pool. The worker's own loop reads when there is nobody else.

    event                      the role after it
    a thread begins to wait    the thread; another waiting thread keeps it: that one reads for both
    a thread holds it          the thread, for waits that it begins soon, unless a thread waits, or
                               another one may still sleep for which one read; a thread that begins
                               to wait takes the role from it
    a loop begins to await     the loop, unless a thread waits
    a thread becomes idle      the thread, unless a thread waits or a loop awaits
    a thread does not come     a handler or finaliser may have interrupted it, and block: as if it
                               had ended
    any of these ends          the best of those that are left; else the worker's own loop

A signal handler may wait inside a wait of its own thread; the role stays with the thread until the
outer wait ends.
"""

from __future__ import annotations

from enum import Enum
from typing import final

NOBODY = 0  # no thread and no object has this number


class Holder(Enum):
    """The kinds of readers, the preferred ones first."""

    WAITER = "waiter"
    USER_LOOP = "user loop"
    IDLE = "idle"
    OWN_LOOP = "own loop"


@final
class ReaderRole:
    """The present reader and the candidates to follow it; guarded by its user's lock.

    Threads and loops are told apart by numbers above 0.

    Attributes:
        holder: The kind of reader that has the role.
        waiter: The thread that waits and reads; 0 for none.
        idle: The idle thread of the pool that watches the sockets; 0 for none.
        held: True if the waiter does not wait at this moment, and will soon.
        shared: The last thread that began to wait while another one read for both, and so sleeps;
            0 for none, or if that was long ago.

    Example:
        >>> role = ReaderRole()
        >>> role.idle_begins(7)
        >>> role.wait_begins(3), role.wait_begins(4), role.holder.value
        (True, False, 'waiter')
        >>> role.wait_ends(3)
        >>> role.holder.value
        'idle'
    """

    __slots__ = ("_depth", "_user_loops", "held", "holder", "idle", "shared", "waiter")

    def __init__(self) -> None:
        self.holder = Holder.OWN_LOOP
        self.waiter = self.idle = self.shared = NOBODY
        self.held = False
        self._depth = 0  # waits of the waiter, one inside the other
        self._user_loops: dict[int, None] = {}  # those that await replies; the last one reads

    @property
    def user_loop(self) -> int:
        """The user loop that reads, or would read if no thread waited; 0 for none."""
        return next(reversed(self._user_loops), NOBODY)

    def wait_begins(self, thread: int) -> bool:
        """Records that a thread waits for replies; returns True if it reads."""
        if self.waiter not in (NOBODY, thread) and not self.held:
            self.shared = thread
            return False
        self.waiter, self.holder, self.held = thread, Holder.WAITER, False
        self._depth += 1
        return True

    def wait_ends(self, thread: int, *, holds: bool = False) -> None:
        """Records that a thread that reads ends its wait.

        Args:
            thread: The thread.
            holds: True if it keeps the role for its next wait, until `hold_ends`, unless another
                thread may still sleep.
        """
        assert self.waiter == thread
        self._depth -= 1
        if not self._depth:
            # A thread that began to wait meanwhile sleeps, as this one read for both, and nobody
            # wakes it when this one goes on. So the role gets free, and others read for that
            # thread.
            self.held = holds and self.shared in (NOBODY, thread)
            if not self.held:
                self.waiter = NOBODY
                self._settle()

    def take_away(self) -> None:
        """Takes the role from a thread that does not come to read."""
        if self.holder is Holder.WAITER:
            self.held, self.waiter, self._depth = False, NOBODY, 0
            self._settle()
        elif self.holder is Holder.IDLE:
            self.idle_ends()

    def hold_begins(self, thread: int) -> bool:
        """Records that a thread will wait soon; returns True if it holds the role now."""
        if self.waiter == NOBODY and self.shared in (NOBODY, thread):
            self.held, self.waiter, self.holder = True, thread, Holder.WAITER
        return self.held and self.waiter == thread

    def hold_ends(self) -> None:
        """Takes the role from a thread that holds it. Idempotent."""
        if self.held:
            self.held, self.waiter = False, NOBODY
            self._settle()

    def await_begins(self, loop: int) -> None:
        """Records that a user loop awaits replies, and runs."""
        self._user_loops.pop(loop, None)
        self._user_loops[loop] = None
        self._settle()

    def await_ends(self, loop: int) -> None:
        """Records that a loop awaits no more, or does not come back to read. Idempotent."""
        self._user_loops.pop(loop, None)
        self._settle()

    def idle_begins(self, thread: int) -> None:
        """Records that a thread of the pool is idle, and watches in place of the one before."""
        self.idle = thread
        if self.holder is Holder.OWN_LOOP:
            self.holder = Holder.IDLE

    def idle_ends(self) -> None:
        """Records that the idle thread works."""
        self.idle = NOBODY
        if self.holder is Holder.IDLE:
            self.holder = Holder.OWN_LOOP

    def _settle(self) -> None:
        """Gives the role to the best of the candidates."""
        if self.waiter:
            self.holder = Holder.WAITER
        elif self._user_loops:
            self.holder = Holder.USER_LOOP
        else:
            self.holder = Holder.IDLE if self.idle else Holder.OWN_LOOP
