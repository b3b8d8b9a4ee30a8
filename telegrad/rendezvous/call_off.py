"""Lets another thread end a join that still waits, or learn that it was too late for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from telegrad.errors import JoinCancelledError

__all__ = ["CallOff"]


@final
class CallOff:
    """One join, as seen by who may call it off. All methods may be called from any thread.

        waits ──▶ called off     every `check` of the join raises
          └─────▶ settled        it has joined

    Attributes:
        thread: The one that joins.
        over: Set when the join has ended and left nothing behind, or has succeeded.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.over = threading.Event()
        self._lock = threading.RLock()  # guards all below; a signal handler may come inside it
        self._called_off = False
        self._settled = False
        self._hook: Callable[[], object] | None = None

    def __call__(self) -> bool:
        """Calls it off; tells whether it was, and False where it has joined before."""
        with self._lock:
            if self._settled:
                return False
            self._called_off = True
            hook, self._hook = self._hook, None
        if hook is not None:
            hook()
        return True

    def wakes(self, hook: Callable[[], object]) -> None:
        """Has `hook` called when it is called off, or now if it was; it must not block."""
        with self._lock:
            self._hook = hook
            called_off = self._called_off
        if called_off:
            hook()

    def check(self) -> None:
        """Returns while it may go on.

        Raises:
            JoinCancelledError: It was called off.
        """
        if self._called_off:
            raise JoinCancelledError(
                "joining the job was given up, since rpc.shutdown() was called while this waited "
                "for the job; call rpc.init_rpc() again to join it after all"
            )

    def settle(self) -> None:
        """Takes it that it has joined: nobody calls it off any more.

        Raises:
            JoinCancelledError: Somebody has, before.
        """
        with self._lock:
            self._settled = not self._called_off
        self.check()
