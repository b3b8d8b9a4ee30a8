"""Decides which root calls wait to be sent: a window at the caller, a budget at the callee.

    caller                                              callee
    root call ─▶ place in the Window?  no ─▶ wait
                  │ yes
                 within the allowance? yes ─▶ the call ────────────────▶ served
                  │ no
                 Ask(call, bytes) ────────────────▶ room in the Budget? no ─▶ wait, peers in turn
                                                      │ yes
                 the call ◀──────────────────────── Admit: a permit
                    └──────────────────────────────▶ in use until it ends or waits
                                                      nothing of it comes: the permit lapses

Guarantees, under any order of messages:

- G1: an admitted call comes whole: its bytes are taken from the budget before any of them is sent.
- G2: every call ends up started or withdrawn, as long as calls in use end, wait or stall: the
  head of the queue is admitted as soon as nothing is in use, whatever its size, and no message that
  a call in use may need (replies, nested calls, its own bytes) ever waits here.
- G3: calls that wait for the same reason start in the order in which they were made, per peer;
  the callee takes peers in turn, and no call overtakes the head of the queue.
- G4: bytes that are given back twice count once; a lost peer holds only the bytes of calls that
  still run.
- G5: a permit that lapsed holds nothing. Its call may come all the same, and counts from then on;
  until it does, or is withdrawn, its peer's turn comes after those of all others.

A `Window` belongs to one peer, a `Budget` to all. Neither is thread-safe; their owner holds one
lock around each event.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias, final

from telegrad.types import WorkerInfo

ASK: Final = "rpc.ask"  # [call, bytes]: may it come?
WITHDRAW: Final = "rpc.withdraw"  # call: one that has asked will not come
ADMIT: Final = "rpc.admit"  # call: it may

# Of `pending_bytes`: 4 MiB by default. A permit costs a round trip: 200 calls of 16 KiB at once
# took 36 ms within an allowance of 4 MiB, 61 ms within 1 MiB, over loopback on two cores; one call
# of 2 MiB took 2.7 ms, or 3.4 ms if it needed a permit. Ten peers that need none hold 40 MiB, and
# 256 hold as much as the calls with a permit.
UNASKED_PART: Final = 256


class NextStep(Enum):
    """The next step of a call."""

    START = "it is sent now"
    ASK = "the callee is asked"
    WAIT = "it waits for a place"
    WITHDRAW = "the callee hears that it will not come"


class Move(NamedTuple):
    """One step of one call.

    Attributes:
        call: The call's number.
        step: The step.
        size: The call's bytes.
    """

    call: int
    step: NextStep
    size: int


@final
class Window:
    """The caller's end: the root calls of this worker to one peer.

    Args:
        limit: The most calls with a place at once.
        allowance: The most bytes of calls that are sent at once, without a permit.
    """

    def __init__(self, limit: int, allowance: int) -> None:
        self._limit = limit
        self._allowance = allowance  # the bytes of it that no call has taken
        self._waiting: dict[int, int] = {}  # calls without a place, in order, to their sizes
        self._placed: dict[int, int] = {}  # calls to the bytes that they take of the allowance
        self._asking: dict[int, int] = {}  # those of them that wait for a permit, to their sizes

    @property
    def is_empty(self) -> bool:
        """True if it knows of no call."""
        return not (self._placed or self._waiting)

    def enter(self, call: int, size: int, *, waited: bool = False) -> NextStep:
        """Takes a new call and returns its first step: START, ASK or WAIT.

        Args:
            call: The call's number.
            size: Its bytes.
            waited: True if it has waited, and there is a place for it.
        """
        if not waited and (self._waiting or len(self._placed) >= self._limit):
            self._waiting[call] = size
            return NextStep.WAIT
        if size > self._allowance:
            self._placed[call], self._asking[call] = 0, size
            return NextStep.ASK
        self._allowance -= size
        self._placed[call] = size
        return NextStep.START

    def admit(self, call: int) -> bool:
        """Takes the callee's permit for a call; returns False if the call was withdrawn before."""
        return self._asking.pop(call, None) is not None

    def is_permitted(self, call: int) -> bool:
        """Returns True if a call has the permit for which it asked."""
        return self._placed.get(call) == 0 and call not in self._asking

    def leave(self, call: int) -> list[Move]:
        """Takes out a call that was answered, or that will never start; idempotent.

        Returns:
            Its own WITHDRAW if it had asked, then START or ASK of the calls that get a place.
        """
        moves: list[Move] = []
        if (taken := self._placed.pop(call, None)) is None:
            self._waiting.pop(call, None)
        else:
            self._allowance += taken
            if self._asking and (size := self._asking.pop(call, None)) is not None:
                moves.append(Move(call, NextStep.WITHDRAW, size))
        while self._waiting and len(self._placed) < self._limit:
            first = next(iter(self._waiting))
            size = self._waiting.pop(first)
            moves.append(Move(first, self.enter(first, size, waited=True), size))
        return moves

    def lose(self) -> None:
        """Forgets all calls, as the peer is lost."""
        for calls in (self._waiting, self._asking, self._placed):
            calls.clear()


class Grant(NamedTuple):
    """A call that has a permit."""

    peer: WorkerInfo
    call: int


_Key: TypeAlias = tuple[WorkerInfo, int]

# A permit lapses after so many looks at which nothing of its call had come. They take `lost_after`,
# the time in which a silent worker is lost, and 100 s at most. A worker that is alive announces an
# admitted call at once and sends its pieces in turn with all other messages. On a loaded host it
# pauses for a second or two, and a permit that lapses too soon exceeds the budget.
LOOKS: Final = 10


