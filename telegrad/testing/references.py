"""Leak checks across a cluster: RRefs, autograd contexts and calls that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from telegrad.dist_autograd import Container
from telegrad.rpc import current_agent
from telegrad.testing.cluster import Cluster
from telegrad.testing.leaks import GONE_WITHIN, wait_until_gone

__all__ = ["held_references", "no_leaked_references"]


def held_references() -> dict[str, int]:
    """Returns what the ambient agent holds for others and of others, by kind."""
    agent = current_agent()
    statistics = agent.statistics()
    return {
        "owned RRefs": statistics.owned_rrefs,
        "user RRefs": statistics.user_rrefs,
        "pending calls": statistics.pending_calls,
        "autograd contexts": len(agent.attached(Container)),
    }


@contextmanager
def no_leaked_references(cluster: Cluster, within: float = GONE_WITHIN) -> Iterator[None]:
    """Checks that the block leaves no worker of a cluster with more than it held before.

    Args:
        cluster: Its living workers are asked; one that the block kills is not.
        within: Seconds that what is on its way out gets to go.

    Raises:
        LeakError: A worker holds more; the message names it and what.
    """
    before = {r: cluster.call(r, held_references) for r in cluster.living}
    yield

    def left() -> list[str]:
        return [
            f"worker{r} holds {count - before[r][kind]} more {kind}"
            for r in cluster.living
            for kind, count in cluster.call(r, held_references).items()
            if count > before[r][kind]
        ]

    wait_until_gone("references", left, within)
