"""The core of an agent: all parts that one worker owns, from its first listener to its goodbye."""

from __future__ import annotations

import contextvars
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, final

from telegrad.errors import EvictedError, WorkerLostError
from telegrad.rpc.agent.ambient import (
    check_process,
    clear_process_agent,
    enter_agent,
    switch_interval_at_most,
    watch_forks,
)
from telegrad.rpc.agent.inbox import Inbox
from telegrad.rpc.agent.members import Members, RpcStatistics
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.agent.seams import AgentSeams
from telegrad.rpc.agent.shutdown import UNGRACEFUL, Membership, Shutdown
from telegrad.rpc.call.admission_callee import CalleeAdmission
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.served_call import current_served_call
from telegrad.rpc.call.serving import CALL, Serving
from telegrad.rpc.call.user_call import admit_call, call_message
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.waits import LoopWakers
from telegrad.rpc.limits import Limits, seconds
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.pool import Pool
from telegrad.rpc.pool.user_loop import UserLoop
from telegrad.transport import ConnectionLimits, Exchange, LoopThread, Receiver
from telegrad.types import WorkerInfo
from telegrad.wire import FIRST_BUFFER, Buffer, CallablePolicy, Envelope

__all__ = [
    "AgentCore",
    "OpenExchange",
    "connection_limits",
]


# -- the factory of an agent's Exchange: the agent knows no transports ---------------------------

# Receipts come with what the peer writes, else after 64 messages: an honest one may owe a few hundred.
LEAST_UNREAD_REPLIES = 1000


class OpenExchange(Protocol):
    """For the library: makes the agent's Exchange, from transports and credentials."""

    def __call__(self, *, receiver: Receiver) -> Exchange:
        """Returns an Exchange that hands what arrives to `receiver`."""


def connection_limits(limits: Limits) -> ConnectionLimits:
    """For the library: returns those of an agent's limits that are its transport's."""
    return ConnectionLimits(
        connections=limits.connections,
        unproved=limits.unproved_streams,
        handshake_bytes=limits.handshake_bytes,
        handshake_seconds=limits.handshake_seconds,
        unread_replies=max(2 * limits.served_calls_per_peer, LEAST_UNREAD_REPLIES),
        received=limits.received,
    )


# ------------------------------------------------------------------------------------------------

MOST_NAMED = 3  # calls, in one line of the log
LEAST_SECONDS = 0.1  # for what is closed last; coroutines that are cancelled end in milliseconds


