"""A worker's membership after it has joined: the other members, leaving, shutting down."""

from __future__ import annotations

import math
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

from telegrad.critical import critical
from telegrad.errors import (
    AuthenticationError,
    DecodeError,
    EvictedError,
    RendezvousError,
    RendezvousTimeoutError,
    WorkerLostError,
)
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import CLOSE_TIMEOUT, ControlLine
from telegrad.rendezvous.coordinator import CLOSE_TIMEOUT as COORDINATOR_CLOSE_TIMEOUT
from telegrad.rendezvous.coordinator import Coordinator
from telegrad.rendezvous.endpoint_source import EndpointSource
from telegrad.rendezvous.membership import Member, Roster, StartWhen
from telegrad.rendezvous.store import Store, check_timeout
from telegrad.rendezvous.tcp import TCPStore
from telegrad.transport import GuestList, get_logger, refuse_to_block, start_thread
from telegrad.types import WorkerInfo

# -- a worker cut off from its coordinator asks if it is still a member --------------------------
#
# A cut ends the session with the coordinator at both ends and for good. Nobody then tells the
# worker that was cut off that the job goes on without it. So it dials again, under another
# incarnation:
#
#     refused, or another coordinator    the old one is gone: nothing to ask
#     not reached, or no clear answer    ask again, later
#     answered: no member                the coordinator gave up this worker and goes on: evicted
#     answered: nobody can say           the coordinator itself was stopped or cut off. By this
#                                        question, if not before, it learns that it is lost here

logger = get_logger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0  # the longest delay until a worker knows, once the cut is healed
ATTEMPT_SECONDS = 2.0
NOBODY_CAN_SAY = {"member": None}


