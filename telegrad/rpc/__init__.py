"""Calls between workers, futures, and references to remote objects."""

from __future__ import annotations

from telegrad.rpc import functions
from telegrad.rpc.agent import Agent
from telegrad.rpc.ambient import (
    clear_process_agent,
    current_agent,
    find_agent,
    process_agent,
    set_process_agent,
    use_agent,
)
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
from telegrad.rpc.fresh import fresh_copy
from telegrad.rpc.future import Future, collect_all, new_future, wait_all
from telegrad.rpc.interceptor import CallRecord, Interceptor, Message
from telegrad.rpc.limits import Limits
from telegrad.rpc.open_exchange import OpenExchange
from telegrad.rpc.options import RpcOptions
from telegrad.rpc.remote_failure import remote_traceback
from telegrad.rpc.rref import RRef
from telegrad.rpc.rref import attach_to as attach_rrefs
from telegrad.rpc.served_call import ServedCall, current_served_call
from telegrad.rpc.shutdown import CLOSE_SECONDS, Membership
from telegrad.rpc.statistics import RpcStatistics
from telegrad.rpc.timeouts import seconds
from telegrad.rpc.user_call import CallMode, UserCall
from telegrad.transport import on_own_loop
from telegrad.types import WorkerInfo
from telegrad.wire import expose, register_type

__all__ = [
    "CLOSE_SECONDS",
    "Agent",
    "CallMode",
    "CallRecord",
    "Future",
    "Interceptor",
    "Limits",
    "Membership",
    "Message",
    "OpenExchange",
    "RRef",
    "RpcOptions",
    "RpcStatistics",
    "ServedCall",
    "UserCall",
    "WorkerInfo",
    "attach_rrefs",
    "clear_process_agent",
    "collect_all",
    "current_agent",
    "current_served_call",
    "expose",
    "find_agent",
    "fresh_copy",
    "functions",
    "get_worker_info",
    "get_worker_infos",
    "init_rpc",
    "is_initialized",
    "new_future",
    "on_own_loop",
    "process_agent",
    "register_type",
    "remote",
    "remote_traceback",
    "rpc_async",
    "rpc_sync",
    "seconds",
    "set_process_agent",
    "shutdown",
    "statistics",
    "to_thread",
    "use_agent",
    "wait_all",
]
