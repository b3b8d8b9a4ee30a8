"""The verbs of `telegrad.rpc`, on the ambient agent."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from telegrad.errors import BlockingCallError
from telegrad.rpc.agent.ambient import current_agent, find_agent
from telegrad.rpc.agent.members import RpcStatistics
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.call.retry import call_again
from telegrad.rpc.call.user_call import call_name
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.unread import watched
from telegrad.rpc.future.waits import comes_from, pool_thread
from telegrad.rpc.rref.rref import RRef, create_rref
from telegrad.transport import on_own_loop
from telegrad.types import WorkerInfo

if TYPE_CHECKING:
    from telegrad.rpc.agent.agent import Agent

__all__ = [
    "get_worker_info",
    "get_worker_infos",
    "init_rpc",
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
To = str | int | WorkerInfo
Args = Sequence[Any] | None
Kwargs = Mapping[str, Any] | None


# Doors: the composition root is imported when they are called.


def init_rpc(
    name: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    options: RpcOptions | None = None,
) -> Agent:
    """Joins the job and starts this process' agent; returns when all workers are there.

    `RpcOptions.start_when` has it return when some of them are.

    Args:
        name: `[A-Za-z0-9._-]`, up to 63 characters, distinct without case; by default
            `TELEGRAD_NAME`, else `worker{rank}`.
        rank: From 0; by default from the environment.
        world_size: By default from the environment.
        init_method: `env://` (the default where RANK is set), `tcp://host:port` of rank 0, or
            `file:///path` of a file that all workers see and rank 0 writes; with none of it a job
            of one on loopback, which `launch.LocalWorkers` may join. With `?late=1` behind the
            address it joins on top of a job that has started, which gives it its rank.
        options: Timeouts, addresses, credentials, threads.

    Returns:
        The agent, which may be used as a context manager.

    Raises:
        AlreadyInitializedError: An agent runs in this process.
        RendezvousTimeoutError: Not all workers came in time; `.missing` names them.
        JoinCancelledError: Another thread, or a signal handler, called `shutdown` meanwhile.
        RendezvousError: The job could not be joined.
        EvictedError: The coordinator gave this worker up before it was complete.
        DuplicateNameError: Another living worker has the name or the rank.
        AuthenticationError: One of both sides does not hold the other's token.
        ValueError: An argument cannot be.
        OSError: A port is in use.
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    return _distributed.init_rpc(
        name, rank=rank, world_size=world_size, init_method=init_method, options=options
    )


