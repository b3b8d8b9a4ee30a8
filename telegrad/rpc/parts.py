"""The parts of an agent that answer messages of their own, in the order in which they are attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from telegrad.rpc.doctor import attach_to as attach_doctor
from telegrad.rpc.membership_events import attach_to as attach_membership_events
from telegrad.rpc.publish import attach_to as attach_published
from telegrad.rpc.retry import attach_to as attach_retries
from telegrad.rpc.rref import attach_to as attach_rrefs
from telegrad.rpc.rref_stream import attach_to as attach_streams
from telegrad.rpc.unread import attach_to as attach_unread_errors
from telegrad.rpc.wait_probe import attach_to as attach_wait_probes

if TYPE_CHECKING:
    from telegrad.rpc.agent import Agent

__all__ = ["attach_parts"]


def attach_parts(agent: Agent) -> None:
    """For the library: gives an agent all of them; before it opens."""
    attach_unread_errors(agent)
    attach_membership_events(agent)
    attach_rrefs(agent)
    attach_published(agent)
    attach_retries(agent)
    attach_streams(agent)
    attach_wait_probes(agent)
    attach_doctor(agent)
