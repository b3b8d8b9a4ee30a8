"""How a worker finds its job and becomes a member of it; blocking, within one deadline.

host the coordinator if this is the worker for it
dial it, again and again, until it listens
draw an incarnation from the store, publish endpoints under it
member.join, and wait until every rank has come
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from telegrad.errors import DecodeError, RendezvousError, RendezvousTimeoutError, WorkerLostError
from telegrad.rendezvous import messages
from telegrad.rendezvous.control import ControlLine, Pending, refuse_on_loop
from telegrad.rendezvous.coordinator import LOST_AFTER, Coordinator
from telegrad.rendezvous.init_method import JobAddress
from telegrad.rendezvous.joined_job import (
    JobListener,
    JoinedJob,
    MemberEvents,
    as_member,
)
from telegrad.rendezvous.membership import Member
from telegrad.rendezvous.names import check_name
from telegrad.rendezvous.progress import JoinProgress, name_ranks, unreached_line
from telegrad.rendezvous.store import check_timeout
from telegrad.rendezvous.tcp import TCPStore
from telegrad.transport import LoopThread, Transport
from telegrad.types import WorkerInfo

__all__ = ["join_job"]

logger = logging.getLogger(__name__)

JOIN_TIMEOUT = 300.0
WARN_EVERY = 10.0
FIRST_BACKOFF, LONGEST_BACKOFF = 0.02, 0.5  # a coordinator starts within a second of its workers
ATTEMPT_TIMEOUT = 10.0  # for one dial and its handshake, two round trips
GOODBYE_TIMEOUT = 1.0


def join_job(
    address: JobAddress,
    *,
    name: str,
    token: bytes | None,
    transports: Sequence[Transport],
    publish: Callable[[int], Sequence[str]],
    listener: JobListener,
    host_transports: Sequence[Transport] | None = None,
    timeout: float = JOIN_TIMEOUT,
    lost_after: float = LOST_AFTER,
    loop: LoopThread | None = None,
) -> JoinedJob:
    """Joins a job and waits until all its workers have.

    When it raises, nothing is left behind here or at the coordinator, and it may be called again
    at once. What `publish` opened is the caller's to close.

    Args:
        address: Where the job is and which place in it this worker has.
        name: This worker's name.
        token: The job's token; None only when insecure.
        transports: How the coordinator is reached; they listen as well, so with port 0.
        publish: Is given the incarnation of this worker, opens what the other workers dial, and
            returns the endpoints in order of preference. Called once, by this thread.
        listener: Hears of arrivals and losses after the job is complete; called on the loop.
        host_transports: Where the coordinator listens when `address.hosts_store`; `transports`
            by default.
        timeout: Seconds for all of it, above 0.
        lost_after: Seconds of silence after which a worker is lost for the coordinator.
        loop: The loop thread; the process' shared one by default.

    Raises:
        RendezvousTimeoutError: Not all workers came in time; `.missing` says which, each with
            the last error known of it.
        DuplicateNameError: Another living worker has the name or the rank.
        AuthenticationError: One of both does not hold the other's token.
        RendezvousError: The coordinator is of another job, expects another world size, or was
            lost.
        ValueError: The name or the timeout cannot be.
        OSError: The coordinator was to run here and its port is in use.
    """
    refuse_on_loop("joining a job")
    check_name(name)
    attempt = _Attempt(address, name, Deadline(check_timeout(timeout)))
    coordinator: Coordinator | None = None
    line: ControlLine | None = None
    try:
        endpoint = address.coordinator_endpoint
        if address.hosts_store:
            coordinator = Coordinator(
                transports if host_transports is None else host_transports,
                job=address.job,
                token=token,
                world_size=address.world_size,
                lost_after=lost_after,
                loop=loop,
            )
            endpoint = coordinator.start()[0]
        events = MemberEvents(listener)
        line = ControlLine(
            job=address.job,
            rank=address.rank,
            token=token,
            transports=transports,
            lost_after=lost_after,
            on_message=events.on_message,
            on_lost=events.on_coordinator_lost,
            loop=loop,
        )
        job = attempt.run(line, events, endpoint, publish)
    except BaseException as error:
        _clean_up(line, coordinator, f"joining failed: {error}")
        raise
    return job.with_coordinator(coordinator)


@final
class Deadline:
    """A moment in the future and the seconds until it."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())


