"""The RRefs of one agent: both counting tables, the values it owns, and its references.

The tables are pure; this is the thin shell around them: one lock, the values, and the messages that
the tables ask for. A reference that is garbage only puts its id into a `SimpleQueue` (a finaliser
may run anywhere, inside our own lock too). The next event, or a slow tick, drains the queue.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from telegrad.critical import critical, in_section
from telegrad.errors import (
    EvictedError,
    InvalidUseError,
    UnknownWorkerError,
    UnreachableWorkerError,
    ValueNotFoundError,
    WorkerLostError,
)
from telegrad.rendezvous import keep_newest
from telegrad.rpc.base.failure import fresh_copy
from telegrad.rpc.base.tick import Tick
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.waits import Dispatch
from telegrad.rpc.rref.protocol import (
    ChildAccept,
    CreationAbandon,
    Effect,
    ForkConfirm,
    ForkId,
    ForkRequest,
    ForkState,
    Orphaned,
    OwnerTable,
    ProtocolMessage,
    RRefId,
    Send,
    Settled,
    UserDelete,
    UserTable,
)
from telegrad.rpc.rref.value import (
    CONSTANTS,
    Arrival,
    gone_error,
    name_of_class,
    owner_lost_error,
    released_error,
    shut_down_error,
)
from telegrad.transport import get_logger, hands_over, refuse_in_section

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore
    from telegrad.types import WorkerInfo


def _new_value(submit: Dispatch, rref: RRefId, owner: WorkerInfo) -> Future[Any]:
    return new_future(
        submit, "the value of RRef %d.%d at %r", rref.creator, rref.number, owner.name
    )


def _is_constant(value: Future[Any]) -> bool:
    return value.done() and not value._failed and type(value.value()) in CONSTANTS


# Garbage is counted by the next event; where there is none, by a tick this many seconds later.
DRAIN_SECONDS = 0.1
# References that one event lets go: 10 ms. A million at once would keep the loop, or the thread of
# the next verb, for seconds.
MOST_AT_ONCE = 5000

# ------------------------------------------------------------------------------------------------

Released: TypeAlias = RRefId | ForkId
T = TypeVar("T")

_logger = get_logger(__name__)


_NO_METHODS: frozenset[str] = frozenset()  # each empty one is an object of its own


@final
class Reference:
    """The content of an RRef object: one handle of the owner's table or one fork of a user's.

    Attributes:
        registry: The RRefs among which it is counted.
        fork: This user's fork; None on the owner.
        creation: The future of its creation if this worker asked for that; None once it was read.
        asked: Called once, at the first use of this reference; see `Asked.hear`.
        failure: The error of its creation if this worker asked for that, and it failed or was late;
            without frames.
        made: The time at which it was made, on the monotonic clock.
        methods: Names that are known to be methods of the value.
        whence: The place where the program got it, for the report of leaks; shown by `str`.
        released: True if it was let go, on purpose or as garbage.
    """

    __slots__ = (
        "__weakref__",
        "_constant",
        "_type_name",
        "asked",
        "creation",
        "failure",
        "fork",
        "made",
        "methods",
        "owner",
        "registry",
        "released",
        "rref",
        "whence",
    )

    def __init__(
        self,
        registry: RRefRegistry,
        rref: RRefId,
        fork: ForkId | None,
        owner: WorkerInfo,
        type_name: str = "",
    ) -> None:
        self.registry = registry
        self.rref = rref
        self.fork = fork
        self.released = False  # first: what follows may be interrupted, and be let go all the same
        self.owner = owner
        self._type_name = type_name
        self._constant: tuple[object] | None = None
        self.creation: Future[Any] | None = None
        self.asked: Callable[[], None] | None = None
        self.failure: BaseException | None = None
        self.made = time.monotonic()
        self.methods = _NO_METHODS
        self.whence: object = "an argument of a call"

    @property
    def type_name(self) -> str:
        """The class of the value as `module.qualname` where known, else ""."""
        if self.creation is not None:
            self._read_creation()
        return self._type_name

    @type_name.setter
    def type_name(self, name: str) -> None:
        self._type_name = name

    @property
    def constant(self) -> tuple[object] | None:
        """The value in a tuple, if it came with the reply to its creation; else None."""
        if self.creation is not None:
            self._read_creation()
        return self._constant

    def _read_creation(self) -> None:
        """Takes the class or the constant that the reply to the creation names, once it came."""
        creation = self.creation
        if creation is None or not creation.done() or creation._failed:
            return
        try:
            word = creation.value()
        except Exception:  # garbage: a later request gets the error from the owner
            word = ""
        if isinstance(word, str):
            self._type_name = word
        elif isinstance(word, list) and len(word) == 1 and type(word[0]) in CONSTANTS:
            self._type_name, self._constant = name_of_class(type(word[0])), (word[0],)
        self.creation = None  # last: others look at what is set by then

    def hears(self) -> None:
        """Records that it is used: then its user, and not the log, is told of a failed creation."""
        asked, self.asked = self.asked, None
        if asked is not None:
            asked()

    def release(self) -> None:
        """Lets go of the value; idempotent."""
        self._note()
        self.registry.drain()

    def _note(self) -> None:
        if not getattr(self, "released", True):  # one that `__init__` did not begin holds nothing
            self.released = True
            self.registry.garbage.put(self.rref if self.fork is None else self.fork)

    __del__ = _note


@final
class RRefRegistry:
    """The RRefs of one agent. All methods may be called from any thread; they block nowhere.

    Attributes:
        garbage: The ids that references which are gone leave here.
        owners: The table of the values that live here; its events go through `event`, and its
            questions through `ask`.
        users: The table of the forks of others' values, the same.
    """

    def __init__(self, agent: AgentCore) -> None:
        self.agent = agent
        self.me = agent.info
        self._submit: Dispatch = agent.pool.submit  # one object for all values
        self.garbage: SimpleQueue[Released] = SimpleQueue()
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)  # told of every event while one leaves
        self._leaving = False
        self.owners = OwnerTable(self.me, agent.options.limits.served_calls_per_peer)
        self.users = UserTable(self.me)
        self._values: dict[RRefId, Future[Any]] = {}  # those that somebody has asked for
        self._waiting: defaultdict[ForkId, list[Callable[[], None]]] = defaultdict(list)
        self._lost: dict[WorkerInfo, WorkerLostError] = {}
        self._closed = False

        def is_left() -> bool:
            return len(self.owners) + len(self.users) > 0 and not self._closed

        def part() -> None:
            self.drain()
            agent.messages.flush()

        def after(seconds: float, call: Callable[[], None]) -> object:
            many = self.garbage.qsize() >= MOST_AT_ONCE  # the loop's next turn goes on with them
            return agent.deadlines.after(0.0 if many else seconds, call)

        self._tick = Tick(after, DRAIN_SECONDS, part, is_left)

    def counts(self) -> tuple[int, int]:
        """Returns the number of values that live here, and of forks of others' values."""
        self.drain(whole=True)
        return len(self.owners), len(self.users)

    # References and values.

    def own(self, value: object) -> Reference:
        """Enters a value of this worker; returns a reference to it."""
        reference = self.create(self.me)
        self.settle(reference.rref, value)
        reference.type_name = name_of_class(type(value))
        return reference

    def create(self, owner: WorkerInfo) -> Reference:
        """Names a value, before a worker, perhaps this one, is asked to create it."""
        self.check_open()
        self.drain()
        fork: ForkId | None = None
        with critical.section, self._lock:
            if owner.incarnation == self.me.incarnation:
                rref = self.owners.new(creating=True)
            else:
                rref, fork = self.users.create(owner)
        self._tick.start()
        return Reference(self, rref, fork, owner)

    def borrow(self, rref: RRefId) -> Reference:
        """Returns one more reference to a value that is owned or expected here.

        Raises:
            ValueNotFoundError: The value is gone.
        """
        if not self.ask(self.owners.hold, rref):
            raise self.gone(rref)
        return Reference(self, rref, None, self.me)

    def value(self, rref: RRefId) -> Future[Any] | None:
        """Returns the future of a value that is owned or expected here; None when it is gone."""
        value = self._values.get(rref)
        if value is None:
            refuse_in_section("a look at an RRef's value")
            with critical.section, self._lock:
                # Made by the first thread that asks, under the lock: all must wait for the same
                # future.
                if rref in self.owners and not self._closed:
                    value = self._values.setdefault(rref, _new_value(self._submit, rref, self.me))
        return value

    def settle(self, rref: RRefId, value: object, error: BaseException | None = None) -> None:
        """Completes a value that is owned here."""
        future = self.value(rref)
        if error is None:
            if future is not None:
                # The value is there before the table knows that its creation has ended: a request
                # that is answered after that finds it.
                future.try_set_result(value)
            self.event(self.owners.settle, rref)
            return
        # A value that is there stays, though its creator's time is over: all holders get one
        # answer.
        fails = future is not None and not future.done()
        # Its users hear that it failed before those who wait for it: messages keep their order.
        self.event(self.owners.settle, rref, failed=fails)
        if future is not None:
            future.try_set_exception(error)

    # The reasons why there is no value.

    def failure(self, reference: Reference) -> BaseException | None:
        """Returns a fresh error if it is known that there will never be a value; else None."""
        fork = reference.fork
        if fork is None:
            return None
        state = self.users.state(fork)
        # A creation that succeeded after its time was over has failed for nobody.
        error = None if self.users.made(fork) else reference.failure
        if error is None or isinstance(error, WorkerLostError):
            evicted = self.agent.members.eviction()
            if evicted is not None:  # also before each owner's loss is heard of here
                return evicted
        if error is not None:
            return fresh_copy(error)
        if state is ForkState.LOST:
            return self.owner_lost(reference.owner)
        if state is ForkState.GONE:
            return self.gone(reference.rref)
        return None  # a creation that failed elsewhere, too: the owner has the error

    def gone(self, rref: RRefId) -> Exception:
        """Returns the error for a value that its owner does not have."""
        return shut_down_error(self.me) if self._closed else gone_error(rref)

    def owner_lost(self, owner: WorkerInfo, lost: WorkerLostError | None = None) -> BaseException:
        """Returns a fresh OwnerLostError for a lost owner; the eviction if this worker was evicted.

        For an owner that lives and cannot be reached it returns an UnreachableWorkerError.
        """
        evicted = self.agent.members.eviction()
        if evicted is not None:  # perhaps after the loss of the owner
            return evicted
        lost = lost or self._lost.get(owner)
        if isinstance(lost, EvictedError | UnreachableWorkerError):
            return fresh_copy(lost)
        return owner_lost_error(owner, lost)

    def check_open(self) -> None:
        """Raises NotInitializedError when the agent was shut down."""
        if self._closed:
            raise shut_down_error(self.me)

    # Messages that carry RRefs.

    def carry(self, reference: Reference, peer: WorkerInfo) -> tuple[ForkId, bool]:
        """Makes the fork that leaves for `peer`; the flag is True if this owner's creation failed.

        Raises:
            OwnerLostError: The value is lost.
            InvalidUseError: The reference was released, or belongs to another agent.
        """
        if reference.registry is not self:
            raise InvalidUseError(
                f"this RRef belongs to the agent {reference.registry.me.name!r} and cannot be sent "
                f"or published by {self.me.name!r}, another agent of this process"
            )
        fork = reference.fork
        with critical.section, self._lock:
            # A reference that is let go after this look is counted by a later event, which finds
            # the pin of the fork that is made here.
            if not reference.released:
                if fork is None:
                    made = self.owners.make_fork(reference.rref, peer)
                    return made, self.owners.failed(reference.rref)
                if self.users.state(fork) is not ForkState.LOST:
                    return self.users.make_fork(fork, peer), False
                raise self.owner_lost(reference.owner)
        raise released_error(reference.owner)

    def arrive(self, arrival: Arrival, parent: WorkerInfo) -> Reference:
        """Takes an RRef that came from `parent`.

        Raises:
            ValueNotFoundError: Its value is gone.
        """
        self.check_open()
        self.drain()
        rref, fork, owner = arrival.rref, arrival.fork, arrival.owner
        here: list[Reference] = []

        def event() -> list[Effect]:
            if owner == self.me:
                held, effects = self.owners.arrived(rref, fork, parent)
                here.extend([Reference(self, rref, None, owner)] if held else [])
                return effects
            held, effects = self.users.arrived(rref, fork, owner, parent, failed=arrival.failed)
            here.extend([Reference(self, rref, fork, owner, arrival.type_name)] if held else [])
            return effects

        self.event(event)
        self._tick.start()
        if not here:
            raise self.gone(rref)
        return here[0]

    def give_back(self, arrival: Arrival, peer: WorkerInfo) -> None:
        """Gives back an RRef of a message to `peer`, or from it, that nobody will decode."""
        rref, fork, owner = arrival.rref, arrival.fork, arrival.owner
        if owner != self.me:
            if fork.parent == self.me.incarnation:
                self.event(self.users.child_accept, fork)
            else:
                self.event(self.users.refused, rref, fork, owner, peer)
        elif fork.parent == self.me.incarnation:
            self.event(self.owners.user_delete, rref, fork)
        else:
            self.event(self.owners.refused, rref, fork, peer)

    def when_settled(self, fork: ForkId, waiter: Callable[[], None]) -> bool:
        """Calls `waiter` once a fork is no longer pending; returns False if it is not pending now.

        The waiter is called in any thread, a loop included, and must not block.
        """
        with critical.section, self._lock:
            # The look and the entry are one step under the lock: the confirmation comes before
            # both, or finds the waiter.
            if self._closed or self.users.state(fork) is not ForkState.PENDING:
                return False
            self._waiting[fork].append(waiter)
            return True

    # The end of others, and of this worker.

    def lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Records that a worker is lost, or out of reach; after a loss, `expire` follows later.

        An owner out of reach can never be asked to count: its values are of no use here.
        """
        with critical.section, self._lock:
            # Kept before the events, which tell waiters: they ask for the reason.
            self._lost[peer] = error
            keep_newest(self._lost)
        if not isinstance(error, UnreachableWorkerError):  # that worker lives, creates and holds
            self.event(self.owners.lost, peer)
        self.event(self.users.lost, peer)

    def expire(self, peer: WorkerInfo) -> None:
        """Releases what a lost worker held, and what is pinned for it."""
        self.event(self.owners.expire, peer)
        self.event(self.users.expire, peer)

    def close(self) -> None:
        """Drops the values and fails the waits for them: the agent is gone."""
        with critical.section, self._lock:
            self._closed = True
            # No value is made after this (`value` looks at `_closed`), so that all of them fail
            # here.
            values, self._values = self._values, {}
            self._waiting.clear()  # nothing starts any more
        for value in values.values():
            value.try_set_exception(shut_down_error(self.me))

    # The shell of the tables: events and questions in, messages out.

    def ask(self, question: Callable[..., T], *args: Any) -> T:
        """Returns the answer of a table to a question, under the lock; no message follows."""
        with critical.section, self._lock:
            return question(*args)

    def wait_until(self, answer: Callable[[], bool], limit: float) -> None:
        """Blocks until `answer()` is True, or for `limit` seconds."""
        with critical.section, self._changed:
            self._leaving = True
            self._changed.wait_for(answer, limit)

    def event(self, event: Callable[..., Sequence[Effect]], *args: Any, **named: Any) -> None:
        """Hands an event to the tables, under the lock; carries out the effects without it."""
        with critical.section, self._lock:
            effects = event(*args, **named)
            # The steps run without the lock: they post messages and call waiters, which may bring
            # the next event. The tables are right under any order of messages.
            steps = self._take(effects) if effects or self._leaving else ()
        for step in steps:
            step()
        if not self.garbage.empty():
            self.drain()

    def drain(self, *, whole: bool = False) -> None:
        """Counts references that became garbage; of very many, some, and the tick goes on.

        Args:
            whole: True to count all.

        A user's finaliser may call `release()` in a thread that holds the lock. There it leaves
        them to the event that is under way, or to the next tick.
        """
        while not (self.garbage.empty() or in_section()):
            with critical.section, self._lock:
                # They make one event, so that the releases for one worker are one message.
                effects: list[Effect] = []
                with contextlib.suppress(Empty):
                    for _ in range(MOST_AT_ONCE):
                        gone = self.garbage.get_nowait()
                        if isinstance(gone, RRefId):
                            effects += self.owners.drop(gone)
                        else:
                            effects += self.users.release(gone)
                steps = self._take(effects)
            for step in steps:
                step()
            if not whole:
                return

    def settle_up(self) -> None:
        """Counts all garbage, and sends the messages that wait for later ones."""
        self.drain(whole=True)
        self.agent.messages.flush()

    def _take(self, effects: Sequence[Effect]) -> list[Callable[[], object]]:
        """Returns the steps that follow from these effects, to be run without the lock."""
        steps: list[Callable[[], object]] = []
        sends: list[Send] = []
        freed: list[Future[Any]] = []
        for effect in effects:
            if isinstance(effect, Send):
                sends.append(effect)
            elif isinstance(effect, Orphaned):
                new = _new_value(self._submit, effect.rref, self.me)
                orphan = self._values.setdefault(effect.rref, new)
                gone = "the worker that was to create this value gave up or was lost"
                steps.append(partial(orphan.try_set_exception, ValueNotFoundError(gone)))
            elif isinstance(effect, Settled):
                steps += self._waiting.pop(effect.fork, ())
            elif effect.rref in self._values:
                freed.append(self._values.pop(effect.rref))
        if sends:  # first, so that users here hear no earlier than others
            steps.insert(0, partial(_post_each, self, sends))
        if freed:
            steps.append(partial(self._forget, freed))
        if self._leaving:
            self._changed.notify_all()
        return steps

    def _forget(self, freed: list[Future[Any]]) -> None:
        """Drops values; their finalisers may be the user's, and slow."""
        # Constants have no finaliser. A thread of the pool for each of them took eleven functions
        # of Python's.
        if hands_over() and not all(map(_is_constant, freed)):
            self.agent.pool.submit(self._forget, freed)
            return
        freed.clear()
        self.drain()  # a value may have held RRefs


