"""Barriers: every rank waits until all have come."""

from __future__ import annotations

from telegrad.collectives.algorithms import dissemination
from telegrad.collectives.api.calls import group_of
from telegrad.collectives.messages import Signature
from telegrad.collectives.operation import Call
from telegrad.collectives.process_group import ProcessGroup

__all__ = ["barrier"]


def barrier(group: ProcessGroup | None = None, timeout: float | None = None) -> None:
    """Returns once every rank has called it.

    Args:
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        Exception: Any error of `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     collectives.barrier()
        ...     return "all are here"
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        ['all are here', 'all are here']
    """
    group_of(group).call(_barrier_call(), timeout)


def _barrier_call() -> Call[None]:
    """Returns the call of `barrier`."""
    return Call(signature=Signature(operation="barrier"), run=dissemination.barrier)
