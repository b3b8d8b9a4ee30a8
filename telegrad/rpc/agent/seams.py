"""What upper packages build on: messages of their own, callbacks, the parts that they attach."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from telegrad.errors import (
    CallRefusedError,
    DecodeError,
    NotInitializedError,
    UnknownWorkerError,
    WorkerLostError,
)
from telegrad.rpc.agent.ambient import check_process
from telegrad.rpc.agent.inbox import Handler, Inbox, LossCallback
from telegrad.rpc.agent.members import Members
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.agent.shutdown import Shutdown
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.failure import describe_failure
from telegrad.rpc.call.interceptor import CallRecord, Interceptor
from telegrad.rpc.call.served_call import current_served_call
from telegrad.rpc.call.serving import ERROR, REPLY, Serving
from telegrad.rpc.call.user_call import Admit, Prepare, UserCall
from telegrad.rpc.future.future import Future
from telegrad.rpc.future.unread import Reports
from telegrad.rpc.future.waits import Reads
from telegrad.rpc.limits import seconds
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.pool import Pool
from telegrad.transport import CALL_REFUSED, Exchange
from telegrad.types import WorkerInfo
from telegrad.wire import (
    Buffer,
    CallablePolicy,
    Envelope,
    FunctionRef,
    Land,
    land,
    read_body,
    write_body,
)

__all__ = ["AgentSeams", "OwnCalls"]

T = TypeVar("T")


class OwnCalls(Protocol):
    """Calls that this worker makes, as far as one part of it knows them."""

    @property
    def pending(self) -> int:
        """How many wait for their reply, or to be sent."""

    def wait_until_idle(self, deadline: float) -> bool:
        """Blocks until none goes on; tells whether that is so at the deadline."""


class AgentSeams:
    """The face that an agent shows to the packages above `rpc`; the agent fills in the parts.

    All methods may be called from any thread unless they say otherwise.
    """

    info: WorkerInfo
    options: RpcOptions
    pid: int
    ended: bool
    forked: bool
    reports: Reports | None  # of errors that nobody read, once any may come
    main_stays_here: bool  # whether local workers serve, which cannot import this `__main__`
    _attached: dict[type[Any], Any]
    _calling: Calling
    _codec: MessageCodec
    _context: contextvars.Context
    _deadlines: Deadlines
    _exchange: Exchange
    _pool: Pool
    _inbox: Inbox
    _members: Members
    _own_calls: list[OwnCalls]
    _policy: CallablePolicy
    _rref_counts: Callable[[], tuple[int, int]]
    _serving: Serving
    _shutdown: Shutdown

    # Requests that carry user values: codec, interceptors, pool.

    def send(
        self,
        to: WorkerInfo,
        kind: str,
        payload: object,
        *,
        function: str,
        timeout: float | None = None,
        at_once: bool = False,
        record: CallRecord | None = None,
    ) -> Future[Any]:
        """Sends a request of any kind that carries user values; see `serve` for the other end.

        Args:
            to: The callee.
            kind: What the callee has registered with `serve`.
            payload: Goes through the codec and the interceptors as it is now.
            function: What is called, for errors and logs.
            timeout: Seconds; None for the default. What the served call has left bounds it.
            at_once: Whether it goes without admission (`Limits`) even by code that serves nobody.
            record: This end's record of the call, for who opens more replies than the last one.

        Returns:
            The future of the reply's value.

        Raises:
            EncodeError: The payload cannot travel; nothing was sent.
            CallTimeoutError: The call that this code serves has no time left.
            NotInitializedError: The agent was shut down.
        """
        if self.forked:  # a child has none of the threads that answer
            check_process(self.info.name, self.pid)
        return self._calling.send(
            to, kind, payload, function, timeout, at_once=at_once, record=record
        )

    def serve(self, kind: str, prepare: Prepare) -> None:
        """Registers what serves requests of a kind that carry user values.

        Args:
            kind: The envelope's kind.
            prepare: `prepare(caller, payload) -> UserCall` runs in the pool, in the Context of
                the call, after the interceptors. The UserCall's value is the reply. What
                `prepare` raises is the reply too.
        """
        self.serve_named(kind, lambda caller, document: prepare)

    def serve_named(self, kind: str, admit: Admit) -> None:
        """Registers what serves requests of a kind that name what they call.

        Args:
            kind: The envelope's kind.
            admit: `admit(caller, document) -> prepare` runs in the pool, in the Context of the
                call, before anything of the request is decoded, and returns what `serve` takes.
                What it raises is the reply: nothing of the request's arguments is ever built.
        """
        self._inbox.register(kind, partial(self._serving.accept, admit), anywhere=True)

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
            caller: Who asks.

        Raises:
            FunctionNotFoundError: There is none.
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        ref = FunctionRef(function, script) if script else function
        try:
            return self._policy.resolve(ref, caller=caller, worker=self.info.name)
        except CallRefusedError as error:
            self.record_refusal(caller, function, "NOT_ALLOWED", error)
            raise

    def resolve_value(self, peer: WorkerInfo, kind: str, function: str) -> Callable[..., Any]:
        """Returns the function of a name that a peer has sent as a value, if it may have it.

        Args:
            peer: Who sent it.
            kind: In an envelope of which kind.
            function: `module:qualname`.

        Raises:
            FunctionNotFoundError: There is none.
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        try:
            return self._policy.resolve_value(function, caller=peer, worker=self.info.name)
        except CallRefusedError as error:
            self.record_refusal(peer, function, "NOT_ALLOWED_AS_VALUE", error, kind)
            raise

    def check_method(self, value: object, method: str, caller: WorkerInfo) -> None:
        """Checks that a caller may call a method of a value, through a reference to it.

        Raises:
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        try:
            self._policy.check_method(value, method, caller=caller, worker=self.info.name)
        except CallRefusedError as error:
            called = f"{type(value).__module__}:{type(value).__qualname__}.{method}"
            self.record_refusal(caller, called, "NOT_ALLOWED", error)
            raise

    def check_found(self, value: object, name: str, found: object, caller: WorkerInfo) -> None:
        """Checks that a caller may call what an attribute gave, after `check_method` of its name.

        Raises:
            CallRefusedError: `RpcOptions.callables` does not allow it.
        """
        try:
            self._policy.check_found(value, name, found, caller=caller, worker=self.info.name)
        except CallRefusedError as error:
            called = f"{type(value).__module__}:{type(value).__qualname__}.{name}"
            self.record_refusal(caller, called, "NOT_ALLOWED", error)
            raise

    def record_refusal(
        self,
        caller: WorkerInfo | None,
        function: str,
        reason: str,
        error: CallRefusedError,
        kind: str | None = None,
    ) -> None:
        """Writes a refused call into the audit log.

        Args:
            caller: Who called.
            function: What, as `module:qualname`.
            reason: Why, for programs.
            error: What the caller is told.
            kind: By an envelope of which kind; that of the call that is served by default.
        """
        served = current_served_call()
        self._exchange.audit.record(
            CALL_REFUSED,
            caller=None if caller is None else caller.name,
            incarnation=None if caller is None else caller.incarnation,
            kind=served.kind if kind is None and served is not None else kind,
            function=function,
            reason=reason,
            words=str(error),
        )

    @property
    def codec(self) -> MessageCodec:
        """Seals and opens what carries user values and is neither a request nor a last reply."""
        return self._codec

    def post_envelope(self, to: WorkerInfo, envelope: Envelope) -> None:
        """Sends an envelope that the codec has sealed.

        Raises:
            WorkerLostError, UnknownWorkerError: It is lost, or this agent was shut down.
            EncodeError: It is too big for an envelope; nothing was sent.
        """
        self._exchange.post(to, envelope)

    # Protocol messages of upper packages: plain bodies, no interceptors.

    def register_handler(self, kind: str, handler: Handler, *, anywhere: bool = False) -> None:
        """Has `handler(peer, envelope)` called for each envelope of a kind.

        It must not block: heavy work goes to `submit`.

        Args:
            kind: The envelope's kind.
            handler: Is called on the loop.
            anywhere: Whether it may be called in whichever thread has read the envelope instead,
                by several at once.

        Raises:
            ValueError: The kind has a handler.
        """
        self._inbox.register(kind, handler, anywhere=anywhere)

    def post(
        self,
        to: WorkerInfo,
        kind: str,
        body: object = None,
        *,
        buffers: Sequence[Buffer] = (),
        rides: bool = False,
    ) -> None:
        """Sends a message that expects no reply.

        Args:
            to: The receiver.
            kind: What the receiver has registered a handler for.
            body: What `read` returns there; without arrays where there are buffers.
            buffers: Bytes that arrive as the last `envelope.buffers`. They are not copied and
                must not change until they were handed over.
            rides: Whether it waits for the next message to that worker, of whatever kind, so that
                both leave in one write. Call `flush` where none may follow.

        Raises:
            WorkerLostError: The worker is lost, or this agent was shut down.
        """
        place, memory = self._codec.devices.place(to), partial(self._codec.memory, to)
        envelope = write_body(kind, body, buffers=buffers, place=place, memory=memory)
        self._exchange.post(to, envelope, rides=rides)

    def flush(self, to: WorkerInfo) -> None:
        """Sends what waits for a ride to a worker; does nothing where it is lost."""
        self._exchange.flush(to)

    @property
    def reads(self) -> Reads:
        """Has whoever waits for a reply read what comes."""
        return self._exchange.reader

    def request(
        self,
        to: WorkerInfo,
        kind: str,
        body: object = None,
        *,
        timeout: float = math.inf,
        rides: bool = False,
    ) -> Future[Any]:
        """Sends a message whose handler replies with `reply` or `reply_error`.

        Args:
            to: The receiver.
            kind: What the receiver has registered a handler for.
            body: What `read` returns there.
            timeout: Seconds.
            rides: As for `post`.

        Returns:
            The future of the reply's body. It fails with WorkerLostError, CallTimeoutError or
            the exception of the error reply; this method itself raises for bad arguments only.
        """
        return self._calling.request(to, kind, body, seconds(timeout, math.inf), rides=rides)

    def reply(
        self,
        to: WorkerInfo,
        request: Envelope,
        body: object = None,
        *,
        buffers: Sequence[Buffer] = (),
        rides: bool = False,
    ) -> None:
        """Answers a request; dropped when the requester is lost.

        Args:
            to: Who has asked.
            request: What it has sent.
            body: What its future returns.
            buffers: Bytes that travel behind it, as for `post`.
            rides: As for `post`.
        """
        memory = partial(self._codec.memory, to)
        answer = write_body(REPLY, body, reply=True, buffers=buffers, memory=memory)
        self._answer(to, request, answer, rides=rides)

    def reply_error(self, to: WorkerInfo, request: Envelope, exception: BaseException) -> None:
        """Answers a request with an exception, which is raised at the requester."""
        body = describe_failure(exception, self.info.name)
        self._answer(to, request, write_body(ERROR, body, reply=True))

    def tell_garbage(self, peer: WorkerInfo, envelope: Envelope, error: DecodeError) -> None:
        """Logs that a message is garbage, so often and no more; for handlers that read in the pool."""
        self._inbox.tell_garbage(peer, envelope.kind, error)

    @staticmethod
    def read(envelope: Envelope, *, land: Land = land) -> Any:
        """Decodes the body of a protocol message.

        Args:
            envelope: That brought it.
            land: Moves arrays that are to live on a GPU: `codec.devices.land` of who sent it.

        Raises:
            DecodeError: It is none.
        """
        return read_body(envelope, land=land)

    # Seams for upper packages.

    def submit(self, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the pool, in a fresh Context in which this agent is ambient."""
        self._pool.submit(func, *args)

    def submit_in(self, context: contextvars.Context, func: Callable[..., Any], *args: Any) -> None:
        """Runs `func(*args)` in the pool, in the given Context."""
        self._pool.submit_in(context, func, *args)

    def new_context(self) -> contextvars.Context:
        """Returns a Context that holds nothing but this agent as the ambient one."""
        return self._context.copy()

    def after(self, delay: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Has `callback` called on the loop in `delay` seconds; returns what cancels that."""
        return self._deadlines.after(delay, callback).cancel

    def on_lost(self, callback: LossCallback) -> None:
        """Has `callback(worker, error)` called in the pool for each worker that is lost."""
        self._inbox.on_loss(callback)

    def on_lost_at_once(self, callback: LossCallback) -> None:
        """Has `callback(worker, error)` called where a loss is handled, in the order of losses.

        That is on the loop, as a rule: it must not block or raise.
        """
        self._inbox.on_loss_at_once(callback)

    def on_given_up(self, callback: Callable[[BaseException], None]) -> None:
        """Has `callback(error)` called when this worker leaves or is evicted: must not block."""
        self._calling.on_given_up.append(callback)

    def weigh(self, cause: BaseException, then: Callable[[BaseException], object]) -> None:
        """Calls `then(error)` with the reason, told by a peer, why something has ended here.

        That is `cause`, unless it says that this very worker is lost: a peer may give it up, and
        say so to others, before it hears of that itself. Then the coordinator is asked, and if
        the job goes on without this worker the error is its eviction.

        Args:
            cause: What the peer said.
            then: Called here, or on the loop when the coordinator has answered or is lost: must
                not block or raise.
        """
        self._inbox.weigh(cause, then)

    def on_ending(self, callback: Callable[[], None]) -> None:
        """Has `callback()` called before and while a graceful shutdown waits for own calls."""
        self._shutdown.on_ending.append(callback)

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

    def count_calls_of(self, calls: OwnCalls) -> None:
        """Has `statistics` count further calls, and a graceful shutdown wait for their end."""
        self._own_calls.append(calls)

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
            raise NotInitializedError(f"{cls.__name__} does not run on agent {self.info.name!r}")
        return part

    def _answer(
        self, to: WorkerInfo, request: Envelope, envelope: Envelope, *, rides: bool = False
    ) -> None:
        envelope.call = request.call
        with contextlib.suppress(WorkerLostError, UnknownWorkerError):
            self._exchange.post(to, envelope, rides=rides)
