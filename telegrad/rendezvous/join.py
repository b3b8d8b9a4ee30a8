"""Joining a job: a worker finds the coordinator and becomes a member. Blocking, with a deadline.

host the coordinator if this is the worker for it; make its endpoint known, by a file or multicast
dial it, again and again, until it listens
choose an address to listen on, now that the coordinator's is known
reserve a place, if this worker joins a job that has already started
draw an incarnation from the store, listen, publish endpoints under it
member.join, and wait until every rank has come, or the other workers that this one waits for
"""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias, final

from telegrad.errors import (
    AuthenticationError,
    DecodeError,
    DuplicateNameError,
    JoinCancelledError,
    RendezvousError,
    RendezvousTimeoutError,
    TelegradError,
    WorkerLostError,
)
from telegrad.rendezvous import control as messages
from telegrad.rendezvous.control import DEFAULT_LIMITS, LOST_AFTER, ControlLine
from telegrad.rendezvous.coordinator import Coordinator
from telegrad.rendezvous.endpoint_source import EndpointSource, Published
from telegrad.rendezvous.file import EndpointFile
from telegrad.rendezvous.job_address import JobAddress
from telegrad.rendezvous.joined_job import (
    JobListener,
    JoinedJob,
    JoinProgress,
    MemberEvents,
    as_member,
    time_left,
)
from telegrad.rendezvous.listening import address_words, loopback_words
from telegrad.rendezvous.membership import Member, StartWhen, check_name
from telegrad.rendezvous.multicast import MulticastSource
from telegrad.rendezvous.store import check_timeout
from telegrad.transport import ConnectionLimits, GuestList, Transport, get_logger, refuse_to_block
from telegrad.types import WorkerInfo

# -- cancelling a join that still waits, from another thread -------------------------------------


