"""The composition root: the only file that knows how the parts are plugged together."""

from __future__ import annotations

import atexit
import functools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import final

from telegrad import dist_autograd
from telegrad.errors import AgentForkedError, AlreadyInitializedError, EvictedError, WorkerLostError
from telegrad.nn import Module
from telegrad.rendezvous import JobAddress, Member, check_name, join_job, parse_init_method
from telegrad.rpc import (
    Agent,
    RpcOptions,
    attach_rrefs,
    find_agent,
    process_agent,
    set_process_agent,
)
from telegrad.transport import (
    Exchange,
    GrpcTransport,
    LoopThread,
    Receiver,
    Transport,
    find_token,
    shared_loop_thread,
)
from telegrad.types import WorkerInfo
from telegrad.wire import register_refusal

__all__ = ["init_rpc", "make_agent", "shutdown"]

LOOPBACK = "127.0.0.1"
EXIT_SECONDS = 2.0  # a program that ends without shutdown() must not hang at its end

MODULE_ADVICE = (
    "a Module does not travel by value, its parameters would be copies; either make it on its "
    "worker and hand out rpc.RRef(model), or make it from here with "
    "rpc.remote(to, ModelClass, args)"
)

register_refusal(Module, MODULE_ADVICE)


def init_rpc(
    name: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    options: RpcOptions | None = None,
) -> Agent:
    """Joins the job and starts this process' agent; see `telegrad.rpc.init_rpc`."""
    _refuse_second()
    chosen = RpcOptions() if options is None else options
    if not isinstance(chosen, RpcOptions):
        raise TypeError(f"options must be an RpcOptions, not {options!r}")
    address = parse_init_method(init_method, rank=rank, world_size=world_size, environ=os.environ)
    own_name = check_name(name or address.name or f"worker{address.rank}")
    bind = chosen.bind or LOOPBACK

    def transport(host: str, port: int) -> Transport:
        return GrpcTransport(host, port, chosen.advertise, insecure=chosen.insecure)

    agent = make_agent(
        address,
        name=own_name,
        options=chosen,
        token=_token(chosen),
        transports=[transport(bind, chosen.port)],
        control_transports=[transport(bind, 0)],
        host_transports=[GrpcTransport(address.host, address.port, insecure=chosen.insecure)],
    )
    try:
        set_process_agent(agent)
    except AlreadyInitializedError:
        agent.shutdown(graceful=False)
        raise
    at_exit = functools.partial(agent.leave_within, EXIT_SECONDS)
    atexit.register(at_exit)
    agent.after_close(lambda: atexit.unregister(at_exit))
    return agent


def shutdown(*, graceful: bool = True, timeout: float = math.inf) -> None:
    """Ends the ambient agent; see `telegrad.rpc.shutdown`."""
    agent = find_agent()
    if agent is not None:
        agent.shutdown(graceful=graceful, timeout=timeout)


def make_agent(
    address: JobAddress,
    *,
    name: str,
    options: RpcOptions,
    token: bytes | None,
    transports: Sequence[Transport],
    control_transports: Sequence[Transport] | None = None,
    host_transports: Sequence[Transport] | None = None,
    loop: LoopThread | None = None,
) -> Agent:
    """Joins a job with an agent of its own; many of them may live in one process.

    Blocks until the job is complete. Nothing becomes ambient: `rpc.use_agent(agent)` does that.

    Args:
        address: Where the job is, and this worker's place in it.
        name: This worker's name.
        options: As for `init_rpc`; its addresses and token are not read here.
        token: The job's token; None only when insecure.
        transports: Where this worker listens and how it reaches the others.
        control_transports: How it reaches the coordinator; `transports` by default.
        host_transports: Where the coordinator listens if this worker hosts it.
        loop: The loop thread; the process' shared one by default.

    Raises:
        RendezvousError: The job could not be joined; nothing is left behind.
        OSError: A port is in use.
    """
    owned = shared_loop_thread() if loop is None else loop
    events = _MembershipEvents()
    opened: list[Agent] = []

    def publish(incarnation: int) -> Sequence[str]:
        def open_exchange(*, receiver: Receiver, load: Callable[[], int]) -> Exchange:
            return Exchange(
                job=address.job,
                name=name,
                rank=address.rank,
                incarnation=incarnation,
                token=token,
                transports=transports,
                receiver=receiver,
                lost_after=options.lost_after,
                loop=owned,
                load=load,
            )

        info = WorkerInfo(name, address.rank, incarnation)
        agent = Agent(
            info,
            world_size=address.world_size,
            options=options,
            loop=owned,
            open_exchange=open_exchange,
        )
        attach_rrefs(agent)
        dist_autograd.attach_to(agent)
        endpoints = agent.open()
        opened.append(agent)
        events.agent = agent
        return endpoints

    try:
        job = join_job(
            address,
            name=name,
            token=token,
            transports=transports if control_transports is None else control_transports,
            publish=publish,
            listener=events,
            host_transports=host_transports,
            timeout=options.init_timeout,
            lost_after=options.lost_after,
            loop=owned,
        )
    except BaseException:
        for agent in opened:
            agent.shutdown(graceful=False)
        raise
    (agent,) = opened
    agent.join(job)
    agent.learn((member.info, member.endpoints) for member in job.members)
    agent.begin()
    return agent


@final
class _MembershipEvents:
    """Tells the agent what the coordinator says; called on the loop, after the job is complete."""

    def __init__(self) -> None:
        self.agent: Agent | None = None

    def on_member_joined(self, member: Member) -> None:
        if self.agent is not None:
            self.agent.learn([(member.info, member.endpoints)])

    def on_member_lost(self, info: WorkerInfo, reason: str) -> None:
        if self.agent is not None and info != self.agent.info:
            self.agent.fence(info, reason)

    def on_coordinator_lost(self, error: WorkerLostError) -> None:
        if self.agent is not None and isinstance(error, EvictedError):
            self.agent.evict(error)


def _refuse_second() -> None:
    running = process_agent()
    if running is None:
        return
    if running.pid != os.getpid():
        raise AgentForkedError(
            f"this process was forked from process {running.pid}, in which agent "
            f"{running.name!r} runs; start processes with multiprocessing's 'spawn' method"
        )
    raise AlreadyInitializedError(
        f"the agent {running.name!r} already runs in this process; "
        "call rpc.shutdown() before another rpc.init_rpc()"
    )


def _token(options: RpcOptions) -> bytes | None:
    if not options.insecure:
        return find_token(options.token, os.environ)
    warnings.warn(
        "insecure=True: whoever reaches this worker's port may call functions in it",
        stacklevel=4,
    )
    return None
