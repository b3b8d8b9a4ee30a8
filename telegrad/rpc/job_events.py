"""What the coordinator says of the other workers, handed on to the agent."""

from __future__ import annotations

from typing import final

from telegrad.errors import EvictedError, WorkerLostError
from telegrad.rendezvous import Member
from telegrad.rpc.agent import Agent
from telegrad.rpc.membership_events import MembershipEvents
from telegrad.types import WorkerInfo

__all__ = ["JobEvents"]


@final
class JobEvents:
    """For the library: tells the agent what the coordinator says, once this worker was welcomed.

    Attributes:
        agent: Whom; None while it is not there yet.
    """

    def __init__(self) -> None:
        self.agent: Agent | None = None

    def on_member_joined(self, member: Member) -> None:
        """Hears of a worker that joined."""
        if self.agent is not None:
            self.agent.learn([(member.info, member.endpoints)])
            self.agent.attached(MembershipEvents).joined(member.info)

    def on_member_lost(self, info: WorkerInfo, reason: str, left: bool) -> None:
        """Hears that a worker left or was dropped."""
        if self.agent is not None and info != self.agent.info:
            self.agent.fence(info, reason, left=left)

    def on_coordinator_lost(self, error: WorkerLostError) -> None:
        """Hears that the coordinator is lost, or goes on without this worker."""
        if self.agent is not None and isinstance(error, EvictedError) and self.agent.evict(error):
            self.agent.attached(MembershipEvents).evicted(error)
