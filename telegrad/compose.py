"""The composition root: the one place that plugs the parts of an agent together.

Whatever a worker's script imports, the packages that are imported here are there, so that other
workers may call `parallel.RemoteModule` and the like by name.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from functools import partial

from telegrad.collectives.seams import attach_to as attach_groups
from telegrad.dist_autograd.seams import attach_to as attach_autograd
from telegrad.doctor.seams import attach_to as attach_doctor
from telegrad.parallel.seams import attach_to as attach_parallel
from telegrad.rendezvous import CallOff, JobAddress, join_job
from telegrad.rpc import RpcOptions
from telegrad.rpc.seams import (
    CALL,
    AgentCore,
    Attachments,
    CallablePolicy,
    CalleeAdmission,
    Calling,
    Deadlines,
    Devices,
    Inbox,
    Invitation,
    JobEvents,
    Life,
    Members,
    MembershipEvents,
    MessageCodec,
    Messages,
    Pool,
    Runner,
    Serving,
    UserLoop,
    WaitProbes,
    admit_call,
    attach_parts,
    clear_process_agent,
    connection_limits,
    enter_agent,
    record_refusal,
    watch_forks,
)
from telegrad.transport import (
    Credentials,
    Entrance,
    Exchange,
    GuestList,
    Identity,
    SocketReader,
    Transport,
    longest_spin,
    shared_loop_thread,
)
from telegrad.types import WorkerInfo


def make_agent(
    address: JobAddress,
    *,
    name: str,
    options: RpcOptions,
    token: bytes | None,
    transports: Sequence[Transport],
    control_transports: Sequence[Transport] | None = None,
    on_found: Callable[[str], None] | None = None,
    context: contextvars.Context | None = None,
    call_off: CallOff | None = None,
) -> AgentCore:
    """Joins a job with an agent of its own; many of them may live in one process.

    Blocks until the job is complete. Nothing becomes ambient: `use_agent(agent)` does that.

    Args:
        address: Where the job is, and this worker's place in it.
        name: This worker's name.
        options: As for `init_rpc`; its addresses and token are not read here.
        token: The job's token; None only when insecure.
        transports: Where this worker listens and how it reaches the others.
        control_transports: How it reaches the coordinator; `transports` by default.
        on_found: Hears the coordinator's endpoint before this worker listens, if another hosts it.
        context: What user functions run in copies of; an empty one by default.
        call_off: Ends the wait for the job, called by another thread.

    Raises:
        RendezvousError: The job could not be joined; nothing is left behind.
        OSError: A port is in use.
    """
    events = JobEvents()
    opened: list[AgentCore] = []
    guests, limits = GuestList(), connection_limits(options.limits)

    def publish(info: WorkerInfo, world_size: int) -> Sequence[str]:
        credentials = Credentials(identity=Identity(address.job, info), token=token)
        open_exchange = partial(
            Exchange,
            credentials,
            transports=transports,
            entrance=Entrance(guests=guests, listens=options.listens),
            lost_after=options.lost_after,
            limits=limits,
        )
        made = _plug_together(
            info,
            world_size,
            options,
            contextvars.Context() if context is None else context,
            open_exchange,
        )
        attach_parts(made)
        attach_doctor(made)
        attach_autograd(made)
        attach_groups(made)
        attach_parallel(made)
        endpoints = made.open()
        opened.append(made)
        events.agent = made
        return endpoints

    try:
        job = join_job(
            address,
            name=name,
            token=token,
            transports=transports if control_transports is None else control_transports,
            publish=publish,
            listener=events,
            guests=guests,
            on_found=on_found,
            listens=options.listens,
            start_when=options.waits_for,
            timeout=options.init_timeout,
            lost_after=options.lost_after,
            limits=limits,
            call_off=call_off,
        )
    except BaseException:
        for each in opened:
            each.shutdown(graceful=False)
        raise
    (made,) = opened
    made.join(job)
    made.attachments.attach(job)
    made.attachments.attach(Invitation(job.coordinator_endpoint, address.job, token, options))
    made.learn((member.info, member.endpoints) for member in job.members)
    made.attachments[MembershipEvents].begin(member.info for member in job.members)
    made.begin()
    made.attachments[WaitProbes].begin()
    return made


def _plug_together(
    info: WorkerInfo,
    world_size: int,
    options: RpcOptions,
    context: contextvars.Context,
    open_exchange: Callable[..., Exchange],
) -> AgentCore:
    """Makes the parts of an agent, in the order in which each finds what it needs.

    Args:
        info: The worker.
        world_size: The number of workers that make the job complete.
        options: As given to `init_rpc`.
        context: The Context whose copies user functions run in.
        open_exchange: Makes the Exchange, given its `receiver` and its `reader`.
    """
    name, limits, loop = info.name, options.limits, shared_loop_thread()
    life, deadlines = Life(name), Deadlines(loop)
    reader = SocketReader(loop, longest_spin())
    pool = Pool(name, options.num_threads, deadlines, context.copy, reader.watch_idle)
    members = Members(info, world_size)
    inbox = Inbox(members, pool)
    exchange = open_exchange(receiver=inbox, reader=reader)
    record = partial(record_refusal, exchange.audit)
    permissions = CallablePolicy(options.callables, name, record)
    devices = Devices(options.device_maps, name, exchange.land)
    codec = MessageCodec(permissions.resolve_value, name, limits.received, devices, exchange.memory)
    calling = Calling(life, codec, deadlines, pool.submit, exchange, inbox, limits, options.timeout)
    agent = AgentCore(
        info=info,
        options=options,
        life=life,
        loop=loop,
        pool=pool,
        deadlines=deadlines,
        members=members,
        inbox=inbox,
        exchange=exchange,
        codec=codec,
        permissions=permissions,
        calling=calling,
        serving=Serving(
            name,
            codec,
            pool,
            Runner(pool, UserLoop(name, deadlines, pool.submit)),
            exchange,
            inbox,
            CalleeAdmission(limits, options.lost_after, deadlines, exchange.post, exchange.awaited),
            limits.served_calls_per_peer,
            calling.observers,
        ),
        messages=Messages(name, codec, exchange, calling, deadlines.after),
        attachments=Attachments(name),
    )
    watch_forks(life)
    # First, and so called last: until then `shutdown` finds this agent, and waits for its end.
    life.after_close(partial(clear_process_agent, agent))
    context.run(enter_agent, agent)
    agent.serving.serve_named(CALL, partial(admit_call, permissions.resolve))
    return agent
