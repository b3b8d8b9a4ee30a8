"""Process groups: made, left, and asked for ranks.

Rank arguments of all verbs are ranks of the job; `get_rank(group)` returns the rank within a group.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence

from telegrad.collectives.api.calls import current_world, group_of
from telegrad.collectives.groups import TIMEOUT, Groups
from telegrad.collectives.process_group import ProcessGroup
from telegrad.rpc import RpcOptions
from telegrad.rpc.seams import current_agent, seconds
from telegrad.types import Rank

__all__ = [
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "new_group",
    "world_group",
]


# These two import the composition root when they are called.


def init_process_group(
    *,
    name: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    timeout: float | None = TIMEOUT,
    options: RpcOptions | None = None,
) -> ProcessGroup:
    """Joins the job, unless `init_rpc` has done so, and makes the group of all its workers.

    `init_rpc` may be called before or after; both mean the same job and the same agent.

    Args:
        name: This worker's name; by default `TELEGRAD_NAME`, else `worker{rank}`.
        rank: This worker's rank, from 0; by default from the environment.
        world_size: The number of ranks; by default from the environment. If this worker has already
            joined, it is the size of the group, whose ranks start at 0; by default all ranks known
            so far. State it if workers join a job that has already started (`LocalWorkers`, late
            workers), so that all ranks mean the same group.
        init_method: As for `init_rpc`.
        timeout: The default timeout of an operation, in seconds above 0; None for 30 minutes;
            `math.inf` for no limit.
        options: As for `init_rpc`.

    Returns:
        The default group, which operations use if no group is given.

    Raises:
        AlreadyInitializedError: There is a process group, or `init_rpc` got other arguments.
        WorkerLostError: A worker of the job is lost.
        Exception: Any error of `init_rpc`.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     return group.rank, group.size
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(0, 2), (1, 2)]
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    return _distributed.init_process_group(
        name=name,
        rank=rank,
        world_size=world_size,
        init_method=init_method,
        timeout=seconds(timeout, TIMEOUT),
        options=options,
    )


def destroy_process_group() -> None:
    """Leaves all groups of this worker; idempotent, allowed in any state.

    Ranks that wait for an operation in which this one took no part get an error. If `init_rpc` was
    never called, this also shuts the agent down gracefully.

    Raises:
        BlockingCallError: On an event loop that telegrad runs, if it has to shut the agent down.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     collectives.destroy_process_group()
        ...     collectives.init_process_group()  # may be made anew
        ...     return collectives.get_world_size()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2, 2]
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    _distributed.destroy_process_group()


# Groups.


def world_group() -> ProcessGroup:
    """Returns the group of all workers of the job.

    Raises:
        NotInitializedError: `init_process_group` was not called.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.world_group().rank
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0, 1]
    """
    return current_world()


def new_group(ranks: Sequence[Rank], *, timeout: float | None = None) -> ProcessGroup:
    """Makes a group of some workers; returns once each of them has called this.

    All members pass the same ranks in the same order. Two workers that are in several groups
    together must make these groups in the same order. Other workers may call it too, without any
    effect. After a failure, call it with the living workers to go on, whatever happened to other
    groups.

    Args:
        ranks: Ranks of the job, each once; a member's rank in the group is its position here.
        timeout: Seconds for this call, and the default timeout of the group's operations; None for
            that of `init_process_group`, which need not have been called.

    Returns:
        The group. On a worker that is no member, a group of rank -1, which refuses all operations.

    Raises:
        TypeError: `ranks` is no sequence of integers.
        ValueError: `ranks` is empty, has a rank twice, or has a rank that the job does not have.
        CollectiveMismatchError: A member passed other ranks; raised on all members of both groups.
        WorkerLostError: A member is lost.
        CallTimeoutError: A member did not call it in time.
        NotInitializedError: No agent runs here.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     first = collectives.new_group([0])
        ...     return first.rank, collectives.get_rank()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [(0, 0), (-1, 1)]
    """
    agent = current_agent()
    return agent.attachments[Groups].form(_check_ranks(ranks, agent.members.world_size), timeout)


def get_rank(group: ProcessGroup | None = None) -> Rank:
    """Returns this worker's rank in a group; -1 if it is no member.

    Raises:
        NotInitializedError: `init_process_group` was not called.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.get_rank()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [0, 1]
    """
    return group_of(group).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Returns the number of members of a group.

    Raises:
        NotInitializedError: `init_process_group` was not called.

    Example:
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     return collectives.get_world_size()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [2, 2]
    """
    return group_of(group).size


def _check_ranks(ranks: object, world_size: int) -> tuple[int, ...]:
    if isinstance(ranks, str | bytes) or not isinstance(ranks, Sequence):
        raise TypeError(f"ranks must be a list of ranks, not {ranks!r}")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, numbers.Integral):
            raise TypeError(f"ranks must be integers, not {rank!r}")
    found = tuple(int(rank) for rank in ranks)
    if not found:
        raise ValueError("a group needs at least one rank")
    if len(set(found)) < len(found):
        raise ValueError(f"each rank may be in a group once (got {list(found)})")
    outside = [rank for rank in found if not 0 <= rank < world_size]
    if outside:
        raise ValueError(
            f"ranks {outside} are not in this job, whose ranks go from 0 to {world_size - 1}"
        )
    return found