# -- messages of the counting protocol: their transport and their encoding -----------------------
#
#     ForkRequest, ForkConfirm, CreationAbandon   a worker may wait for it: each leaves at once
#     UserDelete, ChildAccept                     no worker waits: those of one event are one
#                                                 envelope, which leaves with the next envelope to
#                                                 its receiver, or alone at the next tick
#
# So a value is freed before the next call is served, or one tick later, and no thread is woken for
# each RRef. The tables are right under any order and any delay.

FORK_REQUEST = "rref.fork_request"
FORK_CONFIRM = "rref.fork_confirm"
CHILD_ACCEPT = "rref.child_accept"
USER_DELETE = "rref.user_delete"
CREATION_ABANDON = "rref.creation_abandon"

# Parts of one body; the limit of a body is far above.
MOST_TOGETHER = 1000


def _post_each(registry: RRefRegistry, sends: Sequence[Send]) -> None:
    """Posts the messages of one event; drops those to lost workers."""
    riders: dict[tuple[WorkerInfo, str], list[object]] = {}
    for send in sends:
        kind, body = _write(send.message)
        if kind in (USER_DELETE, CHILD_ACCEPT):
            riders.setdefault((send.peer, kind), []).extend(body)
        elif not _post(registry, send.peer, kind, body) and isinstance(send.message, ForkRequest):
            registry.event(registry.users.fork_confirm, send.message.fork, known=False)
    for (peer, kind), together in riders.items():
        for start in range(0, len(together), MOST_TOGETHER):
            _post(registry, peer, kind, together[start : start + MOST_TOGETHER], rides=True)


def _post(
    registry: RRefRegistry, peer: WorkerInfo, kind: str, body: object, *, rides: bool = False
) -> bool:
    """Posts a message; returns False if its receiver is no member of the job."""
    try:
        registry.agent.messages.post(peer, kind, body, rides=rides)
    except UnreachableWorkerError as error:  # it can never be reached
        registry.lose(peer, error)
    except WorkerLostError:
        pass  # the loss is an event of its own
    except UnknownWorkerError as error:  # the sender of the reference has invented its owner
        _logger.debug("%s: %s could not be sent: %s", registry.me.name, kind, error)
        return False
    return True


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
