"""The part of `parallel` that an agent is built with; not for users."""

from __future__ import annotations

from telegrad.parallel.optimizer.structure import attach_to as attach_references
from telegrad.parallel.pipeline.mailbox import attach_to as attach_pipelines
from telegrad.rpc.seams import AgentCore

__all__ = ["attach_to"]


def attach_to(agent: AgentCore) -> None:
    """Makes an agent able to run pipelines and to own parameters of distributed optimizers."""
    attach_pipelines(agent)
    attach_references(agent)
