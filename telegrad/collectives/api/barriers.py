"""Barriers: every rank waits until all have come."""

from __future__ import annotations

from typing import Literal, overload

from telegrad.collectives.api.calls import group_of, told_to_group
from telegrad.collectives.api.coalescing import run_call
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.link import Link
from telegrad.collectives.messages import Signature
from telegrad.collectives.operation import Call
from telegrad.collectives.work import Work


@overload
def barrier(
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
) -> None: ...
@overload
def barrier(
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
) -> Work[None]: ...
@told_to_group
def barrier(
    group: ProcessGroup | None = None, async_op: bool = False, timeout: float | None = None
) -> Work[None] | None:
    """Returns once every rank has called it.

    Args:
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, which is done once every rank has called it.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Returns:
        None, or the Work.

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
    call = Call(signature=Signature(operation="barrier"), run=_meet)
    return run_call(group_of(group), call, async_op, timeout)


@told_to_group
def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Returns once every rank has called it; an error names the ranks that have not.

    Every operation has such errors. This one exists for programs that call torch's.

    Args:
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        wait_all_ranks: If True, the error names all missing ranks, else the first of them.

    Raises:
        CallTimeoutError: A rank did not come in time; raised on all ranks.
        Exception: Any error of `all_reduce`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     collectives.monitored_barrier(timeout=30.0)
        ...     return "all are here"
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        ['all are here', 'all are here']
    """
    call = Call(
        signature=Signature(operation="monitored_barrier"),
        run=_meet,
        names_all=wait_all_ranks,
    )
    run_call(group_of(group), call, async_op=False, timeout=timeout)


async def _meet(link: Link) -> None:
    backend = await link.backend()
    await backend.barrier()
