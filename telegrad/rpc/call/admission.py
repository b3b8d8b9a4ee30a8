"""Which root calls wait before they are sent: a window at the caller, a budget at the callee.

    caller                                              callee
    root call ─▶ place in the Window,
                 and in Places?  no ─▶ wait
                  │ yes
                 within the allowance? yes ─▶ the call ────────────────▶ served
                  │ no
                 Ask(call, bytes) ────────────────▶ Budget: room, no ─▶ wait, peers in turn
                                                    in all and for
                                                    the caller?
                                                      │ yes
                 the call ◀──────────────────────── Admit
                    └──────────────────────────────▶ in use until it ends or waits
                                                      nothing of it comes: the leave lapses

Guarantees, under any order of messages:

- G1: what is admitted comes whole: the budget is taken before its first byte is sent.
- G2: every call ends up started or withdrawn, as long as calls in use end, wait or stall: the
  head of the queue is admitted as soon as nothing is in use, whatever its size, and nothing that a
  call in use may need (replies, nested calls, its own bytes) ever waits here.
- G3: calls that wait for the same reason start in the order in which they were made, per peer;
  both ends take peers in turn, and nobody overtakes who waits at the head, unless that peer has
  what one may have.
- G4: what is given back twice counts once; who is lost holds nothing but what still runs.
- G5: a leave that lapsed holds nothing. Its call may come all the same, and counts from then on;
  until it does, or is withdrawn, its peer's turn comes after those of all others.

A `Window` belongs to one peer, `Places` and a `Budget` to all. None is thread-safe; whoever owns
them holds one lock around each event.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias, final

from telegrad.rpc.limits import Limits
from telegrad.types import WorkerInfo

__all__ = ["LOOKS", "Budget", "Grant", "Leaves", "Move", "Places", "Step", "Window"]


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
class Places:
    """How many root calls of this worker, to all others, are unanswered at once.

    Args:
        limit: How many may be.

    Attributes:
        taken: How many are; the windows count, and `fill` where it has become less.
        line: The windows that wait for a place here, in turn.
    """

    __slots__ = ("limit", "line", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self.line: dict[Window, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is none left."""
        return self.taken >= self.limit

    def queue(self, window: Window) -> None:
        """A window has calls that wait for nothing but a place here."""
        self.line.setdefault(window)

    def fill(self) -> list[Move]:
        """Gives the places that are free to the windows in turn; returns what starts or asks."""
        moves = []
        while self.line and not self.is_full:
            window = next(iter(self.line))
            del self.line[window]
            if window.is_ready:
                moves.append(window.start_first())
            if window.is_ready:
                self.line[window] = None
        return moves


@final
class Window:
    """The caller's end: the root calls of this worker to one peer.

    Args:
        limits: Of this worker.
        places: Of this worker, for the calls to all peers.
    """

    def __init__(self, limits: Limits, places: Places) -> None:
        self._limit = limits.pending_calls_per_peer
        self._places = places
        self._allowance = limits.allowance_bytes
        self._unasked = 0  # bytes of calls that went without asking
        self._taken = 0  # places: calls that have started, or ask
        self._waiting: dict[int, int] = {}  # no place yet, in order; call to size
        self._asking: dict[int, int] = {}  # have a place; call to size
        self._started: dict[int, int] = {}  # call to what it takes of the allowance

    @property
    def is_empty(self) -> bool:
        """Whether it knows of no call."""
        return not (self._started or self._asking or self._waiting)

    @property
    def is_ready(self) -> bool:
        """Whether a call waits and this window has a place for it."""
        return bool(self._waiting) and self._taken < self._limit

    def enter(self, call: int, size: int) -> Step:
        """Takes a new call and says what becomes of it: START, ASK or WAIT."""
        places = self._places
        if self._waiting or self._taken >= self._limit or places.taken >= places.limit:
            self._waiting[call] = size
            if self.is_ready:
                places.queue(self)
            return Step.WAIT
        if self._unasked + size > self._allowance:
            return self._take_place(call, size)
        self._taken += 1  # as `_take_place` does: nearly every call ends here
        places.taken += 1
        self._unasked += size
        self._started[call] = size
        return Step.START

    def start_first(self) -> Move:
        """Gives a place to the call that has waited longest; for `Places`."""
        call = next(iter(self._waiting))
        size = self._waiting.pop(call)
        return Move(call, self._take_place(call, size), size)

    def admit(self, call: int) -> bool:
        """Hears that the callee takes a call; tells whether it starts, or was withdrawn before."""
        if self._asking.pop(call, None) is None:
            return False
        self._started[call] = 0
        return True

    def leave(self, call: int) -> list[Move]:
        """Takes out a call that was answered, or that will never start; idempotent.

        Returns:
            Its own WITHDRAW where it had asked, then START or ASK of what has its place: a call
            to any peer.
        """
        moves: list[Move] = []
        places = self._places
        allowance = self._started.pop(call, None)
        if allowance is not None:
            self._unasked -= allowance
            self._taken -= 1
            places.taken -= 1
        elif self._waiting.pop(call, None) is None:
            size = self._asking.pop(call, None)
            if size is not None:
                self._taken -= 1
                places.taken -= 1
                moves.append(Move(call, Step.WITHDRAW, size))
        if self._waiting and self.is_ready:
            places.queue(self)
        return moves + places.fill() if places.line else moves

    def lose(self) -> list[Move]:
        """Its peer is lost: forgets all calls; returns START or ASK of what has their places."""
        self._places.taken -= self._taken
        self._taken = 0
        for calls in (self._waiting, self._asking, self._started):
            calls.clear()
        return self._places.fill()

    def _take_place(self, call: int, size: int) -> Step:
        self._taken += 1
        self._places.taken += 1
        if self._unasked + size > self._allowance:
            self._asking[call] = size
            return Step.ASK
        self._unasked += size
        self._started[call] = size
        return Step.START


