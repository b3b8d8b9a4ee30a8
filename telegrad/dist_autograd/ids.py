"""Ids of autograd contexts, and the set of released ones, so no late message revives one. Pure.

A context id is one integer: its creator's incarnation and a number that the creator counts up.
With each release the creator sends the lowest number that is still open. So a worker remembers
single ids only for contexts that were released above that number, or by the word of another worker.
"""

from __future__ import annotations

from typing import TypeAlias, final

from telegrad.errors import DecodeError
from telegrad.rpc.seams import keep_newest
from telegrad.types import WorkerInfo

ContextId: TypeAlias = int

# A trainer that opens a million contexts a second takes twelve days to run out of these.
_NUMBER_BITS = 40
_NUMBERS = (1 << _NUMBER_BITS) - 1


def make_context_id(incarnation: int, number: int) -> ContextId:
    """Returns the id of a context.

    Example:
        >>> creator_of(make_context_id(3, 5)), number_of(make_context_id(3, 5))
        (3, 5)
    """
    return (incarnation << _NUMBER_BITS) | number


def creator_of(context_id: ContextId) -> int:
    """Returns the incarnation of the worker that created a context."""
    return context_id >> _NUMBER_BITS


def number_of(context_id: ContextId) -> int:
    """Returns the number that the creator gave a context."""
    return context_id & _NUMBERS


def check_context_id(context_id: object) -> ContextId:
    """Returns `context_id` if it can be the id of a context.

    Raises:
        TypeError: `context_id` is no integer.
    """
    if isinstance(context_id, bool) or not isinstance(context_id, int):
        raise TypeError(
            f"context_id must be what `with dist_autograd.context() as context_id` gives, "
            f"not {context_id!r} ({type(context_id).__name__})"
        )
    return context_id


def write_context_id(context_id: ContextId) -> list[int]:
    """Returns a context id as two integers for the wire, as one of more than 64 bits is slow."""
    return [context_id >> _NUMBER_BITS, context_id & _NUMBERS]


def read_context_id(value: object) -> ContextId:
    """Returns the context id that was written.

    Raises:
        DecodeError: `value` is no context id.

    Example:
        >>> read_context_id(write_context_id(make_context_id(3, 5))) == make_context_id(3, 5)
        True
    """
    if isinstance(value, list) and len(value) == 2:
        creator, number = value
        if type(creator) is type(number) is int and creator >= 0 <= number <= _NUMBERS:
            return (creator << _NUMBER_BITS) | number
    raise DecodeError(f"{value!r} is not the id of an autograd context")


# Released contexts that are remembered one by one, at some 100 bytes each. When that many more were
# released, messages about the oldest one have long arrived.
MOST_RELEASED = 4096


@final
class ReleasedContexts:
    """A compact set of released context ids; forgets the oldest of those that it keeps singly."""

    def __init__(self) -> None:
        self._lowest: dict[int, int] = {}  # by creator: everything below is released
        self._single: dict[ContextId, None] = {}  # released from there on, the oldest first
        self._lost: dict[int, None] = {}
        self._for_peer: dict[WorkerInfo, dict[ContextId, None]] = {}

    def __contains__(self, context_id: ContextId) -> bool:
        creator, number = context_id >> _NUMBER_BITS, context_id & _NUMBERS
        return (
            creator in self._lost
            or number < self._lowest.get(creator, 0)
            or context_id in self._single
        )

    def __len__(self) -> int:
        """Returns the number of ids that are remembered one by one."""
        return len(self._single)

    def add(self, context_id: ContextId) -> None:
        """Adds one context."""
        if context_id not in self:
            self._single[context_id] = None
            keep_newest(self._single, MOST_RELEASED)

    def add_for(self, peer: WorkerInfo, context_id: ContextId) -> None:
        """Adds one context for the messages of one peer alone."""
        if context_id not in self:
            known = self._for_peer.setdefault(peer, {})
            known[context_id] = None
            keep_newest(known, MOST_RELEASED)

    def is_over_for(self, peer: WorkerInfo, context_id: ContextId) -> bool:
        """Returns True if a context was added, or added for this peer."""
        return context_id in self or context_id in self._for_peer.get(peer, ())

    def rise(self, creator: int, lowest: int) -> None:
        """Adds all contexts of a creator below the number `lowest`."""
        self._lowest[creator] = max(lowest, self._lowest.get(creator, 0))

    def lose(self, worker: WorkerInfo) -> None:
        """Adds all contexts of a creator, which is lost."""
        self._for_peer.pop(worker, None)
        creator = worker.incarnation
        self._lost[creator] = None
        keep_newest(self._lost)
        self._lowest.pop(creator, None)
