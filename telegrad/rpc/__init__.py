"""Calls between workers, futures, and references to remote objects."""

from __future__ import annotations

from telegrad.rpc import functions
from telegrad.rpc.agent.events import on_join, on_leave, on_loss
from telegrad.rpc.agent.options import RpcOptions
from telegrad.rpc.base.current_call import CurrentCall, current_call
from telegrad.rpc.base.failure import remote_traceback
from telegrad.rpc.base.limits import Limits
from telegrad.rpc.base.statistics import RpcStatistics
from telegrad.rpc.future.future import Future
from telegrad.rpc.policy.exposure import expose
from telegrad.rpc.rref.rref import RRef
from telegrad.rpc.stream.stream import Stream, stream
from telegrad.rpc.verbs.agent import Agent, init_rpc
from telegrad.rpc.verbs.api import (
    get_worker_info,
    get_worker_infos,
    is_initialized,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
    statistics,
    to_thread,
)
from telegrad.rpc.verbs.combine import (
    AsCompleted,
    as_completed,
    collect_all,
    first_n,
    gather,
    wait_all,
)
from telegrad.rpc.verbs.publish import lookup, publish, unpublish
from telegrad.rpc.verbs.retry import idempotent
from telegrad.transport import TlsOptions
from telegrad.types import WorkerInfo
from telegrad.wire import register_type

__all__ = [
    "Agent",
    "AsCompleted",
    "CurrentCall",
    "Future",
    "Limits",
    "RRef",
    "RpcOptions",
    "RpcStatistics",
    "Stream",
    "TlsOptions",
    "WorkerInfo",
    "as_completed",
    "collect_all",
    "current_call",
    "expose",
    "first_n",
    "functions",
    "gather",
    "get_worker_info",
    "get_worker_infos",
    "idempotent",
    "init_rpc",
    "is_initialized",
    "lookup",
    "on_join",
    "on_leave",
    "on_loss",
    "publish",
    "register_type",
    "remote",
    "remote_traceback",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "statistics",
    "stream",
    "to_thread",
    "unpublish",
    "wait_all",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
