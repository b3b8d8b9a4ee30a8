"""The members of a job, as pure state machines: the coordinator's side and the worker's roster.

    (unknown) ──join──> waiting ──its wait is over──> member ──shutdown──> leaving ──all──> (gone)
                          │                             │                     │
                          └──────────── lost, leave ────┴─────────────────────┘ ──> (gone)

    (unknown) ──reserve──> reserved ──join──> member            in a job that has already started

Events come in by method, messages go out as the returned list, in the order in which they are
to be posted. Each message names the session that it is for. A session is the control connection
of one worker, identified by the WorkerInfo that opened it.

Invariants:

- No two seats or reservations share a rank, or a name (upper and lower case count as equal).
- A session holds at most one seat.
- Each reserve, join and shutdown is answered exactly once, unless its session is lost.
- Ranks below the world size belong to the workers that make the job complete, and to their
  replacements. Higher ranks belong to late workers.
- A worker is welcomed once the workers that it waits for are there: all ranks at once, unless it
  names a number or names.
- A welcomed worker is told of all later arrivals and of all losses.
- A worker that still waits is told of every worker that was welcomed. Those may dial it already,
  and a worker admits nobody that the coordinator has not announced.
- When the last member is gone the job begins anew, so that the same processes may join again.

Each worker decides alone that a peer is lost, and reports it here. If both workers of the pair
still reach the coordinator, both stay members. The other one of the two is told, so that both agree
at once, whatever each of them can hear of the other. Nobody else is concerned.

The same holds between the coordinator and a worker, each of which may be stopped or cut off:

    first to give up the other   the worker                       the coordinator
    the coordinator              is dropped: evicted              tells the others, goes on
    the worker                   goes on without it, for good     is abandoned; tells nobody
    both, before either knew     as the first, if the coordinator goes on with any worker outside
                                 its own process; else as the second: it is the one cut off

An abandoned coordinator admits nobody any more, and refuses workers that wait to be welcomed: the
workers that went on without it would not know the newcomers. It no longer decides about those
workers; for all others it is what it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, final

from telegrad.types import WorkerInfo

# -- the coordinator's messages to its workers, each for the session that it names ---------------


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of the job and its endpoints.

    Attributes:
        info: Name, rank and incarnation.
        endpoints: The endpoints to dial, in order of preference.
    """

    info: WorkerInfo
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a join: the worker's wait is over, and these are the members, by rank.

    If not all of them know this worker yet, `Known` follows.
    """

    session: WorkerInfo
    members: tuple[Member, ...]
    known: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """After a welcome: all members that had started before know this worker, and may call it."""

    session: WorkerInfo


@dataclass(frozen=True, slots=True)
class Reserved:
    """The answer to a reserve: the name, rank and world size for this session."""

    session: WorkerInfo
    name: str
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a join or reserve that is refused; `error` is the name of an error type."""

    session: WorkerInfo
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Released:
    """The answer to a shutdown: every living member has called it."""

    session: WorkerInfo


@dataclass(frozen=True, slots=True)
class Progress:
    """For a worker that waits in join: the ranks that are there, and errors of other ranks.

    Those that waited as well, and gave up first, are listed by rank and name.
    """

    session: WorkerInfo
    version: int
    joined: tuple[int, ...]
    world_size: int
    errors: tuple[tuple[int, str], ...]
    names: tuple[str, ...]
    gave_up: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """For a worker that waits in shutdown: the members that have not called it yet."""

    session: WorkerInfo
    version: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """For a member: another worker joined. For a waiting worker: another worker was welcomed."""

    session: WorkerInfo
    member: Member


@dataclass(frozen=True, slots=True)
class Lost:
    """For a member: another member is gone for good; `left` if it said goodbye."""

    session: WorkerInfo
    info: WorkerInfo
    reason: str
    left: bool = False


@dataclass(frozen=True, slots=True)
class GivenUp:
    """For a member: another one has given it up, so they are lost to each other for good."""

    session: WorkerInfo
    by: WorkerInfo
    reason: str


