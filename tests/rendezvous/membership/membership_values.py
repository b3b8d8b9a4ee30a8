"""Sessions, requests and members of small jobs, for tests of the membership as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from telegrad.rendezvous.membership import JoinRequest, Member, Membership, Message
from telegrad.types import WorkerInfo

__all__ = ["full", "member", "one", "only", "request", "session"]

M = TypeVar("M", bound=Message)


def session(number: int) -> WorkerInfo:
    return WorkerInfo(f"store.{number}", number, 1000 + number)


def request(rank: int, *, name: str = "", world_size: int = 3, incarnation: int = 0) -> JoinRequest:
    return JoinRequest(
        name or f"w{rank}", rank, world_size, incarnation or rank + 1, (f"x://{rank}",)
    )


def member(rank: int, incarnation: int = 0) -> Member:
    return Member(WorkerInfo(f"w{rank}", rank, incarnation or rank + 1), (f"x://{rank}",))


def full(world_size: int = 3, *, host: int | None = None) -> Membership:
    membership = Membership(host=host)
    for r in range(world_size):
        membership.join(session(r), request(r, world_size=world_size))
    return membership


def one(messages: Sequence[Message], kind: type[M]) -> M:
    """Returns the only message, which is of this kind."""
    [message] = messages
    assert isinstance(message, kind)
    return message


def only(messages: Sequence[Message], kind: type[Message]) -> list[Message]:
    return [message for message in messages if isinstance(message, kind)]
