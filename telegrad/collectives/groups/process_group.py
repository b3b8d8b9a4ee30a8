"""A process group at one member: counts its operations, runs them, ends with the first failure.

A group does not recover. A failure at one member fails all members: the member that sees a
mismatch, a loss or its own deadline tells every other one. The failed operation and all later ones
then raise that cause at every member, whether they already wait or are called later. Earlier
operations go on, as each member has entered them or will. A program that goes on makes a new group.

    1 ── 2 ── 3 ── 4 ── 5 ...       number 3 mismatches: 3, 4, 5 raise it, 1 and 2 complete
    a rank is lost: all raise it;   sends and receives: with any of these all raise it

The deadline of a send or receive, or another error in it that is neither a mismatch nor a loss,
ends the sends and receives of those two ranks and nothing else. A receive from any rank to which
none has sent ends alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, final

from telegrad.arrays import Moment
from telegrad.collectives.backends import NCCL, GroupTerms, Sharing
from telegrad.collectives.failure import Failure, cause_for_others, check_alive, time_limit
from telegrad.collectives.groups.cross_waits import CrossWaits
from telegrad.collectives.link import EAGER_BYTES, run_here, run_in_pool
from telegrad.collectives.mailbox import Mailbox, MessageAllowance, OperationSlot
from telegrad.collectives.messages import (
    ABORT,
    ANY,
    LEFT,
    PAIR,
    PUSH,
    READY,
    REFUSED,
    WAKE,
    AbortMessage,
    Channel,
    GroupKey,
    LeftMessage,
    OperationId,
    OperationMessage,
    Signature,
    pack_cause,
)
from telegrad.collectives.nccl.side import NcclSide
from telegrad.collectives.operation import Call, Operation, check_may_block
from telegrad.collectives.select import DEFAULT
from telegrad.collectives.shared_memory.boards import MOST_RANKS
from telegrad.collectives.work import Work
from telegrad.critical import critical
from telegrad.errors import (
    AgentForkedError,
    CollectiveMismatchError,
    DecodeError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import Future
from telegrad.rpc.seams import (
    AgentCore,
    fresh_copy,
    longest_spin,
    new_future,
    refuse_in_section,
    seconds,
)
from telegrad.types import Rank, WorkerInfo
from telegrad.wire import Blocks, Buffer, Envelope

# -- the group -----------------------------------------------------------------------------------

T = TypeVar("T")

REMEDY = "make a new group with new_group()"
FOR_GOOD = "this incarnation of the worker takes part in no other group either"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Counters of one member of a group.

    Attributes:
        operations: Operations of all members that this member has entered.
        in_flight: Operations, sends and receives that are not over.
        messages_sent: Messages that operations have sent.
        bytes_sent: Array bytes in the messages that were sent.
        early_messages: Received messages of operations that this member has not entered yet.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     collectives.barrier()
        ...     return group.statistics().operations
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [1, 1]
    """

    operations: int
    in_flight: int
    messages_sent: int
    bytes_sent: int
    early_messages: int


