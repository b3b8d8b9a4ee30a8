"""Forming of a group: each member compares its call with every other's; pure.

Two workers count the groups that each tries to form with the other. The n-th attempt of one meets
the n-th attempt of the other.

    0: new_group([0, 1])       form ──▶          ◀── form       1: new_group([0, 1])
                               seen ──▶          ◀── seen
                               agreed ──▶        ◀── agreed
       formed                                                      formed

    0: new_group([0, 1])       form ──▶          ◀── form       1: new_group([0, 1, 2])
                               seen ──▶          ◀── seen
       failed                    these do not fit                  failed, tells 2 `unformed`

Calls of shrink_group name the living members of an old group and the lost ones that the caller
knows of. If a peer knows of further losses, an attempt fails with the first of them, and its worker
begins another one without that member, which the peer's attempt then meets:

    0: shrink [0, 1]           form, lost 2, 3 ──▶     ◀── form, lost 3      1: shrink [0, 1, 2]
       waits                                           ◀── unformed          failed: 2 is lost
                                                       ◀── form, lost 2, 3   1: shrink [0, 1]

Members agree on the backend and on the thresholds of the group, too. Only the first member must
state thresholds, which all others then take; one that states others does not fit.

An attempt is compared only with messages that were sent in view of it: earlier ones may be over.
An attempt is formed when every member has agreed to the same attempts of all members. When one
fails, the attempts that it was to meet fail with it, so that each worker raises the failure once.

If a worker has already raised the failure, it heard of it by way of another worker; its attempt
then meets the peer's next one. The same holds if the failure is the loss of a worker that is not
among the attempt's members. Messages may come in any order.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from telegrad.collectives.messages import FormMessage, GroupKey, UnformedMessage
from telegrad.errors import CollectiveMismatchError, DecodeError, WorkerLostError
from telegrad.types import WorkerInfo


class State(enum.Enum):
    """The progress of an attempt."""

    FORMING = enum.auto()
    FORMED = enum.auto()
    FAILED = enum.auto()


# The name of a backend, and thresholds as plain values.
Asked: TypeAlias = tuple[str, tuple[int, ...] | None]


@final
class Attempt:
    """One call of new_group, or one try of shrink_group, at this worker.

    Attributes:
        number: The number of the attempt at this worker, from 1.
        members: The members in the order of their ranks in the group.
        lost: For shrink_group the ranks that are left out because they are lost; None for
            new_group.
        asks: The backend and the thresholds that the call asks for; None for the thresholds of the
            first member.
        digest: A short name for the members in their order.
        places: For each other member: the number of this attempt among those with that member.
        said: The last message sent to each other member.
        state: The progress of the attempt.
    """

    def __init__(
        self,
        number: int,
        members: tuple[WorkerInfo, ...],
        lost: tuple[int, ...] | None,
        asks: Asked = ("", None),
    ) -> None:
        self.number = number
        self.members = members
        self.lost = lost
        self.asks = asks
        self.digest = digest_of(members)
        self.places: dict[WorkerInfo, int] = {}
        self.said: dict[WorkerInfo, FormMessage] = {}
        self.state = State.FORMING

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members' ranks in the job."""
        return tuple(member.rank for member in self.members)

    @property
    def called(self) -> str:
        """The call in words."""
        return _called(self.ranks, self.lost)


@final
@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a worker."""

    peer: WorkerInfo
    message: FormMessage | UnformedMessage


@final
@dataclass(frozen=True, slots=True)
class Formed:
    """All members of an attempt agree.

    Attributes:
        key: The name of the group.
        thresholds: The thresholds of the group; None for the default ones.
    """

    attempt: Attempt
    key: GroupKey
    thresholds: tuple[int, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt has failed, or the group that it formed has failed."""

    attempt: Attempt
    cause: BaseException


Action: TypeAlias = SendMessage | Formed | Failed

# So many groups a worker may try to form with another one that has not begun to form any of them.
MOST_AHEAD = 10_000

_LOSS = "loss of "
_NONE = FormMessage(place=0, number=0, members="", ranks=())


@final
@dataclass(slots=True)
class _Theirs:
    """The messages that came about one attempt of another worker."""

    form: FormMessage | None = None
    unformed: UnformedMessage | None = None