def shutdown(*, graceful: bool = True, timeout: float = math.inf) -> None:
    """Ends this process' agent; idempotent, legal in any state.

    While `init_rpc` still waits, in another thread, there is no agent: it ends that wait. What
    takes longer than 10 s is named in the log, now and then.

    Args:
        graceful: Wait for the own calls first, then serve until every living worker has called
            it, drain, release and leave within 10 s. False leaves at once.
        timeout: Seconds for the own calls, and for the other workers to call it too.

    Raises:
        RendezvousTimeoutError: Some have not called it in time; the agent is closed all the same.
        BlockingCallError: On an event loop that telegrad runs.
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    _distributed.shutdown(graceful=graceful, timeout=timeout)


# Calls.


@overload
def rpc_sync(
    to: To,
    func: Callable[..., Coroutine[Any, Any, T]],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> T: ...
@overload
def rpc_sync(
    to: To,
    func: Callable[..., Future[T]],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> T: ...
@overload
def rpc_sync(
    to: To,
    func: Callable[..., T],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> T: ...
def rpc_sync(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Any:
    """Calls a function on a worker and waits for its value.

    At most once, unless `retry` says otherwise. Arguments and value are copies, for a call to oneself too.

    Args:
        to: Name, rank or WorkerInfo.
        func: A function or class that the callee finds by its name; plain, `async def`, or
            marked `functions.async_execution`.
        args: A tuple or list; None as `()`.
        kwargs: By name.
        timeout: Seconds above 0; None for `RpcOptions.timeout`; `math.inf` ends with the value
            or the callee's loss alone. What the served call has left bounds it.
        retry: How often it is sent again at most where the callee is lost and comes back under its
            name within the timeout; for functions marked `idempotent` alone.

    Raises:
        CallTimeoutError: The value was not there in time; the callee is told to stop.
        CallCancelledError: The call that this code serves was cancelled, and this one with it.
        WaitCycleError: The callee waits, perhaps through others, for the call that makes this one.
        WorkerLostError: The callee is gone.
        EvictedError: The coordinator gave up this worker; the job goes on without it.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        FunctionNotFoundError: The callee has no such function.
        CallRefusedError: The callee does not allow it.
        PoolExhaustedError: The callee takes no further root call now.
        BlockingCallError: On an event loop that telegrad runs; write `await rpc_async(...)`.
        TypeError: `func` cannot be called, or an argument of this verb has the wrong form.
        ValueError: `retry` for a function that is not marked, or a timeout that cannot be.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.
        Exception: What the function raised, of its own class where that is imported here.
    """
    if on_own_loop():
        raise BlockingCallError(
            f"rpc_sync of {call_name(func)} would block a loop of telegrad's, nothing was sent; "
            "write `await rpc.rpc_async(...)`"
        )
    agent = current_agent()
    if retry == 0:
        future = agent.call(to, func, args, kwargs, timeout)
    else:
        future = call_again(agent, to, func, args, kwargs, timeout, retry=retry)
    try:
        return future.wait()
    except KeyboardInterrupt:
        future.cancel()  # nobody else knows of it
        raise


@overload
def rpc_async(
    to: To,
    func: Callable[..., Coroutine[Any, Any, T]],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Future[T]: ...
@overload
def rpc_async(
    to: To,
    func: Callable[..., Future[T]],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Future[T]: ...
@overload
def rpc_async(
    to: To,
    func: Callable[..., T],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Future[T]: ...
def rpc_async(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
    retry: int = 0,
) -> Future[Any]:
    """Calls a function on a worker and returns the future of its value at once.

    It never blocks: a call that has to wait until the callee takes it (`Limits`) waits in its future.
    The arguments are encoded before this returns. Errors of the call's form are raised here, all
    others (loss, timeout, what the function raised) by the future, whose `cancel()` ends the call.

    Args:
        to: Name, rank or WorkerInfo.
        func: As for `rpc_sync`.
        args: A tuple or list; None as `()`.
        kwargs: By name.
        timeout: As for `rpc_sync`; it bounds the call, whoever waits for the future.
        retry: As for `rpc_sync`.

    Raises:
        TypeError: `func` cannot be called, or an argument of this verb has the wrong form.
        ValueError: `retry` for a function that is not marked, or a timeout that cannot be.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
        CallCancelledError: The call that this code serves was cancelled.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.
    """
    agent = current_agent()
    if retry == 0:
        return watched(agent, agent.call(to, func, args, kwargs, timeout))
    return watched(agent, call_again(agent, to, func, args, kwargs, timeout, retry=retry))


@overload
def remote(
    to: To,
    func: Callable[..., Coroutine[Any, Any, T]],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
) -> RRef[T]: ...
@overload
def remote(
    to: To,
    func: Callable[..., Future[T]],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
) -> RRef[T]: ...
@overload
def remote(
    to: To,
    func: Callable[..., T],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
) -> RRef[T]: ...
def remote(
    to: To,
    func: Callable[..., Any],
    args: Args = (),
    kwargs: Kwargs = None,
    timeout: float | None = None,
) -> RRef[Any]:
    """Calls a function or class on a worker, where its value stays; returns a reference at once.

    Args:
        to: Name, rank or WorkerInfo; may be this worker.
        func: As for `rpc_sync`; may be a class: `remote("ps", Model, (64,))`.
        args: A tuple or list; None as `()`.
        kwargs: By name.
        timeout: Seconds until the value must be there.

    Returns:
        The RRef. What goes wrong later (a function that raises, a lost owner) is raised when the
        reference is used; if nobody uses it, it is one warning in the log.

    Raises:
        TypeError: `func` cannot be called, or an argument of this verb has the wrong form.
        ValueError: A timeout that cannot be.
        UnknownWorkerError: There is no such worker.
        EncodeError: The function or an argument cannot travel; nothing was sent.
        CallTimeoutError: The call that this code serves has no time left.
        CallCancelledError: The call that this code serves was cancelled.
        NotInitializedError: No agent runs here.
        AgentForkedError: This is a forked child of the process that the agent runs in.
    """
    return create_rref(current_agent(), to, func, args, kwargs, timeout)


def to_thread(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
    """Runs a blocking or slow function in the pool, for `async def` functions on the user loop.

    The function runs in a copy of the current Context. Await what this returns.
    `asyncio.to_thread` uses the same pool there; calls that wait for each other through it are not
    found.

    Args:
        func: Anything that can be called.
        *args: Its arguments.
        **kwargs: Likewise.

    Raises:
        TypeError: `func` is not callable.
        NotInitializedError: No agent runs here.
    """
    if not callable(func):
        raise TypeError(f"to_thread takes a function, not {func!r}")
    agent = current_agent()
    future = new_future(agent.submit, f"to_thread of {call_name(func)}")

    def run() -> None:
        comes_from(future, pool_thread())
        try:
            value = func(*args, **kwargs)
        except BaseException as error:  # around the user's function
            future.try_set_exception(error)
        else:
            future.try_set_result(value)

    agent.submit_in(contextvars.copy_context(), run)
    return watched(agent, future)


# The job.


def get_worker_info(to: str | int | WorkerInfo | None = None) -> WorkerInfo:
    """Returns the worker of this name or rank, or this one.

    Args:
        to: Name, rank or WorkerInfo; None for this worker.

    Raises:
        UnknownWorkerError: There is no such worker.
        NotInitializedError: No agent runs here.
    """
    agent = current_agent()
    return agent.info if to is None else agent.worker(to)


def get_worker_infos() -> list[WorkerInfo]:
    """Returns the living workers by rank, this one included.

    Raises:
        NotInitializedError: No agent runs here.
    """
    return current_agent().workers()


def is_initialized() -> bool:
    """Tells whether an agent runs here.

    Example:
        >>> is_initialized()
        False
    """
    return find_agent() is not None


def statistics() -> RpcStatistics:
    """Returns the counters of this worker's agent.

    Raises:
        NotInitializedError: No agent runs here.
    """
    return current_agent().statistics()