@final
class ProcessGroup:
    """Some workers of the job that call the same operations, in the same order.

    `init_process_group` makes the group of all workers, `new_group` others. Operations of one
    group that were started one after the other may run at the same time. Threads that call
    operations concurrently need one group each, as the order must be the same on all ranks.

    Args:
        agent: This worker's agent.
        key: The group's name on the wire.
        members: The members, in the order of their ranks in the group.
        name: The group's name in messages.
        timeout: Seconds for an operation without a timeout of its own.
        warn_after: Seconds after which a waiting operation is logged.
        cross_waits: The operations in which the worker waits, in all its groups.
        blocks: Memory for long messages.
        terms: The backend and the thresholds of the group.
        shares_memory: False for a group that does not use memory shared by ranks of one host.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     return group.rank, group.size
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(0, 2), (1, 2)]
    """

    def __init__(
        self,
        agent: AgentCore,
        key: GroupKey,
        members: Sequence[WorkerInfo],
        *,
        name: str,
        timeout: float,
        warn_after: float,
        cross_waits: CrossWaits,
        blocks: Blocks,
        terms: GroupTerms,
        shares_memory: bool = True,
    ) -> None:
        self.key = key
        self.terms = terms
        self.thresholds = terms.thresholds or DEFAULT
        self.members = tuple(members)
        self.timeout = timeout
        self.warn_after = warn_after
        self.cross_waits = cross_waits
        self.blocks = blocks
        hosts = _neighbours(agent, members) if shares_memory else ()
        self.sharing = Sharing(hosts, longest_spin(), terms)
        self.nccl = NcclSide(self) if terms.backend == NCCL else None
        self._name = name
        self._agent = agent
        self._places = {member: r for r, member in enumerate(members)}
        self._rank = self._places.get(agent.info, -1)
        self._ranks = tuple(member.rank for member in members)
        self._mailbox = Mailbox(name, self._rank, self.describe)
        self.state_lock = threading.Lock()  # guards all attributes below and the operations
        self._operations: dict[OperationSlot, Operation[Any]] = {}
        self._left: dict[int, LeftMessage] = {}
        self._failure: Failure | None = None
        self._ended: dict[int | OperationId, Failure] = {}  # of pairs, by the other rank
        self.message_allowance = MessageAllowance()
        self.operation_allowance = MessageAllowance()
        self._messages_sent = 0
        self._bytes_sent = 0

    # For users.

    @property
    def name(self) -> str:
        """The group's name in errors."""
        return self._name

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The members' ranks in the job, in the order of their ranks in the group."""
        return self._ranks

    @property
    def rank(self) -> Rank:
        """This worker's rank in the group, from 0; -1 if it is no member."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    def abort(self, cause: BaseException) -> None:
        """Ends the group: operations that are not over here, and later ones, raise `cause`.

        They do so at every member. An operation that is over here goes on where it still waits, as
        this member has done its part in it. Sends and receives are all ended.
        """
        refuse_in_section("abort()")
        with critical.section, self.state_lock:
            since = self._completed() + 1
        self.fail(cause_for_others(cause, self.where), since=since)

    def statistics(self) -> GroupStatistics:
        """Returns the counters of this member."""
        refuse_in_section("statistics()")
        self.collect()
        with critical.section, self.state_lock:
            return GroupStatistics(
                operations=self._mailbox.entered(None),
                in_flight=len(self._operations),
                messages_sent=self._messages_sent,
                bytes_sent=self._bytes_sent,
                early_messages=self._mailbox.early,
            )

    def __repr__(self) -> str:
        state = "over" if self.failed else f"{self._mailbox.entered(None)} operations"
        return f"<ProcessGroup {self._name!r} (rank {self.rank} of {self.size}, {state})>"

    # For the verbs.

    @property
    def where(self) -> str:
        """The group and this member, as errors name them."""
        return f"group {self._name!r} on rank {self._agent.info.rank} ({self._agent.info.name!r})"

    @property
    def failed(self) -> bool:
        """True if the group has failed."""
        return self._failure is not None

    def describe(self, r: int) -> str:
        """Returns the name of a member for errors."""
        return f"rank {self.members[r].rank} ({self.members[r].name!r})"

    def rank_of(self, worker: WorkerInfo) -> int | None:
        """Returns the rank of a worker in the group; None if it is no member."""
        return self._places.get(worker)

    def call(self, call: Call[T], timeout: float | None) -> T:
        """Runs an operation in this thread and returns its value.

        Raises:
            BlockingCallError: The caller runs on an event loop of telegrad; nothing was sent.
        """
        verb = call.signature.operation
        check_may_block(verb, or_async_op=call.in_turn and verb != "monitored_barrier")
        self._check_member(call)
        call = self._routed(call)
        reads, thread = self.cross_waits.reads, threading.get_ident()
        # Other ranks often send just before this one waits.
        try:
            if call.channel is None and not self.sharing.possible and _is_short(call):
                reads.hold()
            operation = self._enter(call, time_limit(timeout, self.timeout))
            with self.cross_waits.blocking(operation):
                value = run_here(self._run(operation))
        finally:
            reads.release(thread)
        if operation.enqueued is not None:
            operation.enqueued.order()
        return value

    def start(self, call: Call[T], timeout: float | None) -> Work[T]:
        """Starts an operation, which threads of the pool run. Its Work raises any failure."""
        refuse_in_section(call.signature.operation)
        self._check_member(call)
        call = self._routed(call)
        limit = seconds(timeout, self.timeout)
        words = f"{call.signature} of {self.where}"
        future: Future[T] = new_future(self._agent.pool.submit, words)
        arrival: Future[Callable[[], T]] | None = None
        if self.nccl is not None and call.on_device is not None:
            arrival = new_future(self._agent.pool.submit, words)

        def arrive(value: T, enqueued: Moment) -> T:
            enqueued.order()
            return value

        async def settle(operation: Operation[T]) -> None:
            try:
                value = await self._run(operation)
                if arrival is not None and self.nccl is not None and operation.enqueued is not None:
                    arrival.try_set_result(partial(arrive, value, operation.enqueued))
                    self.nccl.finish(operation)
            except BaseException as error:  # at the top of a task
                future.try_set_exception(error)
            else:
                future.try_set_result(value)
            if arrival is not None:  # of no GPU, or failed before it was enqueued
                arrival.try_set_result(future.wait)

        try:
            operation = self._enter(call, limit)
        except Exception as error:  # the group is over: the Work raises that, now as later
            future.try_set_exception(error)
            return Work(future, str(call.signature), self.where)  # no arrival: it is over
        run_in_pool(settle(operation), self._agent.pool.submit)
        blocking = partial(self.cross_waits.blocking, operation)
        return Work(future, str(call.signature), self.where, blocking, arrival=arrival)

    def _routed(self, call: Call[T]) -> Call[T]:
        """Returns the call, its arrays on the host, unless NCCL may run it where they are."""
        if self.nccl is not None and call.on_device is not None:
            return self.nccl.route(call, call.on_device)
        for each in call.staged:
            each.stage()
        return call

    async def _run(self, operation: Operation[T]) -> T:
        try:
            return await operation.run()
        except BaseException as error:  # the other ranks wait for this one: tell them of any error
            self.give_up(operation, cause_for_others(error, str(operation)))
            raise
        finally:
            self._finish(operation)

    def _enter(self, call: Call[T], limit: float) -> Operation[T]:
        self.cross_waits.note_caller()
        if call.channel is None and self.terms.words:
            call = replace(call, signature=replace(call.signature, terms=self.terms.words))
        cause: BaseException | None = None
        with critical.section, self.state_lock:
            channel = call.channel and self._known(call.channel)
            operation_id = self._mailbox.next(channel)
            self._check_open(call, operation_id)
            try:
                slot = self._mailbox.enter(channel, call.signature)
            except Exception as error:  # a mismatch, or the error of a member that has refused
                cause = error
            else:
                operation = Operation(self, call, slot, limit=limit, warn_after=self.warn_after)
                cause = self._absence(operation)
            if cause is None:
                self._operations[slot] = operation
                if call.in_turn:
                    self.sharing.queue(operation)
                actions = operation.noticed()
        if cause is not None:
            self.fail(cause, since=operation_id.since)
            with critical.section, self.state_lock:
                check_alive(self.failure_of(operation_id), f"{call.signature} of {self.where}")
        if actions:
            _perform(actions)
        return operation

    def _finish(self, operation: Operation[Any]) -> None:
        with critical.section, self.state_lock:
            self._mailbox.leave(operation.slot)
            self._operations.pop(operation.slot, None)
            self._ended.pop(operation.slot.id, None)
            self.operation_allowance.give_back(operation.pushed)
            if operation.unasked and operation.partner is not None:
                self.message_allowance.note_taken(operation.partner, operation.unasked)
            operation.end()
            actions: list[Callable[[], None]] = []
            if operation.call.in_turn and (next_ones := self.sharing.leave(operation)):
                for each in self._operations.values():
                    actions += each.noticed() if each in next_ones else ()
        if actions:
            _perform(actions)

    def _known(self, channel: Channel) -> Channel:
        """Returns the channel of a receive from any rank, if one has sent; others as they are."""
        if channel is None or channel[0] != ANY:
            return channel
        source = self._mailbox.sender(channel[2])
        return channel if source is None else (source, *channel[1:])

    def _find_senders(self) -> list[Callable[[], None]]:
        """Lets receives from any rank, in their order, take messages that have come.

        Raises:
            CollectiveMismatchError: A message does not fit the receive that takes it.
        """
        actions: list[Callable[[], None]] = []
        for operation in list(self._operations.values()):
            waiting, channel = operation.slot, self._known(operation.slot.id.channel)
            if channel == waiting.id.channel or operation.failure is not None:
                continue
            operation.slot = self._mailbox.enter(channel, waiting.signature)
            self._mailbox.leave(waiting)
            del self._operations[waiting]
            self._operations[operation.slot] = operation
            actions += operation.noticed()
        return actions

    def _check_member(self, call: Call[Any]) -> None:
        if self._agent.life.pid != os.getpid():  # no loop runs here: the operation would never end
            raise AgentForkedError(
                f"{self.where} belongs to process {self._agent.life.pid}, from which this process "
                f"({os.getpid()}) was forked; start processes with multiprocessing's 'spawn' method"
            )
        if self._rank < 0:
            raise ValueError(
                f"{call.signature.operation} was called on worker {self._agent.info.name!r}, which "
                f"is no member of group {self._name!r} (ranks: {list(self.ranks)})"
            )

    def _check_open(self, call: Call[Any], operation_id: OperationId) -> None:
        failure = self.failure_of(operation_id)
        if failure is not None:
            what = f"{call.signature} on {self.where}"
            evicted = self._agent.members.eviction()
            if evicted is not None:  # takes precedence over the loss that ended the group
                raise Failure(evicted, 0).refusal(what, FOR_GOOD)
            raise failure.refusal(what, REMEDY)

    def _absence(self, operation: Operation[Any]) -> CollectiveMismatchError | None:
        """Returns an error if a member has left that must take part in an operation, else None."""
        channel = operation.slot.id.channel
        if channel is not None and channel[0] == ANY:
            return self._no_sender(operation, channel[2])
        for r, left in self._left.items():
            if self._takes_part(r, left, operation):
                continue
            return CollectiveMismatchError(
                f"{operation}: {self.describe(r)} left the group after {left.sequence} "
                "operations of all ranks; every rank must call the same ones, and leave by "
                "destroy_process_group() or shutdown() after the last"
            )
        return None

    def _no_sender(self, operation: Operation[Any], tag: int) -> CollectiveMismatchError | None:
        for r in range(self.size):
            left = self._left.get(r)
            taken = self._mailbox.entered((r, self.rank, tag))
            if r != self.rank and (left is None or left.sent.get(tag, 0) > taken):
                return None  # it may still send, or its message is under way
        return CollectiveMismatchError(
            f"{operation}: all other ranks have left the group, and every message with tag {tag} "
            "was received; each recv needs a send"
        )

    def _takes_part(self, r: int, left: LeftMessage, operation: Operation[Any]) -> bool:
        channel, sequence = operation.slot.id.channel, operation.slot.id.sequence
        if channel is None:
            return sequence <= left.sequence
        if r != operation.partner:
            return True
        source, _, tag = channel
        # A message that the peer took is sent here, even if this thread has not noticed yet.
        counts = left.sent if source == r else left.taken
        return sequence <= counts.get(tag, 0)

    # For its operations.

    def post(
        self, to: int, kind: str, slot: OperationSlot, number: int, data: Buffer | None = None
    ) -> None:
        """Sends a message of an operation to a member; the caller does not hold the lock."""
        message = OperationMessage(self.key, slot.id, slot.call, number)
        envelope = Envelope(kind, document=message.pack(), in_order=True)
        with critical.section, self.state_lock:
            self._messages_sent += 1
            if data is not None:
                self._bytes_sent += memoryview(data).nbytes
                envelope.buffers = (data,)
        try:
            self._agent.messages.post_envelope(self.members[to], envelope)
        except (WorkerLostError, UnknownWorkerError) as error:
            self.fail(error)

    def shared(self, to: int, data: Buffer) -> Buffer:
        """Returns the data for one `post`, in memory shared with the member if there is any."""
        return self._agent.messages.shared(self.members[to], data)

    def may_enter(self, operation_id: OperationId) -> bool:
        """Returns True if this member has not entered an operation in which others may wait."""
        with critical.section, self.state_lock:
            ahead = operation_id.sequence > self._mailbox.entered(operation_id.channel)
            return ahead and not self.is_over(operation_id)

    def is_over(self, operation_id: OperationId) -> bool:
        """Returns True if an operation cannot complete; the caller holds the lock."""
        return self.failure_of(operation_id) is not None

    def failure_of(self, operation_id: OperationId) -> Failure | None:
        """Returns the failure that ends an operation, if any; the caller holds the lock."""
        if self._failure is None and not self._ended:  # as nearly always
            return None
        if self._failure is not None and (first := self._failure.first_of(operation_id)):
            return first
        if operation_id.channel is None or not self._ended:
            return None
        source, to, _ = operation_id.channel
        other = to if source == self._rank else source
        return self._ended.get(operation_id if other == ANY else other)

    def after(self, delay: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` on the loop after `delay` seconds; returns the function to cancel it."""
        return self._agent.deadlines.after(delay, callback).cancel

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the agent's pool."""
        self._agent.pool.submit(func, *args)

    # Messages from the members; any thread calls these.

    def deliver(self, source: int, kind: str, message: OperationMessage, data: Buffer) -> None:
        """Delivers a message to its operation; fails the group if the signatures differ."""
        if message.number == WAKE and message.id.channel is not None:
            self.collect()
            return
        actions: list[Callable[[], None]] = []
        cause: BaseException | None = None
        with critical.section, self.state_lock:
            if self.is_over(message.id):
                return
            if kind == READY:
                self.message_allowance.confirm(source, message.number)
            try:
                slot = self._mailbox.deliver(source, kind, message, data)
                operation = None if slot is None else self._operations.get(slot)
                if operation is not None:
                    actions = operation.noticed()
                elif slot is None and message.id.channel is not None:
                    actions = self._find_senders()
                    if (told := self._mailbox.declined(kind, message)) is not None:
                        slot = OperationSlot(message.id, message.signature)
                        actions.append(partial(self.post, source, REFUSED, slot, 0, told))
            except Exception as error:  # a mismatch, or the error of a member that has refused
                cause = error
        if cause is not None:
            self.fail(cause, since=message.id.since)
        if actions:
            _perform(actions)

    def collect(self) -> None:
        """Delivers the messages for this member that lie in memory; other bytes end the group."""
        for source, packed in self.sharing.queues.take():
            try:
                if isinstance(packed, DecodeError):
                    raise packed
                message, data = OperationMessage.unpack(packed)
            except DecodeError as error:
                self.fail(DecodeError(f"memory shared with {self.describe(source)} has {error}"))
                return
            self.deliver(source, PUSH, message, data)

    def on_left(self, source: int, message: LeftMessage) -> None:
        """Records that a member takes part in no further operation; fails those that need it."""
        with critical.section, self.state_lock:
            self._left[source] = message
            found = [(each.slot.id, self._absence(each)) for each in self._operations.values()]
        if self.nccl is not None:
            self.nccl.on_left(source)
        for operation_id, cause in found:
            if cause is not None:
                self.fail(cause, since=operation_id.since)

    def fail(self, cause: BaseException, *, since: int = 0, tell: bool = True) -> None:
        """Ends the group from operation `since` on, unless an earlier failure covers that.

        Args:
            cause: The error that members raise in the operations that are over.
            since: The number of the first operation of all members that is over.
            tell: True if this member tells the others.
        """
        with critical.section, self.state_lock:
            if self._failure is not None and self._failure.since <= since:
                return
            failure = self._failure = Failure(cause, since, earlier=self._failure)
            self._mailbox.drop(failure.ends)
            operations = list(self._operations.values())
            actions = [action for each in operations for action in each.noticed()]
        try:
            if tell:  # first: a program that ends with the error has told the others by then
                self._tell_failure(failure)
        finally:
            if self.nccl is not None:
                self.nccl.end(since)
            _perform(actions)

    def give_up(self, operation: Operation[Any], cause: BaseException) -> None:
        """Ends an operation of all ranks and all later ones; or the messages of a pair of ranks."""
        if operation.slot.id.channel is None:
            self.fail(cause, since=operation.slot.id.since)
            return
        # A receive from any rank may find its sender just before.
        with critical.section, self.state_lock:
            other = operation.partner
            actions = self._end_pair(operation.slot.id if other is None else other, cause)
        _perform(actions)
        if actions and other is not None:
            with suppress(WorkerLostError, UnknownWorkerError):
                body = AbortMessage(self.key, PAIR, cause).to_wire()
                self._agent.messages.post(self.members[other], ABORT, body)

    def on_abort(self, source: int, message: AbortMessage) -> None:
        """Handles the message that the group is over, or the messages between it and this one."""
        if message.since != PAIR:
            self.fail(message.cause, since=message.since, tell=False)
            return
        with critical.section, self.state_lock:
            actions = self._end_pair(source, message.cause)
        _perform(actions)

    def _end_pair(self, over: int | OperationId, cause: BaseException) -> list[Callable[[], None]]:
        """Ends the sends and receives with a rank, or a receive from any that none has sent to.

        Returns:
            The actions to run without the lock; none if they were over before.
        """
        if self._failure is not None or over in self._ended:
            return []
        other = self.describe(over) if isinstance(over, int) else "any rank"
        self._ended[over] = Failure(cause, 0, f"sends and receives with {other} are over")
        self._mailbox.drop(self.is_over)
        actions = [action for each in self._operations.values() for action in each.noticed()]
        if self.nccl is not None and isinstance(over, int):
            actions.append(partial(self.nccl.end_messages, over))
        return [*actions, _nothing]

    def leave(self) -> None:
        """Leaves the group and tells the other members; idempotent."""
        with critical.section, self.state_lock:
            if self.is_over(OperationId(0)) or self.rank < 0:
                return
            waiting = [each.slot.id for each in self._operations.values()]
            sequence = self._completed()
            sent = [self._mailbox.counts(self.rank, r) for r in range(self.size)]
            taken = [self._mailbox.counts(r, self.rank) for r in range(self.size)]
            for i in waiting:
                if i.channel is not None and i.channel[0] != ANY:
                    source, to, tag = i.channel
                    counts = sent[to] if source == self.rank else taken[source]
                    counts[tag] = min(counts[tag], i.sequence - 1)
            failure = self._failure
        if failure is not None:  # a member that has not heard of it hears the cause, not the end
            self._tell_failure(failure)
        if self.nccl is not None:
            self.nccl.close()
        worker = self._agent.info.name
        cause = NotInitializedError(f"worker {worker!r} has left group {self._name!r}")
        self.fail(cause, tell=False)
        self._tell_others(
            LEFT, lambda r: LeftMessage(self.key, sequence, sent[r], taken[r]).to_wire()
        )

    def _completed(self) -> int:
        """Returns the number of operations of all members before the first unfinished one."""
        waiting = [each.slot.id for each in self._operations.values()]
        unfinished = [i.sequence - 1 for i in waiting if i.channel is None]
        return min([self._mailbox.entered(None), *unfinished])

    def _tell_failure(self, failure: Failure) -> None:
        body = AbortMessage(self.key, failure.since, failure.cause).to_wire()
        self._tell_others(ABORT, lambda _: body)

    def _tell_others(self, kind: str, body: Callable[[int], object]) -> None:
        for r, member in enumerate(self.members):
            if r != self.rank:
                with suppress(WorkerLostError, UnknownWorkerError):
                    self._agent.messages.post(member, kind, body(r))


