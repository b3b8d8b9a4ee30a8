"""The functions of `telegrad.rpc` that use the ambient agent."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    overload,
)

from telegrad.rpc.agent.core import AgentCore, current_agent, find_agent
from telegrad.rpc.base.frames import cut_own_frames
from telegrad.rpc.base.statistics import RpcStatistics
from telegrad.rpc.call.serving import CALL
from telegrad.rpc.call.user_call import call_message, call_name
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.unread import watched
from telegrad.rpc.future.waits import comes_from, pool_thread
from telegrad.rpc.policy.exposure import expose
from telegrad.rpc.rref.rref import RRef, create_rref
from telegrad.rpc.verbs.retry import call_again
from telegrad.transport import barred, refuse_to_block
from telegrad.types import WorkerInfo

__all__ = [
    "call",
    "get_worker_info",
    "get_worker_infos",
    "is_initialized",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "statistics",
    "to_thread",
]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVarTuple("A")
To = str | int | WorkerInfo
Args = tuple[Any, ...] | list[Any] | None
Kwargs = Mapping[str, Any] | None


# -- the types of the verbs: `args` fit the parameters of `func`, where `kwargs` is not given -----

if TYPE_CHECKING:
    Later: TypeAlias = Coroutine[Any, Any, T] | Future[T]
    Given: TypeAlias = tuple[*A] | list[Any] | None
    Named: TypeAlias = Mapping[str, Any]
    Seconds: TypeAlias = float | None

    class AnyValue:
        """No function returns it; mypy explains wrong arguments by the first overload, with it."""

    # fmt: off
    class RpcSync(Protocol):
        """The type of `rpc_sync`."""

        @overload
        def __call__(self, to: To, func: Callable[[*A], AnyValue], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> Any: ...
        @overload
        def __call__(self, to: To, func: Callable[[*A], Later[T]], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[[*A], T], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[[], AnyValue], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> Any: ...
        @overload
        def __call__(self, to: To, func: Callable[[], Later[T]], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[[], T], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Later[T]], args: Args,
                     kwargs: Named, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[..., T], args: Args,
                     kwargs: Named, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Later[T]], args: Args = (),
                     *, kwargs: Named, timeout: Seconds = None, retry: int = 0) -> T: ...
        @overload
        def __call__(self, to: To, func: Callable[..., T], args: Args = (),
                     *, kwargs: Named, timeout: Seconds = None, retry: int = 0) -> T: ...

    class RpcAsync(Protocol):
        """The type of `rpc_async`."""

        @overload
        def __call__(self, to: To, func: Callable[[*A], AnyValue], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0
                     ) -> Future[Any]: ...
        @overload
        def __call__(self, to: To, func: Callable[[*A], Later[T]], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[*A], T], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], AnyValue], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0
                     ) -> Future[Any]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], Later[T]], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], T], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Later[T]], args: Args,
                     kwargs: Named, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., T], args: Args,
                     kwargs: Named, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Later[T]], args: Args = (),
                     *, kwargs: Named, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., T], args: Args = (),
                     *, kwargs: Named, timeout: Seconds = None, retry: int = 0) -> Future[T]: ...

    class Remote(Protocol):
        """The type of `remote`."""

        @overload
        def __call__(self, to: To, func: Callable[[*A], AnyValue], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None) -> RRef[Any]: ...
        @overload
        def __call__(self, to: To, func: Callable[[*A], Later[T]], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[*A], T], args: Given[*A],
                     kwargs: None = None, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], AnyValue], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None) -> RRef[Any]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], Later[T]], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[[], T], args: tuple[()] = (),
                     kwargs: None = None, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Later[T]], args: Args,
                     kwargs: Named, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., T], args: Args,
                     kwargs: Named, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., Later[T]], args: Args = (),
                     *, kwargs: Named, timeout: Seconds = None) -> RRef[T]: ...
        @overload
        def __call__(self, to: To, func: Callable[..., T], args: Args = (),
                     *, kwargs: Named, timeout: Seconds = None) -> RRef[T]: ...
    # fmt: on


def sync_verb(verb: Callable[..., Any]) -> RpcSync:
    """Gives a function or method the type of `rpc_sync`."""
    return verb


def async_verb(verb: Callable[..., Any]) -> RpcAsync:
    """Gives a function or method the type of `rpc_async`."""
    return verb


def remote_verb(verb: Callable[..., Any]) -> Remote:
    """Gives a function or method the type of `remote`."""
    return verb


def shutdown(*, graceful: bool = True, timeout: float = math.inf) -> None:
    """Ends this process' agent; idempotent.

    `docs/membership.md` lists what it does in every state. If `init_rpc` still waits in another
    thread, there is no agent yet: then this ends that wait. The log names, at intervals, what
    shutdown waits for if it takes longer than 2 s. Own calls are a warning; other workers and their
    calls are of level INFO, since a worker that only serves waits here for the others.

    Args:
        graceful: True to wait for this worker's own calls, then to serve until every living worker
            has called shutdown, and to drain, release and leave within 10 s. False leaves at once,
            within 5 s; so does an interrupt (Ctrl-C, or another handler's exception).
        timeout: Seconds for the own calls, and for the other workers to call it too.

    Raises:
        RendezvousTimeoutError: Some have not called it in time; the agent is closed all the same.
        BlockingCallError: On an event loop that telegrad runs, or, with `graceful`, in a function
            that another worker called. The agent goes on.

    Example:
        >>> from telegrad import rpc
        >>> agent = rpc.init_rpc("trainer")
        >>> rpc.shutdown()
        >>> agent.ended, rpc.is_initialized()
        (True, False)
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    _distributed.shutdown(graceful=graceful, timeout=timeout)


# Calls.


def call(
    agent: AgentCore,
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
) -> Future[Any]:
    """For the library: calls a function on a worker as one agent, at most once; never retried.

    Returns:
        The future of its value. The arguments were encoded when this returns.

    Raises:
        TypeError: An argument of this function has the wrong form.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
    """
    peer = agent.members.find(to)
    name, payload = call_message(func, args, kwargs)
    return agent.calling.send(peer, CALL, payload, function=name, timeout=timeout)


@sync_verb
def rpc_sync(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Any:
    """Calls a function on a worker and waits for its value.

    The call is served at most once, unless `retry` allows more. Arguments and value are copies,
    even in a call to this worker itself.

    Args:
        to: Name, rank or WorkerInfo.
        func: A function or class that the callee finds by its name; plain, `async def`, or
            marked `functions.async_execution`.
        args: A tuple or list; None as `()`.
        kwargs: The keyword arguments.
        timeout: Seconds above 0; None for `RpcOptions.timeout`; with `math.inf` only the value or
            the callee's loss ends the wait. The remaining time of the call being served is a limit
            as well.
        retry: The most times that the call is sent again if the callee is lost and comes back under
            its name within the timeout; only for functions marked `idempotent`.

    Raises:
        CallTimeoutError: The value was not there in time; the callee is told to stop.
        CallCancelledError: The call that this code serves was cancelled, and this one with it.
            Any exception that leaves the wait, such as Ctrl-C, cancels this call.
        WaitCycleError: The callee waits, perhaps through others, for the call that makes this one.
        WorkerLostError: The callee is gone.
        EvictedError: The coordinator gave up this worker; the job goes on without it.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        FunctionNotFoundError: The callee has no such function.
        CallRefusedError: The callee does not allow this function to be called.
        PoolExhaustedError: The callee takes no further root call now.
        BlockingCallError: On an event loop that telegrad runs; write `await rpc_async(...)`.
        TypeError: `func` cannot be called, or another argument has the wrong form.
        ValueError: `retry` for a function that is not marked, or an invalid timeout.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.
        Exception: Any error that the function raised, of its own class if that is imported here.

    Example:
        >>> import operator
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:  # worker0 calls worker1
        ...     cluster.call(0, rpc.rpc_sync, "worker1", operator.add, (2, 3))
        5
    """
    if barred():
        refuse_to_block(f"rpc_sync of {call_name(func)}", "write `await rpc.rpc_async(...)`")
    agent = current_agent()
    if retry == 0:
        future = call(agent, to, func, args, kwargs, timeout)
    else:
        future = call_again(agent, to, func, args, kwargs, timeout, retry=retry)
    try:
        return future.wait()  # as `wait_or_cancel`, with one frame less
    except BaseException as error:
        future.cancel()
        cut_own_frames(error)
        raise


@async_verb
def rpc_async(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Future[Any]:
    """Calls a function on a worker and returns the future of its value at once.

    It never blocks: if a call has to wait until the callee takes it (`Limits`), its future waits.
    The arguments are encoded before this returns. Errors in the form of the call are raised here.
    All others (loss, timeout, the function's own error) are raised by the future. The future's
    `cancel()` ends the call.

    Args:
        to: Name, rank or WorkerInfo.
        func: A function or class, as for `rpc_sync`.
        args: A tuple or list; None as `()`.
        kwargs: The keyword arguments.
        timeout: Seconds, as for `rpc_sync`; it limits the call, even if nobody waits for the
            future.
        retry: The number of repetitions, as for `rpc_sync`.

    Raises:
        TypeError: `func` cannot be called, or another argument has the wrong form.
        ValueError: `retry` for a function that is not marked, or an invalid timeout.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
        CallCancelledError: The call that this code serves was cancelled.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     futures = [rpc.rpc_async("trainer", math.sqrt, (x,)) for x in (4.0, 9.0)]
        ...     [future.wait() for future in futures]
        [2.0, 3.0]
    """
    agent = current_agent()
    if retry == 0:
        return watched(agent, call(agent, to, func, args, kwargs, timeout))
    return watched(agent, call_again(agent, to, func, args, kwargs, timeout, retry=retry))


@remote_verb
def remote(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
) -> RRef[Any]:
    """Calls a function or class on a worker that keeps its value; returns a reference at once.

    Args:
        to: Name, rank or WorkerInfo; may be this worker.
        func: A function or class, as for `rpc_sync`: `remote("ps", Model, (64,))`.
        args: A tuple or list; None as `()`.
        kwargs: The keyword arguments.
        timeout: Seconds until the value must be there.

    Returns:
        The RRef. Later errors (the function raised, the owner is lost) are raised when the
        reference is used; if nobody uses it, one warning is logged.

    Raises:
        TypeError: `func` cannot be called, or another argument has the wrong form.
        ValueError: The timeout is invalid.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
        CallCancelledError: The call that this code serves was cancelled.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.

    Example:
        >>> import numpy as np
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     weights = rpc.remote("trainer", np.arange, (4.0,))
        ...     weights.rpc_sync().sum().item(), weights.to_here()
        (6.0, array([0., 1., 2., 3.]))
    """
    return create_rref(current_agent(), to, func, args, kwargs, timeout)


def to_thread(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
    """Runs a blocking or slow function in the pool, for `async def` functions on the user loop.

    The function runs in a copy of the current Context. Await the result of this call. On the user
    loop, `asyncio.to_thread` uses the same pool; but wait cycles through it are not found.

    Args:
        func: A function, or another callable.
        *args: The arguments for the function.
        **kwargs: The keyword arguments for the function.

    Raises:
        TypeError: `func` is not callable.
        NotInitializedError: No agent runs here.

    Example:
        >>> import asyncio, math
        >>> from telegrad import rpc
        >>> async def count() -> int:
        ...     return await rpc.to_thread(math.comb, 10, 5)
        >>> with rpc.init_rpc("trainer"):
        ...     asyncio.run(count())
        252
    """
    if not callable(func):
        raise TypeError(f"to_thread takes a function, not {func!r}")
    agent = current_agent()
    future = new_future(agent.pool.submit, f"to_thread of {call_name(func)}")

    def run() -> None:
        comes_from(future, pool_thread())
        try:
            value = func(*args, **kwargs)
        except BaseException as error:  # around the user's function
            future.try_set_exception(error)
        else:
            future.try_set_result(value)

    agent.pool.submit(contextvars.copy_context().run, run)
    return watched(agent, future)


# The job.


@expose
def get_worker_info(to: str | int | WorkerInfo | None = None) -> WorkerInfo:
    """Returns the worker of this name or rank, or this one.

    Args:
        to: Name, rank or WorkerInfo; None for this worker.

    Raises:
        UnknownWorkerError: There is no such worker.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     cluster.run(lambda: (rpc.get_worker_info().name, rpc.get_worker_info(1).name))
        [('worker0', 'worker1'), ('worker1', 'worker1')]
    """
    agent = current_agent()
    return agent.info if to is None else agent.members.find(to)


@expose
def get_worker_infos() -> list[WorkerInfo]:
    """Returns the living workers by rank, this one included.

    Raises:
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import rpc
        >>> from telegrad.testing import Cluster
        >>> with Cluster(2) as cluster:
        ...     [worker.name for worker in cluster.call(0, rpc.get_worker_infos)]
        ['worker0', 'worker1']
    """
    return current_agent().members.living()


def is_initialized() -> bool:
    """Returns True if an agent runs here.

    Example:
        >>> is_initialized()
        False
    """
    return find_agent() is not None


@expose
def statistics() -> RpcStatistics:
    """Returns the counters of this worker's agent.

    Raises:
        NotInitializedError: No agent runs here.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer"):
        ...     root = rpc.rpc_sync("trainer", math.sqrt, (4.0,))
        ...     rpc.statistics().calls_sent
        1
    """
    return current_agent().statistics()