@final
class Forming:
    """The attempts of one worker."""

    def __init__(self, own: WorkerInfo) -> None:
        self._own = own
        self._number = 0
        self._next = Counter[WorkerInfo]()
        self._mine: dict[tuple[WorkerInfo, int], Attempt] = {}
        self._theirs: dict[tuple[WorkerInfo, int], _Theirs] = {}
        self._raised: set[str] = set()

    def begin(
        self,
        members: Sequence[WorkerInfo],
        lost: Sequence[int] | None = None,
        asks: Asked = ("", None),
    ) -> tuple[Attempt, list[Action]]:
        """Starts an attempt; this worker is one of the members."""
        self._number += 1
        left_out = None if lost is None else tuple(lost)
        attempt = Attempt(self._number, tuple(members), left_out, asks)
        actions: list[Action] = []
        for peer in attempt.members:
            if peer != self._own:
                actions += self._meet(attempt, peer, self._next[peer])
        return attempt, actions + self._look(attempt)

    def refuse(self, peers: Sequence[WorkerInfo], cause: BaseException) -> list[Action]:
        """Fails the next attempt of each peer with this worker, which does not take part in it.

        Workers that refuse each other's, as their programs have one mistake in common, are in step.
        """
        self._number += 1
        named = f"{self._own.name}:{self._number}"
        self._raised.add(named)
        actions: list[Action] = []
        for peer in peers:
            place = self._next[peer]
            self._next[peer] += 1
            actions.append(SendMessage(peer, UnformedMessage(place, named, cause)))
        return actions

    def missing(self, attempt: Attempt) -> list[WorkerInfo]:
        """Returns the members that have sent nothing for an attempt."""
        return [p for p, place in attempt.places.items() if self._known(p, place).form is None]

    def on_form(self, peer: WorkerInfo, message: FormMessage) -> list[Action]:
        """Handles a worker's message that it forms a group with this one; raises DecodeError."""
        self._check_place(peer, message.place)
        theirs = self._known(peer, message.place)
        before = theirs.form or message
        theirs.form = replace(
            message,
            seen=max(message.seen, before.seen),
            agreed=max(message.agreed, before.agreed),  # numbers only grow
        )
        attempt = self._mine.get((peer, message.place))
        return [] if attempt is None else self._look(attempt)

    def on_unformed(self, peer: WorkerInfo, message: UnformedMessage) -> list[Action]:
        """Handles a worker's message that its attempt, or its group, failed; raises DecodeError."""
        self._check_place(peer, message.place)
        self._known(peer, message.place).unformed = message
        attempt = self._mine.get((peer, message.place))
        if attempt is None or attempt.state is State.FAILED:
            return []
        if attempt.state is State.FORMED or self._concerns(attempt, message):
            return self.fail(attempt, message.cause, message.failure)
        return [*self._meet(attempt, peer, message.place + 1), *self._look(attempt)]

    def lose(self, worker: WorkerInfo, cause: BaseException) -> list[Action]:
        """Ends the attempts with a worker that is lost."""
        with_it = {a: None for a in self._mine.values() if worker in a.members}  # each once
        waiting = [attempt for attempt in with_it if attempt.state is State.FORMING]
        return [action for each in waiting for action in self.fail(each, cause, _loss_of(worker))]

    def fail(self, attempt: Attempt, cause: BaseException, failure: str = "") -> list[Action]:
        """Ends an attempt with a cause.

        Args:
            attempt: The attempt.
            cause: The error to raise.
            failure: The name of the failure; by default a new one, which begins here.
        """
        if attempt.state is State.FAILED:
            return []
        named = failure or f"{self._own.name}:{attempt.number}"
        attempt.state = State.FAILED
        self._raised.add(named)
        tell = [
            SendMessage(peer, UnformedMessage(place, named, cause))
            for peer, place in attempt.places.items()
        ]
        return [*tell, Failed(attempt, cause)]

    def _concerns(self, attempt: Attempt, over: UnformedMessage) -> bool:
        """Returns True if the failure of an attempt that this one meets fails this one as well."""
        if over.failure.startswith(_LOSS):
            return any(over.failure == _loss_of(member) for member in attempt.members)
        return over.failure not in self._raised

    def _check_place(self, peer: WorkerInfo, place: int) -> None:
        here = self._next.get(peer, 0)
        if not 0 <= place < here + MOST_AHEAD:
            raise DecodeError(
                f"{peer.name!r} forms group {place} with this worker, which has formed {here}"
            )

    def _known(self, peer: WorkerInfo, place: int) -> _Theirs:
        return self._theirs.setdefault((peer, place), _Theirs())

    def _meet(self, attempt: Attempt, peer: WorkerInfo, place: int) -> list[Action]:
        """Makes an attempt meet a worker's, at `place` or the first after it that concerns it."""
        while (over := self._known(peer, place).unformed) and not self._concerns(attempt, over):
            place += 1
        self._next[peer] = place + 1
        attempt.places[peer] = place
        attempt.said.pop(peer, None)
        self._mine[peer, place] = attempt
        return self._say(attempt, peer, 0)

    def _say(
        self, attempt: Attempt, peer: WorkerInfo, seen: int, agreed: tuple[int, ...] = ()
    ) -> list[Action]:
        """Tells a member the progress of this attempt, unless it has been told."""
        message = FormMessage(
            attempt.places[peer],
            attempt.number,
            attempt.digest,
            attempt.ranks,
            seen,
            agreed,
            attempt.lost,
            *attempt.asks,
        )
        if attempt.said.get(peer) == message:
            return []
        attempt.said[peer] = message
        return [SendMessage(peer, message)]

    def _look(self, attempt: Attempt) -> list[Action]:
        """Compares an attempt with those that it meets, as far as they are known."""
        if attempt.state is not State.FORMING:
            return []
        forms: dict[WorkerInfo, FormMessage] = {}
        actions: list[Action] = []
        for peer, place in attempt.places.items():
            theirs = self._known(peer, place)
            if theirs.unformed is not None:
                return self.fail(attempt, theirs.unformed.cause, theirs.unformed.failure)
            if theirs.form is not None:
                forms[peer] = theirs.form
        for peer, form in forms.items():
            if not attempt.said[peer].seen:
                actions += self._say(attempt, peer, form.number)
            # Before a peer has seen this attempt, its own may be over and `unformed` on its way.
            if form.seen == attempt.number and form.members != attempt.digest:
                over = self._differ(attempt, peer, form)
                if over:
                    return actions + over
            elif form.seen == attempt.number and not _agree(attempt.asks, _asked(form)):
                return actions + self._mismatch(attempt, peer, form)
        fitting = attempt.number, attempt.digest
        known = [forms.get(peer, _NONE) for peer in attempt.places]
        if any((form.seen, form.members) != fitting for form in known):
            return actions
        numbers = {self._own: attempt.number} | {peer: form.number for peer, form in forms.items()}
        agreed = tuple(numbers[member] for member in attempt.members)
        for peer, form in forms.items():
            actions += self._say(attempt, peer, form.number, agreed)
        if all(form.agreed == agreed for form in forms.values()):
            attempt.state = State.FORMED
            first = forms.get(attempt.members[0])
            thresholds = attempt.asks[1] if first is None else first.thresholds
            actions.append(Formed(attempt, GroupKey(attempt.digest, agreed[0]), thresholds))
        return actions

    def _differ(self, attempt: Attempt, peer: WorkerInfo, theirs: FormMessage) -> list[Action]:
        """Ends an attempt that a peer's does not fit, unless the peer's lacks a loss known here."""
        lost_there, lost_here = theirs.lost or (), attempt.lost or ()
        mine = tuple(rank for rank in attempt.ranks if rank not in lost_there)
        if mine != tuple(rank for rank in theirs.ranks if rank not in lost_here):
            return self._mismatch(attempt, peer, theirs)
        for member in attempt.members:
            if member.rank in lost_there:
                return self.fail(attempt, _lost_by(peer, member), _loss_of(member))
        # The peer's attempt will fail. If the ranks are equal, their incarnations are not.
        return self._mismatch(attempt, peer, theirs) if attempt.ranks == theirs.ranks else []

    def _mismatch(self, attempt: Attempt, peer: WorkerInfo, theirs: FormMessage) -> list[Action]:
        agree = _agree(attempt.asks, _asked(theirs))
        mine, other = ("" if agree else _words(each) for each in (attempt.asks, _asked(theirs)))
        called = _called(theirs.ranks, theirs.lost)
        calls = sorted(
            [
                (self._own.rank, self._own.name, attempt.called + mine, attempt.number),
                (peer.rank, peer.name, called + other, theirs.number),
            ]
        )
        said = ", but ".join(
            f"rank {rank} ({name!r}) called {called}" for rank, name, called, _ in calls
        )
        advice = "all members must make a group of the same ranks in the same order"
        if not agree:
            advice += ", with the same backend and the same table of thresholds"
        cause = CollectiveMismatchError(f"{said}; {advice}")
        named = " ".join(f"{name}:{number}" for _, name, _, number in calls)
        return self.fail(attempt, cause, named)


