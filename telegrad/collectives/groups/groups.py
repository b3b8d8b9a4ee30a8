"""The process groups of one agent, their forming, and the dispatch of messages to them."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, final

from telegrad.collectives.backends import GroupTerms
from telegrad.collectives.failure import TELL_AFTER, Clock, Due, cause_for_others, time_limit
from telegrad.collectives.groups.cross_waits import CrossWaits
from telegrad.collectives.groups.forming import (
    Action,
    Attempt,
    Failed,
    Formed,
    Forming,
    SendMessage,
    State,
    digest_of,
    name_of,
)
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.messages import (
    ABORT,
    DATA_WAITS,
    ENTERED,
    FORM,
    LEFT,
    PAIR,
    PUSH,
    READY,
    REFUSED,
    UNFORMED,
    AbortMessage,
    FormMessage,
    GroupKey,
    LeftMessage,
    OperationId,
    OperationMessage,
    UnformedMessage,
    pack_cause,
)
from telegrad.collectives.operation import check_may_block
from telegrad.critical import critical
from telegrad.errors import (
    AlreadyInitializedError,
    DecodeError,
    EvictedError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import Future
from telegrad.rpc.seams import AgentCore, new_future, seconds
from telegrad.types import WorkerInfo
from telegrad.wire import Blocks, Envelope

# -- the shell of `forming`: messages, waiting calls, deadlines and losses -----------------------

_logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


@final
@dataclass(slots=True)
class _Formation:
    """An attempt to form a group that waits, or has got its key."""

    attempt: Attempt
    future: Future[tuple[GroupKey, tuple[int, ...] | None]]  # its key and thresholds
    clock: Clock
    cancel_timer: Callable[[], None] = _nothing


@final
class Formations:
    """The groups that one agent forms with others.

    Args:
        over: Function called if a group that has formed here has failed to form on another member.
    """

    def __init__(
        self,
        agent: AgentCore,
        over: Callable[[GroupKey, BaseException], None],
        cross_waits: CrossWaits,
    ) -> None:
        self._agent = agent
        self._over = over
        self._cross_waits = cross_waits
        self._lock = threading.Lock()  # guards all attributes below
        self._forming = Forming(agent.info)
        self._formations: dict[Attempt, _Formation] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their group."""
        with critical.section, self._lock:
            return sum(attempt.state is State.FORMING for attempt in self._formations)

    def form(
        self,
        members: Sequence[WorkerInfo],
        *,
        limit: float,
        warn_after: float,
        lost: Sequence[int] | None = None,
        terms: GroupTerms,
    ) -> tuple[GroupKey, GroupTerms]:
        """Returns the key and the terms of a new group when every member forms it.

        Args:
            members: The members, in the order of their ranks in the group.
            limit: Seconds.
            warn_after: Seconds until a warning names the missing members.
            lost: For shrink_group the ranks that are left out as lost; None for new_group.
            terms: The terms of the group, without thresholds if those of its first member hold.

        Raises:
            CollectiveMismatchError: A member forms another group instead, or states other terms; or
                it waits in an operation that this one has not entered.
            WorkerLostError: A member is lost, at this one or at another.
            CallTimeoutError: A member did not call in time.
            BlockingCallError: The caller runs on an event loop of telegrad; nothing was sent.
            NotInitializedError: The agent was shut down.
        """
        check_may_block(_verb(lost))
        self._cross_waits.note_caller()
        clock = Clock(time_limit(None, limit), warn_after)
        with critical.section, self._lock:
            if self._closed:
                raise NotInitializedError(f"the agent {self._agent.info.name!r} was shut down")
            attempt, actions = self._forming.begin(members, lost, terms.to_wire())
            formation = _Formation(attempt, new_future(None, attempt.called), clock)
            self._formations[attempt] = formation
        self._perform(actions)
        for member in members:
            loss = self._agent.members.lost(member)
            if loss is not None:
                self.on_lost(member, loss)
        self._watch(formation)
        try:
            with self._cross_waits.blocking(formation):
                key, thresholds = formation.future.wait()
            return key, terms.with_thresholds(thresholds)
        except BaseException as error:  # an interrupt, or the error of this attempt
            self._fail(formation, cause_for_others(error, self._where(attempt)))
            raise

    def refuse(self, members: Sequence[WorkerInfo], error: BaseException) -> None:
        """Lets workers raise the error of wrong arguments in the next group with this one."""
        with critical.section, self._lock:
            actions = self._forming.refuse(members, error)
        self._perform(actions)

    def on_form(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Handles the message that a worker forms a group with this one; on the loop."""
        message = FormMessage.from_wire(self._agent.messages.read(envelope))
        GroupTerms().with_thresholds(message.thresholds)  # of a stranger they may be anything
        with critical.section, self._lock:
            actions = self._forming.on_form(peer, message)
        self._perform(actions)

    def on_unformed(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Handles the message that a worker has failed to form a group; on the loop."""
        message = UnformedMessage.from_wire(self._agent.messages.read(envelope))
        with critical.section, self._lock:
            actions = self._forming.on_unformed(peer, message)
        self._perform(actions)

    def on_lost(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Ends the calls that wait for a lost worker."""
        with critical.section, self._lock:
            actions = self._forming.lose(worker, error)
        self._perform(actions)

    def close(self, *, for_good: bool = False) -> None:
        """Ends all waiting calls.

        Args:
            for_good: True if the agent has ended, so that later calls are refused.
        """
        name = self._agent.info.name
        error = NotInitializedError(f"worker {name!r} has left its process groups")
        with critical.section, self._lock:
            self._closed = self._closed or for_good
            waiting = [each for each in self._formations.values() if not each.future.done()]
        for formation in waiting:
            self._fail(formation, error)

    def _fail(self, formation: _Formation, cause: BaseException) -> None:
        with critical.section, self._lock:
            actions = self._forming.fail(formation.attempt, cause)
        self._perform(actions)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendMessage(peer, FormMessage() as message):
                    self._post(peer, FORM, message.to_wire())
                case SendMessage(peer, UnformedMessage() as message):
                    self._post(peer, UNFORMED, message.to_wire())
                case Formed():
                    self._on_formed(action)
                case Failed(attempt, cause):
                    self._on_failed(attempt, cause)

    def _post(self, peer: WorkerInfo, kind: str, body: object) -> None:
        with suppress(WorkerLostError, UnknownWorkerError):  # `on_lost` handles that
            self._agent.messages.post(peer, kind, body)

    def _on_formed(self, formed: Formed) -> None:
        with critical.section, self._lock:
            formation = self._formations.get(formed.attempt)
        if formation is not None:  # else the attempt failed at the same time
            formation.cancel_timer()
            formation.future.try_set_result((formed.key, formed.thresholds))

    def _on_failed(self, attempt: Attempt, cause: BaseException) -> None:
        with critical.section, self._lock:
            formation = self._formations.pop(attempt)
        formation.cancel_timer()
        if not formation.future.try_set_exception(cause):  # the group was made here
            self._over(formation.future.value()[0], cause)

    # Timers, on the loop.

    def _watch(self, formation: _Formation) -> None:
        with critical.section, self._lock:
            if formation.attempt.state is State.FORMING:
                delay = formation.clock.next()
                timer = self._agent.deadlines.after(delay, lambda: self._on_time(formation))
                formation.cancel_timer = timer.cancel

    def _on_time(self, formation: _Formation) -> None:
        attempt, clock = formation.attempt, formation.clock
        with critical.section, self._lock:
            if attempt.state is not State.FORMING:
                return
            due = clock.due()
            missing = self._forming.missing(attempt)
        who = ", ".join(f"rank {worker.rank} ({worker.name!r})" for worker in missing)
        who = f"not called by {who}" if missing else "called by all members"
        where = self._where(attempt)
        if due is not Due.EXPIRE:
            self._watch(formation)
        if due is Due.TELL and attempt.lost is None:
            self._end_mutual(formation, missing)
        elif due is Due.WARN:
            self._agent.pool.submit(
                _logger.warning, "%s waits for %.3g s: %s", where, clock.elapsed, who
            )
        elif due is Due.EXPIRE:
            self._fail(formation, clock.error(where, who, missing, _verb(attempt.lost)))

    def _where(self, attempt: Attempt) -> str:
        return f"{attempt.called} on rank {self._agent.info.rank} ({self._agent.info.name!r})"

    def _end_mutual(self, formation: _Formation, missing: Sequence[WorkerInfo]) -> None:
        """Ends the attempt if a member waits in an operation that waits for this worker.

        While a worker is lost, that may be no mistake: the member has yet to learn of the loss.
        """
        if self._agent.members.losses() or self._cross_waits.blocked_in() is not formation:
            return
        for worker in missing:
            fail = partial(self._fail, formation)
            self._cross_waits.end_wait_for(worker, formation.attempt.called, fail)


def _verb(lost: Sequence[int] | None) -> str:
    return "new_group" if lost is None else "shrink_group"


# -- groups that this worker has left; pure ------------------------------------------------------
#
# Late messages of such a group are dropped.

# The groups that are remembered, at about 250 bytes each. Messages of a forgotten group have long
# arrived; a later one would be kept without use.
MOST_GONE: Final = 4096


def add_gone(gone: dict[GroupKey, None], keys: Iterable[GroupKey]) -> None:
    """Adds groups that are left now, and forgets those that were left first."""
    gone |= dict.fromkeys(keys)
    for key in list(gone)[:-MOST_GONE]:
        del gone[key]


def is_gone(gone: Container[GroupKey], key: GroupKey) -> bool:
    """Returns True if a group, or the group that it is a branch of, is among those left."""
    return key in gone or GroupKey(key.members.partition(BRANCH)[0], key.epoch) in gone


# -- branches of a group: the same members, with an order of operations of their own -------------

BRANCH = "/"  # in keys, between the digest of the members and the name of a branch


def branches_of(key: GroupKey, groups: Mapping[GroupKey, ProcessGroup]) -> list[ProcessGroup]:
    """Returns the branches of a group."""
    start = key.members + BRANCH
    return [
        each
        for other, each in groups.items()
        if other.epoch == key.epoch and other.members.startswith(start)
    ]


# -- the groups of one agent ---------------------------------------------------------------------

# Seconds for an operation: longer than any training step and most evaluations, so a rank that needs
# longer is taken for lost.
TIMEOUT = 1800.0
# An operation that waits so many seconds most likely waits for a rank that does something else. A
# rank that is late by half a minute is named, one that writes a checkpoint mostly is not.
WARN_AFTER = 20.0
LEAST_WAIT = 0.001  # a wait takes seconds above 0
AFTER_GIVEN_UP = "start it again; or if that rank has died since, name it in ranks_to_exclude"


def attach_to(agent: AgentCore) -> Groups:
    """Attaches process groups to an agent; the composition root does so before it serves."""
    groups = Groups(agent)
    agent.attachments.attach(groups)
    agent.inbox.on_loss(groups.on_lost)
    agent.life.on_leaving(ShutdownWait(agent, groups).begin)
    agent.life.on_all_ending(groups.leave)
    agent.life.after_close(groups.close)
    for kind in (PUSH, ENTERED, REFUSED, READY):
        agent.inbox.register(
            kind,
            groups.on_operation,
            anywhere=True,
            memory=groups.blocks.take,
            takes_failed=True,
        )
    agent.inbox.register(ABORT, groups.on_abort)
    agent.inbox.register(LEFT, groups.on_left)
    agent.inbox.register(FORM, groups.formations.on_form)
    agent.inbox.register(UNFORMED, groups.formations.on_unformed)
    return groups


class _Early(NamedTuple):
    """A message that came before its group was made here.

    Attributes:
        peer: Its sender; None for news of this worker itself.
        deliver: Hands it to the group.
    """

    peer: WorkerInfo | None
    deliver: Callable[[ProcessGroup], None]


@final
class Groups:
    """The process groups of one agent.

    Args:
        agent: The agent of this worker.

    Attributes:
        world: The group of all workers; None until `init_process_group`.
        owns_agent: True if the agent runs for the groups alone and ends with them.
        warn_after: Seconds after which a waiting operation is logged, for groups made later.
        formations: The groups that are being formed.
        blocks: Memory for long messages.
        cross_waits: The operations in which the worker and others wait.
    """

    def __init__(self, agent: AgentCore) -> None:
        self.world: ProcessGroup | None = None
        self.owns_agent = False
        self.warn_after = WARN_AFTER
        self._agent = agent
        self._table_lock = threading.Lock()  # guards all attributes below and `world`
        self._groups: dict[GroupKey, ProcessGroup] = {}
        self._named = Counter[str]()
        self._worlds = Counter[str]()
        self._gone: dict[GroupKey, None] = {}  # in the order in which they were left
        self._early: dict[GroupKey, list[_Early]] = {}
        self._early_of = Counter[WorkerInfo | None]()  # how many of them a worker has sent
        self._closed = False
        self.cross_waits = CrossWaits(agent, self._find, partial(is_gone, self._gone))
        self.formations = Formations(agent, self._over, self.cross_waits)
        self.blocks = Blocks()

    def current_world(self) -> ProcessGroup:
        """Returns the group of all workers.

        Raises:
            NotInitializedError: There is no such group yet.
        """
        world = self.world
        if world is None:
            raise NotInitializedError(
                f"no process group on worker {self._agent.info.name!r}; call "
                "collectives.init_process_group() first"
            )
        return world

    def make_world(
        self, timeout: float, world_size: int | None = None, terms: GroupTerms | None = None
    ) -> ProcessGroup:
        """Makes the group of all workers; waits for no other worker.

        Args:
            timeout: Seconds for each of its operations.
            world_size: The number of members, even if more workers have joined; None for all
                workers that this one knows to have joined by now.
            terms: The terms of the group, which are the same on every rank; None for the defaults.

        Raises:
            AlreadyInitializedError: The group exists already.
            ValueError: The rank of this worker is not below `world_size`.
            WorkerLostError: A worker is lost.
        """
        count = self._agent.members.world_size if world_size is None else world_size
        if self._agent.info.rank >= count:
            raise ValueError(
                f"worker {self._agent.info.name!r} has rank {self._agent.info.rank} and is in no "
                f"group of {count}; write a larger world_size, or leave it out"
            )
        members = [self._agent.members.find(r) for r in range(count)]
        for member in members:
            if (lost := self._agent.members.lost(member)) is not None:
                lost.add_note("the group of all workers needs every one of them")
                raise lost
        with critical.section, self._table_lock:
            if self.world is not None:
                raise AlreadyInitializedError(
                    f"worker {self._agent.info.name!r} has its process group already; call "
                    "destroy_process_group() before another init_process_group()"
                )
            digest = digest_of(members)
            self._worlds[digest] += 1
            key = GroupKey(digest, -self._worlds[digest])
            world = self._new(key, members, "world", timeout, terms or GroupTerms())
            self.world = world
        self._open(world)
        return world

    def form(self, ranks: Sequence[int], timeout: float | None, terms: GroupTerms) -> ProcessGroup:
        """Makes a group of some workers; returns when each of them has called this.

        Raises:
            CollectiveMismatchError: A member forms another group instead, or states other terms.
            WorkerLostError: A member is lost.
            CallTimeoutError: A member did not call in time.
        """
        members = [self._agent.members.find(r) for r in ranks]
        world = self.world
        limit = seconds(timeout, TIMEOUT if world is None else world.timeout)
        if self._agent.info not in members:
            with critical.section, self._table_lock:
                return self._new(GroupKey("", 0), members, name_of(ranks), limit, GroupTerms())
        try:  # first what a member has told, and then losses: it may have left with that error
            key, terms = self.formations.form(
                members, limit=limit, warn_after=self.warn_after, terms=terms
            )
        except WorkerLostError as error:
            error.add_note("a process group needs living members; leave this one out")
            raise
        return self._formed(key, members, limit, terms)

    def shrink(
        self, group: ProcessGroup, excluded: Collection[WorkerInfo], timeout: float | None
    ) -> ProcessGroup:
        """Makes a group of the members of a group that are neither lost nor excluded.

        Each attempt that ends with a loss is followed by one without that member, until no member
        of an attempt is lost at any other.

        Raises:
            CollectiveMismatchError: A member forms another group instead.
            EvictedError: The job goes on without this worker.
            WorkerLostError: Another member has given up this one: it lives, and is in another
                group.
            CallTimeoutError: A member did not call in time.
        """
        limit = seconds(timeout, group.timeout)
        until = time.monotonic() + limit
        lost: set[WorkerInfo] = set()
        check_may_block("shrink_group")
        while True:
            for member in group.members:
                loss = self._agent.members.lost(member)
                if loss is None:
                    continue
                if isinstance(loss, EvictedError) or (loss.fenced and member not in excluded):
                    loss.add_note("this worker, and not the other, was given up: " + AFTER_GIVEN_UP)
                    raise loss
                lost.add(member)
            if lost:
                self._check_standing(max(until - time.monotonic(), LEAST_WAIT))
            living = [m for m in group.members if m not in lost and m not in excluded]
            try:
                key, terms = self.formations.form(
                    living,
                    limit=max(until - time.monotonic(), 0.0),
                    warn_after=self.warn_after,
                    lost=[member.rank for member in group.members if member in lost],
                    terms=group.terms,
                )
            except WorkerLostError as error:
                told = {
                    m
                    for m in living
                    if (m.name, m.incarnation) == (error.worker, error.incarnation)
                }
                if not told or self._agent.info in told:
                    raise
                lost |= told
            else:
                return self._formed(key, living, limit, terms)

    def _check_standing(self, limit: float) -> None:
        """Asks the coordinator if this worker is still a member of the job.

        A worker that was stopped finds the others lost, which have gone on without it.

        Raises:
            EvictedError: It is none.
            CallTimeoutError: There was no answer in time.
        """
        own = self._agent.info
        asked: Future[BaseException] = new_future(None, "shrink_group()")
        about_me = WorkerLostError("", worker=own.name, incarnation=own.incarnation)
        self._agent.inbox.weigh(about_me, asked.set_result)
        standing = asked.wait(limit)
        if isinstance(standing, EvictedError):
            raise standing

    def _formed(
        self, key: GroupKey, members: Sequence[WorkerInfo], timeout: float, terms: GroupTerms
    ) -> ProcessGroup:
        name = name_of([member.rank for member in members])
        with critical.section, self._table_lock:
            group = self._new(key, members, name, timeout, terms)
        self._open(group)
        return group

    def branch(self, group: ProcessGroup, key: str, name: str) -> ProcessGroup:
        """Returns a group of the same members with an order of operations of its own.

        It is made when it is first used here, waits for no other worker, has the terms of the group
        and ends with it. It shares no memory: there may be many, with few operations each.

        Args:
            group: The group.
            key: The name of the branch in messages, the same on every rank; ASCII.
            name: Its name in errors.
        """
        of = group.key
        whole = GroupKey(f"{of.members}{BRANCH}{key}", of.epoch)
        with critical.section, self._table_lock:
            found = self._groups.get(whole)
            if found is not None:
                return found
            called = f"{group.name}, {name}"
            made = self._new(
                whole, group.members, called, group.timeout, group.terms, shares_memory=False
            )
            self._groups[whole] = made
        self._open(made)
        with (
            critical.section,
            group.state_lock,
        ):  # it may have failed before the table had the branch
            failure = group.failure_of(OperationId(sys.maxsize))
        if failure is not None:
            made.fail(failure.cause, tell=False)
        return made

    def leave(self) -> None:
        """Leaves all groups and tells their members; idempotent."""
        self.formations.close()
        for group in self._forget_all():
            group.leave()
        self.blocks.drop()

    def leave_alone(self, group: ProcessGroup) -> None:
        """Leaves one group and tells its members; idempotent."""
        with critical.section, self._table_lock:
            if self._groups.pop(group.key, None) is None:
                return
            left = [group, *branches_of(group.key, self._groups)]
            for branch in left[1:]:
                del self._groups[branch.key]
            keys = [each.key for each in left]
            add_gone(self._gone, keys)
        self.cross_waits.forget(keys)
        for each in left:
            each.leave()

    def close(self) -> None:
        """Ends all waits, as the agent was shut down."""
        self.formations.close(for_good=True)
        with critical.section, self._table_lock:
            self._closed = True
        for group in self._forget_all():
            self._end(group)

    def _end(self, group: ProcessGroup) -> None:
        error = NotInitializedError(f"the agent {self._agent.info.name!r} was shut down")
        group.fail(error, tell=False)

    def _forget_all(self) -> list[ProcessGroup]:
        with critical.section, self._table_lock:
            groups = list(self._groups.values())
            add_gone(self._gone, self._groups)
            self._groups.clear()
            self.world = None
        self.cross_waits.forget([group.key for group in groups])
        return groups

    def _new(
        self,
        key: GroupKey,
        members: Sequence[WorkerInfo],
        name: str,
        timeout: float,
        terms: GroupTerms,
        *,
        shares_memory: bool = True,
    ) -> ProcessGroup:
        self._named[name] += 1
        return ProcessGroup(
            self._agent,
            key,
            members,
            name=name if self._named[name] == 1 else f"{name} #{self._named[name]}",
            timeout=timeout,
            warn_after=self.warn_after,
            cross_waits=self.cross_waits,
            blocks=self.blocks,
            terms=terms,
            shares_memory=shares_memory,
        )

    def _open(self, group: ProcessGroup) -> None:
        """Puts a group into the table, delivers early messages, and tells it of losses."""
        with critical.section, self._table_lock:
            self._groups[group.key] = group
            early = self._early.pop(group.key, [])
            self._early_of.subtract(each.peer for each in early)
            closed = self._closed
        for each in early:
            with suppress(DecodeError):  # of one that is no member
                each.deliver(group)
        if closed:  # the group was made while the agent ended
            self._end(group)
        for member in group.members:  # it may have been lost before the table had the group
            lost = self._agent.members.lost(member)
            if lost is not None:
                group.fail(lost)

    # Handlers. Messages of operations come in any thread, losses in the pool, others on the loop.

    def on_operation(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Delivers a message of an operation to its group."""
        message, _ = OperationMessage.unpack(envelope.document)
        kind, data = envelope.kind, envelope.buffers[-1] if envelope.buffers else b""
        if envelope.failure is not None:  # the operation fails here, which tells the others
            words = f"worker {self._agent.info.name!r} cannot read data of {peer.name!r}"
            kind, data = REFUSED, pack_cause(MemoryError(f"{words}: {envelope.failure}"))
        group = self._groups.get(message.group)  # a look at a dict needs no lock
        source = None if group is None else group.rank_of(peer)
        if group is not None and source is not None:
            group.deliver(source, kind, message, data)
        else:
            self._hand(peer, message.group, lambda group, r: group.deliver(r, kind, message, data))
        if kind == ENTERED and message.number != DATA_WAITS:
            self.cross_waits.on_told(peer, message)

    def on_abort(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Handles the message that a group is over."""
        message = AbortMessage.from_wire(self._agent.messages.read(envelope))
        self._forget_waits(message.group)
        self._hand(peer, message.group, lambda group, source: group.on_abort(source, message))
        if message.since != PAIR:
            with critical.section, self._table_lock:
                branches = branches_of(message.group, self._groups)
            for branch in branches:
                branch.fail(message.cause)

    def on_left(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Handles the message that a member has left a group."""
        message = LeftMessage.from_wire(self._agent.messages.read(envelope))
        self._forget_waits(message.group)
        self._hand(peer, message.group, lambda group, source: group.on_left(source, message))

    def _forget_waits(self, key: GroupKey) -> None:
        """Forgets the waits in a group that is over before it was made here, if it ever will be."""
        if self._find(key) is None:
            self.cross_waits.forget([key])

    def on_lost(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Ends the groups of a lost worker."""
        self.formations.on_lost(worker, error)
        with critical.section, self._table_lock:
            groups = [each for each in self._groups.values() if worker in each.members]
        for group in groups:
            group.fail(error)

    def _over(self, key: GroupKey, cause: BaseException) -> None:
        """Fails a group whose new_group returned here but has failed on another member."""
        self._reach(key, lambda group: group.fail(cause))

    def _hand(
        self, peer: WorkerInfo, key: GroupKey, deliver: Callable[[ProcessGroup, int], None]
    ) -> None:
        """Delivers a message of a worker to its group; raises DecodeError if it is no member."""

        def hand_to(group: ProcessGroup) -> None:
            source = group.rank_of(peer)
            if source is None:
                raise DecodeError(f"{peer.name!r} speaks to {group.name!r} and is no member")
            deliver(group, source)

        self._reach(key, hand_to, peer)

    def _find(self, key: GroupKey) -> ProcessGroup | None:
        with critical.section, self._table_lock:
            return self._groups.get(key)

    def _reach(
        self,
        key: GroupKey,
        deliver: Callable[[ProcessGroup], None],
        peer: WorkerInfo | None = None,
    ) -> None:
        """Calls `deliver` with a group, now or when it is made; never after it was left.

        Raises:
            DecodeError: The peer has sent too many messages to groups that are not made yet.
        """
        with critical.section, self._table_lock:
            group = self._groups.get(key)
            if group is None and not is_gone(self._gone, key):
                most = self._agent.options.limits.served_calls_per_peer
                if self._early_of[peer] >= most:
                    raise DecodeError(
                        f"{most} messages of that worker wait for process groups that worker "
                        f"{self._agent.info.name!r} has not made (Limits.served_calls_per_peer)"
                    )
                self._early_of[peer] += 1
                self._early.setdefault(key, []).append(_Early(peer, deliver))
        if group is not None:
            deliver(group)


@final
class ShutdownWait:
    """The wait of a worker in shutdown(): it stays in its groups, for the calls that it serves.

    Its program itself enters no further operation. Once each worker that has not called shutdown()
    is blocked in an operation that this one has not entered, nobody is left to call it either. Then
    it leaves its groups, so that the others get an error in place of a wait without end.
    """

    def __init__(self, agent: AgentCore, groups: Groups) -> None:
        self._agent = agent
        self._groups = groups

    def begin(self) -> None:
        """Looks now and then, until the agent ends, if the others wait for this worker in vain."""
        self._agent.deadlines.after(TELL_AFTER, self._look)

    def _look(self) -> None:  # on the loop
        job, agent = self._agent.life.membership, self._agent
        running = () if job is None else job.running
        in_vain = bool(running) and self._groups.cross_waits.are_blocked(running)
        if in_vain and agent.drain(0.0, given_up=False):  # else a call that is served may enter
            agent.pool.submit(self._groups.leave)
        self.begin()