@final
@dataclass(frozen=True, slots=True)
class _Attempt:
    """One worker's way into the job."""

    address: JobAddress
    name: str
    deadline: Deadline

    def run(
        self,
        line: ControlLine,
        events: MemberEvents,
        endpoint: str,
        publish: Callable[[int], Sequence[str]],
    ) -> JoinedJob:
        self._find_coordinator(line, endpoint)
        incarnation = self._draw_incarnation(line, endpoint)
        info = WorkerInfo(self.name, self.address.rank, incarnation)
        events.follow(info)
        body = {
            "name": self.name,
            "rank": self.address.rank,
            "world_size": self.address.world_size,
            "incarnation": incarnation,
            "endpoints": list(publish(incarnation)),
            "control": list(line.endpoints),
        }
        pending = line.request(messages.JOIN, body, time_left=self.deadline.left)
        members = self._wait_until_complete(line, pending, events, endpoint)
        return JoinedJob(info, events.welcome(members), line, TCPStore(line), events, endpoint)

    def _find_coordinator(self, line: ControlLine, endpoint: str) -> None:
        """Dials the coordinator until it answers; the pauses end when the line is closed."""
        report = _Report(self.deadline)
        backoff = FIRST_BACKOFF
        problem = ""
        while True:
            allowed = min(ATTEMPT_TIMEOUT, max(self.deadline.left, 0.001))
            try:
                line.connect(endpoint, allowed)
                return
            except RendezvousError:
                raise
            except (ConnectionError, TimeoutError) as error:
                cause = error
            # An attempt that our own deadline cut short says less than the one before it.
            if not problem or allowed == ATTEMPT_TIMEOUT or self.deadline.left > 0:
                problem = _words(cause)
            left = self.deadline.left
            if left <= 0:
                raise self._unreached(endpoint, problem) from cause
            report.say(problem, unreached_line(endpoint, problem, left))
            line.closed.wait(min(backoff, left))
            backoff = min(2 * backoff, LONGEST_BACKOFF)

    def _draw_incarnation(self, line: ControlLine, endpoint: str) -> int:
        body = {"key": messages.INCARNATION_KEY, "amount": 1}
        try:
            answer = line.ask(messages.STORE_ADD, body, timeout=max(self.deadline.left, 0.001))
        except RendezvousError:
            raise
        except TimeoutError as error:
            raise self._unreached(endpoint, "it took the request and did not answer") from error
        if not isinstance(answer, int):
            raise DecodeError(f"the coordinator answered {answer!r:.60} instead of an incarnation")
        return answer

    def _wait_until_complete(
        self, line: ControlLine, pending: Pending, events: MemberEvents, endpoint: str
    ) -> tuple[Member, ...]:
        report = _Report(self.deadline)
        pending.on_done(events.changed.set)
        while not pending.done():
            left = self.deadline.left
            if left <= 0:
                raise self._incomplete(endpoint, events.progress or self._nothing_heard())
            events.changed.wait(min(report.pause, left, threading.TIMEOUT_MAX))
            events.changed.clear()
            if not pending.done():
                progress = events.progress or self._nothing_heard()
                report.say(progress, progress.line(self.deadline.left))
        body = pending.wait()
        rows = body.get("members") if isinstance(body, dict) else None
        members = tuple(as_member(row) for row in rows) if isinstance(rows, list) else ()
        logger.info("%d/%d joined; the job is complete", len(members), self.address.world_size)
        return members

    def _unreached(self, endpoint: str, problem: str) -> RendezvousTimeoutError:
        where = f"the coordinator at {endpoint}: {problem}"
        what = "" if "://" not in endpoint else " (`telegrad run`, or rank 0)"
        return RendezvousTimeoutError(
            f"{self.name!r} (rank {self.address.rank}) did not reach the coordinator of job "
            f"{self.address.job!r} within {self.deadline.timeout:g} s; last error: {problem}; "
            f"start the coordinator{what} at {endpoint}, or check MASTER_ADDR and MASTER_PORT",
            missing=(f"rank 0: {where}" if self.address.rank else where,),
        )

    def _nothing_heard(self) -> JoinProgress:
        return JoinProgress(0, (self.address.rank,), self.address.world_size)

    def _incomplete(self, endpoint: str, progress: JoinProgress) -> RendezvousTimeoutError:
        missing = progress.missing_with_errors(endpoint)
        return RendezvousTimeoutError(
            f"job {self.address.job!r} was not complete within {self.deadline.timeout:g} s: "
            f"{len(progress.joined)}/{progress.world_size} joined; missing: "
            f"{'; '.join(missing)}; start {name_ranks(progress.missing)}, or wait longer with "
            "init_timeout=",
            missing=missing,
        )


@final
class _Report:
    """Says a line at INFO when something changed, and at WARNING every 10 s of waiting."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._last: object = None
        self._warn_at = time.monotonic() + WARN_EVERY

    @property
    def pause(self) -> float:
        """Seconds until the next warning is due."""
        return max(0.0, self._warn_at - time.monotonic())

    def say(self, state: object, line: str) -> None:
        """Takes the state of the wait and the line that describes it."""
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY
            logger.warning("%s", line)
        elif state != self._last:
            logger.info("%s", line)
        self._last = state


def _clean_up(line: ControlLine | None, coordinator: Coordinator | None, reason: str) -> None:
    """Leaves before the line closes, so that the place is free when this returns."""
    if line is not None:
        try:
            line.ask(messages.LEAVE, {"reason": reason}, timeout=GOODBYE_TIMEOUT)
        except (ConnectionError, TimeoutError) as error:
            logger.debug("could not say goodbye to the coordinator: %s", error)
        line.close(reason=reason)
    if coordinator is not None:
        coordinator.close()


def _words(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, WorkerLostError):
        return error.reason or str(error)
    return str(error) or type(error).__name__