@final
class CallOff:
    """The means to cancel one join. All methods may be called from any thread.

        waits ──▶ called off     every `check` of the join raises
          └─────▶ settled        the worker has joined

    Attributes:
        thread: The thread that joins.
        over: An event, set when the join has succeeded, or has ended and left nothing behind.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.over = threading.Event()
        # "cancelled" is true or false once that is decided. No lock: a signal handler may decide.
        self._decided: dict[str, bool] = {}
        self._hook: Callable[[], object] = lambda: None

    def __call__(self) -> bool:
        """Cancels the join; returns False if the worker had joined before."""
        cancelled = self._decided.setdefault("cancelled", True)
        if cancelled:
            self._hook()
        return cancelled

    def wakes(self, hook: Callable[[], object]) -> None:
        """Calls `hook` when the join is cancelled, or now if it was; `hook` must not block.

        It may be called twice.
        """
        self._hook = hook
        if self._decided.get("cancelled"):
            hook()

    def check(self) -> None:
        """Returns if the join may go on.

        Raises:
            JoinCancelledError: The join was cancelled.
        """
        if self._decided.get("cancelled"):
            raise JoinCancelledError(
                "joining the job was given up, since rpc.shutdown() was called while this waited "
                "for the job; call rpc.init_rpc() again to join it after all"
            )

    def settle(self) -> None:
        """Records that the worker has joined; the join cannot be cancelled any more.

        Raises:
            JoinCancelledError: The join was cancelled before.
        """
        self._decided.setdefault("cancelled", False)
        self.check()


# -- the join ------------------------------------------------------------------------------------

logger = get_logger(__name__)

Publish: TypeAlias = Callable[[WorkerInfo, int], Sequence[str]]
Found: TypeAlias = Callable[[str], None]

JOIN_TIMEOUT = 300.0
WARN_EVERY = 10.0
SAY_EVERY = 1.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.02, 0.5  # a coordinator starts within a second of its workers
ATTEMPT_TIMEOUT = 10.0  # for one dial and its handshake, two round trips
GOODBYE_TIMEOUT = 1.0
MOST_SAID = 200  # characters that others hear of the error of a join
TWIN_SECONDS = 5.0  # for a coordinator on this host, or wherever the job says it is
LINES = 2  # of one worker to the coordinator at most: one that was cut off asks on a second line


def join_job(
    address: JobAddress,
    *,
    name: str,
    token: bytes | None,
    transports: Sequence[Transport],
    publish: Publish,
    listener: JobListener,
    guests: GuestList | None = None,
    on_found: Found | None = None,
    listens: bool = True,
    start_when: StartWhen = None,
    timeout: float = JOIN_TIMEOUT,
    lost_after: float = LOST_AFTER,
    limits: ConnectionLimits = DEFAULT_LIMITS,
    call_off: CallOff | None = None,
) -> JoinedJob:
    """Joins a job; waits until all its workers have joined, or those of `start_when`.

    When it raises, nothing is left behind here or at the coordinator, and it may be called again at
    once. The caller must close what `publish` opened.

    Args:
        address: The address of the job, and this worker's place in it.
        name: This worker's name; with "" the coordinator chooses one, for a late worker only.
        token: The job's token; None only when insecure.
        transports: The transports that reach the coordinator, and on which this worker listens for
            it.
        publish: Gets this worker's identity and the world size, opens the listeners for other
            workers, and returns their endpoints in order of preference. Called once, by this
            thread.
        listener: Gets arrivals and losses after this worker was welcomed; called on the loop.
        guests: The allowlist for the listeners that `publish` opens; kept in step with the members.
        on_found: Gets the coordinator's endpoint before anything listens here, unless the
            coordinator runs here; called by this thread.
        listens: True if the coordinator may dial this worker. If False, it notices this worker's
            sudden end only by silence.
        start_when: The number of workers to wait for, itself included, or their names; None for
            every rank below the world size. A late worker waits for nobody.
        timeout: Seconds for everything, above 0.
        lost_after: Seconds of silence after which the coordinator is lost for this worker, and
            this worker, if that is later than others, for the coordinator.
        limits: The limits on the line to the coordinator, and on the coordinator if it runs here.
        call_off: Ends the wait when another thread calls it.

    Raises:
        JoinCancelledError: The join was cancelled.
        RendezvousTimeoutError: Not all the workers that this one waits for came in time; `.missing`
            names them, each with the last error known of it.
        DuplicateNameError: Another living worker has the name or the rank, or another process says
            that it has the rank that hosts the coordinator.
        AuthenticationError: One side does not hold the other's token.
        RendezvousError: The coordinator belongs to another job, expects another world size, or was
            lost; or the file or group with its endpoint cannot be used.
        EvictedError: The coordinator gave this worker up before it was welcomed.
        ValueError: The name or the timeout is invalid, or a host of the coordinator must not
            listen.
        OSError: The port to listen on is in use.
    """
    refuse_to_block("joining a job", "write `await rpc.to_thread(...)`")
    if address.hosts_store and not listens:
        raise ValueError(
            "this worker hosts the coordinator, which all others dial, and so it has to listen; "
            "leave port=None to other ranks, or start the job with `telegrad run`, which hosts "
            "the coordinator itself"
        )
    if name or not address.late:
        check_name(name)
    waits_for = 1 if address.late else start_when
    ends = time.monotonic() + check_timeout(timeout)
    source = _source(address)
    found = None if address.hosts_store else on_found
    call_off = CallOff() if call_off is None else call_off
    coordinator: Coordinator | None = None
    line: ControlLine | None = None
    events = MemberEvents(listener, guests)
    try:
        endpoint = address.coordinator_endpoint
        if address.hosts_store:
            coordinator = Coordinator(
                transports,
                job=address.job,
                token=token,
                world_size=address.world_size,
                host=address.rank,
                lost_after=lost_after,
                limits=dataclasses.replace(limits, connections=LINES * limits.connections),
            )
            try:
                endpoint = coordinator.start()[0]
            except OSError as error:
                if error.errno == errno.EADDRINUSE and endpoint:
                    _check_twin(address, name, error, min(TWIN_SECONDS, timeout), token, transports)
                raise
            if source is not None:
                source.publish(endpoint)
        line = ControlLine(
            job=address.job,
            rank=address.rank,
            token=token,
            transports=transports,
            lost_after=lost_after,
            on_message=events.on_message,
            on_lost=events.on_coordinator_lost,
            owner=name,
            limits=limits,
        )
        attempt = _Attempt(
            address=address,
            name=name,
            line=line,
            events=events,
            coordinator=coordinator,
            source=source,
            timeout=timeout,
            ends=ends,
            start_when=waits_for,
            lost_after=lost_after,
            listens=listens,
            call_off=call_off,
        )
        return attempt.run(endpoint, found, publish)
    except BaseException as error:
        if source is not None:
            source.withdraw()
        events.close(GOODBYE_TIMEOUT)
        _clean_up(line, coordinator, f"{name!r} (rank {address.rank})", _why(error, timeout))
        if isinstance(error, Exception):
            call_off.check()  # a cancelled join raises its own error, whatever this one is
        raise


def _source(address: JobAddress) -> EndpointSource | None:
    """Returns the place where rank 0 makes its endpoint known; None if the address has it."""
    if address.multicast is not None:
        return MulticastSource(address.multicast, address.job)
    return EndpointFile(address.file) if address.file else None


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """The steps of one worker into the job."""

    address: JobAddress
    name: str
    line: ControlLine
    events: MemberEvents
    coordinator: Coordinator | None
    source: EndpointSource | None
    timeout: float
    ends: float
    start_when: StartWhen
    lost_after: float
    listens: bool
    call_off: CallOff

    @property
    def left(self) -> float:
        """The seconds left, at least 0."""
        return max(0.0, self.ends - time.monotonic())

    def run(self, endpoint: str, on_found: Found | None, publish: Publish) -> JoinedJob:
        """Finds the coordinator, at the endpoint or through the source, and becomes a member."""
        self.call_off.wakes(self.events.changed.set)
        self._find_coordinator(endpoint)
        self.call_off.check()
        if on_found is not None:
            on_found(self.line.endpoint)
        placed = self._reserve() if self.address.late else self
        try:
            return placed._join(publish)
        except DuplicateNameError as error:
            if self.source is not None and not endpoint:
                error.add_note(
                    f"the coordinator was found through {self.source.name}; if it is of an earlier "
                    "job that still runs, end that one, or name another"
                )
            raise

    def _join(self, publish: Publish) -> JoinedJob:
        info = WorkerInfo(self.name, self.address.rank, self._draw_incarnation())
        world_size, line, wanted = self.address.world_size, self.line, self.start_when
        self.events.begin(info, line)
        body = {
            "name": self.name,
            "rank": self.address.rank,
            "world_size": world_size,
            "incarnation": info.incarnation,
            "endpoints": list(publish(info, world_size)),
            "control": list(line.listen()) if self.listens else [],
            "lost_after": float(self.lost_after),
            "start_when": list(wanted) if isinstance(wanted, tuple) else wanted,
            "process": _process(),
        }
        self.call_off.check()
        members, known = self._wait_until_complete(
            line.request(messages.JOIN, body, time_left=self.left)
        )
        welcomed = self.events.welcome(members)
        if not known:
            self._wait_until_known()
        return JoinedJob(
            info, welcomed, line, self.events, world_size, self.coordinator, self.source
        )

    def _find_coordinator(self, endpoint: str) -> None:
        """Dials the coordinator until it answers; the pauses end when the line is closed.

        Without an endpoint it dials those from the source. They may lead anywhere, so any failure
        with one of them is followed by another try.
        """
        line = self.line
        report = _Report()
        backoff = FIRST_BACKOFF
        problem, seen = "", None
        while True:
            self.call_off.check()
            allowed = min(ATTEMPT_TIMEOUT, max(self.left, 0.001))
            published = self.source.read() if self.source is not None and not endpoint else None
            where = published.endpoint if published is not None else endpoint
            seen = published or seen  # when rank 0 gives up, it removes the file
            cause: Exception | None = None
            try:
                if where:
                    line.connect(where, allowed)
                    if published is not None and self.source is not None:
                        self.source.withdraw()  # nothing more is read from it
                    return
            except (AuthenticationError, RendezvousError) as error:
                if published is None or line.closed.is_set():
                    raise
                cause = error
            except (ConnectionError, TimeoutError) as error:
                cause = error
            # An attempt cut short by our own deadline tells less than the one before it.
            if cause is not None and (not problem or allowed == ATTEMPT_TIMEOUT or self.left > 0):
                problem = _words(cause)
            left = self.left
            if left <= 0:
                at = seen.endpoint if seen is not None else where
                raise self._unreached(at, problem, seen) from cause
            report.say((where, problem), self._waiting_line(where, problem, left))
            line.closed.wait(min(backoff, left))
            backoff = min(2 * backoff, LONGEST_BACKOFF)

    def _waiting_line(self, endpoint: str, problem: str, left: float) -> str:
        awaited = f"the coordinator at {endpoint} ({problem})"
        if not endpoint and self.source is not None:
            awaited = self.source.waiting
        return f"waiting for {awaited}; {time_left(left)}"

    def _reserve(self) -> _Attempt:
        """Asks the coordinator for the name and rank that this worker will have."""
        match self._ask(messages.RESERVE, {"name": self.name}):
            case {"name": str(name), "rank": int(rank), "world_size": int(size)}:
                address = dataclasses.replace(self.address, rank=rank, world_size=size)
                return dataclasses.replace(self, name=name, address=address)
            case answer:
                raise DecodeError(f"the coordinator answered {answer!r:.60} instead of a place")

    def _draw_incarnation(self) -> int:
        answer = self._ask("store.add", {"key": messages.INCARNATION_KEY, "amount": 1})
        if not isinstance(answer, int):
            raise DecodeError(f"the coordinator answered {answer!r:.60} instead of an incarnation")
        return answer

    def _ask(self, kind: str, body: object) -> object:
        try:
            return self.line.ask(kind, body, timeout=max(self.left, 0.001))
        except RendezvousError:
            raise
        except TimeoutError as error:
            words = "it took the request and did not answer"
            raise self._unreached(self.line.endpoint, words) from error

    def _wait_until_complete(self, pending: Future[object]) -> tuple[tuple[Member, ...], bool]:
        """Returns the members, and whether all of them know this worker."""
        report, events = _Report(), self.events
        pending.add_done_callback(lambda _: events.changed.set())
        while not pending.done():
            self.call_off.check()
            left = self.left
            if left <= 0:
                how = f"within {self.timeout:g} s"
                raise self._incomplete(how)
            events.changed.wait(min(report.pause, left, threading.TIMEOUT_MAX))
            events.changed.clear()
            if not pending.done():
                progress = self._heard()
                report.say(progress, progress.line(self.left))
        try:
            body = pending.result()
        except RendezvousError as error:
            loss = self.line.lost
            if loss is None or not loss.left or events.progress is None:
                raise
            how = f"when its coordinator was closed ({loss.reason})"
            raise self._incomplete(how) from error
        rows = body.get("members") if isinstance(body, dict) else None
        members = tuple(as_member(row) for row in rows) if isinstance(rows, list) else ()
        logger.info("%d/%d joined; the job has started", len(members), self.address.world_size)
        return members, not isinstance(body, dict) or body.get("known") is not False

    def _wait_until_known(self) -> None:
        """Waits until the others may call this worker: whoever hears of its start may tell them.

        One that does not answer is lost after `lost_after`, and is then not waited for.
        """
        ends = time.monotonic() + min(self.left, self.lost_after)
        events = self.events
        while not events.is_known and self.line.lost is None:
            self.call_off.check()
            left = ends - time.monotonic()
            if left <= 0:
                logger.info("%r starts before all members have said that they know it", self.name)
                return
            events.changed.wait(min(left, threading.TIMEOUT_MAX))
            events.changed.clear()

    def _unreached(
        self, endpoint: str, problem: str, published: Published | None = None
    ) -> RendezvousTimeoutError:
        where = f"the coordinator at {endpoint}: {problem}"
        if self.source is None:
            what = "" if "://" not in endpoint else " (`telegrad run`, or rank 0)"
            why = (
                f"last error: {problem}; start the coordinator{what} at {endpoint}, or check "
                "MASTER_ADDR and MASTER_PORT"
            )
            why += address_words(problem)
        elif published is not None:
            why = self.source.unreached(published, problem)
            why += loopback_words(endpoint) or address_words(problem)
        else:
            where = self.source.unread
            why = f"rank 0 {where}; {self.source.remedy}"
        return RendezvousTimeoutError(
            f"{self.name!r} (rank {self.address.rank}) did not reach the coordinator of job "
            f"{self.address.job!r} within {self.timeout:g} s; {why}",
            missing=(f"rank 0: {where}" if self.address.rank else where,),
        )

    def _heard(self) -> JoinProgress:
        nothing = JoinProgress(0, (self.address.rank,), self.address.world_size, names=(self.name,))
        return dataclasses.replace(self.events.progress or nothing, start_when=self.start_when)

    def _incomplete(self, how: str) -> RendezvousTimeoutError:
        """Says who is missing: the same on all workers, whoever of them gives up first."""
        progress, endpoint = self._heard().with_all_who_came, self.line.endpoint
        missing = progress.missing_with_errors(endpoint)
        what = "was not complete" if self.start_when is None else "could not start"
        return RendezvousTimeoutError(
            f"job {self.address.job!r} {what} {how}: "
            f"{len(progress.joined)}/{progress.world_size} joined; missing: "
            f"{progress.missing_in_words(endpoint)}; start {progress.wanted}, or wait longer with "
            "init_timeout=",
            missing=missing,
        )


def _process() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _check_twin(
    address: JobAddress,
    name: str,
    in_use: OSError,
    timeout: float,
    token: bytes | None,
    transports: Sequence[Transport],
) -> None:
    """Finds the process that has the port of the coordinator that this worker was to host.

    If that is another process which says that it has this rank, it is refused, too: it would wait
    in vain for the rank that this worker should have had.

    Raises:
        DuplicateNameError: It is; the message has the ids of both processes.
    """
    ends = time.monotonic() + timeout
    line = ControlLine(
        job=address.job, rank=address.rank, token=token, transports=transports, owner=name
    )
    try:
        line.connect(address.coordinator_endpoint, timeout)
        left = max(0.001, ends - time.monotonic())
        key = {"key": messages.INCARNATION_KEY, "amount": 1}
        body = {
            "name": name,
            "rank": address.rank,
            "world_size": address.world_size,
            "incarnation": line.ask("store.add", key, timeout=left),
            "endpoints": [],
            "control": [],
            "process": _process(),
        }
        line.ask(messages.JOIN, body, timeout=max(0.001, ends - time.monotonic()))
    except DuplicateNameError as error:
        raise error from in_use
    except (TelegradError, ConnectionError, TimeoutError) as error:
        logger.debug("%s: %s", in_use, error)  # somebody else has the port
    finally:
        _clean_up(line, None, name, "it has the rank of another")


@final
class _Report:
    """Logs what changed at INFO, once a second at most, and every 10 s of waiting at WARNING.

    Each worker hears of each other one: with every change in it, the log of a job would grow with
    the square of its workers.
    """

    def __init__(self) -> None:
        self._last: object = None
        self._warn_at = time.monotonic() + WARN_EVERY
        self._say_at = -math.inf
        self._unsaid = False

    @property
    def pause(self) -> float:
        """The seconds until the next line is due."""
        due = min(self._warn_at, self._say_at) if self._unsaid else self._warn_at
        return max(0.0, due - time.monotonic())

    def say(self, state: object, line: str) -> None:
        """Takes the state of the wait and the line that describes it."""
        now = time.monotonic()
        warns, self._unsaid = now >= self._warn_at, state != self._last
        if warns:
            self._warn_at = now + WARN_EVERY
            logger.warning("%s", line)
        elif self._unsaid and now >= self._say_at:
            logger.info("%s", line)
        else:
            return
        self._last, self._unsaid, self._say_at = state, False, now + SAY_EVERY


def _why(error: BaseException, timeout: float) -> str:
    """Says why a join failed, for others: without what it says about them."""
    if isinstance(error, RendezvousTimeoutError):
        return f"its time was over ({timeout:g} s)"
    if isinstance(error, JoinCancelledError):
        return "rpc.shutdown() was called"
    return textwrap.shorten(f"{type(error).__name__}: {error}", MOST_SAID, placeholder=" ...")


def _clean_up(
    line: ControlLine | None, coordinator: Coordinator | None, who: str, reason: str
) -> None:
    """Leaves the job before it closes the line, so that the place is free when this returns."""
    if line is not None:
        try:
            line.ask(messages.LEAVE, {"reason": reason}, timeout=GOODBYE_TIMEOUT)
        except (ConnectionError, TimeoutError) as error:
            logger.debug("could not say goodbye to the coordinator: %s", error)
        line.close(reason=reason)
    if coordinator is not None:
        coordinator.close(reason=f"{who}, which hosts it, gave up: {reason}")


def _words(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, WorkerLostError):
        return error.reason or str(error)
    return str(error) or type(error).__name__
