"""What the coordinator has to say to its workers, each message for the session that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from telegrad.types import WorkerInfo

__all__ = [
    "Ended",
    "GivenUp",
    "Joined",
    "Lost",
    "Member",
    "Message",
    "Progress",
    "Refused",
    "Released",
    "Reserved",
    "Running",
    "Stands",
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
    """Tells a member of a worker that joined later, and who waits of one that was welcomed."""

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


@dataclass(frozen=True, slots=True)
class Stands:
    """Answers a worker that asks whether it is a member; None where nobody can say any more."""

    session: WorkerInfo
    member: bool | None


@dataclass(frozen=True, slots=True)
class Ended:
    """Tells nobody: the worker of this session has given it up, and nothing comes from it any more."""

    session: WorkerInfo


Message: TypeAlias = (
    Welcome
    | Reserved
    | Refused
    | Released
    | Progress
    | Running
    | Joined
    | Lost
    | GivenUp
    | Stands
    | Ended
)
