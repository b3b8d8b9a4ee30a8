"""Warnings about RRefs that are alive when all workers have called `shutdown`.

     holder   a reference is alive   -- rref.held {RRef, where it came from} -->  owner
              it is released         -- rref.user_delete -------------------->
     owner    waits until nobody living holds anything of it, then writes one warning

Only the holder knows where its program got the reference, and that a fork which the owner still
counts is not in a message on its way. Only the owner sees all holders. A worker's references to its
own values keep no memory of another worker and are no leak.

Nothing is recorded while the job runs: living references are looked for only if there are some.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, final

from telegrad.critical import critical
from telegrad.errors import DecodeError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.rref.protocol import RRefId
from telegrad.rpc.rref.table import Reference, RRefRegistry
from telegrad.rpc.rref.value import type_of
from telegrad.transport import get_logger
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, escaped

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore

HELD = "rref.held"

# A value that was let go just before may hold RRefs in turn; each takes a message or two.
SETTLE_SECONDS = 0.3
MOST_TOLD = 20  # values in one warning
LONGEST_PLACE = 500  # characters that a holder may write into another worker's log

_logger = get_logger(__name__)


@final
class Leaks:
    """The references that outlive the job, at both ends."""

    def __init__(self, agent: AgentCore, registry: RRefRegistry) -> None:
        self._agent = agent
        self._registry = registry
        self._held_lock = threading.Lock()  # guards `_held`
        self._held: dict[RRefId, list[str]] = {}  # the description of each value, then its holders
        # In any thread, as the UserDelete that follows: handled on the loop, it could come after
        # that.
        agent.inbox.register(HELD, self._on_held, anywhere=True)

    def leave(self, seconds: float) -> None:
        """Releases the references here, and logs those that others held to this worker's values.

        For a graceful shutdown, once all workers have called it. Blocks until the others have
        released this worker's values, which takes each a message; for `seconds` at most.
        """
        began = time.monotonic()
        for reference in self._living(min(seconds, SETTLE_SECONDS)):
            # Before the forks are released: `_on_held` believes only a worker that still holds one,
            # and messages keep their order.
            self._tell_owner(reference)
        registry, users = self._registry, self._registry.users
        registry.event(lambda: [each for fork in users.held() for each in users.release(fork)])
        registry.settle_up()
        # This worker stays until no living other holds anything of it.
        left = seconds - (time.monotonic() - began)
        registry.wait_until(lambda: not registry.owners.holders(), left)
        self._log_held()

    def _living(self, limit: float) -> list[Reference]:
        """Returns the references to values of other workers that a program still has."""
        registry, users = self._registry, self._registry.users
        registry.settle_up()
        if not registry.ask(users.held):
            return []
        gc.collect()  # a reference that only a cycle keeps is no leak
        registry.settle_up()
        registry.wait_until(lambda: not users.held(), limit)
        registry.settle_up()
        held = set(registry.ask(users.held))
        if not held:
            return []
        every = [each for each in gc.get_objects() if type(each) is Reference]
        return [each for each in every if each.registry is registry and each.fork in held]

    def _tell_owner(self, reference: Reference) -> None:
        place = str(reference.whence)[:LONGEST_PLACE]
        try:
            self._agent.messages.post(reference.owner, HELD, [list(reference.rref), place])
        except (WorkerLostError, UnknownWorkerError):
            _logger.debug("%r is lost and hears of no leak", reference.owner.name)

    def _on_held(self, peer: WorkerInfo, envelope: Envelope) -> None:
        body = self._agent.messages.read(envelope)
        match body:
            case [[int(owner), int(creator), int(number)], str(place)]:
                rref = RRefId(owner, creator, number)
            case _:
                raise DecodeError(f"the body of {HELD} is not [RRef, where it came from]")
        registry = self._registry
        if peer not in registry.ask(registry.owners.holders, rref):
            return  # the peer has let go meanwhile, or never held it
        with critical.section, self._held_lock:
            held = self._held.setdefault(rref, [self._description(rref)])
            held.append(f"{peer.name!r} (from {escaped(place, most=LONGEST_PLACE)})")

    def _description(self, rref: RRefId) -> str:
        """Returns the class of a value that lives here, and its creator, in words."""
        registry = self._registry
        what = type_of(registry.value(rref)) or "a value"
        creator = registry.ask(registry.owners.creator, rref)
        return what if creator is None else f"{what}, created by {creator.name!r}"

    def _log_held(self) -> None:
        with critical.section, self._held_lock:
            held, self._held = self._held, {}
        if not held:
            return
        values = list(held.values())[:MOST_TOLD]
        told = [f"{what}, held by {', '.join(holders)}" for what, *holders in values]
        if len(held) > MOST_TOLD:
            told.append(f"and {len(held) - MOST_TOLD} more")
        _logger.info(
            "worker %r ends while others still hold RRefs to %d of its values; nobody can use them "
            "any more: release() them, or leave the scope that holds them, before rpc.shutdown()%s",
            self._agent.info.name,
            len(held),
            "".join(f"\n  {each}" for each in told),
        )