class Grant(NamedTuple):
    """A call that may come."""

    peer: WorkerInfo
    call: int


_Key: TypeAlias = tuple[WorkerInfo, int]


@final
class Budget:
    """The callee's end: what it takes in of calls that asked.

    Args:
        limit: Bytes in use at once.
        per_peer: Bytes in use at once of one peer's calls.
    """

    def __init__(self, limit: int, per_peer: int) -> None:
        self._limit = limit
        self._per_peer = per_peer
        self._in_use_by: dict[WorkerInfo, int] = {}  # without those of which there is nothing
        self._changed: dict[WorkerInfo, int] = {}  # their last one among the changes
        self._queue: dict[WorkerInfo, dict[int, int]] = {}  # peers in turn, calls in order
        self._coming: dict[_Key, int] = {}  # admitted, not here yet
        self._here: dict[_Key, int] = {}
        self._lapsed: dict[_Key, int] = {}  # admitted once, and may still come
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
        known = (self._queue, self._coming, self._here, self._lapsed, self._withdrawn)
        return not any(known)

    @property
    def expects(self) -> bool:
        """Whether there is a call that was admitted and is not here yet."""
        return bool(self._coming or self._lapsed)

    @property
    def coming(self) -> list[Grant]:
        """The calls that were admitted and are not here yet."""
        return [Grant(peer, call) for peer, call in self._coming]

    def asked_by(self, peer: WorkerInfo) -> int:
        """How many calls of a peer wait to be admitted, or were and did not come."""
        lapsed = sum(other == peer for other, _ in self._lapsed)
        return len(self._queue.get(peer, ())) + lapsed

    def ask(self, peer: WorkerInfo, call: int, size: int) -> list[Grant]:
        """A peer wants to send a call of `size` bytes."""
        key = (peer, call)
        if key in self._withdrawn:
            self._withdrawn.remove(key)
            return []
        if not any(key in known for known in (self._coming, self._here, self._lapsed)):
            self._queue.setdefault(peer, {}).setdefault(call, size)
        return self._admit()

    def arrive(self, peer: WorkerInfo, call: int) -> bool:
        """A call came; tells whether it is one that had asked."""
        size = self._coming.pop((peer, call), None) if self._coming else None
        if size is None and self._lapsed:
            size = self._lapsed.pop((peer, call), None)
            self._use(peer, size or 0)
        if size is None:
            return False
        self._here[peer, call] = size
        self._note_change(peer)
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
        for key in [key for key in (*self._coming, *self._lapsed) if key[0] == peer]:
            self._give_back(key)
        return self._admit()

    def lapse(self, leaves: Iterable[Grant]) -> list[Grant]:
        """Nothing has come of these for long: they hold up nobody any more."""
        for key in leaves:
            size = self._coming.get(key)
            if size is not None:
                self._give_back(key)
                self._lapsed[key] = size
        return self._admit()

    def overdraw(self, seen: int) -> list[Grant]:
        """Nothing may have changed for long: admits one call more than it would.

        It admits none for whom one is still coming.

        Args:
            seen: What `changes` was then. If it is that still, the next call comes; else the next
                one of each peer of which nothing has changed, and that has what one may have.
        """
        if self._changes == seen:
            return [] if self._coming else self._admit(beyond=True)
        coming = {peer for peer, _ in self._coming}
        return self._admit(
            stalled=[
                peer
                for peer in self._queue
                if self._is_kept_back(peer) and self._changed[peer] <= seen and peer not in coming
            ]
        )

    def _admit(self, *, beyond: bool = False, stalled: Iterable[WorkerInfo] = ()) -> list[Grant]:
        """Admits what there is room for.

        Args:
            beyond: The first one comes in any case.
            stalled: Whose next call comes regardless of what one peer may have.
        """
        grants: list[Grant] = []
        regardless = set(stalled)
        while (peer := self._next_peer(self._queue if beyond else regardless)) is not None:
            call, size = next(iter(self._queue[peer].items()))
            if self._in_use and self._in_use + size > self._limit and not beyond:
                break
            beyond = False
            regardless.discard(peer)
            self._unqueue(peer, call)
            if peer in self._queue:
                self._queue[peer] = self._queue.pop(peer)  # to the end: peers take turns
            self._coming[peer, call] = size
            self._use(peer, size)
            self._changed.setdefault(peer, self._changes)
            grants.append(Grant(peer, call))
        return grants

    def _next_peer(self, regardless: Container[WorkerInfo]) -> WorkerInfo | None:
        """Whose turn it is: whoever let a leave lapse comes after all others."""
        late = {peer for peer, _ in self._lapsed}
        first = None
        for peer in self._queue:
            if peer not in regardless and self._is_kept_back(peer):
                continue
            if peer not in late:
                return peer
            first = first or peer
        return first

    def _is_kept_back(self, peer: WorkerInfo) -> bool:
        """Whether a peer that waits has in use what one may have."""
        used = self._in_use_by.get(peer, 0)
        return used > 0 and used + next(iter(self._queue[peer].values())) > self._per_peer

    def _use(self, peer: WorkerInfo, size: int) -> None:
        self._in_use += size
        used = self._in_use_by.get(peer, 0) + size
        if used:
            self._in_use_by[peer] = used
        else:
            self._in_use_by.pop(peer, None)

    def _note_change(self, peer: WorkerInfo) -> None:
        self._changes += 1
        if peer in self._in_use_by:
            self._changed[peer] = self._changes
        else:
            self._changed.pop(peer, None)

    def _unqueue(self, peer: WorkerInfo, call: int) -> int | None:
        calls = self._queue.get(peer, {})
        size = calls.pop(call, None)
        if size is not None and not calls:
            del self._queue[peer]
        return size

    def _give_back(self, key: _Key) -> bool:
        if self._lapsed.pop(key, None) is not None:
            return True
        held = self._coming if key in self._coming else self._here
        size = held.pop(key, None)
        if size is None:
            return False
        self._use(key[0], -size)
        self._note_change(key[0])
        return True


