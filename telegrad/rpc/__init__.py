"""Calls between workers, futures, and references to remote objects."""

from __future__ import annotations

from telegrad.rendezvous import keep_newest
from telegrad.rpc import functions
from telegrad.rpc.agent.agent import Agent, OpenExchange, connection_limits
from telegrad.rpc.agent.ambient import (
    call_off_joins,
    clear_process_agent,
    current_agent,
    find_agent,
    joining,
    process_agent,
    refuse_second,
    set_process_agent,
    use_agent,
)
from telegrad.rpc.agent.events import JobEvents, MembershipEvents, on_join, on_leave, on_loss
from telegrad.rpc.agent.members import RpcStatistics
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.agent.parts import attach_parts
from telegrad.rpc.agent.shutdown import CLOSE_SECONDS, Membership
from telegrad.rpc.api import (
    get_worker_info,
    get_worker_infos,
    init_rpc,
    is_initialized,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
    statistics,
    to_thread,
)
from telegrad.rpc.call.failure import fresh_copy, remote_traceback
from telegrad.rpc.call.interceptor import CallRecord, Interceptor, Message
from telegrad.rpc.call.retry import idempotent
from telegrad.rpc.call.served_call import CurrentCall, ServedCall, current_call, current_served_call
from telegrad.rpc.call.user_call import CallMode, UserCall
from telegrad.rpc.deadlock.probe import WaitProbes
from telegrad.rpc.doctor import doctor
from telegrad.rpc.doctor_facts import DoctorPair, DoctorWorker
from telegrad.rpc.doctor_judgement import DoctorProblem
from telegrad.rpc.doctor_probe import DoctorProbe
from telegrad.rpc.doctor_report import DoctorReport
from telegrad.rpc.future.combine import (
    AsCompleted,
    as_completed,
    collect_all,
    first_n,
    gather,
    wait_all,
)
from telegrad.rpc.future.future import Future, new_future
from telegrad.rpc.future.unread import watched
from telegrad.rpc.future.waits import Driven
from telegrad.rpc.limits import Limits, seconds
from telegrad.rpc.publish import lookup, publish, unpublish
from telegrad.rpc.rref.calls import RRefCalls
from telegrad.rpc.rref.rref import RRef
from telegrad.rpc.rref.serving import RRefServing
from telegrad.rpc.stream.stream import Stream, stream
from telegrad.transport import Shield, TlsOptions, on_own_loop
from telegrad.types import WorkerInfo
from telegrad.wire import expose, register_type

__all__ = [
    "CLOSE_SECONDS",
    "Agent",
    "AsCompleted",
    "CallMode",
    "CallRecord",
    "CurrentCall",
    "DoctorPair",
    "DoctorProbe",
    "DoctorProblem",
    "DoctorReport",
    "DoctorWorker",
    "Driven",
    "Future",
    "Interceptor",
    "JobEvents",
    "Limits",
    "Membership",
    "MembershipEvents",
    "Message",
    "OpenExchange",
    "RRef",
    "RRefCalls",
    "RRefServing",
    "RpcOptions",
    "RpcStatistics",
    "ServedCall",
    "Shield",
    "Stream",
    "TlsOptions",
    "UserCall",
    "WaitProbes",
    "WorkerInfo",
    "as_completed",
    "attach_parts",
    "call_off_joins",
    "clear_process_agent",
    "collect_all",
    "connection_limits",
    "current_agent",
    "current_call",
    "current_served_call",
    "doctor",
    "expose",
    "find_agent",
    "first_n",
    "fresh_copy",
    "functions",
    "gather",
    "get_worker_info",
    "get_worker_infos",
    "idempotent",
    "init_rpc",
    "is_initialized",
    "joining",
    "keep_newest",
    "lookup",
    "new_future",
    "on_join",
    "on_leave",
    "on_loss",
    "on_own_loop",
    "process_agent",
    "publish",
    "refuse_second",
    "register_type",
    "remote",
    "remote_traceback",
    "rpc_async",
    "rpc_sync",
    "seconds",
    "set_process_agent",
    "shutdown",
    "statistics",
    "stream",
    "to_thread",
    "unpublish",
    "use_agent",
    "wait_all",
    "watched",
]
