"""How the messages of the counting protocol travel, and how they are written.

    ForkRequest, ForkConfirm, CreationAbandon   somebody may wait for it: each leaves at once
    UserDelete, ChildAccept                     nobody does: those of one event are one envelope, and
                                                that leaves with the next one to its receiver, of
                                                whatever kind, or when the registry's tick flushes

So a value is freed no later than the call that follows is served, or one tick later, and nobody is
woken for each RRef. The tables are right under any order and any delay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from telegrad.errors import UnknownWorkerError, UnreachableWorkerError, WorkerLostError
from telegrad.rpc.rref_protocol import (
    ChildAccept,
    CreationAbandon,
    ForkConfirm,
    ForkRequest,
    ProtocolMessage,
    Send,
    UserDelete,
)

if TYPE_CHECKING:
    from telegrad.rpc.agent import Agent
    from telegrad.types import WorkerInfo

__all__ = [
    "CHILD_ACCEPT",
    "CREATION_ABANDON",
    "FORK_CONFIRM",
    "FORK_REQUEST",
    "USER_DELETE",
    "RRefMail",
]

FORK_REQUEST = "rref.fork_request"
FORK_CONFIRM = "rref.fork_confirm"
CHILD_ACCEPT = "rref.child_accept"
USER_DELETE = "rref.user_delete"
CREATION_ABANDON = "rref.creation_abandon"

# Messages in one envelope: a body stays far below what one may hold.
MOST_TOGETHER = 1000

_logger = logging.getLogger(__name__)


@final
class RRefMail:
    """Posts messages of the counting protocol. From any thread; blocks nowhere.

    Args:
        agent: Whose.
        cut_off: Hears of an owner that can never be reached.
    """

    def __init__(
        self, agent: Agent, cut_off: Callable[[WorkerInfo, UnreachableWorkerError], None]
    ) -> None:
        self._agent = agent
        self._cut_off = cut_off
        self._riding_lock = threading.Lock()
        self._riding: set[WorkerInfo] = set()  # to whom something may wait for a ride

    @property
    def waits(self) -> bool:
        """Whether something may wait for `flush`."""
        return bool(self._riding)

    def post(self, sends: Sequence[Send]) -> None:
        """Sends the messages of one event; drops those to the lost."""
        riders: dict[tuple[WorkerInfo, str], list[object]] = {}
        for send in sends:
            kind, body = _write(send.message)
            if kind not in (USER_DELETE, CHILD_ACCEPT):
                self._post(send.peer, kind, body)
                continue
            together = riders.setdefault((send.peer, kind), [])
            together += body
            if len(together) >= MOST_TOGETHER:
                self._post(send.peer, kind, riders.pop((send.peer, kind)))
        for (peer, kind), together in riders.items():
            self._post(peer, kind, together, rides=True)

    def flush(self) -> None:
        """Sends what still waits for a ride."""
        if self._riding:
            with self._riding_lock:
                riding, self._riding = self._riding, set()
            for peer in riding:
                self._agent.flush(peer)

    def _post(self, peer: WorkerInfo, kind: str, body: object, *, rides: bool = False) -> None:
        try:
            self._agent.post(peer, kind, body, rides=rides)
        except UnreachableWorkerError as error:
            self._cut_off(peer, error)
        except WorkerLostError:
            pass  # its loss is an event of its own
        except UnknownWorkerError as error:
            _logger.warning("%s: %s could not be sent: %s", self._agent.name, kind, error)
        else:
            if rides:
                with self._riding_lock:
                    self._riding.add(peer)


def _write(message: ProtocolMessage) -> tuple[str, list[object]]:
    match message:
        case UserDelete(rref, fork):
            return USER_DELETE, [list(rref), list(fork)]
        case ChildAccept(fork):
            return CHILD_ACCEPT, [list(fork)]
        case ForkRequest(rref, fork):
            return FORK_REQUEST, [list(rref), list(fork)]
        case ForkConfirm(fork, known, failed):
            return FORK_CONFIRM, [list(fork), known, failed]
        case CreationAbandon(rref):
            return CREATION_ABANDON, [list(rref)]