# -- leaves that lapse: those of which nothing comes while others wait -----------------------------

# Of `Limits.stalled_after` each: 10 s, the time in which a silent worker is lost. On a loaded host
# honest ones pause for a second or two, and a leave that lapses too soon exceeds the budget.
LOOKS: Final = 10


@final
class Leaves:
    """Counts looks at the calls that were admitted and have not come.

        look   1     2     3    ...   LOOKS + 1
               seen  same  same       same: the leave lapses, and others come in its place
                     a piece has come: counted anew

    A worker that is alive announces an admitted call at once and sends its pieces in turn with
    whatever else it sends, so at ten looks in a row the same says that it is stopped, cut off or
    means harm. If the call comes after all it is taken in, and counts from then on.
    """

    def __init__(self) -> None:
        self._seen: dict[Grant, tuple[int | None, int]] = {}

    def look(self, coming: Mapping[Grant, int | None]) -> list[Grant]:
        """Takes a look; returns the leaves that lapse now.

        Args:
            coming: The calls on their way, and how many pieces each still awaits; None where it is
                not announced yet.
        """
        seen, self._seen = self._seen, {}
        lapsed = []
        for grant, left in coming.items():
            before, looks = seen.get(grant, (left, 0))
            looks = looks + 1 if before == left else 1
            if looks > LOOKS:
                lapsed.append(grant)
            else:
                self._seen[grant] = left, looks
        return lapsed