@final
class Budget:
    """The callee's end: the calls with a permit, and those that asked for one.

    Args:
        limit: The most bytes in use at once.

    Attributes:
        in_use: The bytes of calls that are here, or on their way.
        changes: A number that grows whenever a call arrives or gives its bytes back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: dict[WorkerInfo, dict[int, int]] = {}  # peers in turn, calls in order
        self._coming: dict[_Key, int] = {}  # calls with a permit that are not here yet
        self._here: dict[_Key, int] = {}
        self._lapsed: dict[_Key, int] = {}  # calls that had a permit, and may still come
        self._withdrawn: set[_Key] = set()  # calls that were withdrawn before they asked
        self._silent: dict[_Key, tuple[int | None, int]] = {}  # pieces missing, looks at those
        self.in_use = 0
        self.changes = 0

    @property
    def is_full(self) -> bool:
        """True if calls wait to be admitted."""
        return bool(self._queue)

    @property
    def is_empty(self) -> bool:
        """True if it knows of no call."""
        known = (self._queue, self._coming, self._here, self._lapsed, self._withdrawn)
        return not any(known)

    @property
    def expects(self) -> bool:
        """True if a call that was admitted is not here yet."""
        return bool(self._coming or self._lapsed)

    @property
    def coming(self) -> list[Grant]:
        """The calls that have a permit and are not here yet."""
        return [Grant(peer, call) for peer, call in self._coming]

    def asked_by(self, peer: WorkerInfo) -> int:
        """Returns the number of calls of a peer that wait for a permit, or let theirs lapse."""
        lapsed = sum(other == peer for other, _ in self._lapsed)
        return len(self._queue.get(peer, ())) + lapsed

    def ask(self, peer: WorkerInfo, call: int, size: int) -> list[Grant]:
        """Takes the request of a peer that wants to send a call of `size` bytes."""
        key = (peer, call)
        # The caller decides under its lock and posts without it, so that its withdrawal may
        # overtake its question.
        if key in self._withdrawn:
            self._withdrawn.remove(key)
            return []
        if not any(key in known for known in (self._coming, self._here, self._lapsed)):
            self._queue.setdefault(peer, {}).setdefault(call, size)
        return self._admit()

    def arrive(self, peer: WorkerInfo, call: int) -> bool:
        """Counts a call that came; returns True if it had asked."""
        key = (peer, call)
        if (size := self._coming.pop(key, None)) is None:
            if (size := self._lapsed.pop(key, None)) is None:
                return False
            self.in_use += size
        self._here[key] = size
        self.changes += 1
        return True

    def release(self, peer: WorkerInfo, call: int) -> list[Grant]:
        """Gives back the bytes of a call that ended, or begins to wait; idempotent."""
        self._give_back((peer, call))
        return self._admit()

    def withdraw(self, peer: WorkerInfo, call: int) -> list[Grant]:
        """Forgets a call that had asked and will not come."""
        if self._unqueue(peer, call) is None and not self._give_back((peer, call)):
            self._withdrawn.add((peer, call))
        return self._admit()

    def lose(self, peer: WorkerInfo) -> list[Grant]:
        """Forgets a lost peer, of which nothing will come; its calls that are here run on."""
        self._queue.pop(peer, None)
        self._withdrawn = {key for key in self._withdrawn if key[0] != peer}
        for key in [key for key in (*self._coming, *self._lapsed) if key[0] == peer]:
            self._give_back(key)
        return self._admit()

    def look(self, missing: Mapping[Grant, int | None], seen: int) -> list[Grant]:
        """Checks for a stall, some time after the last look, while calls wait.

        A permit of whose call nothing has come for `LOOKS` looks lapses. If no call is coming and
        no call has arrived or ended since the last look, one more is admitted beyond the limit: the
        calls that are here may wait for it.

            look   1     2     3    ...   LOOKS + 1
                   seen  same  same       same: the permit lapses, and others come in its place
                         a piece has come: counted anew

        Args:
            missing: For each call that is `coming`, the number of its pieces that have not come;
                None if it is not announced yet.
            seen: The value of `changes` at the last look.
        """
        silent, self._silent = self._silent, {}
        stalled = self.changes == seen and not self._coming
        for key, size in list(self._coming.items()):
            left = missing.get(Grant(*key))
            before, looks = silent.get(key, (left, 0))
            looks = looks + 1 if before == left else 1
            if looks <= LOOKS:
                self._silent[key] = left, looks
            else:
                self._give_back(key)
                self._lapsed[key] = size
        return self._admit(beyond=stalled)

    def _admit(self, *, beyond: bool = False) -> list[Grant]:
        """Admits the calls for which there is room; with `beyond` the first one in any case."""
        grants: list[Grant] = []
        while self._queue:
            # G5: peers that let a permit lapse come after all others.
            late = {peer for peer, _ in self._lapsed}
            peer = next((each for each in self._queue if each not in late), next(iter(self._queue)))
            call, size = next(iter(self._queue[peer].items()))
            # G2: with nothing in use, the head of the queue goes, whatever its size.
            if self.in_use and self.in_use + size > self._limit and not beyond:
                break
            beyond = False
            self._unqueue(peer, call)
            if peer in self._queue:
                self._queue[peer] = self._queue.pop(peer)  # to the end: peers take turns
            self._coming[peer, call] = size
            self.in_use += size
            grants.append(Grant(peer, call))
        return grants

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
        self.in_use -= size
        self.changes += 1
        return True