@final
class AgentCore(AgentSeams):
    """The parts of one worker, plugged together; the packages of telegrad call its methods.

    A user holds an `Agent`, which shows the methods that users call. All methods may be called
    from any thread unless they say otherwise.

    Attributes:
        ended: True once it was shut down.
        forked: True if this process was forked from the one that it runs in.
        loop_wakers: What wakes the tasks of users' event loops.

    Args:
        info: This worker.
        world_size: How many workers the job has.
        options: As given to `init_rpc`.
        loop: The loop thread that owns the sockets.
        open_exchange: Makes the Exchange.
        context: The Context whose copies user functions run in; an empty one by default.
    """

    def __init__(
        self,
        info: WorkerInfo,
        *,
        world_size: int,
        options: RpcOptions,
        loop: LoopThread,
        open_exchange: OpenExchange,
        context: contextvars.Context | None = None,
    ) -> None:
        self.info = info
        self.options = options
        self.pid = os.getpid()
        self.ended = self.forked = False
        self.reports = None
        watch_forks(self)
        self.main_stays_here = False
        self.loop_wakers = LoopWakers()
        self._made = time.monotonic()
        self._context = contextvars.Context() if context is None else context
        self._context.run(enter_agent, self)
        self._loop = loop
        self._attached = {}
        self._rref_counts = lambda: (0, 0)
        self._deadlines = Deadlines(loop)
        self._pool = Pool(
            info.name,
            options.num_threads,
            self._deadlines,
            self.new_context,
        )
        self._user_loop = UserLoop(info.name, self._deadlines, self.submit)
        self._policy = CallablePolicy(
            options.callable_mode, options.callable_patterns, options.callable_decision
        )
        self._codec = MessageCodec(
            self.resolve_value, info.name, options.limits.received, options.device_maps
        )
        self._members = Members(info, world_size)
        self._inbox = Inbox(self._members, self._pool)
        self._exchange = open_exchange(receiver=self._inbox)
        self._pool.idle_with(self._exchange.reader.watch_idle)
        self._codec.memory = self._exchange.memory
        self._codec.devices.moves = self._exchange.land
        post = self._exchange.post
        self._calling = Calling(
            info.name,
            self._codec,
            self._deadlines,
            self.submit,
            post,
            self._exchange.reader,
            self._exchange.unconnected,
            options.limits,
            options.timeout,
        )
        self._own_calls = [self._calling]
        self._serving = Serving(
            info.name,
            self._codec,
            self._pool,
            self._user_loop,
            self._context.copy,
            post,
            CalleeAdmission(options.limits, self._deadlines, post, self._exchange.awaited),
            options.limits.served_calls_per_peer,
        )
        self._inbox.hand_to(self._calling, self._serving)
        self._shutdown = Shutdown(info.name, self)
        # First, and so called last: until then `shutdown` finds this agent, and waits for its end.
        self.after_close(self._has_ended)
        self.serve_named(CALL, partial(admit_call, self.resolve))

    # Who is who.

    @property
    def name(self) -> str:
        """This worker's name."""
        return self.info.name

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """How many ranks the job has, those of living workers that joined on top included."""
        return self._members.world_size

    def worker(self, to: str | int | WorkerInfo) -> WorkerInfo:
        """Returns the worker that a `to` argument means.

        Raises:
            TypeError: It is no name, rank or WorkerInfo (a bool, for instance).
            UnknownWorkerError: There is no such worker.
        """
        return self._members.find(to)

    def workers(self) -> list[WorkerInfo]:
        """Returns the living workers by rank, this one included."""
        return self._members.living()

    def lost(self, worker: WorkerInfo) -> WorkerLostError | None:
        """Returns why a worker is lost, as a fresh error; None while it is not."""
        return self._members.lost(worker)

    def eviction(self) -> EvictedError | None:
        """Returns why the job goes on without this worker, as a fresh error; None while it does not."""
        return self._members.eviction()

    # Calls that carry user values: codec, interceptors, pool.

    def call(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Future[Any]:
        """Calls a function on a worker, at most once; never retried.

        Returns:
            The future of its value. The arguments were encoded when this returns.

        Raises:
            TypeError: An argument of this method has the wrong form.
            UnknownWorkerError: There is no such worker.
            EncodeError: The function or an argument cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
        """
        peer = self._members.find(to)
        name, payload = call_message(func, args, kwargs)
        if self.forked:
            check_process(self.info.name, self.pid)
        return self._calling.send(peer, CALL, payload, name, timeout)

    # Life.

    def shared(self, to: WorkerInfo, data: Buffer) -> Buffer:
        """For the library: returns bytes for one `post`, where a worker shares memory in there.

        To be called where they may be copied, when it may be the loop that posts them.
        """
        staged = self._exchange.memory(to).stage(Envelope("", buffers=(data,))).staged
        return staged[FIRST_BUFFER] if staged else data

    def open(self) -> tuple[str, ...]:
        """Opens the listeners and returns their endpoints; requests wait until `begin`.

        Raises:
            OSError: An address or port cannot be had.
        """
        self._loop.acquire()
        try:
            endpoints = self._exchange.start()
        except BaseException:
            self._loop.release()
            raise
        switch_interval_at_most(self, self.options.switch_interval)
        self._shutdown.opened()
        self._calling.keep_house()
        return endpoints

    def learn(self, members: Iterable[tuple[WorkerInfo, Sequence[str]]]) -> None:
        """Takes members and their endpoints; late ones too."""
        known = list(members)
        for member, endpoints in known:
            if member != self.info:
                self._exchange.connect(member, endpoints)
        self._members.add(member for member, _ in known)

    def begin(self) -> None:
        """Starts to serve: what arrived since `open` is handled now."""
        for peer, envelope in self._inbox.release():
            self._loop.call_soon(self._inbox.on_envelope, peer, envelope)

    def fence(self, worker: WorkerInfo, reason: str, *, left: bool = False) -> None:
        """Takes a worker as lost, or as gone by itself, because the coordinator says so."""
        self._exchange.fence(worker, reason, left=left)

    def evict(self, error: EvictedError) -> bool:
        """Takes it that the job goes on without this worker: every wait raises `error`.

        Returns:
            Whether it does; False where this worker leaves by itself, or has left.
        """
        if self._inbox.left:
            return False
        self._members.evict(error)
        self._inbox.evict(error)
        for other in self.workers():
            if other != self.info:
                self._exchange.fence(other, error.reason)
        self._calling.close(error)
        return True

    def join(self, membership: Membership) -> None:
        """Says through whom this agent shuts down together with the others."""
        self._shutdown.membership = membership
        self._inbox.check_standing_with(membership.check_standing)
        self._inbox.on_loss_at_once(membership.gave_up)
        for worker, error in self._members.losses():  # of before; hearing twice of one does no harm
            membership.gave_up(worker, error)

    def shutdown(self, *, graceful: bool = True, timeout: float = math.inf) -> None:
        """Ends this worker; idempotent. `docs/membership.md` lists what it does in every state.

        What takes longer than 10 s is named in the log, now and then.

        Args:
            graceful: Wait for the own calls first, then serve until every living worker has
                called this, drain, release and leave within 10 s. False leaves at once; whoever
                waits for this worker hears.
            timeout: Seconds for the own calls, and for the other workers to call it too.

        Raises:
            RendezvousTimeoutError: Some have not called it in time; `.missing` names them. The
                agent is closed all the same.
            BlockingCallError: On an event loop that telegrad runs.
        """
        limit = seconds(timeout, math.inf)
        if self.pid == os.getpid():  # in a forked child it is not ours to end
            self._shutdown.run(graceful=graceful, timeout=limit)

    def leave_within(self, limit: float, reason: str = UNGRACEFUL) -> None:
        """Leaves at once, within `limit` seconds: for the exit of the process.

        Args:
            limit: Seconds.
            reason: What the others are told.
        """
        if self.pid == os.getpid():  # a forked child inherits the exit hooks too
            self._shutdown.alone = reason
            self._shutdown.run(graceful=False, timeout=limit, close_seconds=limit)

    def statistics(self) -> RpcStatistics:
        """Returns the counters of this worker."""
        traffic = self._exchange.statistics()
        owned, used = self._rref_counts()
        return RpcStatistics(
            calls_sent=self._calling.sent,
            calls_served=self._serving.served,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            pending_calls=sum(calls.pending for calls in self._own_calls),
            waiting_calls=self._calling.waiting,
            admitted_bytes=self._serving.admitted_bytes,
            owned_rrefs=owned,
            user_rrefs=used,
        )

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}"
        age = time.monotonic() - self._made
        return f"<Agent {self.name!r} ({place}): {self._shutdown.state}, {age:.1f} s old>"

    def _has_ended(self) -> None:
        clear_process_agent(self)
        self.ended = True

    # For Shutdown.

    def drain(self, deadline: float, *, given_up: bool = True) -> bool:
        """Waits until nothing is called or served here; tells whether that came true in time."""
        serving = self._serving
        while self._calls_end(deadline) and serving.wait_until_idle(deadline, given_up=given_up):
            if self._calls_end(0.0):
                return True
        return False

    def _calls_end(self, deadline: float) -> bool:
        return all(calls.wait_until_idle(deadline) for calls in self._own_calls)

    def waits_for(self) -> str:
        """Says what is called, or else served here, that an end waits for; empty for nothing."""
        own = self._calling.labels()
        if own:
            return _named(own, "own call")
        if sum(calls.pending for calls in self._own_calls):
            return "own calls that are to be sent again"
        served = [each for each in self._serving.calls() if not each.cancelled]
        words = [f"{each.record.function} for {each.caller.name!r}" for each in served]
        return _named(words, "call that it serves", "calls that it serves") if words else ""

    def serves_this(self) -> bool:
        """Tells whether the code that asks runs in a call that is served here."""
        served = current_served_call()
        return served is not None and self._serving.serves(served)

    def abandon(self) -> None:
        """Ends what this worker waits for, since it leaves without the others."""
        self._inbox.leave()
        self._calling.close()

    def close(self, timeout: float, reason: str) -> None:
        """Says goodbye, flushes what was posted and ends the threads; use `shutdown`."""
        ends = time.monotonic() + timeout
        try:
            self._exchange.close(timeout, reason)
        finally:
            self._calling.close()
            self._serving.close()
            self._user_loop.close(max(ends - time.monotonic(), LEAST_SECONDS))
            self._deadlines.close()
            self._pool.close()
            switch_interval_at_most(self, None)
            self._loop.release()


def _named(labels: Sequence[str], one: str, many: str = "") -> str:
    """Says how many there are, and which the first few are."""
    more = len(labels) - MOST_NAMED
    named = ", ".join(labels[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{len(labels)} {one if len(labels) == 1 else many or one + 's'}: {named}"
