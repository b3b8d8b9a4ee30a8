"""A process group at one member: counts its operations, runs them, ends with the first failure.

A group has one life. What fails in it for one member fails for all: whoever sees a mismatch, a
loss or its own deadline tells every member, and the operation that failed and all later ones raise
that cause everywhere, whether they wait or come later. Earlier ones go on: each member has entered
them or will. Who wants to go on makes a new group.

    1 ── 2 ── 3 ── 4 ── 5 ...       number 3 mismatches: 3, 4, 5 raise it, 1 and 2 come to their end
    a rank is lost: all raise it;   sends and receives: with any failure all raise it
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, final

from telegrad.collectives.link import run_here, run_in_pool
from telegrad.collectives.mailbox import Mailbox, Slot
from telegrad.collectives.messages import (
    ABORT,
    LEFT,
    READY,
    AbortMessage,
    GroupKey,
    LeftMessage,
    OperationId,
    OperationMessage,
)
from telegrad.collectives.operation import MESSAGE_BYTES, Call, CrossWaits, Operation, time_limit
from telegrad.errors import (
    AgentForkedError,
    BlockingCallError,
    CollectiveMismatchError,
    NotInitializedError,
    RemoteError,
    TelegradError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc import Agent, Future
from telegrad.rpc.seams import fresh_copy, new_future, on_own_loop, seconds
from telegrad.types import Rank, WorkerInfo
from telegrad.wire import Buffer

__all__ = [
    "ALLOWANCE_BYTES",
    "Failure",
    "GroupStatistics",
    "ProcessGroup",
    "Work",
    "cause_for_others",
]


# -- why a group is over, as an exception of its own for everyone who hears of it ----------------


@final
class Failure:
    """What ended a group here.

    Args:
        cause: Never raised itself, since raising writes into an exception.
        since: The first operation of all members that is over. Earlier ones go on: every member
            may have entered them.

    Attributes:
        since: As given.
    """

    def __init__(self, cause: BaseException, since: int) -> None:
        self.since = since
        self._cause = fresh_copy(cause)
        if self._cause is not cause:  # a group lives on, and must not keep the frames of `cause`
            self._cause.__cause__ = self._cause.__context__ = None

    def ends(self, operation_id: OperationId) -> bool:
        """Tells whether an operation is over by this; all sends and receives are."""
        return operation_id.channel is not None or operation_id.sequence >= self.since

    def fresh(self, where: str) -> BaseException:
        """Returns the cause as a new exception.

        Args:
            where: In which operation it is raised; a note says so.
        """
        error = self._copy()
        error.add_note(f"raised in {where}")
        return error

    def refusal(self, what: str, remedy: str) -> BaseException:
        """Returns an exception of the cause's class for what was called after it.

        Args:
            what: The operation that is refused.
            remedy: What to do instead.
        """
        error = self._copy()
        words = f"{what} is refused, since the group is over: {error}; {remedy}"
        if isinstance(error, TelegradError):
            error.args = (words,)
        else:
            error.add_note(words)
        return error

    def _copy(self) -> BaseException:
        return fresh_copy(self._cause).with_traceback(None)


def cause_for_others(error: BaseException, where: str) -> BaseException:
    """Returns what the other members are told of an error that ended an operation here.

    Args:
        error: What the operation raised.
        where: The operation and the rank.
    """
    if isinstance(error, TelegradError):
        return error
    kind = type(error)
    if isinstance(error, Exception):
        error.add_note(f"raised in {where}")
        return error
    name = f"{kind.__module__}:{kind.__qualname__}"
    return RemoteError(f"{where} was interrupted ({kind.__name__})", type_name=name)


# -- an operation that was started and not waited for --------------------------------------------

T = TypeVar("T")
U = TypeVar("U")


@final
class Work(Generic[T]):
    """What an operation returns that was called with `async_op=True`.

    Until it is done the operation's array belongs to the operation. May be used from any thread
    and awaited on any event loop.

    Args:
        future: What is completed with the operation's value.
        operation: What was called, in words.
        rank: Where, in words.
        blocking: Entered while a thread waits.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.array([1.0])
        ...     work = collectives.all_reduce(x, async_op=True)
        ...     work.wait()  # until then, x belongs to the operation
        ...     return x.item()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2.0, 2.0]
    """

    def __init__(
        self,
        future: Future[T],
        operation: str,
        rank: str,
        blocking: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._future = future
        self._operation = operation
        self._rank = rank
        self._blocking = blocking
        self._started = time.monotonic()

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until the operation is done and returns its value.

        Args:
            timeout: Seconds above 0 for this wait alone; None and `math.inf` wait for the
                operation, which ends at its own deadline at the latest.

        Returns:
            The arrays of all ranks for `all_gather`, else None.

        Raises:
            CallTimeoutError: It was not done in the time given here, and goes on; or its own
                deadline has passed.
            CollectiveMismatchError: The ranks called different operations.
            WorkerLostError: A rank is lost.
            BlockingCallError: On an event loop that telegrad runs; write `await work`.
        """
        with self._blocking():
            return self._future.wait(timeout)

    def done(self) -> bool:
        """Tells whether the operation is over, well or not."""
        return self._future.done()

    def exception(self) -> BaseException | None:
        """Returns the error of an operation that is over, None when it went well.

        Raises:
            RuntimeError: It is not over.
        """
        return self._future.exception()

    def then(self, callback: Callable[[Future[T]], U]) -> Future[U]:
        """Returns a future of what `callback` makes of the operation's future; see `rpc.Future`."""
        return self._future.then(callback)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Runs `callback` with the operation's future once it is over; see `rpc.Future`."""
        self._future.add_done_callback(callback)

    def __await__(self) -> Generator[Any, None, T]:
        """Waits on the running event loop."""
        return self._future.__await__()

    def __repr__(self) -> str:
        """Says what it stands for, where, how far it is, and since when."""
        state = "pending"
        if self.done():
            state = "done" if self.exception() is None else "failed"
        age = time.monotonic() - self._started
        return f"<Work {self._operation} of {self._rank}: {state}, started {age:.1f} s ago>"


