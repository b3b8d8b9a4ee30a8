"""The joining and the end of a process' agent: what `init_rpc`, `shutdown` and their kin do."""

from __future__ import annotations

import atexit
import contextvars
import dataclasses
import functools
import math
import os
import warnings
from collections.abc import Callable

from telegrad import collectives
from telegrad.collectives.seams import Groups, GroupTerms
from telegrad.compose import make_agent
from telegrad.errors import (
    AlreadyInitializedError,
    JoinCancelledError,
    RendezvousError,
)
from telegrad.nn import Module
from telegrad.rendezvous import (
    COORDINATOR_NAME,
    CallOff,
    JobAddress,
    JobPort,
    JoinedJob,
    check_name,
    parse_init_method,
    port_in_use,
    secured,
)
from telegrad.rpc import Agent, RpcOptions
from telegrad.rpc.seams import (
    CLOSE_SECONDS,
    AgentCore,
    Invitation,
    MainStaysHere,
    agent_of,
    call_off_joins,
    core_of,
    current_agent,
    find_agent,
    joining,
    process_agent,
    refuse_second,
    refuse_to_block,
    set_process_agent,
)
from telegrad.transport import GrpcTransport, find_local, find_tls, find_token
from telegrad.wire import Project, decode, encode, import_missing_with, names, register_refusal

EXIT_SECONDS = 2.0  # a program that ends without shutdown() must not hang at its end