@dataclass(frozen=True, slots=True)
class Stands:
    """The answer to a worker that asks if it is a member; None if nobody can tell any more."""

    session: WorkerInfo
    member: bool | None


@dataclass(frozen=True, slots=True)
class Ended:
    """For nobody: this session's worker has given it up, and will send nothing on it any more."""

    session: WorkerInfo


Message: TypeAlias = (
    Welcome
    | Reserved
    | Refused
    | Released
    | Progress
    | Running
    | Joined
    | Known
    | Lost
    | GivenUp
    | Stands
    | Ended
)


# -- tables of past events, which do not grow with the age of a job ------------------------------

K = TypeVar("K")
V = TypeVar("V")

# The number of lost workers that are remembered, at some 100 bytes each. When that many more are
# lost, messages to or about the oldest one have long arrived, or are lost as well.
MOST_LOST = 4096


def keep_newest(table: dict[K, V], most: int = MOST_LOST) -> None:
    """For the library: removes the oldest entries of a table until it is short enough.

    Not thread-safe: the caller holds the lock of the table.

    Example:
        >>> table = {"a": 1, "b": 2, "c": 3}
        >>> keep_newest(table, 2)
        >>> table
        {'b': 2, 'c': 3}
    """
    while len(table) > most:
        del table[next(iter(table))]


# -- names of workers and jobs -------------------------------------------------------------------

LONGEST_NAME = 63  # a DNS label, so that a name can be a host, a file or a metric label
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")


def name_problem(name: object) -> str | None:
    """Returns the problem with a worker's name, in words, or None.

    >>> name_problem("trainer-0")
    >>> name_problem("my trainer")
    "worker name 'my trainer' has ' '; use letters, digits, '.', '_' and '-', up to 63 characters"
    """
    return _problem(name, "worker name")


def check_name(name: object) -> str:
    """Returns the name of a worker.

    Raises:
        ValueError: The name is empty, longer than 63 characters, or has a character outside
            `[A-Za-z0-9._-]`.
    """
    return _checked(name, "worker name")


def check_job(job: object) -> str:
    """Returns the name of a job; it obeys the same rule as a worker's.

    Raises:
        ValueError: The name breaks that rule.
    """
    return _checked(job, "job name")


def _checked(name: object, what: str) -> str:
    problem = _problem(name, what)
    if problem is not None:
        raise ValueError(problem)
    assert isinstance(name, str)
    return name


def _problem(name: object, what: str) -> str | None:
    if not isinstance(name, str):
        return f"{what} must be a str (got {type(name).__name__})"
    if _NAME.fullmatch(name):
        return None
    rule = f"use letters, digits, '.', '_' and '-', up to {LONGEST_NAME} characters"
    if not name:
        return f"{what} is empty; {rule}"
    wrong = sorted(set(re.sub(r"[A-Za-z0-9._-]", "", name)))
    if wrong:
        return f"{what} {name[:80]!r} has {', '.join(map(repr, wrong[:5]))}; {rule}"
    return f"{what} {name[:80]!r} has {len(name)} characters; {rule}"


# -- the coordinator's side ----------------------------------------------------------------------

