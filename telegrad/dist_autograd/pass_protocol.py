"""The part of one worker in one backward pass: a pure state machine, events in, messages out.

A pass is a tree of begins (Dijkstra and Scholten, 1980) over a graph of claims:

    starter          worker B         worker C
       │ begin [a1]     │                │
       ├───────────────▶│ begin [b1]     │       B fixes its cut at its first begin
       │ gradient       ├───────────────▶│
       ├───────────────▶│     begin [c7] │       a further begin is replied to at once
       │                │◀───────────────┤
       │                │ begun          │
       │                ├───────────────▶│
       │                │ gradient       │
       │                ├───────────────▶│
       │                │ answer to b1   │
       │                │◀───────────────┤
       │                │          begun │       C: sends answered, graph done, begins replied to
       │          begun │◀───────────────┤
       │◀───────────────┤                        the starter's last reply ends the pass

Guarantees, proved in docs/dist-autograd.md and simulated in tests/dist_autograd:

    P1  Each claimed send gets exactly one answer: its gradient or none.
    P2  The pass ends, by success or with its first cause, unless a worker stays silent and alive.
    P3  If the starter ends with success, every worker of the pass has ended its part, and no
        message of the pass is under way but reports of losses, which the starter ignores.
    P4  If any worker aborts, the starter does not end with success.
    P5  When the starter ends with a cause, and neither a loss nor the deadline was it, every
        worker of the pass has aborted. An abort is a request: its first receiver replies when
        the aborts that it sent itself were replied to, and a begin's reply waits for both.

Nothing here uses a clock, a thread or a socket. The events of one machine come one at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import MappingProxyType
from typing import Final, Generic, TypeAlias, TypeVar, final

from telegrad.errors import AutogradError

G = TypeVar("G")  # the gradients of one function, one slot per Tensor that was sent

Peer: TypeAlias = int
"""A worker, by its incarnation: no other has it, and Python hashes it without a call."""

FunctionKey: TypeAlias = tuple[Peer, int]
"""A send or recv function at one worker: the peer, and the message id that the sender gave it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The functions that take part in a pass at one worker; fixed when the pass reaches the worker.

    Attributes:
        sends: Message ids of this worker's send functions, by peer.
        receives: This worker's recv functions.
        reached: The receives that this worker's roots or sends lead to.
        lost: Peers known to be lost, each with the error to raise for it.
    """

    sends: Mapping[Peer, Sequence[int]]
    receives: frozenset[FunctionKey]
    reached: frozenset[FunctionKey]
    lost: Mapping[Peer, BaseException] = field(default_factory=dict)


_NOTHING: Final = Cut(MappingProxyType({}), frozenset(), frozenset(), MappingProxyType({}))


# The actions. Each message leads to several, and frozen classes take three times as long to make.


@final
@dataclass(slots=True)
class Begin:
    """To a peer: the pass began, and these sends of mine to you are claims. Expects a reply."""

    peer: Peer
    claims: tuple[int, ...]


@final
@dataclass(slots=True)
class Reply:
    """To a peer: the reply to its begin; it carries a cause if the pass was aborted here."""

    peer: Peer
    cause: BaseException | None


@final
@dataclass(slots=True)
class Answer(Generic[G]):
    """To a peer: answers to its own sends: gradients by message id, and a list of nones."""

    peer: Peer
    gradients: tuple[tuple[int, G], ...]
    nones: tuple[int, ...]


@final
@dataclass(slots=True)
class Abort:
    """To a peer: a request to end the pass with this cause. To the starter: the wish to do so."""

    peer: Peer
    cause: BaseException


@final
@dataclass(slots=True)
class Confirm:
    """To a peer: the reply to its abort."""

    peer: Peer
    request: object


@final
@dataclass(slots=True)
class Feed(Generic[G]):
    """To the local graph: the answer to a send function; `gradient` is None for a none."""

    key: FunctionKey
    gradient: G | None


@final
@dataclass(slots=True)
class Drop:
    """To the local graph: stop, and discard the gradients of this pass."""

    cause: BaseException


@final
@dataclass(slots=True)
class End:
    """To the caller of backward at the starter: the pass ended; without a cause it succeeded."""

    cause: BaseException | None


Action: TypeAlias = Begin | Reply | Answer[G] | Abort | Confirm | Feed[G] | Drop | End


class Phase(enum.Enum):
    """The state of one worker in one pass.

    IDLE ──enter──▶ ACTIVE ──settled──▶ DONE     (the first begin is replied to)
      └──abort──▶ ABORTED ◀──abort──┘ ◀──abort──┘   (never from DONE at the starter)
    """

    IDLE = "idle"
    ACTIVE = "active"
    DONE = "done"
    ABORTED = "aborted"


@final
class PassProtocol(Generic[G]):
    """One worker's part in one pass.

    Args:
        starter: The worker on which backward was called; it alone decides how the pass ended.
    """

    def __init__(self, me: Peer, starter: Peer, name_of: Callable[[Peer], str] = str) -> None:
        self._name_of = name_of
        self.me = me
        self.starter = starter
        self.phase = Phase.IDLE
        self.cause: BaseException | None = None
        self._cut = _NOTHING
        self._parent: Peer | None = None  # its begin was the first one here
        self._ended = False  # the first begin was replied to; at the starter: End was returned
        self._finished = False  # the local graph has nothing left to do
        self._early: list[tuple[Peer, tuple[tuple[int, G], ...], tuple[int, ...]]] = []
        self._unanswered: set[FunctionKey] = set()  # my sends that wait for their answer
        self._unbegun: set[Peer] = set()  # peers whose reply to my begin is missing
        self._engaged: set[Peer] = set()  # peers that began with me, or I with them
        # My receives that are reached. Open: not resolved yet; True if a claim on it has come.
        # Resolved: True if a gradient came to it.
        self._open: dict[FunctionKey, bool] = {}
        self._resolved: dict[FunctionKey, bool] = {}
        self._gone: set[Peer] = set()
        self._told: set[Peer] = set()  # peers that were sent an abort
        self._unconfirmed: set[Peer] = set()  # those of them that have not replied to it
        self._aborter: tuple[Peer, object] | None = None  # its abort waits for mine

    @property
    def late(self) -> set[Peer]:
        """The peers that owe an answer to a send, or the reply to this worker's begin."""
        unanswered = tuple(self._unanswered)  # at once: another thread may handle an event
        return {peer for peer, _ in unanswered} | self._unbegun

    @property
    def awaits_reply(self) -> bool:
        """True if a peer has not replied to this worker's begin."""
        return bool(self._unbegun)

    # Events. Each returns the actions to carry out, in this order.

    def enter(
        self, cut: Cut, begun_by: Peer | None = None, answered: frozenset[int] = frozenset()
    ) -> list[Action[G]]:
        """Fixes the cut: before the first begin is handled, or in order to start the pass.

        A peer needs no begin if it takes part already and owes no answer.

        Args:
            cut: The functions that take part.
            begun_by: The peer whose begin is handled next; None at the starter.
            answered: Message ids of the sends that this peer answers together with its begin.
        """
        assert self.phase is Phase.IDLE, "a cut is fixed once"
        out: list[Action[G]] = []
        self.phase = Phase.ACTIVE
        self._cut, lost = cut, cut.lost
        self._open = dict.fromkeys(cut.reached, False)
        if lost and self.starter in lost:
            self._abort(cut.lost[self.starter], None, out)
            self._settle(out)
            return out
        peers = dict(cut.sends)
        for peer, _ in cut.receives:
            peers.setdefault(peer, ())
        for peer, ids in peers.items():
            if lost and peer in lost:  # each answer is none: no cut has its functions
                out += [Feed((peer, number), None) for number in ids]
            else:
                for number in ids:
                    self._unanswered.add((peer, number))
                self._engaged.add(peer)
                # Its reply to a begin would say nothing new, and cost one more round trip before
                # backward returns at the starter.
                if peer == begun_by and answered.issuperset(ids):
                    continue
                self._unbegun.add(peer)
                out.append(Begin(peer, tuple(ids)))
        early, self._early = self._early, []
        for peer, gradients, nones in early:
            if peer in lost:  # it had begun, so it was lost during the pass
                self._abort(lost[peer], None, out)
            else:
                self._take(peer, gradients, nones, out)
        if self.cause is not None:
            self._settle(out)
        return out

    def begin(self, peer: Peer, claims: Iterable[int]) -> list[Action[G]]:
        """Handles a peer's begin."""
        out: list[Action[G]] = []
        assert self.phase is not Phase.IDLE, "the cut is fixed before a begin is handled"
        self._engaged.add(peer)
        if self.phase is Phase.ABORTED:
            # The peer began late and does not know that the pass is over (P4).
            out.append(Reply(peer, self.cause))
            return out
        if self._parent is None and self.me != self.starter:
            self._parent = peer
        else:
            out.append(Reply(peer, None))
        nones: list[int] = []
        for number in claims:
            key = (peer, number)
            if key in self._open:
                self._open[key] = True
            elif not self._resolved.get(key):  # not in the cut, not reached by it, or a none
                nones.append(number)  # (a gradient was already sent when the receive was resolved)
        if nones:
            out.append(Answer(peer, (), tuple(nones)))
        if self._finished:
            self._settle(out)
        return out

    def answer(
        self, peer: Peer, gradients: Iterable[tuple[int, G]], nones: Iterable[int]
    ) -> list[Action[G]]:
        """Takes a peer's answers to sends of this worker.

        Answers that overtook the first begin are kept until the cut is fixed.
        """
        out: list[Action[G]] = []
        if self.phase is Phase.IDLE:
            self._early.append((peer, tuple(gradients), tuple(nones)))
        elif self.phase is not Phase.ABORTED:
            self._take(peer, gradients, nones, out)
            if self._finished or self.cause is not None:
                self._settle(out)
        return out

    def resolve(self, key: FunctionKey, gradient: G | None) -> list[Action[G]]:
        """Takes what the local graph computed for a receive: its gradient, or none."""
        out: list[Action[G]] = []
        if self.phase is Phase.ABORTED:
            return out
        claimed = self._open.pop(key, None)
        assert claimed is not None, "the graph resolves only what is reached, and each once"
        self._resolved[key] = gradient is not None
        peer, number = key
        if gradient is None:
            if claimed:
                out.append(Answer(peer, (), (number,)))
        elif self._cut.lost and peer in self._cut.lost:
            self._abort(self._cut.lost[peer], None, out)
            self._settle(out)
        else:  # sent early: the claim may still be on its way
            out.append(Answer(peer, ((number, gradient),), ()))
        return out

    def finished(self) -> list[Action[G]]:
        """Records that the local graph is done: every send was fed, every receive resolved."""
        out: list[Action[G]] = []
        if self.phase is Phase.ACTIVE:
            assert not self._open, "a receive was left unresolved"
            self._finished = True
            self._settle(out)
        return out

    def begun(self, peer: Peer, cause: BaseException | None = None) -> list[Action[G]]:
        """Takes a peer's reply to this worker's begin; a cause says that the peer aborted."""
        out: list[Action[G]] = []
        self._unbegun.discard(peer)
        if cause is not None:
            self._abort(cause, peer, out)
        self._settle(out)
        return out

    def lost(self, peer: Peer, cause: BaseException) -> list[Action[G]]:
        """Records that a peer is lost for good."""
        out: list[Action[G]] = []
        self._gone.add(peer)
        self._unbegun.discard(peer)
        self._unconfirmed.discard(peer)
        if peer == self.starter or (self.phase is Phase.ACTIVE and peer in self._engaged):
            self._abort(cause, peer, out)
        elif self.phase is Phase.DONE and peer in self._engaged and self.me != self.starter:
            # This worker's part is over, but the pass perhaps is not, and it may be that no other
            # worker knows this one. The starter decides, and tells this one if it aborted.
            self._tell(self.starter, cause, out)
        self._settle(out)
        return out

    def abort(
        self,
        cause: BaseException,
        source: tuple[Peer, object] | None = None,
        *,
        at_once: bool = False,
    ) -> list[Action[G]]:
        """Aborts the pass because of an error here (no source) or at a peer; the first cause stays.

        Args:
            cause: The error that ends the pass.
            source: The peer that sent the abort, and the request to reply to.
            at_once: At the starter: ends without waiting for the others to confirm.
        """
        out: list[Action[G]] = []
        peer = None if source is None else source[0]
        aborted_before = self.phase is Phase.ABORTED
        self._abort(cause, peer, out)
        if self.me == self.starter and peer is not None and self.phase is Phase.ABORTED:
            assert self.cause is not None
            self._tell(peer, self.cause, out)  # it may only have reported a loss
        if at_once:
            self._unbegun.clear()
            self._unconfirmed.clear()
        if source is not None:
            # Only the starter waits for its own aborts. A peer that merely reported a loss waits
            # for the starter's confirmation; waiting for that peer in turn would be a cycle.
            aborts = self.phase is Phase.ABORTED and not aborted_before
            if self.me == self.starter or not aborts:
                out.append(Confirm(*source))
            else:
                self._aborter = source
        self._settle(out)
        return out

    def confirmed(self, peer: Peer) -> list[Action[G]]:
        """Takes a peer's reply to this worker's abort."""
        out: list[Action[G]] = []
        self._unconfirmed.discard(peer)
        self._settle(out)
        return out

    # Transitions.

    def _take(
        self,
        peer: Peer,
        gradients: Iterable[tuple[int, G]],
        nones: Iterable[int],
        out: list[Action[G]],
    ) -> None:
        answers: list[tuple[int, G | None]] = [*gradients, *zip(nones, repeat(None))]
        for number, gradient in answers:
            key = (peer, number)
            waiting = len(self._unanswered)
            self._unanswered.discard(key)
            if len(self._unanswered) < waiting:
                out.append(Feed(key, gradient))
            elif gradient is not None:
                self._abort(
                    AutogradError(
                        f"{self._name_of(peer)} answered message {number} with a gradient, "
                        "but no send function here waits for it"
                    ),
                    None,
                    out,
                )

    def _abort(self, cause: BaseException, source: Peer | None, out: list[Action[G]]) -> None:
        # P3: once the starter has told its caller of success, nothing takes that back.
        if self.phase is Phase.ABORTED or (self.phase is Phase.DONE and self.me == self.starter):
            return
        self.phase = Phase.ABORTED
        self.cause = cause
        self._early.clear()
        self._unanswered.clear()
        self._open.clear()
        out.append(Drop(cause))
        audience = self._engaged | {self.starter}
        if self._parent is not None:
            audience.add(self._parent)
        for peer in sorted(audience - {source}):
            self._tell(peer, cause, out)

    def _tell(self, peer: Peer, cause: BaseException, out: list[Action[G]]) -> None:
        if peer == self.me or peer in self._told:
            return
        if peer not in self._gone and peer not in self._cut.lost:
            self._told.add(peer)
            self._unconfirmed.add(peer)
            out.append(Abort(peer, cause))

    def _settle(self, out: list[Action[G]]) -> None:
        """Adds the reply to the first begin, or the end, once the worker waits for nothing more.

        Unless the pass was aborted, it can do nothing before the local graph is done. So callers
        skip it then.
        """
        if self._aborter is not None and not self._unconfirmed:
            out.append(Confirm(*self._aborter))
            self._aborter = None
        if self._ended or self._unbegun or (self.phase is Phase.ABORTED and self._unconfirmed):
            return
        if self.phase is Phase.ACTIVE and self._finished and not self._unanswered:
            self.phase = Phase.DONE
        if self.phase is Phase.DONE or self.phase is Phase.ABORTED:
            if self.me == self.starter:
                out.append(End(self.cause))
            elif self._parent is not None:
                out.append(Reply(self._parent, self.cause))
            else:
                return
            self._ended = True
