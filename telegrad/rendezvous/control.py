"""A worker's line to its coordinator: requests with replies, and messages without a request.

The file also holds the kinds of those messages, and the reminders of a long wait.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeAlias, final

from telegrad.critical import critical
from telegrad.errors import (
    AuthenticationError,
    DecodeError,
    DuplicateNameError,
    EvictedError,
    QueueEmptyError,
    RendezvousError,
    TelegradError,
    WorkerLostError,
)
from telegrad.rendezvous.store import check_timeout
from telegrad.transport import (
    ConnectionLimits,
    Credentials,
    Entrance,
    Exchange,
    GuestList,
    Identity,
    Receiver,
    Requests,
    Transport,
    get_logger,
    refuse_to_block,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, escaped, read_body, write_body

# -- the kinds of messages, and errors in replies ------------------------------------------------
#
# worker -> coordinator   member.join       reply: the members, once the job is complete
#                         member.reserve    reply: name, rank and world size of a late worker
#                         member.shutdown   reply: once every living member has sent it
#                         member.leave      reply: at once; the others get `member.lost`
#                         member.standing   reply: at once, true if an incarnation is a member; null
#                                           if this coordinator cannot tell
#                         member.gave_up    one-way: the sender has given up a member
#                         member.knows      one-way: the sender knows a worker that joined
#                         store.*           reply: the result; get, multi_get and wait reply when
#                                           set, a queue_pop that blocks once it has a value
#                         store.forget      one-way: a waiting get or wait gave up. As a request:
#                                           true if the wait was cancelled, false if its reply has
#                                           gone out already
# coordinator -> worker   member.progress   one-way, before the worker is welcomed
#                         member.joined     one-way. After the welcome: a replacement or a late
#                                           worker joined. Before it: that worker was welcomed
#                         member.known      one-way, after a welcome that said it would follow: all
#                                           that had started before know the worker
#                         member.lost       one-way: a member is gone for good
#                         member.given_up   one-way: another member has given up this one
#                         member.running    one-way, to every worker that waits in shutdown
# both                    control.reply, control.error   envelopes with `reply` set

COORDINATOR_NAME: Final = "coordinator"
COORDINATOR_RANK: Final = -1
INCARNATION_KEY: Final = "telegrad/incarnation"

REPLY: Final = "control.reply"
ERROR: Final = "control.error"

RESERVE: Final = "member.reserve"
JOIN: Final = "member.join"
SHUTDOWN: Final = "member.shutdown"
LEAVE: Final = "member.leave"
STANDING: Final = "member.standing"
GAVE_UP: Final = "member.gave_up"
KNOWS: Final = "member.knows"
PROGRESS: Final = "member.progress"
JOINED: Final = "member.joined"
KNOWN: Final = "member.known"
LOST: Final = "member.lost"
GIVEN_UP: Final = "member.given_up"
RUNNING: Final = "member.running"

STORE_FORGET: Final = "store.forget"

# The only types that a control reply may raise at its receiver.
_ERROR_TYPES: Final[Mapping[str, type[Exception]]] = {
    cls.__name__: cls
    for cls in (
        AuthenticationError,
        DecodeError,
        DuplicateNameError,
        QueueEmptyError,
        RendezvousError,
        TypeError,
        ValueError,
    )
}


def encode_error(error: Exception) -> dict[str, object]:
    """Returns an error as plain values; a type that is not in the table becomes RendezvousError."""
    name = type(error).__name__
    return {"type": name if name in _ERROR_TYPES else "RendezvousError", "message": str(error)}


# The longest answer names each rank of a large job that is missing.
MOST_WORDS = 20_000


def decode_error(body: object) -> Exception:
    """Returns the error that a `control.error` reply carries."""
    if not isinstance(body, dict):
        return RendezvousError("the coordinator answered with an error that cannot be read")
    error_type = _ERROR_TYPES.get(str(body.get("type")), RendezvousError)
    return error_type(escaped(str(body.get("message", "")), lines=True, most=MOST_WORDS))


def read_loss(body: object) -> tuple[WorkerInfo, str, bool]:
    """Reads a worker that is lost, the reason, and whether it left; DecodeError for no loss."""
    match body:
        case [str(name), int(rank), int(incarnation), str(reason), *left]:
            return WorkerInfo(name, rank, incarnation), escaped(reason), left == [True]
    raise DecodeError(f"a loss that cannot be read (got {body!r:.120})")


def is_ours(error: Exception) -> bool:
    """Returns True if an error is an answer to bad input rather than a bug in the coordinator."""
    return isinstance(error, TelegradError | TypeError | ValueError)


def line_name(rank: int, incarnation: int, owner: str) -> str:
    """Returns the name of a worker's line to the coordinator.

    >>> line_name(3, 255, "worker3")
    'store.3.ff.worker3'
    """
    return f"store.{rank}.{incarnation:x}.{owner}"


def line_owner(name: str) -> str:
    """Returns the owner that a line's name states and its certificate must prove; "" if none.

    >>> line_owner("store.3.ff.worker3"), line_owner("store.-1.ff."), line_owner("worker3")
    ('worker3', '', '')
    """
    kind, _, rest = name.partition(".")
    return rest.split(".", 2)[2] if kind == "store" and rest.count(".") >= 2 else ""


# -- reminders: a long wait logs what it waits for, at growing intervals -------------------------

# A shorter wait is not worth a line in the log.
FIRST_SECONDS = 2.0
GROWTH = 3.0
LONGEST_SECONDS = 600.0


@final
class Reminder:
    """The times at which one wait is logged; starts with the wait.

    Args:
        clock: A monotonic clock, in seconds.
    """

    __slots__ = ("_at", "_clock", "_pause")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = FIRST_SECONDS
        self._at = clock() + self._pause

    @property
    def left(self) -> float:
        """The seconds until the next time, at least 0."""
        return max(self._at - self._clock(), 0.0)

    def is_due(self) -> bool:
        """Returns True if it is time now; then the next time is set."""
        if self.left > 0:
            return False
        self._pause = min(GROWTH * self._pause, LONGEST_SECONDS)
        self._at = self._clock() + self._pause
        return True


# -- the line ------------------------------------------------------------------------------------

logger = get_logger(__name__)

LOST_AFTER = 10.0
CLOSE_TIMEOUT = 2.0
# Seconds for a request that waits for nothing: a round trip, or the loss of the coordinator.
ANSWER_TIMEOUT = 60.0
RENEW_TIMEOUT = 0.2
DEFAULT_LIMITS = ConnectionLimits()

Message: TypeAlias = Callable[[str, object], None]


def _ignore_message(kind: str, body: object) -> None:
    logger.debug("%s from the coordinator is not handled here", kind)


def _ignore_loss(error: WorkerLostError) -> None:
    logger.debug("the coordinator is lost: %s", error)


@final
class ControlLine(Receiver):
    """One session with the coordinator, on an Exchange of its own.

    After `listen` it listens as well: the coordinator then dials it when the connection breaks, and
    learns at once when this process is gone. All methods may be called from any thread but the
    loop's.

    Args:
        job: The job's name.
        rank: The rank of the line's worker, for the coordinator's log.
        token: The job's token; None only when insecure.
        transports: The transports that reach the coordinator.
        lost_after: Seconds of silence after which the coordinator is lost.
        on_message: Takes the kind and body of each message that is no reply; called on the loop.
        on_lost: Called once, on the loop, when the coordinator is lost.
        owner: The name of the line's worker, which its certificate has to prove; "" if it has no
            name yet.
        limits: The limits on what the coordinator may use of this worker.

    Attributes:
        another: Makes a line with the same settings, but without the callbacks.
        lost_after: The argument of that name.
        closed: An event, set when the line is closed; its user may wait on it as well.
    """

    def __init__(
        self,
        *,
        job: str,
        rank: int,
        token: bytes | None,
        transports: Sequence[Transport],
        lost_after: float = LOST_AFTER,
        on_message: Message = _ignore_message,
        on_lost: Callable[[WorkerLostError], None] = _ignore_loss,
        owner: str = "",
        limits: ConnectionLimits = DEFAULT_LIMITS,
    ) -> None:
        self.lost_after = lost_after
        self._on_message = on_message
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._requests = Requests[Future[object]]()
        self._coordinator: WorkerInfo | None = None
        self._endpoint = ""
        self._lost: WorkerLostError | None = None
        self._early_losses: dict[WorkerInfo, WorkerLostError] = {}
        self.closed = threading.Event()
        self._guests = GuestList()

        def open_exchange() -> Exchange:
            self._guests = GuestList()
            incarnation = secrets.randbits(62)
            info = WorkerInfo(line_name(rank, incarnation, owner), rank, incarnation)
            return Exchange(
                Credentials(identity=Identity(job, info), token=token),
                transports=transports,
                receiver=self,
                entrance=Entrance(guests=self._guests),
                lost_after=lost_after,
                limits=limits,
            )

        self.another = functools.partial(
            ControlLine,
            job=job,
            rank=rank,
            token=token,
            transports=transports,
            lost_after=lost_after,
            owner=owner,
            limits=limits,
        )
        self._open_exchange = open_exchange
        self._exchange = open_exchange()
        self._exchange.start(listen=False)

    def listen(self) -> tuple[str, ...]:
        """Opens listeners at this end; returns the endpoints that the coordinator may dial.

        Raises:
            OSError: An address or port cannot be had.
        """
        return self._exchange.listen()

    @property
    def coordinator(self) -> WorkerInfo | None:
        """The coordinator; None until it is found."""
        return self._coordinator

    @property
    def endpoint(self) -> str:
        """The endpoint at which the coordinator was found; "" until then."""
        return self._endpoint

    @property
    def lost(self) -> WorkerLostError | None:
        """The error with which the coordinator was lost; None if it is not lost."""
        return self._lost

    def evicted(self, error: EvictedError) -> None:
        """Records that the coordinator gave up this worker; waiting and later requests raise it."""
        self._lost = error

    def connect(self, endpoint: str, timeout: float) -> WorkerInfo:
        """Finds the coordinator; may be called again when it raised.

        Raises:
            ConnectionError: Nobody answers at the endpoint.
            AuthenticationError: One side does not hold the other's token.
            RendezvousError: The peer belongs to another job, or is not called `coordinator`: where
                workers have certificates, only that name proves that it is the coordinator.
        """
        refuse_to_block("joining a job", "write `await rpc.to_thread(...)`")
        try:
            coordinator = self._exchange.introduce(
                endpoint, timeout=min(timeout, threading.TIMEOUT_MAX), name=COORDINATOR_NAME
            )
            if coordinator.rank != COORDINATOR_RANK:
                raise RendezvousError(
                    f"worker {coordinator.name!r} of this job answers at {endpoint} and not its "
                    "coordinator; check the address"
                )
            with critical.section, self._lock:
                loss = self._early_losses.get(coordinator)
                if loss is None:
                    self._coordinator = coordinator
                    self._endpoint = endpoint
                    self._guests.add([coordinator])
            if loss is not None:
                raise loss
        except ConnectionRefusedError:
            raise
        except (ConnectionError, AuthenticationError, TimeoutError):
            self._renew()
            raise
        return coordinator

    def request(
        self, kind: str, body: object = None, *, time_left: float = math.inf
    ) -> Future[object]:
        """Posts a request; never blocks.

        Returns:
            The reply; the error that the coordinator answered, or the reason for which no reply
            will come.

        Raises:
            RendezvousError: The line is closed, not connected, or the coordinator is lost.
            EvictedError: The coordinator has given up this worker.
        """
        return self._post(self._requests.draw(), kind, body, time_left)

    def ask(
        self,
        kind: str,
        body: object = None,
        *,
        timeout: float = math.inf,
        forget: bool = False,
        takes: bool = False,
        remind: Callable[[], None] | None = None,
    ) -> object:
        """Posts a request and waits for its reply.

        Args:
            kind: The request's kind.
            body: The request's body.
            timeout: Seconds to wait at most.
            forget: True if the coordinator holds a wait, which it is told to end when this ends.
            takes: True if the reply hands over something that a timeout must not lose. At the
                deadline this asks if the coordinator has ended the wait. If not, the reply has gone
                out, and this waits for it.
            remind: Called in this thread after a long wait, and then rarely.

        Raises:
            TimeoutError: The reply has not come in time.
            RendezvousError: The line is closed, or the coordinator is lost.
            EvictedError: The coordinator has given up this worker.
        """
        refuse_to_block(kind, "write `await rpc.to_thread(...)`")
        check_timeout(timeout)
        call = self._requests.draw()
        reply = self._post(call, kind, body, timeout)
        try:
            return _result(reply, timeout, remind)
        except TimeoutError:
            if not takes or self.ask(STORE_FORGET, {"call": call}, timeout=ANSWER_TIMEOUT):
                raise
            return reply.result(ANSWER_TIMEOUT)
        finally:
            if not reply.done():
                self._requests.end(call, None)
                if forget:
                    self.tell(STORE_FORGET, {"call": call})

    def tell(self, kind: str, body: object = None) -> None:
        """Posts a message that has no reply; dropped if there is no coordinator to send it to."""
        with critical.section, self._lock:
            coordinator = self._coordinator
        if coordinator is None or self._lost is not None or self.closed.is_set():
            return
        try:
            self._exchange.post(coordinator, write_body(kind, body))
        except WorkerLostError:
            logger.debug("%s was not sent: the coordinator is lost", kind)

    def close(self, timeout: float = CLOSE_TIMEOUT, *, reason: str = "shutdown") -> None:
        """Says goodbye and closes; pending requests raise RendezvousError. Idempotent."""
        self.closed.set()
        self._fail_all(RendezvousError(f"the line to the coordinator was closed here ({reason})"))
        # Nobody waits for what is unsent: the requests have failed just now.
        self._exchange.close(timeout, reason, leaves_at_once=True)

    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Takes a reply or a message; called on the loop by the Exchange."""
        with critical.section, self._lock:
            known = peer == self._coordinator
        if not known:
            logger.warning("%r is not the coordinator; its message is ignored", peer.name)
            return
        try:
            body = read_body(envelope)
            if not envelope.reply:
                self._on_message(envelope.kind, body)
                return
            reply = self._requests.end(envelope.call, None)
            if reply is None:
                return
            if envelope.kind == ERROR:
                reply.set_exception(decode_error(body))
            else:
                reply.set_result(body)
        except Exception:
            logger.exception("a message of the coordinator was not understood: %s", envelope.kind)

    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Fails what is pending; called on the loop by the Exchange."""
        with critical.section, self._lock:
            if self._coordinator is None:
                self._early_losses[peer] = error
            if self.closed.is_set() or self._coordinator != peer:
                return
            self._lost = error
        self._on_lost(error)  # first, so that waiters here find out that this worker was evicted
        self._fail_all(lost_error(self._lost))

    def _renew(self) -> None:
        """Starts again under another incarnation: the last one may be fenced by now."""
        self._exchange.close(RENEW_TIMEOUT, "it begins again")
        if not self.closed.is_set():
            self._exchange = self._open_exchange()
            self._exchange.start(listen=False)

    def _usable(self) -> WorkerInfo:
        if self.closed.is_set():
            raise RendezvousError("the line to the coordinator is closed; join the job again")
        if self._lost is not None:
            raise lost_error(self._lost)
        if self._coordinator is None:
            raise RendezvousError("the coordinator was not found yet; connect first")
        return self._coordinator

    def _post(self, call: int, kind: str, body: object, time_left: float) -> Future[object]:
        reply = Future[object]()
        with critical.section, self._lock:
            coordinator = self._usable()
            self._requests.add(call, reply)
        envelope = write_body(kind, body)
        envelope.call, envelope.time_left = call, time_left
        try:
            self._exchange.post(coordinator, envelope)
        except WorkerLostError:
            # `on_lost` or `close` is about to fail it, once the meaning of the loss is known.
            logger.debug("%s was not sent: the coordinator is lost", kind)
        return reply

    def _fail_all(self, error: Exception) -> None:
        with critical.section, self._lock:
            waiting = self._requests.end_all()
        for reply in waiting:
            reply.set_exception(error)


def _result(reply: Future[object], timeout: float, remind: Callable[[], None] | None) -> object:
    """Returns a reply; raises TimeoutError if it has not come in time."""
    ends, reminder = time.monotonic() + timeout, Reminder()
    while True:
        left = max(ends - time.monotonic(), 0.0)
        pause = left if remind is None else min(left, reminder.left)
        concurrent.futures.wait([reply], min(pause, threading.TIMEOUT_MAX))
        if reply.done() or left == 0:
            return reply.result(0.0)
        if remind is not None and reminder.is_due():
            remind()


def lost_error(error: WorkerLostError) -> RendezvousError | EvictedError:
    """Returns a new error for a waiter whose coordinator is lost or gave up this worker."""
    if isinstance(error, EvictedError):
        return EvictedError(
            str(error),
            worker=error.worker,
            incarnation=error.incarnation,
            last_seen=error.last_seen,
            reason=error.reason,
        )
    return RendezvousError(
        f"the coordinator is lost ({error.reason or error}); nobody can join this job any more, "
        "start it anew"
    )
