"""The thread of a pool that reads what comes while it has nothing else to do.

    nobody ── begin ──▶ waits ── call, end ──▶ works, and stays the leader ── let_go ──▶ nobody
                          └───── call, end ──▶ works ─────────────────────────────────▶ nobody

All of it is guarded by the pool's lock, but for `is_open`, which the thread itself asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

__all__ = ["Leader"]

NOBODY = 0  # no thread has this number


@final
class Leader:
    """The gate at which that thread waits; open when it is called to work.

    Attributes:
        thread: Which one; `NOBODY` when none does.
        stays: Whether it leads on while it works.
        turns: How many pieces of work it has begun that way, or read beside its own.
        looked: When it looked last for what came meanwhile.
        waits: Whether it waits for messages.
        called: Whether it was called to work since it began to.
    """

    __slots__ = ("_wake", "called", "looked", "stays", "thread", "turns", "waits")

    def __init__(self) -> None:
        self.thread = NOBODY
        self.stays = False
        self.turns = 0
        self.looked = 0.0
        self.waits = False
        self.called = False
        self._wake: Callable[[], None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether it waits, and was not called."""
        return self.waits and not self.called

    def is_taken(self) -> bool:
        """Whether another thread leads."""
        return self.waits or (self.stays and self.thread != threading.get_ident())

    def begin(self) -> None:
        """This thread waits."""
        self.thread, self.waits = threading.get_ident(), True
        self.called = self.stays = False

    def end(self) -> bool:
        """It waits no more; tells whether it was called."""
        self.waits = False
        return self.called

    def call(self) -> Callable[[], None]:
        """Calls it; returns what wakes it, to be called without the lock."""
        self.called = True
        return self._wake or _nothing

    def let_go(self) -> bool:
        """Ends that this thread leads on; tells whether it did."""
        if not self.stays or self.thread != threading.get_ident():
            return False
        self.stays = False
        return True

    def is_open(self) -> bool:
        """Tells whether it was called."""
        return self.called

    def wake_with(self, wake: Callable[[], None] | None) -> None:
        """Says what wakes it while it waits for messages."""
        self._wake = wake


def _nothing() -> None:
    pass
