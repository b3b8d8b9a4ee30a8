"""`distributed_sampler`: the sampler of this rank of a process group."""

from __future__ import annotations

from collections.abc import Sized

from telegrad.collectives import ProcessGroup, world_group
from telegrad.data import DistributedSampler


def distributed_sampler(
    dataset: Sized | int,
    *,
    process_group: ProcessGroup | None = None,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
) -> DistributedSampler:
    """Returns the `data.DistributedSampler` of this rank of a group.

    Args:
        dataset: The data set, or its length.
        process_group: The group whose ranks share the data set; None for all ranks of the job.
        shuffle: As for `DistributedSampler`, like the arguments after it.
        seed: A number from 0, the same on every rank.
        drop_last: True to leave samples out instead of drawing some again.

    Raises:
        NotInitializedError: There is no process group.
        ValueError: This worker is no member of the group.
        Exception: Any error of `DistributedSampler`.

    Example:
        >>> from telegrad import collectives, parallel
        >>> from telegrad.testing import Cluster
        >>> def indices() -> list[int]:  # runs on every worker
        ...     collectives.init_process_group()
        ...     return list(parallel.distributed_sampler(5, shuffle=False))
        >>> with Cluster(2) as cluster:
        ...     cluster.run(indices)
        [[0, 2, 4], [1, 3, 0]]
    """
    group = world_group() if process_group is None else process_group
    if group.rank < 0:
        raise ValueError(f"this worker is no member of group {group.name!r}, which has the samples")
    return DistributedSampler(
        dataset, group.size, group.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
