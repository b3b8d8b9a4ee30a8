"""Which root calls wait before they are sent: a window at the caller, a budget at the callee.

    caller                                              callee
    root call ─▶ place in the Window?  no ─▶ wait
                  │ yes
                 within the allowance? yes ─▶ the call ────────────────▶ served
                  │ no
                 Ask(call, bytes) ────────────────▶ Budget: room? no ─▶ wait, peers in turn
                                                      │ yes
                 the call ◀──────────────────────── Admit
                    └──────────────────────────────▶ in use until it ends or waits

Guarantees, under any order of messages:

- G1: what is admitted comes whole: the budget is taken before its first byte is sent.
- G2: every call ends up started or withdrawn, as long as calls in use end, wait or stall: the
  head of the queue is admitted as soon as nothing is in use, whatever its size, and nothing that a
  call in use may need (replies, nested calls, its own bytes) ever waits here.
- G3: calls that wait for the same reason start in the order in which they were made, per peer;
  the callee takes its peers in turn, and nobody overtakes who waits at the head.
- G4: what is given back twice counts once; who is lost holds nothing but what still runs.

A `Window` belongs to one peer, a `Budget` to all. Neither is thread-safe; whoever owns them holds
one lock around each event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, final

from telegrad.rpc.limits import Limits
from telegrad.types import WorkerInfo

__all__ = ["Budget", "Grant", "Move", "Step", "Window"]


class Step(Enum):
    """What a call does next."""

    START = "it is sent now"
    ASK = "the callee is asked"
    WAIT = "it waits for a place"
    WITHDRAW = "the callee hears that it will not come"


class Move(NamedTuple):
    """One step of one call.

    Attributes:
        call: Its number.
        step: What it does.
        size: Its bytes.
    """

    call: int
    step: Step
    size: int


@final
class Window:
    """The caller's end: the root calls of this worker to one peer.

    Args:
        limits: Of this worker.
    """

    def __init__(self, limits: Limits) -> None:
        self._places = limits.pending_calls_per_peer
        self._allowance = limits.allowance_bytes
        self._unasked = 0  # bytes of calls that went without asking
        self._waiting: dict[int, int] = {}  # no place yet, in order; call to size
        self._asking: dict[int, int] = {}  # have a place; call to size
        self._started: dict[int, int] = {}  # call to what it takes of the allowance

    @property
    def is_empty(self) -> bool:
        """Whether it knows of no call."""
        return not (self._started or self._asking or self._waiting)

    def enter(self, call: int, size: int) -> Step:
        """Takes a new call and says what becomes of it: START, ASK or WAIT."""
        if self._waiting or self._taken >= self._places:
            self._waiting[call] = size
            return Step.WAIT
        return self._take_place(call, size)

    def admit(self, call: int) -> bool:
        """Hears that the callee takes a call; tells whether it starts, or was withdrawn before."""
        if self._asking.pop(call, None) is None:
            return False
        self._started[call] = 0
        return True

    def leave(self, call: int) -> list[Move]:
        """Takes out a call that was answered, or that will never start; idempotent.

        Returns:
            Its own WITHDRAW where it had asked, then START or ASK of those that have its place.
        """
        moves: list[Move] = []
        allowance = self._started.pop(call, None)
        if allowance is not None:
            self._unasked -= allowance
        elif self._waiting.pop(call, None) is None:
            size = self._asking.pop(call, None)
            if size is not None:
                moves.append(Move(call, Step.WITHDRAW, size))
        while self._waiting and self._taken < self._places:
            first = next(iter(self._waiting))
            size = self._waiting.pop(first)
            moves.append(Move(first, self._take_place(first, size), size))
        return moves

    @property
    def _taken(self) -> int:
        return len(self._started) + len(self._asking)

    def _take_place(self, call: int, size: int) -> Step:
        if self._unasked + size > self._allowance:
            self._asking[call] = size
            return Step.ASK
        self._unasked += size
        self._started[call] = size
        return Step.START


@dataclass(frozen=True, slots=True)
class Grant:
    """A call that may come."""

    peer: WorkerInfo
    call: int


_Key: TypeAlias = tuple[WorkerInfo, int]


@final
class Budget:
    """The callee's end: what it takes in of calls that asked.

    Args:
        limit: Bytes in use at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: dict[WorkerInfo, dict[int, int]] = {}  # peers in turn, calls in order
        self._coming: dict[_Key, int] = {}  # admitted, not here yet
        self._here: dict[_Key, int] = {}
        self._withdrawn: set[_Key] = set()  # before they asked
        self._in_use = 0
        self._changes = 0

    @property
    def in_use(self) -> int:
        """Bytes of calls that are here, or on their way."""
        return self._in_use

    @property
    def is_full(self) -> bool:
        """Whether calls wait to be admitted."""
        return bool(self._queue)

    @property
    def changes(self) -> int:
        """A number that grows whenever a call arrives or gives its bytes back."""
        return self._changes

    @property
    def is_empty(self) -> bool:
        """Whether it knows of no call."""
        return not (self._queue or self._coming or self._here or self._withdrawn)

    def asked_by(self, peer: WorkerInfo) -> int:
        """How many calls of a peer wait to be admitted."""
        return len(self._queue.get(peer, ()))

    def ask(self, peer: WorkerInfo, call: int, size: int) -> list[Grant]:
        """A peer wants to send a call of `size` bytes."""
        key = (peer, call)
        if key in self._withdrawn:
            self._withdrawn.remove(key)
            return []
        if key not in self._coming and key not in self._here:
            self._queue.setdefault(peer, {}).setdefault(call, size)
        return self._admit()

    def arrive(self, peer: WorkerInfo, call: int) -> bool:
        """A call came; tells whether it is one that had asked."""
        if not self._coming:
            return False
        size = self._coming.pop((peer, call), None)
        if size is None:
            return False
        self._here[peer, call] = size
        self._changes += 1
        return True

    def release(self, peer: WorkerInfo, call: int) -> list[Grant]:
        """A call ended, or begins to wait; idempotent."""
        self._give_back((peer, call))
        return self._admit()

    def withdraw(self, peer: WorkerInfo, call: int) -> list[Grant]:
        """A call that had asked will not come."""
        if self._unqueue(peer, call) is None and not self._give_back((peer, call)):
            self._withdrawn.add((peer, call))
        return self._admit()

    def lose(self, peer: WorkerInfo) -> list[Grant]:
        """A peer is lost: nothing of it will come; what is here of it runs on."""
        self._queue.pop(peer, None)
        self._withdrawn = {key for key in self._withdrawn if key[0] != peer}
        for key in [key for key in self._coming if key[0] == peer]:
            self._give_back(key)
        return self._admit()

    def overdraw(self) -> list[Grant]:
        """Nothing has changed for long: admits the next call, unless one is still coming."""
        if self._coming:
            return []
        return self._admit(beyond=True)

    def _admit(self, *, beyond: bool = False) -> list[Grant]:
        grants: list[Grant] = []
        while self._queue:
            peer, calls = next(iter(self._queue.items()))
            call, size = next(iter(calls.items()))
            if self._in_use and self._in_use + size > self._limit and not beyond:
                break
            beyond = False
            self._unqueue(peer, call)
            if peer in self._queue:
                self._queue[peer] = self._queue.pop(peer)  # to the end: peers take turns
            self._coming[peer, call] = size
            self._in_use += size
            grants.append(Grant(peer, call))
        return grants

    def _unqueue(self, peer: WorkerInfo, call: int) -> int | None:
        calls = self._queue.get(peer, {})
        size = calls.pop(call, None)
        if size is not None and not calls:
            del self._queue[peer]
        return size

    def _give_back(self, key: _Key) -> bool:
        held = self._coming if key in self._coming else self._here
        size = held.pop(key, None)
        if size is None:
            return False
        self._in_use -= size
        self._changes += 1
        return True