def _called(ranks: Sequence[int], lost: Sequence[int] | None) -> str:
    if lost is None:
        return f"new_group({list(ranks)})"
    return f"shrink_group() to {list(ranks)}" + (f" without the lost {list(lost)}" if lost else "")


def _words(asks: Asked) -> str:
    backend, thresholds = asks
    said = f" with backend={backend!r}"
    return said if thresholds is None else f"{said} and thresholds {list(thresholds)}"


def _asked(form: FormMessage) -> Asked:
    return form.backend, form.thresholds


def _agree(mine: Asked, theirs: Asked) -> bool:
    """Returns True if two members can be in one group; None agrees with all thresholds."""
    stated = {each[1] for each in (mine, theirs)} - {None}
    return mine[0] == theirs[0] and len(stated) < 2


def _lost_by(peer: WorkerInfo, worker: WorkerInfo) -> WorkerLostError:
    reason = f"rank {peer.rank} ({peer.name!r}) has lost it"
    return WorkerLostError(
        f"worker {worker.name!r} (incarnation {worker.incarnation}) is lost: {reason}",
        worker=worker.name,
        incarnation=worker.incarnation,
        reason=reason,
    )


def _loss_of(worker: WorkerInfo) -> str:
    return f"{_LOSS}{worker.name}:{worker.incarnation}"


def digest_of(members: Sequence[WorkerInfo]) -> str:
    """Returns a short name of workers in an order, the same on each of them."""
    words = " ".join(f"{m.name}:{m.rank}:{m.incarnation}" for m in members)
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


# Longer lists of ranks are shortened in a group's name.
NAMED_RANKS = 8


def name_of(ranks: Sequence[int]) -> str:
    """Returns the name, in errors, of a group of ranks of the job."""
    named = [str(rank) for rank in ranks]
    if len(named) > NAMED_RANKS:
        named[NAMED_RANKS - 1 : -1] = ["..."]
    return f"[{', '.join(named)}]"