def refuse(group: ProcessGroup, verb: str, error: Exception, channel: Channel = None) -> None:
    """Tells the other members that this one does not enter its next operation, and why.

    They get the error in that operation, and the group is over. Members that have all refused it,
    as their programs have one mistake in common, are in step: then the group goes on.

    Args:
        group: The group.
        verb: The function whose arguments were wrong.
        error: The error that it raises here.
        channel: The messages whose next one is meant; None for the operations of all members. The
            sender of a message that this member does not receive hears of it if it waits, and the
            message stays for the next receive.
    """
    told = fresh_copy(error)
    told.add_note(f"raised by the arguments of {verb}() of {group.where}")
    cause = pack_cause(told)
    with critical.section, group.state_lock:
        operation_id = group._mailbox.next(channel)
        if group.rank < 0 or group.is_over(operation_id):
            return
        if channel is None or channel[0] == group.rank:
            group._mailbox.refuse(operation_id)
        elif not group._mailbox.decline(operation_id, cause):
            return
    slot = OperationSlot(operation_id, Signature(operation=verb))
    for r in range(group.size) if channel is None else channel[:2]:
        if r != group.rank:
            group.post(r, REFUSED, slot, 0, cause)


def _neighbours(agent: AgentCore, members: Sequence[WorkerInfo]) -> Sequence[Sequence[int]]:
    """Returns the ranks of each host, by rank; nothing if no two ranks can share memory."""
    hosts: dict[str, list[int]] = {}
    for r, member in enumerate(members):
        hosts.setdefault(agent.exchange.host_of(member) or f"alone: {r}", []).append(r)
    most = max(map(len, hosts.values()), default=0)
    return list(hosts.values()) if 1 < most <= MOST_RANKS else ()


def _is_short(call: Call[Any]) -> bool:
    return all(each.array.nbytes <= EAGER_BYTES for each in call.staged)


def _nothing() -> None:
    pass


def _perform(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()
