"""The process groups of one agent, and what other agents' groups say to them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import final

from telegrad.collectives.cross_wait import CrossWaits
from telegrad.collectives.formations import Formations
from telegrad.collectives.forming import digest_of
from telegrad.collectives.gone_groups import GoneGroups
from telegrad.collectives.messages import (
    ABORT,
    DATA_WAITS,
    ENTERED,
    FORM,
    LEFT,
    PUSH,
    READY,
    UNFORMED,
    AbortMessage,
    GroupKey,
    LeftMessage,
    OperationMessage,
)
from telegrad.collectives.process_group import ProcessGroup
from telegrad.errors import (
    AlreadyInitializedError,
    NotInitializedError,
    WorkerLostError,
)
from telegrad.rpc import Agent, seconds
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope

__all__ = ["TIMEOUT", "WARN_AFTER", "Groups", "attach_to"]

# Longer than any step of a training and than most evaluations: a rank that comes later is lost.
TIMEOUT = 1800.0
# An operation that waits for so long waits for a rank that does something else, most likely.
WARN_AFTER = 60.0
# Longer lists of ranks are shortened in a group's name.
NAMED_RANKS = 8

_logger = logging.getLogger(__name__)


def attach_to(agent: Agent) -> Groups:
    """Puts process groups on an agent: the composition root calls it before the agent serves."""
    groups = Groups(agent)
    agent.attach(groups)
    agent.on_lost(groups.on_lost)
    agent.on_leaving(groups.leave)
    agent.after_close(groups.close)
    for kind in (PUSH, ENTERED, READY):
        agent.register_handler(kind, groups.on_operation, anywhere=True)
    agent.register_handler(ABORT, groups.on_abort)
    agent.register_handler(LEFT, groups.on_left)
    agent.register_handler(FORM, groups.formations.on_form)
    agent.register_handler(UNFORMED, groups.formations.on_unformed)
    return groups


@final
class Groups:
    """What one agent has of process groups.

    Args:
        agent: Its agent.

    Attributes:
        world: The group of all workers; None until `init_process_group`.
        owns_agent: Whether the agent runs for the groups alone: it ends with them.
        warn_after: Seconds after which an operation that waits is logged; for groups made later.
        formations: The groups that are being formed.
    """

    def __init__(self, agent: Agent) -> None:
        self.world: ProcessGroup | None = None
        self.owns_agent = False
        self.warn_after = WARN_AFTER
        self._agent = agent
        self._table_lock = threading.Lock()  # guards all below and `world`
        self._groups: dict[GroupKey, ProcessGroup] = {}
        self._named = Counter[str]()
        self._worlds = Counter[str]()
        self._gone = GoneGroups()
        self._early: dict[GroupKey, list[Callable[[ProcessGroup], None]]] = {}
        self._closed = False
        self.formations = Formations(agent, self._over)
        self._cross_waits = CrossWaits(agent, self._find)

    def current_world(self) -> ProcessGroup:
        """Returns the group of all workers.

        Raises:
            NotInitializedError: There is none.
        """
        world = self.world
        if world is None:
            raise NotInitializedError(
                f"no process group on worker {self._agent.name!r}; call "
                "collectives.init_process_group() first"
            )
        return world

    def make_world(self, timeout: float, world_size: int | None = None) -> ProcessGroup:
        """Makes the group of all workers; waits for nobody.

        Args:
            timeout: Seconds for each of its operations.
            world_size: How many they are, whoever else has joined; None for all that have joined
                until now, as far as this worker has heard of them.

        Raises:
            AlreadyInitializedError: There is one.
            ValueError: This worker is none of so many.
            WorkerLostError: A worker is lost.
        """
        count = self._agent.world_size if world_size is None else world_size
        if self._agent.rank >= count:
            raise ValueError(
                f"worker {self._agent.name!r} has rank {self._agent.rank} and is in no group of "
                f"{count}; write a larger world_size, or leave it out"
            )
        members = [self._agent.worker(r) for r in range(count)]
        self._check_living(members, "the group of all workers needs every one of them")
        with self._table_lock:
            if self.world is not None:
                raise AlreadyInitializedError(
                    f"worker {self._agent.name!r} has its process group already; call "
                    "destroy_process_group() before another init_process_group()"
                )
            digest = digest_of(members)
            self._worlds[digest] += 1
            key = GroupKey(digest, -self._worlds[digest])
            world = self.world = self._new(key, members, "world", timeout)
        self._open(world)
        return world

    def form(self, ranks: Sequence[int], timeout: float | None) -> ProcessGroup:
        """Makes a group of some workers; returns when each of them does so.

        Raises:
            CollectiveMismatchError: Another one forms another group instead.
            WorkerLostError: One of them is lost.
            CallTimeoutError: One of them did not come in time.
        """
        members = [self._agent.worker(r) for r in ranks]
        world = self.world
        limit = seconds(timeout, TIMEOUT if world is None else world.timeout)
        if self._agent.info not in members:
            with self._table_lock:
                return self._new(GroupKey("", 0), members, _name(ranks), limit)
        self._check_living(members, "a process group needs living members; leave this one out")
        key = self.formations.form(members, limit=limit, warn_after=self.warn_after)
        with self._table_lock:
            group = self._new(key, members, _name(ranks), limit)
        self._open(group)
        return group

    def leave(self) -> None:
        """Leaves all groups and tells their members; idempotent."""
        self.formations.close()
        for group in self._forget_all():
            group.leave()

    def close(self) -> None:
        """Ends all waits, since the agent was shut down."""
        self.formations.close(for_good=True)
        with self._table_lock:
            self._closed = True
        for group in self._forget_all():
            self._end(group)

    def _end(self, group: ProcessGroup) -> None:
        error = NotInitializedError(f"the agent {self._agent.name!r} was shut down")
        group.fail(error, tell=False)

    def _forget_all(self) -> list[ProcessGroup]:
        with self._table_lock:
            groups = list(self._groups.values())
            self._gone.add(self._groups)
            self._groups.clear()
            self.world = None
        return groups

    def _new(
        self, key: GroupKey, members: Sequence[WorkerInfo], name: str, timeout: float
    ) -> ProcessGroup:
        self._named[name] += 1
        return ProcessGroup(
            self._agent,
            key,
            members,
            name=name if self._named[name] == 1 else f"{name} #{self._named[name]}",
            timeout=timeout,
            warn_after=self.warn_after,
            cross_waits=self._cross_waits,
        )

    def _open(self, group: ProcessGroup) -> None:
        """Puts a group into the table, hands it what came early, and tells it of losses."""
        with self._table_lock:
            self._groups[group.key] = group
            early = self._early.pop(group.key, [])
            closed = self._closed
        for deliver in early:
            deliver(group)
        if closed:  # it was made while the agent ended
            self._end(group)
        for member in group.members:  # one that was lost before the group was in the table
            lost = self._agent.lost(member)
            if lost is not None:
                group.fail(lost)

    def _check_living(self, members: Sequence[WorkerInfo], advice: str) -> None:
        for member in members:
            lost = self._agent.lost(member)
            if lost is not None:
                lost.add_note(advice)
                raise lost

    # What arrives: messages of operations in any thread, losses in the pool, the others on the loop.

    def on_operation(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes a message of an operation."""
        message = OperationMessage.from_wire(self._agent.read(envelope))
        kind, data = envelope.kind, envelope.buffers[-1] if envelope.buffers else b""
        self._hand(
            peer, message.group, lambda group, source: group.deliver(source, kind, message, data)
        )
        if kind == ENTERED and message.number != DATA_WAITS:
            self._cross_waits.on_told(peer, message)

    def on_abort(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Hears that a group is over."""
        message = AbortMessage.from_wire(self._agent.read(envelope))
        cause, since = message.cause, message.since
        self._hand(peer, message.group, lambda group, _: group.fail(cause, since=since, tell=False))

    def on_left(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Hears that a member has left a group."""
        message = LeftMessage.from_wire(self._agent.read(envelope))
        self._hand(peer, message.group, lambda group, source: group.on_left(source, message))

    def on_lost(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Ends the groups of a lost worker."""
        self.formations.on_lost(worker, error)
        with self._table_lock:
            groups = [each for each in self._groups.values() if worker in each.members]
        for group in groups:
            group.fail(error)

    def _over(self, key: GroupKey, cause: BaseException) -> None:
        """Hears that new_group, which returned here, has failed on another member."""
        self._reach(key, lambda group: group.fail(cause))

    def _hand(
        self, peer: WorkerInfo, key: GroupKey, deliver: Callable[[ProcessGroup, int], None]
    ) -> None:
        """Hands what a worker says to its group."""

        def hand_to(group: ProcessGroup) -> None:
            source = group.rank_of(peer)
            if source is None:
                _logger.warning("%r speaks to %r and is no member", peer.name, group.name)
            else:
                deliver(group, source)

        self._reach(key, hand_to)

    def _find(self, key: GroupKey) -> ProcessGroup | None:
        with self._table_lock:
            return self._groups.get(key)

    def _reach(self, key: GroupKey, deliver: Callable[[ProcessGroup], None]) -> None:
        """Calls `deliver` with a group, now or when it is made; never once it was left."""
        with self._table_lock:
            group = self._groups.get(key)
            if group is None and key not in self._gone:
                self._early.setdefault(key, []).append(deliver)
        if group is not None:
            deliver(group)


def _name(ranks: Sequence[int]) -> str:
    named = [str(rank) for rank in ranks]
    if len(named) > NAMED_RANKS:
        named[NAMED_RANKS - 1 : -1] = ["..."]
    return f"[{', '.join(named)}]"
