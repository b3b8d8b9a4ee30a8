"""Who belongs to the job: the coordinator's side of membership, as a pure state machine.

    (unknown) ──join──> waiting ──who it waits for──> member ──shutdown──> leaving ──all──> (gone)
                          │                             │                     │
                          └──────────── lost, leave ────┴─────────────────────┘ ──> (gone)

    (unknown) ──reserve──> reserved ──join──> member            on top of a job that has started

Events come in by method, messages go out as the returned list, in the order in which they are
to be posted. Each message names the session that it is for: a session is the control connection
of one worker, told apart by the WorkerInfo that opened it.

Invariants: no two seats or reservations share a rank, or a name without case. A session holds at
most one seat. Each reserve, join and shutdown is answered exactly once, unless its session is
lost. Ranks below the world size belong to those who make the job complete, and to their
replacements; those above it to who comes on top. A worker is welcomed once those are there whom it
waits for: all ranks at once, unless it says a number or names. Whoever was welcomed hears of all
who come after that, and of all who are lost. When the last member is gone the job begins anew, so
that the same processes may join again.

That a peer is lost each worker decides alone, and tells here. A pair of which both still reach the
coordinator stay members; the other one of the two is told, so that both agree at once, whatever
each of them can hear of the other. Nobody else is concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from telegrad.rendezvous.names import name_problem
from telegrad.types import WorkerInfo

__all__ = [
    "GivenUp",
    "JoinRequest",
    "Joined",
    "Lost",
    "Member",
    "Membership",
    "Message",
    "Progress",
    "Refused",
    "Released",
    "Reserved",
    "Running",
    "StartWhen",
    "Welcome",
]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker of the job and where it is reached.

    Attributes:
        info: Name, rank and incarnation.
        endpoints: What to dial, in order of preference.
    """

    info: WorkerInfo
    endpoints: tuple[str, ...]


# What a worker waits for when it joins: so many workers, itself included; workers of these names;
# None for every rank below the world size.
StartWhen: TypeAlias = int | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a worker says of itself when it joins, and whom it waits for."""

    name: str
    rank: int
    world_size: int
    incarnation: int
    endpoints: tuple[str, ...] = ()
    start_when: StartWhen = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answers a join: those it waits for are there, and these are the members, by rank."""

    session: WorkerInfo
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Reserved:
    """Answers a reserve: who this session is going to be, and the size of the job below it."""

    session: WorkerInfo
    name: str
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Answers a join or reserve that cannot be; `error` is the name of an error type."""

    session: WorkerInfo
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Released:
    """Answers a shutdown: every living member has called it."""

    session: WorkerInfo


@dataclass(frozen=True, slots=True)
class Progress:
    """Tells whoever waits in join who is there, by rank, and what is known of other ranks."""

    session: WorkerInfo
    version: int
    joined: tuple[int, ...]
    world_size: int
    errors: tuple[tuple[int, str], ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Running:
    """Tells whoever waits in shutdown which members have not called it yet."""

    session: WorkerInfo
    version: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """Tells a member that a worker joined after it was welcomed itself."""

    session: WorkerInfo
    member: Member


@dataclass(frozen=True, slots=True)
class Lost:
    """Tells a member that another is gone for good; `left` when it said so itself."""

    session: WorkerInfo
    info: WorkerInfo
    reason: str
    left: bool = False


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Tells a member that another one has given it up: they are lost to each other for good."""

    session: WorkerInfo
    by: WorkerInfo
    reason: str


Message: TypeAlias = (
    Welcome | Reserved | Refused | Released | Progress | Running | Joined | Lost | GivenUp
)


@dataclass(slots=True)
class _Seat:
    session: WorkerInfo
    member: Member
    start_when: StartWhen = None
    leaving: bool = False
    welcomed: bool = False