@final
class Standing:
    """Asks in a thread of its own until the answer is known, or it is closed.

    Args:
        line: The line that is lost; new lines get its settings.
        info: This worker.
        on_evicted: Called once, in that thread, if the coordinator goes on without this worker.
        longest_pause: The most seconds between two questions. Well below the bound of silence: so a
            coordinator that cannot dial this worker hears from it before it gives this worker up.
    """

    def __init__(
        self,
        line: ControlLine,
        info: WorkerInfo,
        on_evicted: Callable[[], None],
        longest_pause: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._line = line
        self._info = info
        self._on_evicted = on_evicted
        self._longest_pause = min(longest_pause, LONGEST_PAUSE_SECONDS)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"telegrad-standing-{info.name}", daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        start_thread(self._thread)

    def close(self, timeout: float) -> None:
        """Stops asking; waits at most `timeout` seconds for the attempt that is under way."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(min(timeout, 2 * ATTEMPT_SECONDS))

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.wait(pause):
            pause = min(2 * pause, self._longest_pause)
            try:
                answer = self._ask()
            except Exception as error:  # no definite answer: no port, garbage, a line that breaks
                logger.debug("the coordinator could not be asked: %s", error)
                continue
            if answer == NOBODY_CAN_SAY:
                return
            if answer == {"member": False}:
                if not self._closed.is_set():
                    self._on_evicted()
                return

    def _ask(self) -> object:
        """Returns the coordinator's answer."""
        line = self._line.another()
        try:
            try:
                coordinator = line.connect(self._line.endpoint, ATTEMPT_SECONDS)
            except (ConnectionRefusedError, AuthenticationError, RendezvousError) as error:
                logger.debug("the coordinator is not there to be asked: %s", error)
                return NOBODY_CAN_SAY
            if coordinator != self._line.coordinator:
                return NOBODY_CAN_SAY
            body = {"incarnation": self._info.incarnation}
            return line.ask(messages.STANDING, body, timeout=ATTEMPT_SECONDS)
        finally:
            line.close(reason="it has asked")


# -- progress of a join: lines for the log and texts for a timeout; pure -------------------------

SHOWN_RANKS = 8
SHOWN_ERROR = 300  # characters of each error


@final
@dataclass(frozen=True, slots=True)
class JoinProgress:
    """The progress of a job's assembly, as one waiting worker knows it.

    Attributes:
        version: A number; later progress has a higher one.
        joined: The ranks that have joined.
        world_size: The number of ranks in the job.
        errors: The last error seen from each rank that has not joined.
        names: The names of the workers that have joined.
        start_when: The number of workers, or the names, to wait for; None for all ranks.
        gave_up: The names, by rank, of workers that joined and gave up waiting.
    """

    version: int
    joined: tuple[int, ...]
    world_size: int
    errors: dict[int, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    start_when: StartWhen = None
    gave_up: dict[int, str] = field(default_factory=dict)

    @property
    def with_all_who_came(self) -> JoinProgress:
        """The same, with the workers that gave up counted as joined: they wait for others too.

        If nobody else is missing, it is those workers that are.

        >>> JoinProgress(1, (0,), 3, gave_up={1: "w1"}).with_all_who_came.missing
        (2,)
        >>> JoinProgress(1, (0, 2), 3, gave_up={1: "w1"}).with_all_who_came.missing
        (1,)
        """
        came = replace(
            self,
            joined=tuple(sorted({*self.joined, *self.gave_up})),
            names=(*self.names, *self.gave_up.values()),
        )
        return came if came.wanted else self

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that have not joined."""
        there = set(self.joined)
        return tuple(r for r in range(self.world_size) if r not in there)

    @property
    def missing_names(self) -> tuple[str, ...]:
        """The names that this worker waits for and that have not joined."""
        wanted = self.start_when if isinstance(self.start_when, tuple) else ()
        return tuple(name for name in wanted if name not in self.names)

    @property
    def wanted(self) -> str:
        """The workers that still have to come, in words; empty if there are none.

        >>> JoinProgress(1, (0, 2), 5, start_when=3).wanted
        'any 1 of ranks 1, 3, 4'
        >>> JoinProgress(1, (0,), 5, names=("w0",), start_when=("ps", "w0")).wanted
        "worker 'ps'"
        """
        if isinstance(self.start_when, tuple):
            return ", ".join(f"worker {name!r}" for name in self.missing_names)
        if self.start_when is None:
            return name_ranks(self.missing) if self.missing else ""
        lacking = self.start_when - len(self.joined)
        return f"any {lacking} of {name_ranks(self.missing)}" if lacking > 0 else ""

    def line(self, seconds_left: float) -> str:
        """Returns one line for the log.

        >>> JoinProgress(1, (0, 2), 3).line(290.4)
        '2/3 joined; waiting for rank 1; 290 s left'
        """
        head = f"{len(self.joined)}/{self.world_size} joined"
        if not self.wanted:
            return f"{head}; {time_left(seconds_left)}"
        return f"{head}; waiting for {self.wanted}; {time_left(seconds_left)}"

    def missing_with_errors(self, endpoint: str) -> tuple[str, ...]:
        """Returns each missing rank, or name, with the error known of it.

        >>> JoinProgress(1, (0,), 2).missing_with_errors("grpc://10.0.0.1:29500")
        ('rank 1: never reached the coordinator at grpc://10.0.0.1:29500',)
        """
        unseen = f"never reached the coordinator at {endpoint}"
        if not isinstance(self.start_when, tuple):
            return tuple(f"rank {r}: {self.errors.get(r, unseen)}" for r in self.missing)
        # Errors are known by rank; which rank would have had the name is not known.
        known = tuple(f"rank {r}: {self.errors[r]}" for r in self.missing if r in self.errors)
        return (*(f"worker {name!r}: {unseen}" for name in self.missing_names), *known)

    def missing_in_words(self, endpoint: str) -> str:
        """Returns what `missing_with_errors` does in one line; ranks with the same error together.

        >>> JoinProgress(1, (0,), 4, {2: "has another token"}).missing_in_words("grpc://h:1")
        'ranks 1, 3: never reached the coordinator at grpc://h:1; rank 2: has another token'
        """
        if isinstance(self.start_when, tuple):
            return "; ".join(self.missing_with_errors(endpoint))
        ranks: dict[str, tuple[int, ...]] = {}
        for r in self.missing:
            error = self.errors.get(r, f"never reached the coordinator at {endpoint}")
            error = textwrap.shorten(error, SHOWN_ERROR, placeholder=" ...")
            ranks[error] = (*ranks.get(error, ()), r)
        shown = [f"{name_ranks(some)}: {error}" for error, some in ranks.items()]
        more = len(shown) - SHOWN_RANKS
        return "; ".join(shown[:SHOWN_RANKS]) + (f"; and {more} more" if more > 0 else "")


def name_ranks(ranks: tuple[int, ...]) -> str:
    """Returns ranks in words; only the first few if there are many.

    >>> name_ranks((1,)), name_ranks((1, 4))
    ('rank 1', 'ranks 1, 4')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:SHOWN_RANKS]))
    more = len(ranks) - SHOWN_RANKS
    return f"ranks {named}" + (f" and {more} more" if more > 0 else "")


def time_left(seconds: float) -> str:
    """Returns the time that a wait may still last, in words.

    >>> time_left(290.4), time_left(float("inf"))
    ('290 s left', 'no time limit')
    """
    return "no time limit" if math.isinf(seconds) else f"{max(0.0, seconds):.0f} s left"


