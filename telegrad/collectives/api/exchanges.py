"""Exchanges: operations that copy arrays between all ranks, or from one rank to all others."""

from __future__ import annotations

from typing import Literal, overload

from telegrad.arrays import device_of, to_device
from telegrad.collectives.algorithms import direct, tree
from telegrad.collectives.api.calls import eager_bytes, group_of, place_of, run_call, signature_of
from telegrad.collectives.link import Link
from telegrad.collectives.operation import Call
from telegrad.collectives.process_group import ProcessGroup, Work
from telegrad.collectives.reduction import Staged, check_array
from telegrad.types import Array, Rank

__all__ = ["all_gather", "broadcast"]


@overload
def broadcast(
    array: Array,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> None: ...
@overload
def broadcast(
    array: Array,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[None]: ...
def broadcast(
    array: Array,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[None] | None:
    """Replaces the array, in place, by that of one rank; returns once every rank has called it.

    Args:
        array: As for `all_reduce`.
        src: The rank in the job whose array is sent.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once; the array belongs to the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        None, or the Work.

    Raises:
        ValueError: `src` is no member, or the array is read-only.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.full(2, float(group.rank))
        ...     collectives.broadcast(x, src=1)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[1.0, 1.0], [1.0, 1.0]]
    """
    chosen = group_of(group)
    return run_call(chosen, _broadcast_call(array, src, chosen, label), async_op, timeout)


@overload
def all_gather(
    array: Array,
    *,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    label: str = "",
) -> list[Array]: ...
@overload
def all_gather(
    array: Array,
    *,
    group: ProcessGroup | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[list[Array]]: ...
def all_gather(
    array: Array,
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    label: str = "",
) -> Work[list[Array]] | list[Array]:
    """Returns copies of the arrays of all ranks.

    Args:
        array: An array of the same dtype on every rank; shapes may differ. It is not written.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the list; the array must not
            change until the Work is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        New arrays by rank in the group, on the device of `array`; or the Work.

    Raises:
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     parts = collectives.all_gather(np.array([float(group.rank)]))
        ...     return [part.item() for part in parts]
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 1.0], [0.0, 1.0]]
    """
    chosen = group_of(group)
    return run_call(chosen, _all_gather_call(array, label), async_op, timeout)


def _broadcast_call(array: object, src: object, group: ProcessGroup, label: str) -> Call[None]:
    """Returns the call of `broadcast`; raises the errors of `broadcast` for its arguments."""
    checked = check_array("broadcast", array, written=True)
    root = place_of("src", src, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        await tree.broadcast(link, staged.flat, root)
        staged.write_back()

    signature = signature_of("broadcast", checked, label, root=group.ranks[root])
    return Call(signature=signature, run=run, eager_bytes=eager_bytes(staged, staged.flat.nbytes))


def _all_gather_call(array: object, label: str) -> Call[list[Array]]:
    """Returns the call of `all_gather`; raises the errors of `all_gather` for its arguments."""
    checked = check_array("all_gather", array, written=False)
    staged = Staged(checked)

    async def run(link: Link) -> list[Array]:
        gathered = await direct.all_gather(link, staged.flat.reshape(checked.shape))
        return [to_device(each, device_of(checked)) for each in gathered]

    signature = signature_of("all_gather", checked, label)
    return Call(signature=signature, run=run, eager_bytes=eager_bytes(staged, staged.flat.nbytes))
