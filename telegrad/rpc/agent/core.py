"""The core of an agent: the parts of one worker, and the work that takes several of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast, final

from telegrad.errors import EvictedError
from telegrad.rendezvous import JoinedJob
from telegrad.rpc.agent.messages import Messages
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.base import ambient
from telegrad.rpc.base.attachments import Attachments
from telegrad.rpc.base.call_record import CallObserver
from telegrad.rpc.base.life import UNGRACEFUL, Life
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.base.members import Members
from telegrad.rpc.base.served_call import current_served_call
from telegrad.rpc.base.statistics import RpcStatistics
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.serving import Serving
from telegrad.rpc.policy.policy import CallablePolicy
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.inbox import Inbox
from telegrad.rpc.pool.pool import Pool
from telegrad.transport import Exchange, LoopThread, refuse_in_section
from telegrad.types import WorkerInfo

MOST_NAMED = 3  # calls, in one line of the log
LOOK_SECONDS = 0.005  # between two looks of a worker that waits for the end of calls
LEAST_SECONDS = 0.1  # for the parts that close last; cancelled coroutines end in milliseconds


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class AgentCore:
    """The parts of one worker, as `telegrad.compose` has plugged them together.

    The packages of telegrad use the parts; a user holds an `Agent`, which shows the methods that
    users call. All methods may be called from any thread unless they say otherwise.

    Attributes:
        info: This worker.
        options: As given to `init_rpc`.
        life: The state of the agent, from made to ended, and the callbacks of its end.
        loop: The loop thread that owns the sockets.
        pool: The threads that run plain user functions.
        deadlines: The moments at which something is due.
        members: The workers of the job.
        inbox: The registry of handlers for what arrives.
        exchange: The sessions with the other workers.
        codec: The codec of messages that carry user values.
        permissions: The rules of what others may call here.
        calling: The calls that this worker makes.
        serving: The calls of others that it serves.
        messages: The protocol messages of upper packages.
        attachments: The parts that upper packages keep here.
    """

    info: WorkerInfo
    options: RpcOptions
    life: Life
    loop: LoopThread
    pool: Pool
    deadlines: Deadlines
    members: Members
    inbox: Inbox
    exchange: Exchange
    codec: MessageCodec
    permissions: CallablePolicy
    calling: Calling
    serving: Serving
    messages: Messages
    attachments: Attachments

    def open(self) -> tuple[str, ...]:
        """Opens the listeners and returns their endpoints; requests wait until `begin`.

        Raises:
            OSError: An address or port cannot be had.
        """
        self.loop.acquire()
        try:
            endpoints = self.exchange.start()
        except BaseException:
            self.loop.release()
            raise
        ambient.lower_switch_interval(self)
        self.life.opened()
        self.calling.keep_house()
        return endpoints

    def observe(self, observer: CallObserver) -> None:
        """Adds an observer, which sees the calls that begin from now on, made and served here."""
        self.calling.observers.append(observer)

    def learn(self, members: Iterable[tuple[WorkerInfo, Sequence[str]]]) -> None:
        """Takes members and their endpoints; late ones too."""
        known = list(members)
        for member, endpoints in known:
            if member != self.info:
                self.exchange.connect(member, endpoints)
        self.members.add(member for member, _ in known)
        self.calling.look()

    def begin(self) -> None:
        """Starts to serve: what arrived since `open` is handled now."""
        for peer, envelope in self.inbox.release():
            self.loop.call_soon(self.inbox.on_envelope, peer, envelope)

    def evict(self, error: EvictedError) -> bool:
        """Ends every wait with `error`, as the job goes on without this worker.

        Returns:
            True if it does; False if this worker leaves by itself, or has left.
        """
        if self.inbox.left:
            return False
        self.members.evict(error)
        for other in self.members.living():
            if other != self.info:
                self.exchange.fence(other, error.reason)
        self.calling.close(error)
        return True

    def join(self, membership: JoinedJob) -> None:
        """Sets the membership through which this agent shuts down together with the others."""
        self.life.membership = membership
        self.inbox.check_standing = membership.check_standing
        self.inbox.on_loss_at_once(membership.gave_up)
        for worker, error in self.members.losses():  # earlier losses; to tell one twice is harmless
            membership.gave_up(worker, error)

    def shutdown(self, *, graceful: bool = True, timeout: float = math.inf) -> None:
        """Ends this worker; idempotent. `docs/membership.md` lists its steps in every state.

        Steps that take longer than 2 s are named in the log, now and then.

        Args:
            graceful: True to wait for the own calls first, then serve until every living worker has
                called this, drain, release and leave within 10 s. False leaves at once, within 5 s;
                a call that waits for this worker raises WorkerLostError.
            timeout: Seconds for the own calls, and for the other workers to call it too.

        Raises:
            RendezvousTimeoutError: Some have not called it in time; `.missing` names them. The
                agent is closed all the same.
            BlockingCallError: On an event loop that telegrad runs.
        """
        limit = seconds(timeout, math.inf)
        if self.life.pid == os.getpid():  # a forked child must not end the agent of its parent
            self.life.end(self, graceful=graceful, timeout=limit)

    def leave_within(self, limit: float, reason: str = UNGRACEFUL) -> None:
        """Leaves at once, within `limit` seconds: for the exit of the process.

        Args:
            limit: Seconds.
            reason: The reason, in words, for the others.
        """
        if self.life.pid == os.getpid():  # a forked child inherits the exit hooks too
            self.life.alone = reason
            self.life.end(self, graceful=False, timeout=limit, close_seconds=limit)

    def statistics(self) -> RpcStatistics:
        """Returns the counters of this worker."""
        refuse_in_section("statistics()")
        traffic = self.exchange.statistics()
        owned, used = self.attachments.rref_counts()
        return RpcStatistics(
            calls_sent=self.calling.sent,
            calls_served=self.serving.served,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            pending_calls=self.calling.pending,
            waiting_calls=self.calling.waiting,
            admitted_bytes=self.serving.admission.in_use,
            owned_rrefs=owned,
            user_rrefs=used,
        )

    def __repr__(self) -> str:
        place = f"rank {self.info.rank} of {self.members.world_size}"
        return f"<Agent {self.info.name!r} ({place}): {self.life.state}, {self.life.age:.1f} s old>"

    # The steps of its end, for `Life`.

    def drain(self, deadline: float, *, given_up: bool = True) -> bool:
        """Waits until nothing is called or served here; returns True if that happened in time."""
        while not self._is_at_rest(given_up):
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def waits_for(self) -> str:
        """Returns the calls, own or else served here, that an end waits for, in words; or ""."""
        own = self.calling.labels()
        if own:
            return _named(own, "own call")
        served = [each for each in self.serving.calls() if not each.cancelled]
        words = [f"{each.record.function} for {each.caller.name!r}" for each in served]
        return _named(words, "call that it serves", "calls that it serves") if words else ""

    def own_calls(self) -> int:
        """Returns the number of own calls that are not answered."""
        return self.calling.pending

    def serves_this(self) -> bool:
        """Returns True if the calling code runs in a call that is served here."""
        served = current_served_call()
        return served is not None and self.serving.serves(served)

    def abandon(self) -> None:
        """Ends the waits of this worker, since it leaves without the others."""
        self.inbox.left = True
        self.calling.close()

    def close(self, timeout: float, reason: str) -> None:
        """Says goodbye, flushes what was posted and ends the threads; use `shutdown`."""
        ends = time.monotonic() + timeout
        try:
            self.exchange.close(timeout, reason, leaves_at_once=self.inbox.left)
        finally:
            self.calling.close()
            self.serving.close(max(ends - time.monotonic(), LEAST_SECONDS))
            self.deadlines.close()
            self.pool.close()
            ambient.restore_switch_interval(self)
            self.loop.release()

    def _is_at_rest(self, given_up: bool) -> bool:
        calling, serving = self.calling, self.serving
        # Calls that are served may have made own calls in the meantime.
        return not calling.pending and serving.is_idle(given_up=given_up) and not calling.pending


def _named(labels: Sequence[str], one: str, many: str = "") -> str:
    """Returns words on the number of calls, and the first few of them."""
    more = len(labels) - MOST_NAMED
    named = ", ".join(labels[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{len(labels)} {one if len(labels) == 1 else many or one + 's'}: {named}"


# The ambient agent with all its parts. `ambient` is a layer below them and knows only a few.
current_agent = cast("Callable[[], AgentCore]", ambient.current_agent)
find_agent = cast("Callable[[], AgentCore | None]", ambient.find_agent)
process_agent = cast("Callable[[], AgentCore | None]", ambient.process_agent)