# The workers that a joining worker waits for: a number of them, itself included; workers of these
# names; or None for every rank below the world size.
StartWhen: TypeAlias = int | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The statement of a joining worker about itself, and about the workers it waits for."""

    name: str
    rank: int
    world_size: int
    incarnation: int
    endpoints: tuple[str, ...] = ()
    start_when: StartWhen = None
    process: str = ""  # pid and host, for people


@dataclass(slots=True)
class _Seat:
    session: WorkerInfo
    member: Member
    start_when: StartWhen = None
    process: str = ""
    leaving: bool = False
    welcomed: bool = False
    # The sessions of members that were told of this one and have not said that they know it.
    untold: set[WorkerInfo] = field(default_factory=set)

    @property
    def info(self) -> WorkerInfo:
        """The worker."""
        return self.member.info


class _Seats(dict[WorkerInfo, _Seat]):
    """The seats of a job, by session."""

    @property
    def ranks(self) -> set[int]:
        """The ranks that have a seat."""
        return {seat.info.rank for seat in self.values()}

    def of_rank(self, rank: int) -> _Seat | None:
        """Returns the seat of a rank."""
        return next((seat for seat in self.values() if seat.info.rank == rank), None)

    def by_rank(self, *, welcomed: bool | None = None) -> list[_Seat]:
        """Returns the seats by rank: all of them, or those that are welcomed, or that wait."""
        found = [seat for seat in self.values() if welcomed in (None, seat.welcomed)]
        return sorted(found, key=lambda seat: seat.info.rank)

    def include(self, wanted: int | tuple[str, ...]) -> bool:
        """Returns True if so many workers, or the workers of these names, have a seat."""
        if isinstance(wanted, int):
            return len(self) >= wanted
        return {seat.info.name for seat in self.values()}.issuperset(wanted)

    def told_of_loss(self, gone: _Seat, reason: str, *, left: bool = False) -> list[Message]:
        """Returns the news that a seat is free again, for those that know that it was taken."""
        return [
            Lost(seat.session, gone.info, reason, left)
            for seat in self.by_rank()
            if seat.welcomed or gone.welcomed
        ]


@final
@dataclass(slots=True)
class Membership:
    """The members of one job.

    Attributes:
        world_size: The number of workers that make the job complete; None takes the first worker's.
        host: The rank of the worker in whose process the coordinator runs; None if there is none.
        complete: True if every rank has been there at once since the job began.
        abandoned_by: The workers that have given up the coordinator and go on without it, in that
            order.
    """

    world_size: int | None = None
    host: int | None = None
    complete: bool = field(init=False, default=False)
    abandoned_by: tuple[WorkerInfo, ...] = field(init=False, default=())
    _fixed: bool = field(init=False)
    _version: int = field(init=False, default=0)
    _seats: _Seats = field(init=False, default_factory=_Seats)
    _errors: dict[int, str] = field(init=False, default_factory=dict)
    # The names, by rank, of workers that joined and left again before they were welcomed.
    _gave_up: dict[int, str] = field(init=False, default_factory=dict)
    _reserved: dict[WorkerInfo, tuple[str, int]] = field(init=False, default_factory=dict)
    # Ranks whose process has ended, as reported by the program that started it, and how it ended.
    _ended: dict[int, str] = field(init=False, default_factory=dict)
    # Pairs (given up, by) of living members, and the reason.
    _given_up: dict[tuple[WorkerInfo, WorkerInfo], str] = field(init=False, default_factory=dict)
    # Members that were given up here, by incarnation. Some of them gave up the coordinator as well.
    _dropped: dict[int, WorkerInfo] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._fixed = self.world_size is not None

    @property
    def members(self) -> tuple[Member, ...]:
        """The living members, by rank."""
        return tuple(seat.member for seat in self._seats.by_rank())

    @property
    def splits(self) -> int:
        """The number of pairs of living members that have given each other up."""
        return len({frozenset(pair) for pair in self._given_up})

    def reserve(self, session: WorkerInfo, name: str = "") -> list[Message]:
        """Handles a worker's request for a place in a job that has started; answers at once.

        The worker gets the lowest free rank from the world size on. If it brings no name, it is
        called `worker` and that rank. The place is kept until its session joins or is lost.
        """
        problem = name_problem(name) if name else None
        if problem is not None:
            return [Refused(session, "ValueError", problem)]
        if self.abandoned_by:
            return [Refused(session, "RendezvousError", _why_closed(self.abandoned_by))]
        started = self.complete or any(seat.welcomed for seat in self._seats.values())
        if not started or self.world_size is None:
            text = "no worker can join on top of a job that is not complete; try again when it is"
            return [Refused(session, "RendezvousError", text)]
        self._reserved.pop(session, None)
        taken = self._taken(session)
        duplicate = _duplicate(name, -1, taken)
        if duplicate is not None:
            return [Refused(session, "DuplicateNameError", duplicate)]
        rank = self.world_size
        while _duplicate(name or f"worker{rank}", rank, taken) is not None:
            rank += 1
        self._reserved[session] = (name or f"worker{rank}", rank)
        return [Reserved(session, *self._reserved[session], self.world_size)]

    def join(self, session: WorkerInfo, request: JoinRequest) -> list[Message]:
        """Handles a worker's join; it is answered once the workers that it waits for are there."""
        info = WorkerInfo(request.name, request.rank, request.incarnation)
        seat = self._seats.get(session)
        if seat is not None and seat.info == info:
            return self._welcome(seat) if seat.welcomed else []
        if seat is not None:
            text = (
                f"this session joined already as {seat.info.name!r}, rank {seat.info.rank}; "
                "leave before joining as another worker"
            )
            return [Refused(session, "RendezvousError", text)]
        if self.abandoned_by:
            return [Refused(session, "RendezvousError", _why_closed(self.abandoned_by))]
        refusal = self._refusal(session, request)
        if refusal is not None:
            error, message = refusal
            told: list[Message] = []
            if error == "DuplicateNameError":
                self._errors.setdefault(request.rank, f"a second one was refused: {message}")
                twin = self._seats.of_rank(request.rank)
                if twin is not None and request.rank == self.host and not twin.welcomed:
                    # The rank that the second one should have had would be waited for in vain.
                    told = self._turn_away([twin], message, error) + self._progress()
            if error == "RendezvousError":
                said = f"refused by the coordinator: it says world size {request.world_size}"
                told = self.note(request.rank, said)
            return [Refused(session, error, message), *told]
        self.world_size = request.world_size
        member = Member(info, request.endpoints)
        seat = _Seat(session, member, request.start_when, request.process)
        self._seats[session] = seat
        self._reserved.pop(session, None)
        self._errors.pop(request.rank, None)
        self._gave_up.pop(request.rank, None)
        self._ended.pop(request.rank, None)
        if not self.complete and self._seats.ranks.issuperset(range(request.world_size)):
            self.complete = True
            self._errors.clear()
            self._gave_up.clear()
        return self._arrived(seat) + self._refuse_hopeless()

    def ended(self, rank: int, how: str) -> list[Message]:
        """Handles the end of a rank's process, which nobody will replace.

        Workers that wait for this rank are refused once no member has it.
        """
        self._ended[rank] = how
        return self._refuse_hopeless()

    def knows(self, session: WorkerInfo, incarnation: int | None = None) -> list[Message]:
        """Handles that a member knows one that joined; with None that it need know nobody."""
        news: list[Message] = []
        for seat in self._seats.values():
            if session in seat.untold and incarnation in (None, seat.info.incarnation):
                seat.untold.remove(session)
                if seat.welcomed and not seat.untold:
                    news.append(Known(seat.session))
        return news

    def shut_down(self, session: WorkerInfo) -> list[Message]:
        """Handles a member's shutdown; it waits until every living member has called this too."""
        seat = self._seats.get(session)
        if seat is None:
            return [Released(session)]
        seat.leaving = True
        return self._release()

    def lost(self, session: WorkerInfo, reason: str, *, left: bool = False) -> list[Message]:
        """Handles the end of a session, or its goodbye (`left`); its seat is free again."""
        seat = self._vacate(session)
        if seat is None:
            return []
        info = seat.info
        if seat.welcomed and not left:
            self._dropped[info.incarnation] = info
            keep_newest(self._dropped)
        if not self.complete:
            gave_up = left and not seat.welcomed
            if gave_up:
                self._gave_up[info.rank] = info.name
            became = "gave up" if gave_up else "was lost again"
            self._errors[info.rank] = f"joined as {info.name!r} and {became}: {reason}"
        messages = self._seats.told_of_loss(seat, reason, left=left) + self._progress()
        return messages + self._release() + self._refuse_hopeless() + self.knows(session)

    def abandoned(self, session: WorkerInfo, reason: str) -> list[Message]:
        """Handles that a worker has given up the coordinator, which had not given it up."""
        seat = self._seats.get(session)
        if seat is None or not seat.welcomed:  # a worker that has not joined cannot go on either
            return self.lost(session, reason)
        self._vacate(session)
        return self._abandon(seat.info) + self.knows(session)

    def names_of(self, incarnation: int) -> frozenset[str]:
        """Returns the names of the workers with an incarnation; empty if it is unknown."""
        seats = (seat.info for seat in self._seats.values())
        known = (*seats, *self._dropped.values())
        return frozenset(info.name for info in known if info.incarnation == incarnation)

    def asks(self, session: WorkerInfo, incarnation: int) -> list[Message]:
        """Handles the question of a worker if it is a member; perhaps over a second line."""
        seats = [s for s in self._seats.values() if s.info.incarnation == incarnation]
        if any(seat.session == session for seat in seats):
            return [Stands(session, True)]
        messages = [
            message
            for seat in seats
            for message in (
                Ended(seat.session),
                *self.abandoned(seat.session, "it has another line"),
            )
        ]
        goes_on = any(seat.info.rank != self.host for seat in self._seats.values())
        if not goes_on and incarnation in self._dropped:
            messages += self._abandon(self._dropped.pop(incarnation))
        evicted = goes_on and all(each.incarnation != incarnation for each in self.abandoned_by)
        return [*messages, Stands(session, False if evicted else None)]

    def gave_up(self, session: WorkerInfo, info: WorkerInfo, reason: str) -> list[Message]:
        """Handles that a member has given up another; if that one still lives it is told, once."""
        by = self._seats.get(session)
        seat = next((s for s in self._seats.values() if s.info == info), None)
        if by is None or seat is None or by is seat:
            return []
        pair, reverse = (info, by.info), (by.info, info)
        known = pair in self._given_up or reverse in self._given_up
        self._given_up.setdefault(pair, reason)
        return [] if known or not seat.welcomed else [GivenUp(seat.session, pair[1], reason)]

    def note(self, rank: int, problem: str) -> list[Message]:
        """Records the last error seen from a rank that has not joined."""
        if self.complete or not 0 <= rank < (self.world_size or 0):
            return []  # a stranger may claim any rank, so what is kept must be bounded
        if rank in self._seats.ranks or self._errors.get(rank) == problem:
            return []
        self._errors[rank] = problem
        return self._progress()

    def _vacate(self, session: WorkerInfo) -> _Seat | None:
        """Frees the place of a session; returns the seat that it had."""
        self._reserved.pop(session, None)
        seat = self._seats.pop(session, None)
        if seat is not None:
            given_up, info = self._given_up.items(), seat.info
            self._given_up = {pair: reason for pair, reason in given_up if info not in pair}
        return seat

    def _abandon(self, info: WorkerInfo) -> list[Message]:
        """Records that a worker goes on without the coordinator; refuses all that still wait."""
        if all(each.incarnation != info.incarnation for each in self.abandoned_by):
            self.abandoned_by += (info,)
        refused = self._turn_away(
            self._seats.by_rank(welcomed=False), _why_closed(self.abandoned_by)
        )
        self._reserved.clear()
        return refused + self._release()

    def _turn_away(
        self, waiting: Sequence[_Seat], text: str, error: str = "RendezvousError"
    ) -> list[Message]:
        """Refuses workers that wait, and tells those who know that they joined."""
        messages: list[Message] = []
        for seat in waiting:
            self._vacate(seat.session)
            messages.append(Refused(seat.session, error, text))
            messages += self._seats.told_of_loss(seat, f"it was refused: {text}")
        return messages

    def _refusal(self, session: WorkerInfo, request: JoinRequest) -> tuple[str, str] | None:
        on_top = self._reserved.get(session) == (request.name, request.rank)
        problem = name_problem(request.name) or _numbers_problem(request, on_top=on_top)
        if problem is not None:
            return "ValueError", problem
        if self.world_size is not None and request.world_size != self.world_size:
            return "RendezvousError", (
                f"world size mismatch: {request.name!r} (rank {request.rank}) says "
                f"{request.world_size}, the job has {self.world_size}; "
                "start all workers with the same world size"
            )
        duplicate = _duplicate(request.name, request.rank, self._taken(session))
        if duplicate is not None:
            twin = self._seats.of_rank(request.rank)
            if twin is not None and twin.process and request.process:
                both = f"{twin.process} and of {request.process}"
                duplicate += f" (RANK={request.rank} is that of {both})"
            return "DuplicateNameError", duplicate
        for seat in self._seats.values():
            held, drawn = seat.info, request.incarnation
            if held.incarnation == drawn:
                return "ValueError", f"incarnation {drawn} is that of {held.name!r}; draw another"
        return None

    def _taken(self, session: WorkerInfo) -> list[tuple[str, int]]:
        """Returns the names and ranks that other sessions have, by rank."""
        seated = [(seat.info.name, seat.info.rank) for seat in self._seats.values()]
        reserved = [place for other, place in self._reserved.items() if other != session]
        return sorted(seated + reserved, key=lambda place: place[1])

    def _arrived(self, seat: _Seat) -> list[Message]:
        """Welcomes the workers whose wait this arrival ends, and tells the others of it."""
        welcomed = self._seats.by_rank(welcomed=True)
        told: list[Message] = [Joined(other.session, seat.member) for other in welcomed]
        seat.untold = {other.session for other in welcomed}
        starting: list[_Seat] = []
        for each in self._seats.by_rank(welcomed=False):
            wanted = each.start_when
            if self.complete if wanted is None else self._seats.include(wanted):
                starting.append(each)
        known: list[Message] = []
        if seat not in starting:
            known = [Joined(seat.session, other.member) for other in welcomed]
        for each in starting:
            each.welcomed = True
        waiting = self._seats.by_rank(welcomed=False)
        return [
            *known,
            *(Joined(each.session, new.member) for each in waiting for new in starting),
            *(message for each in starting for message in self._welcome(each)),
            *told,
            *self._progress(),
            *self._running(),
        ]

    def _refuse_hopeless(self) -> list[Message]:
        """Refuses the workers that wait for a rank that can never come."""
        size, seated = self.world_size or 0, self._seats.ranks
        gone = [rank for rank in sorted(self._ended) if rank < size and rank not in seated]
        if self.complete or not gone:
            return []
        hopeless = []
        for seat in self._seats.by_rank(welcomed=False):
            wanted = size if seat.start_when is None else seat.start_when
            if isinstance(wanted, int) and size - len(gone) < wanted:
                hopeless.append(seat)
        if not hopeless:
            return []
        words = "; ".join(
            f"rank {rank} ended ({self._ended[rank]}) "
            + ("after it gave up waiting" if rank in self._gave_up else "without joining")
            for rank in gone
        )
        text = f"{words}; have every rank call rpc.init_rpc(), or start as many as do"
        return self._turn_away(hopeless, text) + self._progress() + self._release()

    def _welcome(self, seat: _Seat) -> list[Message]:
        return [
            Welcome(seat.session, self.members, not seat.untold),
            *(
                GivenUp(seat.session, by, reason)
                for (info, by), reason in self._given_up.items()
                if info == seat.info
            ),
        ]

    def _release(self) -> list[Message]:
        """Releases all members if all of them leave; then the job begins anew."""
        seats = self._seats.by_rank()
        if not all(seat.leaving for seat in seats):
            return self._running()
        self._seats.clear()
        self._given_up.clear()
        if not self.abandoned_by:
            self.complete = False
            self._reserved.clear()
            self._gave_up.clear()
            if not self._fixed:
                self.world_size = None
        return [Released(seat.session) for seat in seats]

    def _progress(self) -> list[Message]:
        waiting = self._seats.by_rank(welcomed=False)
        self._version += bool(waiting)
        joined = tuple(member.info.rank for member in self.members)
        names = tuple(member.info.name for member in self.members)
        errors, gave_up = (tuple(sorted(each.items())) for each in (self._errors, self._gave_up))
        size, version = self.world_size or 0, self._version
        return [
            Progress(seat.session, version, joined, size, errors, names, gave_up)
            for seat in waiting
        ]

    def _running(self) -> list[Message]:
        seats = self._seats.by_rank()
        leaving = [seat for seat in seats if seat.leaving]
        self._version += bool(leaving)
        names = tuple(seat.info.name for seat in seats if not seat.leaving)
        return [Running(seat.session, self._version, names) for seat in leaving]


