"""One collective operation at one member: its algorithm, its messages and its deadline.

    entered ─▶ the algorithm runs over this link ─▶ all is sent ─▶ over
       │                      │                             │
       └──────────────────────┴─────────────────────────────┴──▶ the group failed

A rank sends small data at once, up to an allowance. Before other data, it sends `entered` to the
receiver, which answers `ready` when it has entered the operation too. After that, all data leaves
at once. So a rank that is behind holds little data that it has not requested.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

from telegrad.arrays import Moment
from telegrad.collectives.backends import Sharing
from telegrad.collectives.failure import Clock, Due, Failure, check_alive
from telegrad.collectives.link import EAGER_BYTES, Backend, Link, Steps, Wake
from telegrad.collectives.mailbox import MESSAGE_BYTES, MessageAllowance, OperationSlot, mismatch_of
from telegrad.collectives.messages import (
    ANY,
    BLOCKED,
    DATA_WAITS,
    ENTERED,
    HERE,
    PUSH,
    READY,
    WAKE,
    Channel,
    GroupKey,
    OperationId,
    OperationMessage,
    Signature,
)
from telegrad.collectives.on_device import OnDevice
from telegrad.collectives.reduction import Staged
from telegrad.collectives.shared_memory.queues import SHORT_BYTES
from telegrad.collectives.shared_memory.room import Meeting
from telegrad.critical import critical
from telegrad.errors import (
    CollectiveMismatchError,
)
from telegrad.rpc.seams import (
    Reads,
    barred,
    refuse_to_block,
)
from telegrad.types import Rank, WorkerInfo
from telegrad.wire import Blocks, Buffer


def check_may_block(verb: str, *, or_async_op: bool = False) -> None:
    """Raises BlockingCallError where a verb must not block."""
    if barred():
        other = ", or async_op=True and await the Work" if or_async_op else ""
        instead = f"in an async def function write `await rpc.to_thread({verb}, ...)`{other}"
        refuse_to_block(f"{verb}()", instead)


# -- operations ----------------------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")

_logger = logging.getLogger(__name__)


# Returns the joined calls of a rank that was heard, in their order.
CallsOf: TypeAlias = Callable[[int], Sequence[Signature]]
# Runs joined calls of one verb, op, root and dtype by a backend; returns the value of each.
Join: TypeAlias = "Callable[[Backend, Sequence[Call[Any]], CallsOf], Steps[Sequence[Any]]]"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """The operation that a verb asks for.

    Attributes:
        signature: The signature that every other member must call too.
        run: The algorithm; the verb returns its value.
        in_turn: True if it uses the backend of its group, which serves one operation at a time.
        expected_bytes: The bytes that a receive waits for; 0 if they are unknown.
        channel: The channel that counts it; None for an operation of all members.
        names_all: True if the error of its deadline names all missing ranks, not one alone.
        staged: The arrays that `run` uses.
        written: True if the first of them gets the result; False if the verb returns it.
        join: Runs several such calls, which a block of `coalesced` has collected, as one; None for
            a verb that cannot be joined.
        on_device: The way that leaves arrays on the GPU; None if there is none for this operation.
    """

    signature: Signature
    run: Callable[[Link], Steps[T]]
    in_turn: bool = True
    expected_bytes: int = 0
    channel: Channel = None
    names_all: bool = True
    staged: Sequence[Staged] = ()
    written: bool = False
    join: Join | None = None
    on_device: OnDevice[T] | None = None


class Waits(Protocol):
    """The part of `CrossWaits`, in a file above, that an operation uses."""

    reads: Reads

    def blocked_in(self) -> object:
        """Returns the wait in which this worker is blocked; None if it may enter an operation."""

    def told(self, peer: WorkerInfo) -> str:
        """Returns in words the operation that a worker waits in, empty if entered here."""

    def check(self, peer: WorkerInfo) -> None:
        """Ends both operations if this worker and another wait for each other."""


class Group(Protocol):
    """The part of its group that an operation uses; `ProcessGroup`, in a file above, has it."""

    key: GroupKey
    members: tuple[WorkerInfo, ...]
    state_lock: threading.Lock
    message_allowance: MessageAllowance
    operation_allowance: MessageAllowance
    blocks: Blocks
    sharing: Sharing

    @property
    def cross_waits(self) -> Waits:
        """The operations in which this worker and others wait."""

    @property
    def name(self) -> str:
        """The group's name in errors."""

    @property
    def where(self) -> str:
        """The group and this member, as errors name them."""

    @property
    def rank(self) -> Rank:
        """This worker's rank in the group."""

    @property
    def size(self) -> int:
        """The number of members."""

    def describe(self, r: int) -> str:
        """Returns the name of a member for errors."""

    def rank_of(self, worker: WorkerInfo) -> int | None:
        """Returns the rank of a worker in the group; None if it is no member."""

    def post(
        self, to: int, kind: str, slot: OperationSlot, number: int, data: Buffer | None = None
    ) -> None:
        """Sends a message of an operation to a member; the caller does not hold the lock."""

    def shared(self, to: int, data: Buffer) -> Buffer:
        """Returns the data for one `post`, in memory shared with the member if there is any."""

    def may_enter(self, operation_id: OperationId) -> bool:
        """Returns True if this member has not entered an operation in which others may wait."""

    def failure_of(self, operation_id: OperationId) -> Failure | None:
        """Returns the failure that ends an operation, if any; the caller holds the lock."""

    def collect(self) -> None:
        """Delivers the messages for this member that lie in memory."""

    def after(self, delay: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` on the loop after `delay` seconds; returns the function to cancel it."""

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the agent's pool."""

    def fail(self, cause: BaseException, *, since: int = 0) -> None:
        """Ends the group: at every member, its operations from number `since` on raise `cause`."""

    def give_up(self, operation: Operation[Any], cause: BaseException) -> None:
        """Ends an operation of all ranks and all later ones; or the messages of a pair of ranks."""


@final
class Operation(Meeting, Generic[T]):
    """The link of one operation.

    A thread that waits for its messages reads the sockets meanwhile, as one that waits for a reply
    does.

    Args:
        group: The group of the operation; the group's lock guards the state of this too.
        call: The operation that the verb asked for.
        slot: The mailbox slot that receives its messages.
        limit: Seconds until its deadline.
        warn_after: Seconds until a warning names the missing ranks.

    Attributes:
        group: The group of the operation.
        call: The operation that the verb asked for.
        slot: The mailbox slot that receives its messages. For a receive from any rank, the group
            replaces it under the lock once a rank has sent.
        failure: The first failure that ended it. A later one, such as the loss of the rank that
            told of the first, replaces that of the group before this thread runs again.
        unasked: The cost of received messages that this rank had not requested.
        pushed: The cost of data that left without a request, by receiver.
        enqueued: The moment at which a GPU will have run it; None if no GPU takes part.
        timer: The deadline of its waits, and what it has told the other ranks.
        awaited: While it waits for messages, the function that finds its value, the wait, and the
            function that returns the ranks that it waits for, if that is known.
        rank: This member's rank in the group.
        size: The number of members of the group.
    """

    rank = -1  # this and the next are read often: attributes in place of properties
    size = 0

    def __init__(
        self,
        group: Group,
        call: Call[T],
        slot: OperationSlot,
        *,
        limit: float,
        warn_after: float,
    ) -> None:
        self.call = call
        self.slot = slot
        self.failure: Failure | None = None
        self.unasked = 0
        self.pushed: dict[int, int] = {}
        self.enqueued: Moment | None = None
        self.group = group
        self.rank, self.size = group.rank, group.size
        self.timer = WaitTimer(Clock(limit, warn_after))
        self.awaited: tuple[Callable[[], object], Wake, Callable[[], list[int]] | None] | None
        self.awaited = None
        self._outbox: dict[int, list[tuple[int, Buffer]]] = {}  # by rank, until that rank is ready
        # The numbers of data from and to each rank count up from 0, those of signals down from -1.
        self._sent: dict[int, count[int]] = defaultdict(count)
        self._received: dict[int, count[int]] = defaultdict(count)
        self._signals_sent: dict[int, count[int]] = defaultdict(partial(count, -1, -1))
        self._signals_received: dict[int, count[int]] = defaultdict(partial(count, -1, -1))
        self._told_ready: set[int] = set()

    def __str__(self) -> str:
        return f"{self.call.signature}, number {self.slot.id.sequence} of {self.group.where}"

    @property
    def seconds_left(self) -> float:
        """The seconds until its deadline."""
        return self.timer.clock.limit - self.timer.clock.elapsed

    async def run(self) -> T:
        """Runs the algorithm, and waits until all is sent."""
        value = await self.call.run(self)
        if self._outbox:
            await self.until(lambda: not self._outbox or None)
        return value

    # The link.

    @property
    def partner(self) -> int | None:
        """The other rank if only two take part; None while it is not known."""
        if self.slot.id.channel is None:
            return None
        source, to, _ = self.slot.id.channel
        other = to if source == self.rank else source
        return None if other == ANY else other

    def send(self, to: int, data: Buffer, *, copy: bool = False) -> None:
        """Sends small data at once, large data when the receiver is ready; never waits."""
        step = next(self._sent[to])
        if self._looks and self._put(to, step, data):
            return
        nbytes = memoryview(data).nbytes
        if nbytes > SHORT_BYTES:
            shared = self.group.shared(to, data)  # in this thread, as the loop may run the post
            data = self.group.blocks.copy_of(data) if copy and shared is data else shared
        elif copy:
            data = bytes(data)
        with critical.section, self.group.state_lock:
            at_once = to in self.slot.ready or (
                nbytes <= EAGER_BYTES and self._may_push(to, nbytes)
            )
            announced = to in self._outbox
            if not at_once:
                self._outbox.setdefault(to, []).append((step, data))
        if at_once:
            self.group.post(to, PUSH, self.slot, step, data)
        elif not announced:
            self.group.post(to, ENTERED, self.slot, DATA_WAITS)

    def _may_push(self, to: int, nbytes: int) -> bool:
        if self.call.channel is not None:
            return self.group.message_allowance.take(to, nbytes) > 0
        cost = self.group.operation_allowance.take(to, nbytes)
        self.pushed[to] = self.pushed.get(to, 0) + cost
        return cost > 0

    async def receive(self, source: int) -> Buffer:
        """Waits for the next data from a rank."""
        key = source, next(self._received[source])
        data: Buffer
        find: Callable[[], Buffer | None] = partial(self.slot.arrived.pop, key, None)
        if self._looks:
            data = await self._hear(source, lambda: key in self.slot.arrived, find)
        else:
            data = await self.until(find)
        if source not in self._told_ready:
            self.unasked += memoryview(data).nbytes + MESSAGE_BYTES
        return data

    async def sender(self) -> int:
        """Waits until it is known which rank sends, for a receive from any rank."""
        if not self._looks:
            return await self.until(lambda: self.partner)
        return await self._hear(ANY, lambda: self.partner is not None, lambda: self.partner)

    def signal(self, to: int) -> None:
        """Sends a push without data."""
        self.group.post(to, PUSH, self.slot, next(self._signals_sent[to]))

    async def signalled(self, source: int) -> None:
        """Waits for the next signal from a rank."""
        key = source, next(self._signals_received[source])
        await self.until(partial(self.slot.arrived.pop, key, None))

    def wake(self, to: int) -> None:
        """Makes a rank that waits in `until` look again."""
        self.group.post(to, PUSH, self.slot, WAKE)

    async def backend(self) -> Backend:
        """Waits for the turn of this operation and returns the backend of its group."""
        return await self.group.sharing.enter(self)

    def hear(self, calls: Mapping[int, Signature | None]) -> None:
        """Records that ranks have entered, as memory shows, and their calls as far as known."""
        with critical.section, self.group.state_lock:
            self.slot.heard.update(calls)
            self.slot.calls |= {r: call for r, call in calls.items() if call is not None}

    def call_of(self, source: int) -> Signature:
        """Returns the call of this rank, or of a rank from which a message has come."""
        return self.slot.signature if source == self.rank else self.slot.calls[source]

    def mismatch(self, ranks: Sequence[int]) -> CollectiveMismatchError:
        """Returns the error that the calls of some ranks, each heard, do not fit."""
        calls = {r: self.call_of(r) for r in ranks}
        return mismatch_of(self.group.name, self.slot.id, calls, self.group.describe)

    async def until(
        self, find: Callable[[], R | None], behind: Callable[[], list[int]] | None = None
    ) -> R:
        """Waits until `find`, called with the lock held, returns a value other than None."""
        with critical.section, self.group.state_lock:
            check_alive(self.failure, self)
            found = find()
            if found is not None:
                return found
            timer, reads = self.timer, self.group.cross_waits.reads
            wake = Wake(timer.clock.next(), partial(timer.start, self), reads.wait)
            self.awaited = find, wake, behind
        await wake
        with critical.section, self.group.state_lock:
            check_alive(self.failure, self)
        return wake.found  # type: ignore[no-any-return]  # what `find` returned

    @property
    def _looks(self) -> bool:
        """True if its messages may lie in memory that two ranks share."""
        return self.slot.id.channel is not None and self.group.sharing.possible

    def _put(self, to: int, step: int, data: Buffer) -> bool:
        """Puts short data into the memory that two ranks share; False if it must be sent."""
        queues, nbytes = self.group.sharing.queues, memoryview(data).nbytes
        if nbytes > SHORT_BYTES or not queues.fits(to, nbytes):
            return False
        message = OperationMessage(self.group.key, self.slot.id, self.slot.call, step)
        packed = message.pack() + data
        with critical.section, self.group.state_lock:
            allowed = queues.fits(to, len(packed)) and (
                to in self.slot.ready or self._may_push(to, nbytes)
            )
            if not allowed:
                return False
            asleep = queues.put(to, packed)
        if asleep:
            self.wake(to)
        return True

    async def _hear(
        self, source: int, there: Callable[[], bool], find: Callable[[], R | None]
    ) -> R:
        """Waits as `until` does, and looks into the memory that two ranks share, too."""
        return await self.group.sharing.queues.wait(
            source,
            there,
            self.group.collect,
            lambda: self.until(find),
            short=self.call.expected_bytes <= SHORT_BYTES,
        )

    def look(self) -> None:
        """Makes this rank look again if it waits in `until`."""
        with critical.section, self.group.state_lock:
            actions = self.noticed()
        for action in actions:
            action()

    # The group calls these with the lock held, and runs the returned actions without the lock.

    def noticed(self) -> list[Callable[[], None]]:
        """Returns the actions to run after a message has arrived or the group has failed."""
        actions: list[Callable[[], None]] = []
        if self.failure is None:
            self.failure = self.group.failure_of(self.slot.id)
        if self.slot.wanting:
            for to in self.slot.wanting - self._told_ready:
                self._told_ready.add(to)
                taken = self.group.message_allowance.taken_from(to)
                actions.append(partial(self.group.post, to, READY, self.slot, taken))
        if self._outbox:
            actions += [
                partial(self.group.post, to, PUSH, self.slot, step, data)
                for to in self.slot.ready & self._outbox.keys()
                for step, data in self._outbox.pop(to)
            ]
        if self.slot.asked and not self.timer.told_entered:
            self.timer.told_entered = True
            actions.append(self.tell_call)
        if self.awaited is not None:
            find, wake, _ = self.awaited
            wake.found = find()
            if wake.found is not None or self.failure is not None:
                self.awaited = None
                actions.append(wake.end)
        return actions

    def end(self) -> None:
        """Drops unsent data and ends the timer."""
        self._outbox.clear()
        self.timer.end()

    # Without the lock.

    def tell_call(self) -> None:
        """Sends all other ranks the call of this one, so that both ends compare the two.

        Threads may do so at once. The one that sends last has looked once more, so that the others
        know the last state.
        """
        told: int | None = None
        while told != (number := BLOCKED if self.timer.told_blocked else HERE):
            for r in self.others():
                self.group.post(r, ENTERED, self.slot, number)
            told = number

    def others(self) -> list[int]:
        """Returns the other ranks that take part, as far as they are known."""
        if self.slot.id.channel is None:
            return [r for r in range(self.size) if r != self.rank]
        return [] if self.partner is None else [self.partner]


@final
class WaitTimer:
    """Times the wait of one operation: tells the other ranks, logs a warning, gives up.

    Well before the warning and the deadline, each rank tells the others that it has entered. So the
    rank that warns or gives up can name the ranks that have not. Few operations wait that long:
    those set no timer. The group's lock guards the state. The operation holds this, which does not
    hold the operation: what it received is freed as soon as it is over.

    Attributes:
        clock: The times at which something is due.
        cancel: Cancels the timer; None if there is none.
        over: True if the operation has ended.
        told_entered: True if this rank has told the others that it has entered.
        told_blocked: True if it has told them that it is blocked in the operation.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.cancel: Callable[[], None] | None = None
        self.over = self.told_entered = self.told_blocked = False

    def start(self, operation: Operation[Any]) -> None:
        """Sets the timer for what is due next, unless there is one."""
        with critical.section, operation.group.state_lock:
            if self.cancel is None and not self.over:
                self._set(operation)

    def end(self) -> None:
        """Cancels the timer, as the operation has ended. The caller holds the lock."""
        self.over = True
        if self.cancel is not None:
            self.cancel()

    def unblock(self, operation: Operation[Any]) -> None:
        """Tells the other ranks, if they know this one as blocked, that it is not any more."""
        with critical.section, operation.group.state_lock:
            told, self.told_blocked = self.told_blocked, False
        if told:
            operation.tell_call()

    def lacks(self, operation: Operation[Any], worker: WorkerInfo) -> bool:
        """Returns True if it has told others of its block, and waits for `worker` to enter."""
        group = operation.group
        with critical.section, group.state_lock:
            stands = operation.awaited is not None
            return stands and self.told_blocked and group.rank_of(worker) in _missing(operation)

    def _set(self, operation: Operation[Any]) -> None:
        due = partial(self._on_time, operation)
        self.cancel = operation.group.after(self.clock.next(), due)

    def _on_time(self, operation: Operation[Any]) -> None:  # on the loop
        clock, group = self.clock, operation.group
        with critical.section, group.state_lock:
            if self.over:
                return
            actions = operation.noticed()  # in memory, the others may have come without a message
            stands = operation.awaited is not None  # else it goes on once its thread runs again
            due = clock.due()
            if due is Due.EXPIRE and not stands:
                due, self.cancel = Due.NOTHING, None  # its next wait ends at once
            elif due is not Due.EXPIRE:
                self._set(operation)
            blocked = stands and group.cross_waits.blocked_in() in (operation, group)
            tell = due is Due.TELL and not (self.told_entered and self.told_blocked >= blocked)
            self.told_entered |= tell
            self.told_blocked |= tell and blocked
            missing, ahead = _missing(operation), group.sharing.ahead_of(operation)
        for action in actions:
            action()
        if tell:
            operation.tell_call()
        if due is Due.TELL:
            for r in missing:
                group.cross_waits.check(group.members[r])
        elif due is Due.WARN:
            words = "%s waits for %.3g s: %s"
            who = _who(operation, missing, ahead)
            group.submit(_logger.warning, words, operation, clock.elapsed, who)
        elif due is Due.EXPIRE:
            missing = missing if operation.call.names_all else missing[:1]
            late = [group.members[r] for r in missing]
            verb = operation.call.signature.operation
            error = clock.error(operation, _who(operation, missing, ahead), late, verb)
            group.give_up(operation, error)


def _missing(operation: Operation[Any]) -> list[int]:
    """Returns the ranks that an operation waits for. The caller holds the lock."""
    if operation.awaited is not None and (behind := operation.awaited[2]) is not None:
        return behind()
    return [r for r in operation.others() if r not in operation.slot.heard]


def _who(operation: Operation[Any], missing: list[int], ahead: Meeting | None) -> str:
    """Returns in words what an operation waits for."""
    group, slot, partner = operation.group, operation.slot, operation.partner
    tagged = "" if slot.id.channel is None else f" with tag {slot.id.channel[2]}"
    if ahead is not None:
        return f"waits for its turn, since {ahead} is not over"
    if missing:
        state = "entered, but behind:" if missing[0] in slot.heard else "not entered by"
        told = [(group.describe(r), group.cross_waits.told(group.members[r])) for r in missing]
        names = ", ".join(text for each in told for text in each if text)
        return f"{state} {names}{tagged}"
    if partner is not None:
        return f"entered by {group.describe(partner)} too, data under way"
    if tagged:
        return f"no rank has sent a message{tagged}"
    return "entered by all ranks, data under way"