MODULE_ADVICE = (
    "a Module does not travel by value, its parameters would be copies; either make it on its "
    "worker and hand out rpc.RRef(model), or make it from here with "
    "rpc.remote(to, ModelClass, args), or with parallel.RemoteModule(to, ModelClass, args)"
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
    joined = _joined_by_groups(name, rank, world_size, options)
    if joined is not None:
        return agent_of(joined)
    refuse_second()
    address, own_name, chosen = _place(name, rank, world_size, init_method, options)
    return agent_of(_make_process_agent(address, own_name, chosen, _token(chosen)))


def join_as(
    name: str | None,
    *,
    rank: int | None,
    world_size: int | None,
    init_method: str | None,
    options: RpcOptions | None,
) -> AgentCore:
    """Joins a job as an agent that the program holds; see `telegrad.rpc.Agent`."""
    address, own_name, chosen = _place(name, rank, world_size, init_method, options)
    return _make_grpc_agent(address, own_name, chosen, _token(chosen))


def _place(
    name: str | None,
    rank: int | None,
    world_size: int | None,
    init_method: str | None,
    options: RpcOptions | None,
) -> tuple[JobAddress, str, RpcOptions]:
    """Returns where the job is, under which name to join it, and the options."""
    chosen = RpcOptions() if options is None else options
    if not isinstance(chosen, RpcOptions):
        raise TypeError(f"options must be an RpcOptions, not {options!r}")
    address = parse_init_method(init_method, rank=rank, world_size=world_size, environ=os.environ)
    if address.late and name is None:  # the coordinator gives it one
        return address, "", chosen
    if name is None:
        name = address.name or f"worker{address.rank}"
    return address, check_name(name), chosen


def init_process_group(
    *,
    name: str | None,
    rank: int | None,
    world_size: int | None,
    init_method: str | None,
    timeout: float,
    options: RpcOptions | None,
    terms: GroupTerms,
) -> collectives.ProcessGroup:
    """Makes the group of all workers; see `telegrad.collectives.init_process_group`."""
    agent = find_agent()
    if agent is not None:
        _check_same(agent, name, rank, world_size, options, "init_process_group")
        return agent.attachments[Groups].make_world(timeout, world_size, terms)
    agent = core_of(
        init_rpc(name, rank=rank, world_size=world_size, init_method=init_method, options=options)
    )
    groups = agent.attachments[Groups]
    groups.owns_agent = True
    try:
        return groups.make_world(timeout, world_size, terms)
    except BaseException:
        agent.shutdown(graceful=False)
        raise


def destroy_process_group() -> None:
    """Leaves all groups; see `telegrad.collectives.destroy_process_group`."""
    agent = find_agent()
    if agent is None:
        return
    groups = agent.attachments[Groups]
    if groups.owns_agent:  # before anybody hears that this worker has left
        refuse_to_block(
            "destroy_process_group()", "call it from a thread, since it shuts the agent down"
        )
    groups.leave()
    if groups.owns_agent:
        agent.shutdown()


def _joined_by_groups(
    name: str | None, rank: int | None, world_size: int | None, options: RpcOptions | None
) -> AgentCore | None:
    """Returns the agent of this process if `init_process_group` made it, for `init_rpc` to own."""
    agent = find_agent()
    if agent is None or agent is not process_agent():
        return None
    groups = agent.attachments[Groups]
    if not groups.owns_agent:
        return None
    _check_same(agent, name, rank, world_size, options, "init_rpc")
    groups.owns_agent = False
    return agent


def _check_same(
    agent: AgentCore,
    name: str | None,
    rank: int | None,
    world_size: int | None,
    options: RpcOptions | None,
    verb: str,
) -> None:
    """Checks that a second door into the job is told nothing else than the first one was."""
    first = "init_rpc" if verb == "init_process_group" else "init_process_group"
    for what, given, found in (
        ("name", name, agent.info.name),
        ("rank", rank, agent.info.rank),
        ("options", options, agent.options),
    ):
        if given is not None and given != found:
            raise AlreadyInitializedError(
                f"this worker has joined the job by {first}() with {what}={found!r}, and {verb}() "
                f"was called with {what}={given!r}; write {first}({what}={given!r}), or leave "
                f"{what} out of {verb}()"
            )
    complete, now = agent.attachments[JoinedJob].world_size, agent.members.world_size
    if world_size is not None and not complete <= world_size <= now:
        raise AlreadyInitializedError(
            f"{first}() has joined a job with world_size={complete}, of {now} ranks now, and "
            f"{verb}() was called with world_size={world_size!r}; write that in {first}(), or "
            "start the rest"
        )


def invite() -> tuple[AgentCore, bytes]:
    """Returns the ambient agent, and what a process needs to join its job on top of its workers.

    That holds the job's token: it is for a pipe, not for a command line or a file.

    Raises:
        NotInitializedError: No agent runs here.
        RendezvousError: Other processes cannot reach this agent's job.
    """
    agent = current_agent()
    invitation = agent.attachments[Invitation]
    if not invitation.endpoint.startswith(("grpc://", "grpcs://", "local://")):
        raise RendezvousError(
            f"no other process can join the job at {invitation.endpoint}; start the agent with "
            "rpc.init_rpc()"
        )
    if names.main_stays_here():
        agent.attachments.attach(MainStaysHere())
    return agent, bytes(encode(invitation).document)


def join_invited(
    invitation: bytes, *, name: str = "", importer: Callable[[str], object] | None = None
) -> AgentCore:
    """Joins the job that another process was asked to `invite` to, as this process' agent.

    Args:
        invitation: What `invite` returned there.
        name: This worker's name; "" for `worker` and the rank that it gets.
        importer: Is given the name of each module that a message names and that is not imported
            here; it may import it. Without one nothing is imported.

    Raises:
        RendezvousError: The job could not be joined; nothing is left behind.
    """
    context = contextvars.Context()
    context.run(import_missing_with, importer)
    # Its options may name a function that decides.
    known = context.run(decode, invitation, functions=names.load)
    assert isinstance(known, Invitation)
    address = JobAddress(
        rank=-1,
        world_size=0,
        hosts_store=False,
        job=known.job,
        endpoint=known.endpoint,
        late=True,
    )
    options = dataclasses.replace(known.options, port=0)
    return _make_process_agent(address, name, options, known.token, context)


def is_project_module(name: str) -> bool:
    """Returns True if this process has imported a module that is of the user's own project."""
    return Project().has(name)


def settle(agent: AgentCore) -> None:
    """Returns when this agent has heard of all whom the coordinator has welcomed before."""
    agent.attachments[JoinedJob].store.num_keys()


def _make_process_agent(
    address: JobAddress,
    name: str,
    options: RpcOptions,
    token: bytes | None,
    context: contextvars.Context | None = None,
) -> AgentCore:
    call_off = CallOff()
    with joining(call_off):
        agent = _make_grpc_agent(address, name, options, token, context=context, call_off=call_off)
        try:
            set_process_agent(agent)
            call_off.settle()
        except (AlreadyInitializedError, JoinCancelledError):
            agent.shutdown(graceful=False)
            raise
    return agent


def _make_grpc_agent(
    address: JobAddress,
    name: str,
    options: RpcOptions,
    token: bytes | None,
    *,
    context: contextvars.Context | None = None,
    call_off: CallOff | None = None,
) -> AgentCore:
    """Joins a job over gRPC, with an agent that leaves at the exit of the process."""
    tls = None if options.insecure else find_tls(options.tls, os.environ, name)
    if tls is not None:
        name = name or tls.only_name()
        if address.hosts_store:
            tls.check_name(COORDINATOR_NAME, "this worker hosts the coordinator, whose name")
    address = secured(address, mutual=tls is not None, insecure=options.insecure)
    local = find_local(
        tls, wanted=options.reaches_locally, bind=options.bind, cuda_ipc=options.cuda_ipc
    )
    port = JobPort(
        address,
        functools.partial(GrpcTransport, tls=tls, insecure=options.insecure),
        bind=options.bind,
        advertise=options.advertise,
        ports=options.ports,
        local=local,
    )
    direct = port.direct(options.direct_ports, tls, insecure=options.insecure)
    try:
        made = make_agent(
            address,
            name=name,
            options=options,
            token=token,
            transports=[*local, port.transport, *direct],
            control_transports=[port.transport],
            on_found=port.found,
            context=context,
            call_off=call_off,
        )
    except OSError as error:
        if (known := port_in_use(address, error, os.environ)) is None:
            raise
        raise known from error
    at_exit = functools.partial(made.leave_within, EXIT_SECONDS)
    atexit.register(at_exit)
    made.life.after_close(lambda: atexit.unregister(at_exit))
    return made


def shutdown(*, graceful: bool = True, timeout: float = math.inf) -> None:
    """Ends the ambient agent; see `telegrad.rpc.base.life`."""
    if find_agent() is None:
        call_off_joins(CLOSE_SECONDS)
    agent = find_agent()
    if agent is not None:
        agent.shutdown(graceful=graceful, timeout=timeout)


def _token(options: RpcOptions) -> bytes | None:
    if not options.insecure:
        return find_token(options.token, os.environ)
    warnings.warn(
        "insecure=True: whoever reaches this worker's port may call functions in it, and read and "
        "alter what it sends",
        stacklevel=4,
    )
    return None