def _why_closed(abandoned_by: Sequence[WorkerInfo]) -> str:
    first, *others = abandoned_by
    names = f"{first.name!r} and {len(others)} more" if others else repr(first.name)
    return (
        f"{names} gave up the coordinator of this job, which was stopped or cut off for too "
        "long, and went on without it; nobody can join this job any more, start it anew"
    )


def _duplicate(name: str, rank: int, taken: Sequence[tuple[str, int]]) -> str | None:
    """Returns in words the worker that has this rank or name already; None if it is free."""
    for held_name, held_rank in taken:
        if (held_rank, held_name) == (rank, name):
            return (
                f"another living worker is {name!r} (rank {rank}); start it once, or give this "
                "one a name and a rank of its own"
            )
        if held_rank == rank:
            return f"rank {rank} is taken by {held_name!r}; give {name!r} a rank of its own"
        if held_name.lower() == name.lower():
            return (
                f"the name {name!r} is taken by rank {held_rank} ({held_name!r}); "
                "names must differ by more than case"
            )
    return None


def place_problem(rank: int, world_size: int) -> str | None:
    """Returns the problem with a rank and a world size, in words, or None."""
    if world_size < 1:
        return f"world_size must be at least 1 (got {world_size})"
    if not 0 <= rank < world_size:
        return (
            f"rank {rank} is out of range for a world size of {world_size}; "
            f"ranks go from 0 to {world_size - 1}"
        )
    return None