# ------------------------------------------------------------------------------------------------


# Small data that may be under way to a rank that has not asked for it: of the operations that were
# started and are not over, and of messages that were not received. Some dozens of small ones, and
# little beside what a rank works on.
ALLOWANCE_BYTES = 4 * 2**20

REMEDY = "make a new group with new_group()"
FOR_GOOD = "this incarnation of the worker takes part in no other group either"

_WITH_ASYNC_OP = frozenset({"all_reduce", "broadcast", "all_gather"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """What one member has done in a group, and what it holds now.

    Attributes:
        operations: Operations of all members that were entered here.
        in_flight: Those, and sends and receives, that are not over.
        messages_sent: Messages of operations.
        bytes_sent: Array bytes in them.
        early_messages: Received for operations that were not entered here yet.

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

    Made by `init_process_group`, for all workers, and by `new_group`. Operations of one group
    that are started one after the other may be under way together; threads that call operations at
    once need a group each, as their order must be the same on all ranks.

    Args:
        agent: This worker's.
        key: The group's name on the wire.
        members: In the order of their ranks in the group.
        name: For people.
        timeout: Seconds for an operation that names none.
        warn_after: Seconds after which an operation that waits is logged.
        cross_waits: What the worker waits in, in all its groups.

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
        agent: Agent,
        key: GroupKey,
        members: Sequence[WorkerInfo],
        *,
        name: str,
        timeout: float,
        warn_after: float,
        cross_waits: CrossWaits,
    ) -> None:
        self.key = key
        self.members = tuple(members)
        self.timeout = timeout
        self.warn_after = warn_after
        self.cross_waits = cross_waits
        self._name = name
        self._agent = agent
        self._places = {member: r for r, member in enumerate(members)}
        self._rank = self._places.get(agent.info, -1)
        self._mailbox = Mailbox(name, self._rank, self.describe)
        self.state_lock = threading.Lock()  # guards all below and the state of the operations
        self._operations: dict[Slot, Operation[Any]] = {}
        self._turns: deque[Operation[Any]] = deque()
        self._eager_bytes = 0
        self._left: dict[int, LeftMessage] = {}
        self._failure: Failure | None = None
        self._pushed = Counter[int]()  # cost of messages sent unasked, by receiver
        self._confirmed = Counter[int]()  # how much of that it has taken
        self._taken = Counter[int]()  # the same, by sender
        self._messages_sent = 0
        self._bytes_sent = 0

    # For users.

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._name

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The members by their ranks in the job, in the order of their ranks in the group."""
        return tuple(member.rank for member in self.members)

    @property
    def rank(self) -> Rank:
        """This worker's rank in the group, from 0; -1 if it is no member."""
        return self._rank

    @property
    def size(self) -> int:
        """How many members it has."""
        return len(self.members)

    def abort(self, cause: BaseException) -> None:
        """Ends the group: every operation that waits or comes later raises `cause`, everywhere."""
        self.fail(cause_for_others(cause, self.where))

    def statistics(self) -> GroupStatistics:
        """Returns the counters of this member."""
        with self.state_lock:
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
        """Names the group and this member of it, for errors."""
        return f"group {self._name!r} on rank {self._agent.rank} ({self._agent.name!r})"

    @property
    def failed(self) -> bool:
        """Whether it is over."""
        return self._failure is not None

    def describe(self, r: int) -> str:
        """Names a member, for errors."""
        return f"rank {self.members[r].rank} ({self.members[r].name!r})"

    def rank_of(self, worker: WorkerInfo) -> int | None:
        """Returns the rank in the group of a worker; None if it is no member."""
        return self._places.get(worker)

    def call(self, call: Call[T], timeout: float | None) -> T:
        """Runs an operation in this thread and returns its value.

        Raises:
            BlockingCallError: On an event loop that telegrad runs; nothing was sent.
        """
        if on_own_loop():
            verb = call.signature.operation
            other = ", or async_op=True and await the Work" if verb in _WITH_ASYNC_OP else ""
            raise BlockingCallError(
                f"{verb}() would block a loop of telegrad's; in an async def function write "
                f"`await rpc.to_thread({verb}, ...)`{other}"
            )
        self._check_member(call)
        operation = self._enter(call, time_limit(timeout, self.timeout))
        with self.cross_waits.blocking(operation):
            return run_here(self._run(operation))

    def start(self, call: Call[T], timeout: float | None) -> Work[T]:
        """Starts an operation; threads of the pool run it. Its Work raises whatever fails."""
        self._check_member(call)
        limit = seconds(timeout, self.timeout)
        future = new_future(self._agent.submit, f"{call.signature} of {self.where}")

        async def settle(operation: Operation[T]) -> None:
            try:
                value = await self._run(operation)
            except BaseException as error:  # at the top of a task
                future.try_set_exception(error)
            else:
                future.try_set_result(value)

        try:
            operation = self._enter(call, limit)
        except Exception as error:  # why the group is over, which may be seen now or later
            future.try_set_exception(error)
            return Work(future, str(call.signature), self.where)
        run_in_pool(settle(operation), self._agent.submit)
        blocking = partial(self.cross_waits.blocking, operation)
        return Work(future, str(call.signature), self.where, blocking)

    async def _run(self, operation: Operation[T]) -> T:
        try:
            return await operation.run()
        except BaseException as error:  # whatever ends it here, the others wait for this rank
            self.fail(cause_for_others(error, str(operation)), since=operation.slot.id.since)
            raise
        finally:
            self._finish(operation)

    def _enter(self, call: Call[T], limit: float) -> Operation[T]:
        self.cross_waits.note_caller()
        cause: CollectiveMismatchError | None = None
        with self.state_lock:
            operation_id = self._mailbox.next(call.channel)
            self._check_open(call, operation_id)
            try:
                slot = self._mailbox.enter(call.channel, call.signature)
            except CollectiveMismatchError as mismatch:
                cause = mismatch
            else:
                operation = Operation(self, call, slot, limit=limit, warn_after=self.warn_after)
                cause = self._absence(operation)
            if cause is None:
                self._operations[slot] = operation
                if call.channel is None:
                    self._turns.append(operation)
                actions = self._take_turns() + operation.noticed()
                operation.watch()
        if cause is not None:
            self.fail(cause, since=operation_id.since)
            with self.state_lock:
                self.check_alive(operation_id, f"{call.signature} of {self.where}")
        _perform(actions)
        return operation

    def _finish(self, operation: Operation[Any]) -> None:
        with self.state_lock:
            self._mailbox.leave(operation.slot)
            self._operations.pop(operation.slot, None)
            if operation in self._turns:
                self._turns.remove(operation)
            elif operation.call.partner is None:
                self._eager_bytes -= operation.call.eager_bytes
            else:
                self._taken[operation.call.partner] += operation.unasked
            operation.end()
            actions = self._take_turns()
        _perform(actions)

    def _take_turns(self) -> list[Callable[[], None]]:
        """Lets operations begin, in their order, as far as what they send unasked allows."""
        actions: list[Callable[[], None]] = []
        while self._turns:
            operation = self._turns[0]
            nbytes = operation.call.eager_bytes
            if self._eager_bytes and self._eager_bytes + nbytes > ALLOWANCE_BYTES:
                break
            self._turns.popleft()
            self._eager_bytes += nbytes
            operation.began = True
            actions += operation.noticed()
        return actions

    def _check_member(self, call: Call[Any]) -> None:
        if self._agent.pid != os.getpid():  # no loop runs here: it would wait for ever
            raise AgentForkedError(
                f"{self.where} belongs to process {self._agent.pid}, from which this process "
                f"({os.getpid()}) was forked; start processes with multiprocessing's 'spawn' method"
            )
        if self.rank < 0:
            raise ValueError(
                f"{call.signature.operation} was called on worker {self._agent.name!r}, which is "
                f"no member of group {self._name!r} (ranks: {list(self.ranks)})"
            )

    def _check_open(self, call: Call[Any], operation_id: OperationId) -> None:
        if self._failure is not None and self._failure.ends(operation_id):
            what = f"{call.signature} on {self.where}"
            evicted = self._agent.eviction()
            if evicted is not None:  # perhaps since, and whoever was lost before
                raise Failure(evicted, 0).refusal(what, FOR_GOOD)
            raise self._failure.refusal(what, REMEDY)

    def _absence(self, operation: Operation[Any]) -> CollectiveMismatchError | None:
        """Says who has left and will not take part in an operation."""
        for r, left in self._left.items():
            if self._takes_part(r, left, operation):
                continue
            return CollectiveMismatchError(
                f"{operation}: {self.describe(r)} left the group after {left.sequence} "
                "operations of all ranks; every rank must call the same ones, and leave by "
                "destroy_process_group() or shutdown() after the last"
            )
        return None

    def _takes_part(self, r: int, left: LeftMessage, operation: Operation[Any]) -> bool:
        channel, sequence = operation.slot.id.channel, operation.slot.id.sequence
        if channel is None:
            return sequence <= left.sequence
        if r != operation.call.partner:
            return True
        source, _, tag = channel
        # What it took is done here, too, even if this thread has not noticed yet.
        counts = left.sent if source == r else left.taken
        return sequence <= counts.get(tag, 0)

    # For its operations.

    def post(self, to: int, kind: str, slot: Slot, number: int, data: Buffer | None = None) -> None:
        """Sends a message of an operation to a member; without the lock."""
        body = OperationMessage(self.key, slot.id, slot.signature, number).to_wire()
        with self.state_lock:
            self._messages_sent += 1
            self._bytes_sent += 0 if data is None else memoryview(data).nbytes
        try:
            self._agent.post(self.members[to], kind, body, buffers=() if data is None else (data,))
        except (WorkerLostError, UnknownWorkerError) as error:
            self.fail(error)

    def shared(self, to: int, data: Buffer) -> Buffer:
        """Returns bytes for one `post` to a member, in memory that both share where they do."""
        return self._agent.shared(self.members[to], data)

    def may_push(self, to: int, nbytes: int) -> bool:
        """Tells whether a message may go to a member unasked, and counts it; with the lock."""
        cost = nbytes + MESSAGE_BYTES
        if self._pushed[to] - self._confirmed[to] + cost > ALLOWANCE_BYTES:
            return False
        self._pushed[to] += cost
        return True

    def taken_from(self, source: int) -> int:
        """Returns how much was taken of what a member has sent unasked."""
        return self._taken[source]

    def may_enter(self, operation_id: OperationId) -> bool:
        """Tells whether this member has not entered an operation, and others may wait in it."""
        with self.state_lock:
            ahead = operation_id.sequence > self._mailbox.entered(operation_id.channel)
            return ahead and not self.is_over(operation_id)

    def is_over(self, operation_id: OperationId) -> bool:
        """Tells whether an operation cannot come to its end; with the lock."""
        return self._failure is not None and self._failure.ends(operation_id)

    def check_alive(self, operation_id: OperationId, where: object) -> None:
        """Raises why an operation cannot come to its end, if so; with the lock.

        Args:
            operation_id: Which one.
            where: The same in words.
        """
        if self._failure is not None and self._failure.ends(operation_id):
            raise self._failure.fresh(str(where))

    def after(self, delay: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Has `callback` called on the loop; returns what cancels that."""
        return self._agent.after(delay, callback)

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the agent's pool."""
        self._agent.submit(func, *args)

    # What the members say; in any thread.

    def deliver(self, source: int, kind: str, message: OperationMessage, data: Buffer) -> None:
        """Takes a message of an operation."""
        actions: list[Callable[[], None]] = []
        cause: CollectiveMismatchError | None = None
        with self.state_lock:
            if self.is_over(message.id):
                return
            if kind == READY:
                self._confirmed[source] = max(self._confirmed[source], message.number)
            try:
                slot = self._mailbox.deliver(source, kind, message, data)
            except CollectiveMismatchError as mismatch:
                cause = mismatch
            else:
                operation = None if slot is None else self._operations.get(slot)
                if operation is not None:
                    actions = operation.noticed()
        if cause is not None:
            self.fail(cause, since=message.id.since)
        _perform(actions)

    def on_left(self, source: int, message: LeftMessage) -> None:
        """Hears that a member takes part in no further operation."""
        with self.state_lock:
            self._left[source] = message
            found = [(each.slot.id, self._absence(each)) for each in self._operations.values()]
        for operation_id, cause in found:
            if cause is not None:
                self.fail(cause, since=operation_id.since)

    def fail(self, cause: BaseException, *, since: int = 0, tell: bool = True) -> None:
        """Ends the group, if nothing has before.

        Args:
            cause: What members raise in the operations that are over.
            since: The first operation of all members that is.
            tell: Whether the others are to hear of it from here.
        """
        with self.state_lock:
            if self._failure is not None and self._failure.since <= since:
                return
            failure = self._failure = Failure(cause, since)
            self._mailbox.drop(failure.ends)
            operations = list(self._operations.values())
            actions = [action for each in operations for action in each.noticed()]
        _perform(actions)
        if tell:
            body = AbortMessage(self.key, since, cause).to_wire()
            self._tell_others(ABORT, lambda _: body)

    def leave(self) -> None:
        """Takes part in nothing any more, and tells the others so; idempotent."""
        with self.state_lock:
            if self.is_over(OperationId(0)) or self.rank < 0:
                return
            waiting = [each.slot.id for each in self._operations.values()]
            unfinished = [i.sequence - 1 for i in waiting if i.channel is None]
            sequence = min([self._mailbox.entered(None), *unfinished])
            sent = [self._mailbox.counts(self.rank, r) for r in range(self.size)]
            taken = [self._mailbox.counts(r, self.rank) for r in range(self.size)]
            for i in waiting:
                if i.channel is not None:
                    source, to, tag = i.channel
                    counts = sent[to] if source == self.rank else taken[source]
                    counts[tag] = min(counts[tag], i.sequence - 1)
        cause = NotInitializedError(f"worker {self._agent.name!r} has left group {self._name!r}")
        self.fail(cause, tell=False)
        self._tell_others(
            LEFT, lambda r: LeftMessage(self.key, sequence, sent[r], taken[r]).to_wire()
        )

    def _tell_others(self, kind: str, body: Callable[[int], object]) -> None:
        for r, member in enumerate(self.members):
            if r != self.rank:
                with suppress(WorkerLostError, UnknownWorkerError):
                    self._agent.post(member, kind, body(r))


def _perform(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()
