"""The coordinator: hosts the store of a job and decides on its membership."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, final

from telegrad.critical import critical
from telegrad.errors import (
    AuthenticationError,
    RendezvousError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import DEFAULT_LIMITS, LOST_AFTER
from telegrad.rendezvous.membership import (
    Ended,
    GivenUp,
    Joined,
    JoinRequest,
    Known,
    Lost,
    Member,
    Membership,
    Message,
    Progress,
    Refused,
    Released,
    Reserved,
    Running,
    Stands,
    StartWhen,
    Welcome,
    check_job,
)
from telegrad.rendezvous.memory import MemoryStore
from telegrad.rendezvous.store import FIELDS, WAITS, read_request
from telegrad.transport import (
    ConnectionLimits,
    Credentials,
    Entrance,
    Exchange,
    Identity,
    Receiver,
    Transport,
    get_logger,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Envelope, escaped, read_body, write_body

T = TypeVar("T", int, str)
_KINDS = {int: "an int", str: "a str"}

logger = get_logger(__name__)

CLOSE_TIMEOUT = 10.0
CLOSED = "the coordinator was closed"
# A job's incarnations begin at a random multiple of this. A worker left over from an ended job may
# find a new job with the same token at its port: it must not meet its own name and number there.
INCARNATIONS_APART = 1000
FIRST_INCARNATIONS = 1_000_000
MOST_SECONDS = 10**9  # as an integer; longer times must be written as infinity
# For texts about workers, which are kept and sent to all of them: 10,000 names, and a reason.
MOST_SAID_BYTES = 2**20
MOST_REASON = 1000  # characters
MOST_PROCESS = 100
VALUE_BYTES = 16  # of an answer with several values or keys, beside each


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """The present load of a coordinator.

    Attributes:
        members: Living members.
        joining: Workers that wait for the job to be complete.
        leaving: Members that wait in shutdown.
        splits: Pairs of members that are lost to each other, while both still live.
        abandoned_by: Workers that have given up this coordinator and go on without it. Once there
            is one, nobody can join any more.
        keys: Keys in the store.
    """

    members: int
    joining: int
    leaving: int
    splits: int
    abandoned_by: int
    keys: int


@final
class Coordinator(Receiver):
    """Serves the store and the membership of one job until it is closed.

    Everything happens on the loop thread, in the order of arrival; nothing there blocks. If the
    coordinator is lost, the workers go on, but no worker can join. If it was only stopped or cut
    off and comes back, it no longer decides about the workers that gave it up.

    Args:
        transports: The transports on which it listens.
        job: The job's name; workers of another job are refused.
        token: The job's token; None only when insecure.
        world_size: The number of workers that make the job complete; None takes the first worker's.
        host: The rank of the worker in whose process it runs; None if it has its own process.
        lost_after: Seconds of silence after which a worker is lost.
        on_session_lost: Called on the loop for each session that ended, of members and of other
            users of the store, with the WorkerInfo that opened it.
        limits: The limits on what others may use; the store holds at most one message's document.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        job: str,
        token: bytes | None,
        world_size: int | None = None,
        host: int | None = None,
        lost_after: float = LOST_AFTER,
        on_session_lost: Callable[[WorkerInfo, WorkerLostError], None] | None = None,
        limits: ConnectionLimits = DEFAULT_LIMITS,
    ) -> None:
        if world_size is not None and world_size < 1:
            raise ValueError(f"world_size must be at least 1 (got {world_size})")
        self._on_session_lost = on_session_lost
        self._store = MemoryStore(limits.received.document_bytes)
        self._most_bytes = limits.received.document_bytes
        self._membership = Membership(world_size, host)
        self._lock = threading.RLock()  # guards the membership and the tables of calls
        # The calls that the membership has still to answer, by kind and session.
        self._calls: dict[str, dict[WorkerInfo, int]] = {
            messages.JOIN: {},  # or RESERVE, which comes before it
            messages.SHUTDOWN: {},
            messages.STANDING: {},
        }
        self._said_abandoned = False
        info = WorkerInfo(
            messages.COORDINATOR_NAME, messages.COORDINATOR_RANK, secrets.randbits(62)
        )
        credentials = Credentials(
            identity=Identity(check_job(job), info),
            token=token,
            certified=messages.line_owner,
        )
        self._exchange = Exchange(
            credentials,
            transports=transports,
            receiver=self,
            entrance=Entrance(on_refused=self._on_refused),
            lost_after=lost_after,
            limits=limits,
        )
        # Each returns what the membership says to a request about members. Called with the lock.
        self._changes: Mapping[str, Callable[[WorkerInfo, object], Sequence[Message]]] = {
            messages.RESERVE: self._on_reserve,
            messages.JOIN: self._on_join,
            messages.SHUTDOWN: lambda peer, _: self._membership.shut_down(peer),
            messages.LEAVE: self._on_leave,
            messages.STANDING: self._on_standing,
            messages.GAVE_UP: self._on_gave_up,
            messages.KNOWS: lambda peer, body: self._membership.knows(
                peer, _field(body, "incarnation", int)
            ),
        }
        self._handlers: Mapping[str, Callable[[WorkerInfo, Envelope, object], None]] = {
            **dict.fromkeys(self._changes, self._on_change),
            **{f"store.{verb}": self._on_store for verb in FIELDS},
            messages.STORE_FORGET: self._on_store_forget,
        }

    def start(self) -> tuple[str, ...]:
        """Opens the listeners and serves; returns the endpoints that workers dial.

        Raises:
            OSError: A port is in use; the message says which and what to do.
        """
        return self._exchange.start()

    @property
    def store(self) -> MemoryStore:
        """The store itself, for users in the coordinator's process."""
        return self._store

    @property
    def members(self) -> tuple[Member, ...]:
        """The living members, by rank."""
        with critical.section, self._lock:
            return self._membership.members

    def statistics(self) -> CoordinatorStatistics:
        """Returns the present counts."""
        with critical.section, self._lock:
            return CoordinatorStatistics(
                members=len(self._membership.members),
                joining=len(self._calls[messages.JOIN]),
                leaving=len(self._calls[messages.SHUTDOWN]),
                splits=self._membership.splits,
                abandoned_by=len(self._membership.abandoned_by),
                keys=self._store.num_keys(),
            )

    def ended(self, rank: int, how: str) -> None:
        """Records how a rank's process ended; for the program that started it; from any thread.

        Workers that wait for this rank to join are refused.
        """
        with critical.section, self._lock:
            self._send(self._membership.ended(rank, how))

    def close(self, timeout: float = CLOSE_TIMEOUT, reason: str = CLOSED) -> None:
        """Hands over what was posted, says goodbye and closes, within `timeout`; idempotent."""
        self._exchange.close(timeout, reason, leaves_at_once=True)
        self._store.close()

    def on_envelope(self, peer: WorkerInfo, envelope: Envelope) -> None:
        """Serves one request; called on the loop by the Exchange."""
        handler = self._handlers.get(envelope.kind)
        try:
            if handler is None:
                raise RendezvousError(f"the coordinator does not know {envelope.kind!r}")
            said = len(envelope.document)
            if said > MOST_SAID_BYTES and envelope.kind.startswith("member."):
                raise RendezvousError(
                    f"a request of kind {envelope.kind!r} may have {MOST_SAID_BYTES} bytes (got "
                    f"{said})"
                )
            handler(peer, envelope, read_body(envelope))
        except Exception as error:
            if not messages.is_ours(error):
                logger.exception("the coordinator failed to serve %s", envelope.kind)
            self._answer_error(peer, envelope.call, error)

    def on_lost(self, peer: WorkerInfo, error: WorkerLostError) -> None:
        """Drops a lost member, unless the member gave up the coordinator first.

        Called on the loop by the Exchange.
        """
        with critical.section, self._lock:
            self._forget_calls(peer)
            reason = error.reason or str(error)
            if error.fenced:
                self._send(self._membership.abandoned(peer, reason))
            else:
                self._send(self._membership.lost(peer, reason, left=error.left))
            self._say_if_abandoned()
        self._store.lose(peer)
        if self._on_session_lost is not None:
            self._on_session_lost(peer, error)

    def _on_refused(self, claimed: WorkerInfo, words: str) -> None:
        """Remembers a worker that failed to authenticate, for the message of a timeout."""
        with critical.section, self._lock:
            self._send(self._membership.note(claimed.rank, f"refused by the coordinator: {words}"))

    def _on_change(self, peer: WorkerInfo, envelope: Envelope, body: object) -> None:
        kind, call = envelope.kind, envelope.call
        with critical.section, self._lock:
            outgoing = self._changes[kind](peer, body)
            waiting = self._calls.get(messages.JOIN if kind == messages.RESERVE else kind)
            if waiting is not None:
                waiting[peer] = call
            self._send(outgoing)
            self._say_if_abandoned()
        if kind == messages.GAVE_UP and outgoing:  # not under the lock: a log handler may block
            info, reason, _ = messages.read_loss(body)
            logger.info("%s has given up %s, a member still: %s", peer.name, info.name, reason)
        if kind == messages.LEAVE:
            self._answer(peer, call)

    def _on_reserve(self, peer: WorkerInfo, body: object) -> Sequence[Message]:
        name = _field(body, "name", str)
        _check_owner(peer, name)
        return self._membership.reserve(peer, name)

    def _on_join(self, peer: WorkerInfo, body: object) -> Sequence[Message]:
        request, control = _read_join(body)
        _check_owner(peer, request.name)
        self._exchange.connect(peer, control)
        self._exchange.spare(peer, _seconds(_fields(body), "lost_after"))
        return self._membership.join(peer, request)

    def _on_leave(self, peer: WorkerInfo, body: object) -> Sequence[Message]:
        reason = body.get("reason") if isinstance(body, dict) else None
        self._forget_calls(peer)
        words = escaped(str(reason or "left"), most=MOST_REASON)
        return self._membership.lost(peer, words, left=True)

    def _on_standing(self, peer: WorkerInfo, body: object) -> Sequence[Message]:
        """Answers if an incarnation is a member; a worker asks this after it was cut off."""
        incarnation = _field(body, "incarnation", int)
        for name in self._membership.names_of(incarnation):
            _check_owner(peer, name)
        return self._membership.asks(peer, incarnation)

    def _on_gave_up(self, peer: WorkerInfo, body: object) -> Sequence[Message]:
        info, reason, _ = messages.read_loss(body)
        return self._membership.gave_up(peer, info, reason)

    def _forget_calls(self, peer: WorkerInfo) -> None:
        for waiting in self._calls.values():
            waiting.pop(peer, None)

    def _on_store(self, peer: WorkerInfo, envelope: Envelope, body: object) -> None:
        verb, call = envelope.kind.removeprefix("store."), envelope.call
        request = read_request(verb, {} if body is None else _fields(body))
        if request.get("key") == messages.INCARNATION_KEY:
            base = INCARNATIONS_APART * (1 + secrets.randbelow(FIRST_INCARNATIONS - 1))
            self._store.compare_set(messages.INCARNATION_KEY, b"", b"%d" % base)
        waits = verb in WAITS and request.get("block", True)
        if waits and not call:  # nobody waits for the answer
            return
        reply = self._store.post(verb, request, owner=peer, call=call, waits=waits)
        reply.add_done_callback(partial(self._on_stored, peer, call))

    def _on_stored(self, peer: WorkerInfo, call: int, reply: Future[object]) -> None:
        """Answers a request to the store; in the thread that completed it."""
        answer = reply.result()
        if isinstance(answer, list):
            size = sum(
                VALUE_BYTES + len(each if isinstance(each, bytes) else each.encode())
                for each in answer
            )
            if size > self._most_bytes:
                self._answer_error(peer, call, _too_large(size, self._most_bytes))
                return
        self._answer(peer, call, answer)

    def _on_store_forget(self, peer: WorkerInfo, envelope: Envelope, body: object) -> None:
        call = _fields(body).get("call")
        cancelled = isinstance(call, int) and self._store.forget(peer, call)
        self._answer(peer, envelope.call, cancelled)

    def _say_if_abandoned(self) -> None:
        """Logs once that workers go on without this coordinator. The caller holds the lock."""
        workers = self._membership.abandoned_by
        if not workers or self._said_abandoned:
            return
        self._said_abandoned = True
        words = (
            "%s gave up this coordinator, which was stopped or cut off for too long, and goes on "
            "without it; nobody can join this job any more"
        )
        # The log may be slow, and this is the loop.
        threading.Thread(
            target=logger.warning, args=(words, workers[0].name), name="telegrad-log", daemon=True
        ).start()

    def _send(self, outgoing: Sequence[Message]) -> None:
        """Posts the membership's messages. The caller holds the lock, which keeps them in order."""
        for message in outgoing:
            match message:
                case Welcome(session, members, known):
                    welcome = {"members": [_row(member) for member in members], "known": known}
                    self._answer(session, self._calls[messages.JOIN].pop(session, 0), welcome)
                case Known(session):
                    self._post(session, messages.KNOWN, None)
                case Reserved(session, name, rank, world_size):
                    place = {"name": name, "rank": rank, "world_size": world_size}
                    self._answer(session, self._calls[messages.JOIN].pop(session, 0), place)
                case Refused(session, error, text):
                    logger.info("%s was refused: %s", session.name, text)
                    refusal = {"type": error, "message": text}
                    self._post(
                        session, messages.ERROR, refusal, self._calls[messages.JOIN].pop(session, 0)
                    )
                case Stands(session, member):
                    self._answer(
                        session, self._calls[messages.STANDING].pop(session, 0), {"member": member}
                    )
                case Ended(session):
                    self._exchange.fence(session, "it has given up this coordinator")
                case Released(session):
                    self._answer(session, self._calls[messages.SHUTDOWN].pop(session, 0))
                case Progress(session, version, joined, world_size, errors, names, gave_up):
                    progress = {
                        "version": version,
                        "joined": list(joined),
                        "names": list(names),
                        "world_size": world_size,
                        "errors": [list(pair) for pair in errors],
                        "gave_up": [list(pair) for pair in gave_up],
                    }
                    self._post(session, messages.PROGRESS, progress)
                case Running(session, version, names):
                    running = {"version": version, "names": list(names)}
                    self._post(session, messages.RUNNING, running)
                case Joined(session, member):
                    self._post(session, messages.JOINED, _row(member))
                case Lost(session, info, reason, left):
                    row = [info.name, info.rank, info.incarnation, reason, left]
                    self._post(session, messages.LOST, row)
                case GivenUp(session, by, reason):
                    told = [by.name, by.rank, by.incarnation, reason]
                    self._post(session, messages.GIVEN_UP, told)

    def _answer(self, peer: WorkerInfo, call: int, body: object = None) -> None:
        if call:
            self._post(peer, messages.REPLY, body, call)

    def _answer_error(self, peer: WorkerInfo, call: int, error: Exception) -> None:
        if call:
            self._post(peer, messages.ERROR, messages.encode_error(error), call)

    def _post(self, peer: WorkerInfo, kind: str, body: object, call: int = 0) -> None:
        envelope = write_body(kind, body, reply=call != 0)
        envelope.call = call
        try:
            self._exchange.post(peer, envelope)
        except (WorkerLostError, UnknownWorkerError):  # unknown: lost so long that it is forgotten
            logger.debug("%s for %s was not sent: it is lost", kind, peer.name)


