"""What is said of RRefs that are still alive when all workers have called `shutdown`.

     holder   a reference is alive   -- rref.held {RRef, where it came from} -->  owner
              it is released         -- rref.user_delete -------------------->
     owner    waits until nobody living holds anything of it, then writes one warning

Only the holder knows that what the owner still counts is no message on its way, and where its
program got the reference; only the owner sees all holders. A worker's references to its own values
keep nobody else's memory and are no leak.

Nothing is noted while the job runs: the living references are looked for when there are some.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from telegrad.errors import DecodeError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.rref_ids import RRefId
from telegrad.rpc.rref_reference import Reference
from telegrad.rpc.rref_registry import RRefRegistry
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

if TYPE_CHECKING:
    from telegrad.rpc.agent import Agent

__all__ = ["Leaks"]

HELD = "rref.held"

# What was let go just before may free values that hold RRefs in turn, a message or two each.
SETTLE_SECONDS = 0.3
MOST_TOLD = 20  # values in one warning
LONGEST_PLACE = 500  # characters that a holder may write into another worker's log

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    what: str
    by: list[str] = field(default_factory=list)


@final
class Leaks:
    """The references that outlive the job, at both ends.

    Args:
        agent: Whose.
        registry: Its RRefs.
    """

    def __init__(self, agent: Agent, registry: RRefRegistry) -> None:
        self._agent = agent
        self._registry = registry
        self._held_lock = threading.Lock()  # guards `_held`
        self._held: dict[RRefId, _Held] = {}
        agent.register_handler(HELD, self._on_held, anywhere=True)

    def leave(self, seconds: float) -> None:
        """Releases what is held here, and tells what was held of this worker's values.

        For a graceful shutdown, once all workers have called it. Blocks until the others have
        released this worker's values, which takes each a message; for the seconds at most.
        """
        began = time.monotonic()
        for reference in self._living(min(seconds, SETTLE_SECONDS)):
            self._tell_owner(reference)
        self._registry.release_users()
        self._registry.wait_until_unused(seconds - (time.monotonic() - began))
        self._warn()

    def _living(self, limit: float) -> list[Reference]:
        """Returns the references to others' values that a program still has."""
        registry = self._registry
        if not registry.held():
            return []
        gc.collect()  # what only a cycle keeps is nobody's
        registry.drain()
        registry.wait_until_let_go(limit)
        held = set(registry.held())
        if not held:
            return []
        every = [each for each in gc.get_objects() if type(each) is Reference]
        return [each for each in every if each.registry is registry and each.fork in held]

    def _tell_owner(self, reference: Reference) -> None:
        place = str(reference.whence)[:LONGEST_PLACE]
        try:
            self._agent.post(reference.owner, HELD, [list(reference.rref), place])
        except (WorkerLostError, UnknownWorkerError):
            _logger.debug("%r is lost and hears of no leak", reference.owner.name)

    def _on_held(self, peer: WorkerInfo, envelope: Envelope) -> None:
        body = self._agent.read(envelope)
        match body:
            case [[int(owner), int(creator), int(number)], str(place)]:
                rref = RRefId(owner, creator, number)
            case _:
                raise DecodeError(f"the body of {HELD} is not [RRef, where it came from]")
        if peer not in self._registry.holders(rref):
            return  # it has overtaken, or been overtaken; or it is none of the peer's business
        with self._held_lock:
            held = self._held.setdefault(rref, _Held(self._registry.describe(rref)))
            held.by.append(f"{peer.name!r} (from {place[:LONGEST_PLACE]})")

    def _warn(self) -> None:
        with self._held_lock:
            held, self._held = self._held, {}
        if not held:
            return
        values = list(held.values())[:MOST_TOLD]
        told = [f"{each.what}, held by {', '.join(each.by)}" for each in values]
        if len(held) > MOST_TOLD:
            told.append(f"and {len(held) - MOST_TOLD} more")
        _logger.warning(
            "worker %r ends while others still hold RRefs to %d of its values; nobody can use them "
            "any more: release() them, or leave the scope that holds them, before rpc.shutdown()%s",
            self._agent.name,
            len(held),
            "".join(f"\n  {each}" for each in told),
        )
