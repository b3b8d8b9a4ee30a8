"""What an agent is built of: for the packages above `rpc`, not for users."""

from __future__ import annotations

from telegrad.rendezvous import keep_newest
from telegrad.rpc.agent.agent import agent_of, core_of
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
from telegrad.rpc.agent.core import AgentCore, OpenExchange, connection_limits
from telegrad.rpc.agent.events import JobEvents, MembershipEvents
from telegrad.rpc.agent.options import Invitation
from telegrad.rpc.agent.parts import attach_parts
from telegrad.rpc.agent.shutdown import CLOSE_SECONDS, Membership
from telegrad.rpc.call.failure import fresh_copy
from telegrad.rpc.call.interceptor import CallRecord, Interceptor, Message
from telegrad.rpc.call.served_call import ServedCall, current_served_call
from telegrad.rpc.call.user_call import UserCall
from telegrad.rpc.deadlock.probe import WaitProbes
from telegrad.rpc.future.future import new_future
from telegrad.rpc.future.waits import Driven
from telegrad.rpc.limits import seconds
from telegrad.rpc.rref.calls import RRefCalls
from telegrad.rpc.rref.rref import reference_of
from telegrad.rpc.rref.serving import RRefServing
from telegrad.transport import Shield, on_own_loop

__all__ = [
    "CLOSE_SECONDS",
    "AgentCore",
    "CallRecord",
    "Driven",
    "Interceptor",
    "Invitation",
    "JobEvents",
    "Membership",
    "MembershipEvents",
    "Message",
    "OpenExchange",
    "RRefCalls",
    "RRefServing",
    "ServedCall",
    "Shield",
    "UserCall",
    "WaitProbes",
    "agent_of",
    "attach_parts",
    "call_off_joins",
    "clear_process_agent",
    "connection_limits",
    "core_of",
    "current_agent",
    "current_served_call",
    "find_agent",
    "fresh_copy",
    "joining",
    "keep_newest",
    "new_future",
    "on_own_loop",
    "process_agent",
    "reference_of",
    "refuse_second",
    "seconds",
    "set_process_agent",
    "use_agent",
]
