"""The agent for users: how it joins a job, the verbs of `telegrad.rpc` on it, and its end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from telegrad.rpc.base.ambient import use_agent
from telegrad.rpc.stream.stream import stream, stream_verb
from telegrad.rpc.verbs import api

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore
    from telegrad.rpc.agent.options import RpcOptions
    from telegrad.rpc.base.statistics import RpcStatistics
    from telegrad.types import WorkerInfo


def _verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of Agent that calls a verb with this agent as the ambient one."""

    @functools.wraps(function)
    def method(self: Agent, *args: Any, **kwargs: Any) -> Any:
        with use_agent(self._core):
            return function(*args, **kwargs)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(function)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[own, *signature.parameters.values()]
    )
    method.__qualname__ = f"Agent.{function.__name__}"
    return method


@final
class Agent:
    """One worker of a job: `init_rpc` makes one for a process, and a program may hold others.

    `Agent(...)` joins a job as `init_rpc` does and returns when all workers are there, but does not
    become the default of this process. So several may live in one process, as workers of one job
    (each made in a thread of its own, since each waits for the others) or of different jobs:

        agent = rpc.Agent("trainer", rank=0, world_size=2, init_method="tcp://10.0.0.1:29500")
        agent.rpc_sync("ps", fetch_weights)
        with agent.as_current():
            rref = rpc.remote("ps", Model)  # and dist_autograd, collectives, parallel

    A function that another worker calls on this one finds it as the ambient agent. A thread that
    the program starts does not: it enters `as_current()` itself.

    Each verb is the function of `telegrad.rpc` of the same name, called with this agent as the
    ambient one: the same arguments, values and errors. For the other functions (`gather`,
    `publish`, ...) enter `as_current()`. An agent that was shut down raises NotInitializedError,
    one of another process AgentForkedError.

    A context manager, sync and async: leaving the block shuts the agent down gracefully, or at once
    if an exception leaves it; entering it makes nothing ambient. An agent that is never shut down
    leaves at the exit of the process. All methods may be called from any thread.

    Args:
        name: This worker's name, as for `init_rpc`.
        rank: The rank, from 0; by default from the environment.
        world_size: The number of ranks; by default from the environment.
        init_method: As for `init_rpc`; without one, the environment's, else a job of its own.
        options: Timeouts, addresses, credentials, threads.

    Raises:
        RendezvousTimeoutError: Not all workers came in time; `.missing` names them.
        RendezvousError: The job could not be joined; nothing is left behind.
        DuplicateNameError: Another living worker has the name or the rank.
        AuthenticationError: One of both sides does not hold the other's token.
        BlockingCallError: On an event loop that telegrad runs.
        ValueError: An argument is invalid.
        OSError: A port is in use.

    Example:
        >>> import math
        >>> from telegrad import rpc
        >>> with rpc.Agent("trainer") as agent:  # a job of its own
        ...     agent.rpc_sync("trainer", math.sqrt, (4.0,)), rpc.is_initialized()
        (2.0, False)
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        init_method: str | None = None,
        options: RpcOptions | None = None,
    ) -> None:
        from telegrad import _distributed  # noqa: PLC0415 - a door

        self._core: AgentCore = _distributed.join_as(
            name, rank=rank, world_size=world_size, init_method=init_method, options=options
        )

    @property
    def name(self) -> str:
        """This worker's name."""
        return self._core.info.name

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._core.info.rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the job, with those of living workers that joined on top of it."""
        return self._core.members.world_size

    @property
    def ended(self) -> bool:
        """True once it was shut down."""
        return self._core.life.ended

    @property
    def options(self) -> RpcOptions:
        """The options with which it was made."""
        return self._core.options

    @contextmanager
    def as_current(self) -> Iterator[Agent]:
        """Returns a block inside which this agent is the ambient one.

        It holds in the Context of the code that enters it, not in other threads. Blocks may be
        nested, also those of several agents; each gives back what was ambient before.
        """
        with use_agent(self._core):
            yield self

    rpc_sync = api.sync_verb(_verb(api.rpc_sync))
    rpc_async = api.async_verb(_verb(api.rpc_async))
    remote = api.remote_verb(_verb(api.remote))
    stream = stream_verb(_verb(stream))

    def get_worker_info(self, to: str | int | WorkerInfo | None = None) -> WorkerInfo:
        """Returns a worker of this agent's job, or this one; see `telegrad.rpc.get_worker_info`."""
        with self.as_current():
            return api.get_worker_info(to)

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns the living workers of this agent's job by rank, this one included."""
        with self.as_current():
            return api.get_worker_infos()

    def statistics(self) -> RpcStatistics:
        """Returns the counters of this worker; see `telegrad.rpc.statistics`."""
        return self._core.statistics()

    def shutdown(self, *, graceful: bool = True, timeout: float = math.inf) -> None:
        """Ends this worker; idempotent. See `telegrad.rpc.shutdown`.

        Args:
            graceful: True to wait for the own calls first, then serve until every living worker has
                called this, drain, release and leave within 10 s. False leaves at once; a call that
                waits for this worker raises WorkerLostError.
            timeout: Seconds for the own calls, and for the other workers to call it too.

        Raises:
            RendezvousTimeoutError: Some have not called it in time; `.missing` names them. The
                agent is closed all the same.
            BlockingCallError: On an event loop that telegrad runs.
        """
        self._core.shutdown(graceful=graceful, timeout=timeout)

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
        return repr(self._core)


def init_rpc(
    name: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    options: RpcOptions | None = None,
) -> Agent:
    """Joins the job and starts this process' agent; returns once all workers are there.

    With `RpcOptions.start_when` it returns once some of them are there.

    Args:
        name: This worker's name: `[A-Za-z0-9._-]`, up to 63 characters; names must differ by more
            than upper and lower case. By default `TELEGRAD_NAME`, else `worker{rank}`.
        rank: This worker's rank, from 0; by default from the environment.
        world_size: The number of workers; by default from the environment.
        init_method: `env://` (the default if RANK is set), `tcp://host:port` of rank 0, or
            `file:///path` of a file that all workers see and rank 0 writes,
            `multicast://239.255.0.1:port` of a group in which rank 0 answers, `slurm://` under
            Slurm, or the address of a plug-in (`docs/network.md`). Without any of these it starts a
            job of one on loopback, which `launch.LocalWorkers` may join. With `?late=1` behind the
            address it joins a job that has already started, which gives it its rank.
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
        AuthenticationError: One side does not hold the other's token.
        ValueError: An argument is invalid, or Slurm or MPI started this process as one of several
            and nothing says which rank it has.
        OSError: A port is in use.

    Example:
        >>> from telegrad import rpc
        >>> with rpc.init_rpc("trainer") as agent:  # a job of one
        ...     agent.name, agent.rank, agent.world_size
        ('trainer', 0, 1)
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    return _distributed.init_rpc(
        name, rank=rank, world_size=world_size, init_method=init_method, options=options
    )


def agent_of(core: AgentCore) -> Agent:
    """For the library: returns the agent that shows a core to users."""
    agent = object.__new__(Agent)
    agent._core = core
    return agent


def core_of(agent: Agent) -> AgentCore:
    """For the library: returns the parts of an agent."""
    return agent._core
