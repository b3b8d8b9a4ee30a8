"""The parts of an agent: for the packages above `rpc`, not for users."""

from __future__ import annotations

from telegrad.rendezvous import keep_newest
from telegrad.rpc.agent.core import AgentCore, current_agent, find_agent, process_agent
from telegrad.rpc.agent.events import JobEvents, MembershipEvents
from telegrad.rpc.agent.messages import Messages
from telegrad.rpc.agent.options import Invitation, connection_limits
from telegrad.rpc.base.ambient import (
    call_off_joins,
    clear_process_agent,
    enter_agent,
    joining,
    refuse_second,
    set_process_agent,
    use_agent,
    watch_forks,
)
from telegrad.rpc.base.attachments import Attachments
from telegrad.rpc.base.call_record import CallFacts, CallObserver, CallPhase, CallRecord, Outcome
from telegrad.rpc.base.failure import (
    decode_error,
    describe_failure,
    fresh_copy,
    rebuild_failure,
)
from telegrad.rpc.base.interceptor import Interceptor, Message
from telegrad.rpc.base.life import CLOSE_SECONDS, Life
from telegrad.rpc.base.limits import seconds
from telegrad.rpc.base.members import Members
from telegrad.rpc.base.served_call import ServedCall, current_served_call
from telegrad.rpc.base.tick import Tick
from telegrad.rpc.call.admission_callee import CalleeAdmission
from telegrad.rpc.call.calling import Calling
from telegrad.rpc.call.codec import MessageCodec
from telegrad.rpc.call.device_maps import Devices
from telegrad.rpc.call.runner import Runner
from telegrad.rpc.call.serving import CALL, Serving, record_refusal
from telegrad.rpc.call.user_call import MainStaysHere, UserCall, admit_call
from telegrad.rpc.deadlock.probe import WaitProbes
from telegrad.rpc.future.future import new_future, wait_or_cancel
from telegrad.rpc.future.gate import Drive, Gate
from telegrad.rpc.future.reads import Driven, Reads
from telegrad.rpc.future.waits import comes_from
from telegrad.rpc.policy.policy import CallablePolicy, project_function
from telegrad.rpc.pool.deadlines import Deadlines
from telegrad.rpc.pool.inbox import Inbox
from telegrad.rpc.pool.pool import Pool
from telegrad.rpc.pool.user_loop import UserLoop
from telegrad.rpc.rref.calls import RRefCalls
from telegrad.rpc.rref.rref import reference_of
from telegrad.rpc.rref.serving import RRefServing
from telegrad.rpc.verbs.agent import agent_of, core_of
from telegrad.rpc.verbs.api import call
from telegrad.rpc.verbs.combine import wait_each
from telegrad.rpc.verbs.parts import attach_parts
from telegrad.transport import (
    Shield,
    Spin,
    Stay,
    barred,
    longest_spin,
    refuse_in_section,
    refuse_to_block,
)

__all__ = [
    "CALL",
    "CLOSE_SECONDS",
    "AgentCore",
    "Attachments",
    "CallFacts",
    "CallObserver",
    "CallPhase",
    "CallRecord",
    "CallablePolicy",
    "CalleeAdmission",
    "Calling",
    "Deadlines",
    "Devices",
    "Drive",
    "Driven",
    "Gate",
    "Inbox",
    "Interceptor",
    "Invitation",
    "JobEvents",
    "Life",
    "MainStaysHere",
    "Members",
    "MembershipEvents",
    "Message",
    "MessageCodec",
    "Messages",
    "Outcome",
    "Pool",
    "RRefCalls",
    "RRefServing",
    "Reads",
    "Runner",
    "ServedCall",
    "Serving",
    "Shield",
    "Spin",
    "Stay",
    "Tick",
    "UserCall",
    "UserLoop",
    "WaitProbes",
    "admit_call",
    "agent_of",
    "attach_parts",
    "barred",
    "call",
    "call_off_joins",
    "clear_process_agent",
    "comes_from",
    "connection_limits",
    "core_of",
    "current_agent",
    "current_served_call",
    "decode_error",
    "describe_failure",
    "enter_agent",
    "find_agent",
    "fresh_copy",
    "joining",
    "keep_newest",
    "longest_spin",
    "new_future",
    "process_agent",
    "project_function",
    "rebuild_failure",
    "record_refusal",
    "reference_of",
    "refuse_in_section",
    "refuse_second",
    "refuse_to_block",
    "seconds",
    "set_process_agent",
    "use_agent",
    "wait_each",
    "wait_or_cancel",
    "watch_forks",
]