@final
@dataclass(slots=True)
class Membership:
    """The members of one job.

    Attributes:
        world_size: How many workers make the job complete; None: as the first that joins says.
    """

    world_size: int | None = None
    _fixed: bool = field(init=False)
    _complete: bool = field(init=False, default=False)
    _version: int = field(init=False, default=0)
    _seats: dict[WorkerInfo, _Seat] = field(init=False, default_factory=dict)
    _errors: dict[int, str] = field(init=False, default_factory=dict)
    _reserved: dict[WorkerInfo, tuple[str, int]] = field(init=False, default_factory=dict)
    # Who was given up, by whom, and why; of living members alone.
    _given_up: dict[tuple[WorkerInfo, WorkerInfo], str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._fixed = self.world_size is not None

    @property
    def complete(self) -> bool:
        """Whether every rank has been there at once since the job began."""
        return self._complete

    @property
    def members(self) -> tuple[Member, ...]:
        """The living members, by rank."""
        return tuple(
            sorted((s.member for s in self._seats.values()), key=lambda member: member.info.rank)
        )

    @property
    def splits(self) -> int:
        """How many pairs of living members have given each other up."""
        return len({frozenset(pair) for pair in self._given_up})

    def reserve(self, session: WorkerInfo, name: str = "") -> list[Message]:
        """A worker asks for a place on top of a job that has started; it is answered at once.

        It gets the lowest rank from the world size on that is free, and where it brings no name
        `worker` and that rank. The place is kept until its session joins or is lost.
        """
        problem = name_problem(name) if name else None
        if problem is not None:
            return [Refused(session, "ValueError", problem)]
        started = self._complete or any(seat.welcomed for seat in self._seats.values())
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
        """A worker asks to join; it is answered when those are there whom it waits for."""
        seat = self._seats.get(session)
        if seat is not None:
            return self._join_again(seat, request)
        refusal = self._refusal(session, request)
        if refusal is not None:
            error, message = refusal
            if error == "DuplicateNameError":
                self._errors.setdefault(request.rank, f"a second one was refused: {message}")
            return [Refused(session, error, message)]
        self.world_size = request.world_size
        info = WorkerInfo(request.name, request.rank, request.incarnation)
        seat = _Seat(session, Member(info, request.endpoints), request.start_when)
        self._seats[session] = seat
        self._reserved.pop(session, None)
        self._errors.pop(request.rank, None)
        ranks = {each.member.info.rank for each in self._seats.values()}
        if not self._complete and ranks.issuperset(range(request.world_size)):
            self._complete = True
            self._errors.clear()
        return self._arrived(seat)

    def shut_down(self, session: WorkerInfo) -> list[Message]:
        """A member waits until every living member has called this too."""
        seat = self._seats.get(session)
        if seat is None:
            return [Released(session)]
        seat.leaving = True
        return self._release()

    def lost(self, session: WorkerInfo, reason: str, *, left: bool = False) -> list[Message]:
        """A session broke for good, or said goodbye (`left`); its seat is free again."""
        self._reserved.pop(session, None)
        seat = self._seats.pop(session, None)
        if seat is None:
            return []
        info = seat.member.info
        self._given_up = {pair: why for pair, why in self._given_up.items() if info not in pair}
        if not self._complete:
            self._errors[info.rank] = f"joined as {info.name!r} and was lost again: {reason}"
        others: list[Message] = [
            Lost(other.session, info, reason, left) for other in self._by_rank() if other.welcomed
        ]
        messages = others + self._progress() + self._release()
        self._begin_anew_if_empty()
        return messages

    def gave_up(self, session: WorkerInfo, info: WorkerInfo, reason: str) -> list[Message]:
        """A member has given up another; if that one still lives it is told, once."""
        by = self._seats.get(session)
        seat = next((s for s in self._seats.values() if s.member.info == info), None)
        if by is None or seat is None or by is seat:
            return []
        pair, reverse = (info, by.member.info), (by.member.info, info)
        known = pair in self._given_up or reverse in self._given_up
        self._given_up.setdefault(pair, reason)
        return [] if known or not seat.welcomed else [GivenUp(seat.session, pair[1], reason)]

    def note(self, rank: int, problem: str) -> list[Message]:
        """Records what was last seen of a rank that has not joined."""
        if self._complete or not 0 <= rank < (self.world_size or 0):
            return []  # a stranger may claim any rank: what is kept of it is bounded
        if any(seat.member.info.rank == rank for seat in self._seats.values()):
            return []
        if self._errors.get(rank) == problem:
            return []
        self._errors[rank] = problem
        return self._progress()

    def _join_again(self, seat: _Seat, request: JoinRequest) -> list[Message]:
        info = WorkerInfo(request.name, request.rank, request.incarnation)
        if info != seat.member.info:
            held = seat.member.info
            return [
                Refused(
                    seat.session,
                    "RendezvousError",
                    f"this session joined already as {held.name!r}, rank {held.rank}; "
                    "leave before joining as another worker",
                )
            ]
        return self._welcome(seat) if seat.welcomed else []

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
        return None if duplicate is None else ("DuplicateNameError", duplicate)

    def _taken(self, session: WorkerInfo) -> list[tuple[str, int]]:
        """Returns the names and ranks that other sessions have, by rank."""
        seated = [(seat.member.info.name, seat.member.info.rank) for seat in self._seats.values()]
        reserved = [place for other, place in self._reserved.items() if other != session]
        return sorted(seated + reserved, key=lambda place: place[1])

    def _arrived(self, seat: _Seat) -> list[Message]:
        """Welcomes whoever waited for this one, and tells the others of it."""
        seats = self._by_rank()
        told: list[Message] = [
            Joined(other.session, seat.member) for other in seats if other.welcomed
        ]
        starting = [each for each in seats if not each.welcomed and self._may_start(each)]
        return [
            *(message for each in starting for message in self._welcome(each)),
            *told,
            *self._progress(),
            *self._running(),
        ]

    def _may_start(self, seat: _Seat) -> bool:
        wanted = seat.start_when
        if wanted is None:
            return self._complete
        if isinstance(wanted, int):
            return len(self._seats) >= wanted
        return {each.member.info.name for each in self._seats.values()}.issuperset(wanted)

    def _welcome(self, seat: _Seat) -> list[Message]:
        seat.welcomed = True
        own = seat.member.info
        return [
            Welcome(seat.session, self.members),
            *(
                GivenUp(seat.session, by, reason)
                for (info, by), reason in self._given_up.items()
                if info == own
            ),
        ]

    def _release(self) -> list[Message]:
        seats = self._by_rank()
        if not all(seat.leaving for seat in seats):
            return self._running()
        self._seats.clear()
        self._given_up.clear()
        self._begin_anew_if_empty()
        return [Released(seat.session) for seat in seats]

    def _begin_anew_if_empty(self) -> None:
        if not self._seats:
            self._complete = False
            self._reserved.clear()
            if not self._fixed:
                self.world_size = None

    def _progress(self) -> list[Message]:
        waiting = [seat for seat in self._by_rank() if not seat.welcomed]
        self._version += bool(waiting)
        joined = tuple(member.info.rank for member in self.members)
        names = tuple(member.info.name for member in self.members)
        errors = tuple(sorted(self._errors.items()))
        return [
            Progress(seat.session, self._version, joined, self.world_size or 0, errors, names)
            for seat in waiting
        ]

    def _running(self) -> list[Message]:
        seats = self._by_rank()
        leaving = [seat for seat in seats if seat.leaving]
        self._version += bool(leaving)
        names = tuple(seat.member.info.name for seat in seats if not seat.leaving)
        return [Running(seat.session, self._version, names) for seat in leaving]

    def _by_rank(self) -> Sequence[_Seat]:
        return sorted(self._seats.values(), key=lambda seat: seat.member.info.rank)


def _duplicate(name: str, rank: int, taken: Sequence[tuple[str, int]]) -> str | None:
    """Returns in words who has this rank or name already."""
    for held_name, held_rank in taken:
        if held_rank == rank:
            return f"rank {rank} is taken by {held_name!r}; give {name!r} a rank of its own"
        if held_name.lower() == name.lower():
            return (
                f"the name {name!r} is taken by rank {held_rank} ({held_name!r}); "
                "names must differ by more than case"
            )
    return None


def _numbers_problem(request: JoinRequest, *, on_top: bool) -> str | None:
    if request.world_size < 1:
        return f"world_size must be at least 1 (got {request.world_size})"
    if not on_top and not 0 <= request.rank < request.world_size:
        return (
            f"rank {request.rank} is out of range for a world size of {request.world_size}; "
            f"ranks go from 0 to {request.world_size - 1}"
        )
    wanted = request.start_when
    if isinstance(wanted, int) and not 1 <= wanted <= request.world_size:
        return (
            f"start_when={wanted} cannot be with a world size of {request.world_size}; "
            f"give a number from 1 to {request.world_size}, or names"
        )
    return None
