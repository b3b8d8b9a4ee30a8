"""The registry of handlers for what arrives at a worker: envelopes by kind, replies, losses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import DecodeError, WorkerLostError
from telegrad.rpc.base.members import Members
from telegrad.rpc.pool.pool import Pool
from telegrad.transport import Receiver, get_logger
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, escaped

Handler: TypeAlias = Callable[[WorkerInfo, Envelope], None]
Refuse: TypeAlias = Callable[[WorkerInfo, int, Exception], None]
LossCallback: TypeAlias = Callable[[WorkerInfo, WorkerLostError], None]
TakeMemory: TypeAlias = Callable[[int], memoryview | None]

_logger = get_logger(__name__)

MOST_GARBAGE_TOLD = 100  # messages of one peer that are logged; it may send a million


@final
class Inbox(Receiver):
    """The Exchange's receiver: it blocks nowhere.

    Replies, and requests of the kinds in `anywhere`, come in any thread; all else on the loop.
    Handlers are registered before this worker opens.

    Requests that arrive before this worker knows the members of the job are held.

    Args:
        members: The members, which are told of losses.
        pool: Runs callbacks.

    Attributes:
        anywhere: Kinds of requests whose handlers may be called in any thread, each with the
            function that returns memory for its buffers, if it has one.
        take_reply: Takes a reply, in any thread; set before this worker opens.
        refuse_request: Answers a request without a handler, given the number of the call; set
            before this worker opens.
        check_standing: Asks the coordinator if this worker is a member, and calls its argument when
            the answer is known; an eviction is heard of before. None without a coordinator.
        left: True once this worker leaves: peers that give it up from then on are not lost.
    """

    def __init__(self, members: Members, pool: Pool) -> None:
        self._members = members
        self._pool = pool
        self._handlers: dict[str, Handler] = {}
        self.anywhere: dict[str, TakeMemory | None] = {}
        self.take_reply: Handler
        self.refuse_request: Refuse
        self._takes_failed: set[str] = set()  # kinds
        self._losses: list[LossCallback] = []
        self._losses_at_once: list[LossCallback] = []
        self._lock = threading.Lock()
        self._held: list[tuple[WorkerInfo, Envelope]] | None = []  # None once it holds none back
        self.check_standing: Callable[[Callable[[], None]], None] | None = None
        self.left = False
        self._garbage: dict[WorkerInfo, int] = {}  # logged messages by peer

    def register(
        self,
        kind: str,
        handler: Handler,
        *,
        anywhere: bool = False,
        memory: TakeMemory | None = None,
        takes_failed: bool = False,
    ) -> None:
        """Registers a handler: `handler(peer, envelope)` is called for each envelope of a kind.

        It must not block: heavy work goes to the pool.

        Args:
            kind: The envelope's kind.
            handler: The function, which is called on the loop.
            anywhere: True if it may be called in the thread that has read the envelope instead, by
                several threads at once.
            memory: Returns memory for a received buffer of so many bytes, None for fresh memory. It
                is called in any thread, and only if the handler may be; by default, all is fresh.
            takes_failed: True if the handler looks at `envelope.failure`. By default, a request is
                answered with it, and for any other message the peer is lost.

        Raises:
            ValueError: The kind has a handler.
        """
        if kind in self._handlers:
            raise ValueError(f"envelopes of kind {kind!r} have a handler already")
        self._handlers[kind] = handler
        if anywhere:
            self.anywhere[kind] = memory
        if takes_failed:
            self._takes_failed.add(kind)

    def on_loss(self, callback: LossCallback) -> None:
        """Calls `callback(worker, error)` in the pool for each worker that is lost."""
        self._losses.append(callback)

    def on_loss_at_once(self, callback: LossCallback) -> None:
        """Calls `callback(worker, error)` where a loss is handled, in the order of losses.

        That is on the loop, as a rule: it must not block or raise.
        """
        self._losses_at_once.append(callback)

    def release(self) -> list[tuple[WorkerInfo, Envelope]]:
        """Stops holding requests and returns those that were held."""
        with critical.section, self._lock:
            held, self._held = self._held, None
        return held or []

    def memory(self, kind: str, size: int) -> memoryview | None:
        """Returns memory for a received buffer; None for fresh memory."""
        take = self.anywhere.get(kind)
        return None if take is None else take(size)

    def takes_failed(self, envelope: Envelope) -> bool:
        """Returns True if somebody hears of an envelope for which there was no memory."""
        return envelope.reply or envelope.call != 0 or envelope.kind in self._takes_failed

    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Hands an envelope to its handler; garbage is logged, and answered if it is a request."""
        try:
            if envelope.reply:
                self.take_reply(peer, envelope)
            # `release` may come in between; `_hold` looks again, under the lock.
            elif self._held is None or not self._hold(peer, envelope):
                if (handler := self._handlers.get(envelope.kind)) is None:
                    raise DecodeError(f"no handler for {envelope.kind!r} here")
                if envelope.failure is not None and envelope.kind not in self._takes_failed:
                    raise envelope.failure
                handler(peer, envelope)
        except Exception as error:  # a remote handler: bad input must not stop the service
            if self._is_news(peer):
                self._pool.submit(_log_failure, peer, envelope.kind, error)
            if envelope.call and not envelope.reply:
                self.refuse_request(peer, envelope.call, error)

    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Fails the calls that wait for a lost worker, cancels its own calls, tells the rest.

        If a peer says that it gave this worker up, all others may have done so too, since this
        process was stopped or cut off. The coordinator is asked first, so that this worker's calls
        raise the true reason.
        """
        if error.fenced:
            self._when_standing_is_known(lambda: self._lose(peer, error))
        else:
            self._lose(peer, error)

    def loss_of(self, peer: WorkerInfo) -> WorkerLostError | None:
        """Returns the loss of a member that was never met here: another has taken its place."""
        return self._members.lost(peer)

    def load(self) -> int:
        """Returns the amount of work that waits or runs."""
        return self._pool.busy

    def weigh(self, cause: BaseException, then: Callable[[BaseException], object]) -> None:
        """Calls `then(error)` with the true reason of an end that a peer has told.

        That is `cause`, unless it says that this very worker is lost: a peer may give it up, and
        say so to others, before it hears of that itself. Then the coordinator is asked, and if the
        job goes on without this worker the error is its eviction.

        Args:
            cause: The error that the peer told.
            then: Called here, or on the loop when the coordinator has answered or is lost: must not
                block or raise.
        """
        if not self._members.means_me(cause):
            then(cause)
            return

        def decide() -> None:
            then(self._members.eviction() or cause)

        self._when_standing_is_known(decide)

    def _when_standing_is_known(self, then: Callable[[], None]) -> None:
        """Calls `then` once it is known whether the job goes on without this worker."""
        if self._members.eviction() is None and self.check_standing is not None:
            self.check_standing(then)
        else:
            then()

    def _lose(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        if self.left:
            return
        error = self._members.eviction() or error  # of a worker without which the job goes on
        self._members.lose(peer, error)
        self._garbage.pop(peer, None)
        # Futures of calls fail here, and not in the pool: its threads may all wait for these calls.
        for callback in self._losses_at_once:
            callback(peer, error)
        for callback in self._losses:
            self._pool.submit(callback, peer, error)

    def _hold(self, peer: WorkerInfo, envelope: Envelope) -> bool:
        with critical.section, self._lock:
            if self._held is not None:
                self._held.append((peer, envelope))
            return self._held is not None

    def tell_garbage(self, peer: WorkerInfo, kind: str, error: DecodeError) -> None:
        """Logs that a message is garbage, so often and no more; for handlers in the pool."""
        if self._is_news(peer):
            _log_failure(peer, kind, error)

    def _is_news(self, peer: WorkerInfo) -> bool:
        """Returns True if garbage of a peer is still logged."""
        with critical.section, self._lock:
            told = self._garbage.get(peer, 0)
            self._garbage[peer] = min(told + 1, MOST_GARBAGE_TOLD)
        return told < MOST_GARBAGE_TOLD


def _log_failure(peer: WorkerInfo, kind: str, error: Exception) -> None:
    """Runs in the pool: a log may go to a slow file or terminal, for which the loop has no time."""
    if isinstance(error, DecodeError):  # the sender's fault, and it may send many
        words = escaped(str(error))
        _logger.warning("%s from %r is garbage: %s", escaped(kind), peer.name, words)
        return
    _logger.error("%s from %r failed", escaped(kind), peer.name, exc_info=error)