def rounded(seconds: float) -> str:
    """Returns seconds for a message, rounded.

    >>> rounded(0.999944), rounded(1234.4), rounded(0.05)
    ('1', '1234', '0.05')
    """
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


# -- the joined job ------------------------------------------------------------------------------


LEAVE_TIMEOUT = 1.0
LEAST_TIMEOUT = 0.1  # the last to be closed still needs time for a goodbye
QUESTIONS_PER_BOUND = 5  # as many as heartbeats: one question without an answer must not matter


class JobListener(Protocol):
    """The callbacks for `join_job`. Called on the loop; must not block or raise."""

    def on_member_joined(self, member: Member) -> None:
        """Called when a worker has joined after this one was welcomed."""

    def on_member_lost(
        self, info: WorkerInfo, reason: str, left: bool, fenced: bool = False
    ) -> None:
        """Called when a member left, was dropped by the coordinator, or (fenced) gave this up."""

    def on_coordinator_lost(self, error: WorkerLostError) -> None:
        """Called when the coordinator is lost; with an EvictedError if it has dropped this worker.

        If the eviction is found out later, when the coordinator can be reached again, it is called
        once more, on another thread.
        """


@final
class MemberEvents:
    """Turns the coordinator's messages into progress and into calls of a JobListener.

    A message that overtakes the welcome only changes the set of welcomed members; the listener is
    called for messages that come after the welcome.

    Args:
        listener: The callbacks.
        guests: The allowlist to keep in step with the members.

    Attributes:
        changed: An event, set when something of this has changed.
        progress: The newest progress received.
        running: The workers that had not called shutdown when the coordinator last sent the list.
        is_known: True once the coordinator has said that all members know this worker.
    """

    def __init__(self, listener: JobListener, guests: GuestList | None = None) -> None:
        self.changed = threading.Event()
        self.progress: JoinProgress | None = None
        self.running: tuple[str, ...] = ()
        self.is_known = False
        self._listener = listener
        self._guests = GuestList() if guests is None else guests
        self._lock = threading.Lock()
        self._roster = Roster()
        self._running_version = 0
        self._self: WorkerInfo | None = None
        self._line: ControlLine | None = None
        self._welcomed = False
        # Told before the welcome: the worker, the reason, if it left, if it gave up this worker.
        self._early: list[tuple[WorkerInfo, str, bool, bool]] = []
        self._loss: WorkerLostError | None = None
        self._standing: Standing | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """The living members, by rank."""
        with critical.section, self._lock:
            return self._roster.members

    def begin(self, info: WorkerInfo, line: ControlLine) -> None:
        """Sets the identity of this worker, and the line on which it tells whom it knows."""
        self._self, self._line = info, line
        longest = line.lost_after / QUESTIONS_PER_BOUND
        self._standing = Standing(line, info, self._on_evicted, longest)

    def close(self, timeout: float) -> None:
        """Asks no more if this worker was given up."""
        if self._standing is not None:
            self._standing.close(timeout)

    def welcome(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """Takes the first members; returns them, and those that have joined since, by rank.

        A member may be lost before this worker has read its welcome. It was a member: who calls it
        is to hear that it is lost, not that there is no such worker.
        """
        with critical.section, self._lock:
            for member in members:
                self._roster.joined(member)
            self._welcomed = True
            self._guests.add(member.info for member in self._roster.members)
            living, loss, early = self._roster.members, self._loss, self._early
        lost = {info for info, _, _, fenced in early if not fenced}
        gone = [member for member in members if member.info in lost]
        known = {member.info for member in members}
        for info, reason, left, fenced in early:
            if fenced or info in known:
                self._listener.on_member_lost(info, reason, left, fenced)
        if loss is not None:
            self._tell_loss(loss)
        return tuple(sorted([*living, *gone], key=lambda member: member.info.rank))

    def on_message(self, kind: str, body: object) -> None:
        """Takes a message of the coordinator that is no reply."""
        if kind == messages.PROGRESS:
            self._on_progress(as_progress(body))
        elif kind == messages.RUNNING:
            self._on_running(body)
        elif kind == messages.JOINED:
            self._on_joined(as_member(body))
        elif kind == messages.KNOWN:
            self.is_known = True
            self.changed.set()
        elif kind == messages.LOST:
            self._on_lost(body)
        elif kind == messages.GIVEN_UP:
            self._on_given_up(body)
        else:
            logger.debug("the coordinator sent %s, which is not known here", kind)

    def on_coordinator_lost(self, error: WorkerLostError) -> None:
        """Handles the loss of the coordinator."""
        if error.fenced and not isinstance(error, EvictedError):
            error = eviction(self._self, error)
        with critical.section, self._lock:
            self._loss = error
            welcomed = self._welcomed
        self._guests.close(
            f"its coordinator is lost ({error.reason}), and nobody can join any more"
        )
        self.changed.set()
        if self._line is not None and isinstance(error, EvictedError):
            self._line.evicted(error)
        if welcomed:
            self._tell_loss(error)

    def _tell_loss(self, error: WorkerLostError) -> None:
        """Tells the listener; then asks if a coordinator that fell silent gave up this worker."""
        self._listener.on_coordinator_lost(error)
        if self._standing is not None and not isinstance(error, EvictedError) and not error.left:
            self._standing.start()

    def _on_evicted(self) -> None:
        """Handles that the coordinator, lost before, goes on without this worker."""
        assert self._loss is not None
        assert self._line is not None
        told = eviction(self._self, self._loss)
        self._line.evicted(told)
        self._listener.on_coordinator_lost(told)

    def _on_progress(self, progress: JoinProgress) -> None:
        with critical.section, self._lock:
            if self.progress is None or progress.version > self.progress.version:
                self.progress = progress
        self.changed.set()

    def _on_running(self, body: object) -> None:
        fields = body if isinstance(body, dict) else {}
        version, names = fields.get("version"), fields.get("names")
        if isinstance(version, int) and isinstance(names, list):
            with critical.section, self._lock:
                if version > self._running_version:
                    self._running_version, self.running = version, tuple(map(str, names))

    def _on_joined(self, member: Member) -> None:
        with critical.section, self._lock:
            new = self._roster.joined(member)
            news = new and self._welcomed
        if news:
            self._listener.on_member_joined(member)
        if new:
            self._guests.add([member.info])
        if self._line is not None:
            self._line.tell(messages.KNOWS, {"incarnation": member.info.incarnation})

    def _on_lost(self, body: object) -> None:
        info, reason, left = messages.read_loss(body)
        with critical.section, self._lock:
            news = self._roster.lost(info)
            if news and not self._welcomed:
                self._early.append((info, reason, left, False))
                news = False
        self._guests.remove(info)
        if news:
            self._listener.on_member_lost(info, reason, left)

    def _on_given_up(self, body: object) -> None:
        by, words, _ = messages.read_loss(body)
        reason = f"it has given up this worker: {words}"
        with critical.section, self._lock:
            if not self._welcomed:
                self._early.append((by, reason, False, True))
                return
        self._listener.on_member_lost(by, reason, left=False, fenced=True)


@final
class JoinedJob:
    """The membership of this worker; made by `join_job`. Blocking, from any thread but the loop.

    Closing it closes a coordinator that runs here as well, and withdraws its endpoint.

    Attributes:
        info: This worker, with its incarnation.
        members: The members when this worker was welcomed, by rank; this worker included.
        world_size: The number of workers that made the job complete.
        store: The job's store.
        coordinator_endpoint: The endpoint of the coordinator.
        coordinator: The coordinator, if it runs in this worker; else None.
    """

    def __init__(
        self,
        info: WorkerInfo,
        members: tuple[Member, ...],
        line: ControlLine,
        events: MemberEvents,
        world_size: int,
        coordinator: Coordinator | None = None,
        source: EndpointSource | None = None,
    ) -> None:
        self.info = info
        self.members = members
        self.world_size = world_size
        self.store: Store = TCPStore(line)
        self.coordinator_endpoint = line.endpoint
        self._line = line
        self._events = events
        self.coordinator = coordinator
        self._source = source

    def living(self) -> tuple[Member, ...]:
        """Returns the members that are not known to be lost, by rank."""
        return self._events.members

    def check_standing(self, checked: Callable[[], None]) -> None:
        """Calls `checked` once the coordinator has shown if this worker is a member.

        If it is not, the listener gets the eviction first. Does not block; `checked` is called on
        the loop, or at once if the coordinator cannot be asked any more.
        """
        try:
            pending = self._line.request(messages.STANDING, {"incarnation": self.info.incarnation})
        except (RendezvousError, EvictedError):
            checked()
        else:
            pending.add_done_callback(lambda _: checked())

    def gave_up(self, worker: WorkerInfo, error: WorkerLostError) -> None:
        """Tells the coordinator that a worker is lost to this one; does not block.

        If that worker is still a member, the coordinator tells it, so that both agree.
        """
        if error.left or isinstance(error, EvictedError):
            return
        if any(member.info == worker for member in self._events.members):
            reason = error.reason or str(error)
            body = [worker.name, worker.rank, worker.incarnation, reason]
            self._line.tell(messages.GAVE_UP, body)

    def shutdown(self, timeout: float = math.inf) -> bool:
        """Waits until every living member has called this; then all cease to be members.

        Returns:
            True if all members have called it. False, at once and with a warning in the log, if the
            coordinator is lost: then nobody can tell which members still live.

        Args:
            timeout: Seconds to wait at most, above 0; `math.inf` waits without a limit.

        Raises:
            RendezvousTimeoutError: Some have not called it in time; `.missing` names them. This
                worker is still a member, and may wait again or leave.
        """
        refuse_to_block("shutdown()", "write `await rpc.to_thread(...)`")
        check_timeout(timeout)
        try:
            self._line.ask(messages.SHUTDOWN, timeout=timeout, remind=self._say_who_runs)
        except (RendezvousError, EvictedError) as error:
            if self._line.lost is None:
                raise
            logger.warning("shutdown goes on without the other workers: %s", error)
            return False
        except TimeoutError:
            running = self.running
            named = ", ".join(map(repr, running)) or "some workers"
            raise RendezvousTimeoutError(
                f"{named} did not call shutdown within {rounded(timeout)} s; wait longer with "
                "timeout=, or leave at once with graceful=False",
                missing=running,
            ) from None
        return True

    @property
    def running(self) -> tuple[str, ...]:
        """The workers that have not called `shutdown`, as far as this one, which has, was told."""
        return self._events.running

    def _say_who_runs(self) -> None:
        running = self.running
        if running:
            logger.info(
                "shutdown waits for %s, which %s not called it",
                ", ".join(map(repr, running)),
                "has" if len(running) == 1 else "have",
            )

    def leave(self, reason: str = "left", timeout: float = LEAVE_TIMEOUT) -> None:
        """Leaves without the others, for which this worker is then lost; never raises for them."""
        try:
            self._line.ask(messages.LEAVE, {"reason": reason}, timeout=timeout)
        except (ConnectionError, TimeoutError) as error:
            logger.debug("the coordinator was not told of leaving: %s", error)

    def close(self, timeout: float = COORDINATOR_CLOSE_TIMEOUT) -> None:
        """Closes the line, and the coordinator if it runs here, within `timeout`; idempotent.

        Closing without `shutdown` or `leave` before counts as leaving.
        """
        ends = time.monotonic() + timeout
        if self._source is not None:
            self._source.withdraw()
        self._events.close(timeout)
        self._line.close(min(max(ends - time.monotonic(), LEAST_TIMEOUT), CLOSE_TIMEOUT))
        if self.coordinator is not None:
            self.coordinator.close(max(ends - time.monotonic(), LEAST_TIMEOUT))


def as_member(body: object) -> Member:
    """Reads a member from a message; raises DecodeError if there is none."""
    match body:
        case [str(name), int(rank), int(incarnation), list(endpoints)]:
            if all(isinstance(endpoint, str) for endpoint in endpoints):
                return Member(WorkerInfo(name, rank, incarnation), tuple(endpoints))
    raise DecodeError(f"the coordinator sent no member (got {body!r:.120})")


def as_progress(body: object) -> JoinProgress:
    """Reads progress from a message; raises DecodeError if there is none."""
    match body:
        case {
            "version": int(version),
            "joined": list(joined),
            "world_size": int(world_size),
            "errors": list(pairs),
            "names": list(found),
            "gave_up": list(left),
        }:
            ranks = tuple(rank for rank in joined if isinstance(rank, int))
            names = tuple(name for name in found if isinstance(name, str))
            errors = {int(rank): str(problem) for rank, problem in pairs}
            gave_up = {int(rank): str(name) for rank, name in left}
            return JoinProgress(version, ranks, world_size, errors, names, gave_up=gave_up)
    raise DecodeError(f"the coordinator sent no progress (got {body!r:.120})")


def eviction(info: WorkerInfo | None, error: WorkerLostError) -> EvictedError:
    """Returns the error of a worker that the coordinator has given up."""
    name = "this worker" if info is None else info.name
    return EvictedError(
        f"the coordinator gave up {name!r} and the job goes on without it ({error.reason}); "
        "start it again to join under a new incarnation",
        worker=name,
        incarnation=0 if info is None else info.incarnation,
        last_seen=error.last_seen,
        reason=error.reason,
    )
