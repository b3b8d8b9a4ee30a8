"""The parts of an agent that answer messages of their own, in the order of their attachment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from telegrad.rpc.agent.events import attach_to as attach_membership_events
from telegrad.rpc.deadlock.probe import attach_to as attach_wait_probes
from telegrad.rpc.future.unread import UnreadErrors
from telegrad.rpc.rref.interceptor import attach_to as attach_rrefs
from telegrad.rpc.rref.stream import attach_to as attach_streams
from telegrad.rpc.verbs.publish import attach_to as attach_published

if TYPE_CHECKING:
    from telegrad.rpc.agent.core import AgentCore


def attach_parts(agent: AgentCore) -> None:
    """For the library: attaches all of them to an agent; before it opens."""
    unread = UnreadErrors(agent.deadlines.after, agent.pool.submit)
    agent.attachments.attach(unread)
    agent.life.after_close(unread.tell)
    attach_membership_events(agent)
    attach_rrefs(agent)
    attach_published(agent)
    attach_streams(agent)
    attach_wait_probes(agent)