def _numbers_problem(request: JoinRequest, *, on_top: bool) -> str | None:
    # A place on top has a rank that the coordinator itself has given.
    problem = place_problem(0 if on_top else request.rank, request.world_size)
    if problem is not None:
        return problem
    wanted = request.start_when
    if isinstance(wanted, int) and not 1 <= wanted <= request.world_size:
        return (
            f"start_when={wanted} is out of range for a world size of {request.world_size}; "
            f"give a number from 1 to {request.world_size}, or names"
        )
    return None


# -- the roster: the worker's side of membership, pure -------------------------------------------
#
# The welcome, the arrivals and the losses may reach a worker in any order. The roster ends in the
# same state, and reports each arrival and each loss at most once. It never reports the arrival of
# an incarnation that is known to be lost.


@final
@dataclass(slots=True)
class Roster:
    """The living members that this worker knows of."""

    _living: dict[WorkerInfo, Member] = field(default_factory=dict)
    _lost: dict[WorkerInfo, None] = field(default_factory=dict)

    @property
    def members(self) -> tuple[Member, ...]:
        """The living members, by rank."""
        return tuple(sorted(self._living.values(), key=lambda member: member.info.rank))

    def joined(self, member: Member) -> bool:
        """Takes an arrival; returns True if it is news."""
        if member.info in self._living or member.info in self._lost:
            return False
        self._living[member.info] = member
        return True

    def lost(self, info: WorkerInfo) -> bool:
        """Takes a loss; returns True if it is news."""
        if info in self._lost:
            return False
        self._lost[info] = None
        keep_newest(self._lost)
        self._living.pop(info, None)
        return True
