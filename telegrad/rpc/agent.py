"""The agent: everything that one worker owns, and the face that upper packages build on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, final

from telegrad.errors import EvictedError, NotInitializedError, UnknownWorkerError, WorkerLostError
from telegrad.rpc.admission_callee import CalleeAdmission
from telegrad.rpc.ambient import clear_process_agent, enter_agent, switch_interval_at_most
from telegrad.rpc.calling import Calling
from telegrad.rpc.codec import MessageCodec, read_body, write_body
from telegrad.rpc.deadlines import Deadlines
from telegrad.rpc.executor import Executor
from telegrad.rpc.future import Future
from telegrad.rpc.inbox import Handler, Inbox, LossCallback
from telegrad.rpc.interceptor import Interceptor
from telegrad.rpc.members import Members
from telegrad.rpc.open_exchange import OpenExchange
from telegrad.rpc.options import RpcOptions
from telegrad.rpc.remote_failure import describe_failure
from telegrad.rpc.serving import CALL, ERROR, REPLY, Prepare, Serving
from telegrad.rpc.shutdown import Membership, Shutdown
from telegrad.rpc.statistics import RpcStatistics
from telegrad.rpc.timeouts import seconds
from telegrad.rpc.user_call import UserCall, call_payload, prepare_call
from telegrad.rpc.user_loop import UserLoop
from telegrad.transport import LoopThread
from telegrad.types import WorkerInfo
from telegrad.wire import Buffer, CallablePolicy, Envelope, FunctionRef

__all__ = ["Agent"]

T = TypeVar("T")


@final
class Agent:
    """One worker of the job; made by `init_rpc`, ended by `shutdown`.

    A context manager, sync and async: leaving the block shuts down gracefully, or at once when
    an exception leaves it. All methods may be called from any thread unless they say otherwise.

    Args:
        info: Who this worker is.
        world_size: How many workers the job has.
        options: As given to `init_rpc`.
        loop: The loop thread that owns the sockets.
        open_exchange: Makes the Exchange.
        context: What user functions run in copies of; an empty one by default.
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
        self._made = time.monotonic()
        self._context = contextvars.Context() if context is None else context
        self._context.run(enter_agent, self)
        self._loop = loop
        self._attached: dict[type[Any], Any] = {}
        self._rref_counts: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._deadlines = Deadlines(loop)
        self._executor = Executor(info.name, options.num_threads, self._deadlines, self.new_context)
        self._user_loop = UserLoop(info.name, self._deadlines, self.submit)
        self._policy = CallablePolicy(options.callable_mode, options.callable_patterns)
        self._codec = MessageCodec(self._policy.resolve_value)
        self._members = Members(info, world_size)
        self._calling = Calling(
            info.name, self._codec, self._deadlines, self.submit, self._post, options.limits
        )
        self._serving = Serving(
            info.name,
            self._codec,
            self._executor,
            self._user_loop,
            self.new_context,
            self._post,
            CalleeAdmission(options.limits, self._deadlines, self._post),
        )
        self._inbox = Inbox(self._members, self._calling, self._serving, self._post, self.submit)
        self._exchange = open_exchange(receiver=self._inbox, load=lambda: self._executor.busy)
        self._shutdown = Shutdown(info.name, self)
        self.serve(CALL, partial(prepare_call, self.resolve))

    # Who is who.

    @property
    def name(self) -> str:
        """This worker's name."""
        return self.info.name

    @property
    def ended(self) -> bool:
        """Whether it was shut down, to the end."""
        return self._shutdown.is_closed

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

    # Calls that carry user values: codec, interceptors, pool.

    def call(
        self,
        to: str | int | WorkerInfo,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
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
        peer = self.worker(to)
        name, payload = call_payload(func, args, kwargs)
        return self.send(peer, CALL, payload, function=name, timeout=timeout)

    def send(
        self,
        to: WorkerInfo,
        kind: str,
        payload: object,
        *,
        function: str,
        timeout: float | None = None,
        at_once: bool = False,
    ) -> Future[Any]:
        """Sends a request of any kind that carries user values; see `serve` for the other end.

        Args:
            to: The callee.
            kind: What the callee has registered with `serve`.
            payload: Goes through the codec and the interceptors as it is now.
            function: What is called, for errors and logs.
            timeout: Seconds; None for the default. What the served call has left bounds it.
            at_once: Whether it goes without admission (`Limits`) even by code that serves nobody.

        Returns:
            The future of the reply's value.

        Raises:
            EncodeError: The payload cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
        """
        limit = seconds(timeout, self.options.timeout)
        return self._calling.send(to, kind, payload, function, limit, at_once=at_once)

    def serve(self, kind: str, prepare: Prepare) -> None:
        """Registers what serves requests of a kind that carry user values.

        Args:
            kind: The envelope's kind.
            prepare: `prepare(caller, payload) -> UserCall` runs in the pool, in the Context of
                the call, after the interceptors. The UserCall's value is the reply. What
                `prepare` raises is the reply too.
        """
        self._inbox.register(
            kind, lambda caller, envelope: self._serving.accept(prepare, caller, envelope)
        )

    def run(self, user_call: UserCall) -> Future[Any]:
        """Runs a UserCall here and now, in its mode, inside the call that is served."""
        return self._serving.run_to_future(user_call)

    def resolve(
        self, function: str, *, script: str = "", caller: WorkerInfo | None = None
    ) -> Callable[..., Any]:
        """Returns the function of this name, if others may call it.

        Args:
            function: `module:qualname`.
            script: The caller's script, for the error.
            caller: Who asks, for the error.

        Raises:
            FunctionNotFoundError: There is none.
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        ref = FunctionRef(function, script)
        return self._policy.resolve(
            ref, caller="" if caller is None else caller.name, worker=self.name
        )

    def check_method(self, value: object, method: str, caller: WorkerInfo) -> None:
        """Checks that a caller may call a method of a value, through a reference to it.

        Raises:
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        self._policy.check_method(value, method, caller=caller.name, worker=self.name)

    # Protocol messages of upper packages: plain bodies, no interceptors.

    def register_handler(self, kind: str, handler: Handler) -> None:
        """Has `handler(peer, envelope)` called on the loop for each envelope of a kind.

        It must not block: heavy work goes to `submit`.

        Raises:
            ValueError: The kind has a handler.
        """
        self._inbox.register(kind, handler)

    def post(
        self, to: WorkerInfo, kind: str, body: object = None, *, buffers: Sequence[Buffer] = ()
    ) -> None:
        """Sends a message that expects no reply.

        Args:
            to: The receiver.
            kind: What the receiver has registered a handler for.
            body: What `read` returns there; without arrays where there are buffers.
            buffers: Bytes that arrive as the last `envelope.buffers`. They are not copied and
                must not change until they were handed over.

        Raises:
            WorkerLostError: The worker is lost, or this agent was shut down.
        """
        self._post(to, write_body(kind, body, buffers=buffers))

    def request(
        self, to: WorkerInfo, kind: str, body: object = None, *, timeout: float = math.inf
    ) -> Future[Any]:
        """Sends a message whose handler replies with `reply` or `reply_error`.

        Returns:
            The future of the reply's body. It fails with WorkerLostError, CallTimeoutError or
            the exception of the error reply; this method itself raises for bad arguments only.
        """
        return self._calling.request(to, kind, body, seconds(timeout, math.inf))

    def reply(self, to: WorkerInfo, request: Envelope, body: object = None) -> None:
        """Answers a request; dropped when the requester is lost."""
        self._answer(to, request, write_body(REPLY, body, reply=True))

    def reply_error(self, to: WorkerInfo, request: Envelope, exception: BaseException) -> None:
        """Answers a request with an exception, which is raised at the requester."""
        body = describe_failure(exception, self.name)
        self._answer(to, request, write_body(ERROR, body, reply=True))

    @staticmethod
    def read(envelope: Envelope) -> Any:
        """Decodes the body of a protocol message.

        Raises:
            DecodeError: It is none.
        """
        return read_body(envelope)

    # Seams for upper packages.

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the pool, in a fresh Context in which this agent is ambient."""
        self._executor.submit(func, *args)

    def submit_in(self, context: contextvars.Context, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the pool, in the given Context."""
        self._executor.submit_in(context, func, *args)

    def new_context(self) -> contextvars.Context:
        """Returns a Context that holds nothing but this agent as the ambient one."""
        return self._context.copy()

    def after(self, delay: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Has `callback` called on the loop in `delay` seconds; returns what cancels that."""
        return self._deadlines.after(delay, callback).cancel

    def on_lost(self, callback: LossCallback) -> None:
        """Has `callback(worker, error)` called in the pool for each worker that is lost."""
        self._inbox.on_loss(callback)

    def on_leaving(self, callback: Callable[[], None]) -> None:
        """Has `callback()` called in a graceful shutdown before it waits for the other workers."""
        self._shutdown.on_leaving.append(callback)

    def before_leaving(self, callback: Callable[[float], None]) -> None:
        """Has `callback(seconds)` called in a graceful shutdown, when all calls are done.

        It may block for the seconds given, while messages still travel.
        """
        self._shutdown.before_leaving.append(callback)

    def after_close(self, callback: Callable[[], None]) -> None:
        """Has `callback()` called at the end of every shutdown, the last registered first."""
        self._shutdown.after_close.append(callback)

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Appends an interceptor to the chain that all user values pass."""
        self._codec.add(interceptor)

    def count_rrefs_with(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Says how `statistics` learns the numbers of owned and of user RRefs."""
        self._rref_counts = counts

    def attach(self, part: object) -> None:
        """Keeps what an upper package owns on this agent; one of each class."""
        self._attached[type(part)] = part

    def attached(self, cls: type[T]) -> T:
        """Returns the attached object of a class.

        Raises:
            NotInitializedError: None was attached.
        """
        part: T | None = self._attached.get(cls)
        if part is None:
            raise NotInitializedError(f"{cls.__name__} does not run on agent {self.name!r}")
        return part

    # Life.

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

    def fence(self, worker: WorkerInfo, reason: str) -> None:
        """Takes a worker as lost because the coordinator says so."""
        self._exchange.fence(worker, reason)

    def evict(self, error: EvictedError) -> None:
        """Takes it that the job goes on without this worker: every wait raises `error`."""
        self._calling.close(error)

    def join(self, membership: Membership) -> None:
        """Says through whom this agent shuts down together with the others."""
        self._shutdown.membership = membership

    def shutdown(self, *, graceful: bool = True, timeout: float = math.inf) -> None:
        """Ends this worker; idempotent, legal in any state.

        Args:
            graceful: Serve until every living worker has called this, then drain, release and
                leave within 10 s. False leaves at once; whoever waits for this worker hears.
            timeout: Seconds for the other workers to call it too.

        Raises:
            RendezvousTimeoutError: Some have not called it in time; `.missing` names them. The
                agent is closed all the same.
            BlockingCallError: On an event loop that telegrad runs.
        """
        limit = seconds(timeout, math.inf)
        if self.pid == os.getpid():  # in a forked child it is not ours to end
            self._shutdown.run(graceful=graceful, timeout=limit)

    def leave_within(self, limit: float) -> None:
        """Leaves at once, within `limit` seconds: for the exit of the process."""
        if self.pid == os.getpid():  # a forked child inherits the exit hooks too
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
            pending_calls=self._calling.pending,
            waiting_calls=self._calling.waiting,
            admitted_bytes=self._serving.admitted_bytes,
            owned_rrefs=owned,
            user_rrefs=used,
        )

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(graceful=error is None)

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.shutdown, graceful=error is None)

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}"
        age = time.monotonic() - self._made
        return f"<Agent {self.name!r} ({place}): {self._shutdown.state}, {age:.1f} s old>"

    # For Shutdown.

    def drain(self, deadline: float) -> bool:
        """Waits until nothing is called or served here; tells whether that came true in time."""
        while self._calling.wait_until_idle(deadline) and self._serving.wait_until_idle(deadline):
            if not self._calling.pending:
                return True
        return False

    def close(self, timeout: float, reason: str) -> None:
        """Says goodbye, flushes what was posted and ends the threads; use `shutdown`."""
        clear_process_agent(self)
        try:
            self._exchange.close(timeout, reason)
        finally:
            self._calling.close()
            self._user_loop.close()
            self._deadlines.close()
            self._executor.close()
            switch_interval_at_most(self, None)
            self._loop.release()

    def _post(self, to: WorkerInfo, envelope: Envelope) -> None:
        self._exchange.post(to, envelope)

    def _answer(self, to: WorkerInfo, request: Envelope, envelope: Envelope) -> None:
        envelope.call = request.call
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self._post(to, envelope)