def _row(member: Member) -> list[object]:
    info = member.info
    return [info.name, info.rank, info.incarnation, list(member.endpoints)]


def _fields(body: object) -> Mapping[str, object]:
    if not isinstance(body, dict):
        raise TypeError(f"the body must be a dict (got {type(body).__name__})")
    return body


def _read_join(body: object) -> tuple[JoinRequest, tuple[str, ...]]:
    """Reads a join: the request, and the endpoints of the worker's control line."""
    fields = _fields(body)
    request = JoinRequest(
        _field(body, "name", str),
        _field(body, "rank", int),
        _field(body, "world_size", int),
        _field(body, "incarnation", int),
        _endpoints(fields.get("endpoints")),
        _start_when(fields.get("start_when")),
        escaped(str(fields.get("process", "")), most=MOST_PROCESS),
    )
    return request, _endpoints(fields.get("control"))


def _check_owner(line: WorkerInfo, name: str) -> None:
    """Checks that a worker uses its own line; under mutual TLS the line has proved its name."""
    owner = messages.line_owner(line.name)
    if owner and name.lower() != owner.lower():
        raise AuthenticationError(
            f"the line of {owner!r} is none on which {name!r} can join or ask"
        )


def _field(body: object, key: str, kind: type[T]) -> T:
    value = _fields(body).get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{key} must be {_KINDS[kind]} (got {value!r:.60})")
    return value


def _seconds(fields: Mapping[str, object], key: str) -> float:
    value = fields.get(key, 0.0)
    if type(value) is int and value < MOST_SECONDS:  # how JavaScript, for one, writes 10.0
        value = float(value)
    if not isinstance(value, float) or not value >= 0:
        raise TypeError(f"{key} must be seconds, as a number (got {value!r:.60})")
    return value


def _endpoints(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"endpoints must be a list of str (got {value!r:.60})")
    return tuple(value)


def _start_when(value: object) -> StartWhen:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise TypeError(f"start_when must be an int, a list of str or None (got {value!r:.60})")


def _too_large(size: int, most_bytes: int) -> RendezvousError:
    """Returns the error of a request whose answer would be larger than one message may be."""
    return RendezvousError(
        f"the answer would have {size} bytes, and one message of the store has {most_bytes} at "
        "most; ask for fewer keys at a time, or list them by a longer prefix"
    )
