"""Reductions: operations that combine the arrays of all ranks, item by item."""

from __future__ import annotations

from typing import Literal, overload

from telegrad.collectives.algorithms import direct
from telegrad.collectives.api.calls import eager_bytes, group_of, run_call, signature_of
from telegrad.collectives.link import Link
from telegrad.collectives.operation import Call
from telegrad.collectives.process_group import ProcessGroup, Work
from telegrad.collectives.reduction import ReduceOp, Staged, check_array, check_reducible
from telegrad.collectives.select import select_all_reduce
from telegrad.types import Array

__all__ = ["all_reduce"]


@overload
def all_reduce(
    array: Array,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> None: ...
@overload
def all_reduce(
    array: Array,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[None]: ...
def all_reduce(
    array: Array,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[None] | None:
    """Replaces the array, in place, by the reduction of the arrays of all ranks.

    The results are bitwise equal on all ranks. If the operation fails, the contents of the array
    are undefined.

    Args:
        array: A NumPy or CuPy array, of the same shape and dtype on every rank, of any strides.
        op: The operation that combines items.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once; the array belongs to the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit. Unless
            `async_op` is True, the remaining time of the call being served is a limit as well.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        None, or the Work.

    Raises:
        TypeError: `array` is no array (of a Tensor pass `tensor.data`), or `op` is no ReduceOp.
        ValueError: The array is read-only, or `op` has no meaning for its dtype.
        CollectiveMismatchError: The ranks called different operations; raised on all of them.
        WorkerLostError: A rank is lost; raised on all others.
        CallTimeoutError: A rank, named in the message, did not come in time; raised on all ranks.
        BlockingCallError: On an event loop that telegrad runs, unless `async_op`.
        NotInitializedError: `init_process_group` was not called, or the group was left.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.array([1.0, group.rank])
        ...     collectives.all_reduce(x)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[2.0, 1.0], [2.0, 1.0]]
    """
    chosen = group_of(group)
    return run_call(chosen, _all_reduce_call(array, op, chosen, label), async_op, timeout)


def _all_reduce_call(array: object, op: object, group: ProcessGroup, label: str) -> Call[None]:
    """Returns the call of `all_reduce`; raises the errors of `all_reduce` for its arguments."""
    checked = check_array("all_reduce", array, written=True)
    reduction: ReduceOp = check_reducible(op, checked.dtype)
    staged = Staged(checked)
    algorithm = select_all_reduce(staged.flat.nbytes, group.size)

    async def run(link: Link) -> None:
        await algorithm(link, staged.flat, reduction)
        staged.write_back()

    signature = signature_of("all_reduce", checked, label, op=reduction.name)
    message = (
        staged.flat.nbytes if algorithm is direct.all_reduce else staged.flat.nbytes // group.size
    )
    return Call(signature=signature, run=run, eager_bytes=eager_bytes(staged, message))
