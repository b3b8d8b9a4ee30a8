"""Reductions: operations that combine the arrays of all ranks, item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar, overload

from telegrad.arrays import can_reduce, joined_flat, views_of
from telegrad.collectives.api.calls import (
    check_parts,
    check_splits,
    cut_shapes,
    group_of,
    place_of,
    signature_of,
)
from telegrad.collectives.api.coalescing import CallsOf, JoinableCall, JoinedRun, run_call
from telegrad.collectives.api.work import Work
from telegrad.collectives.link import Link, Steps
from telegrad.collectives.nccl.device import DeviceBackend, OnDevice
from telegrad.collectives.operation import Call
from telegrad.collectives.process_group import ProcessGroup
from telegrad.collectives.reduction import (
    FlatArrays,
    PremulSum,
    ReduceOp,
    Reduction,
    Staged,
    check_array,
    check_reducible,
    combining,
    cut_rows,
    prepare,
)
from telegrad.types import Array, Rank

__all__ = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single"]

T = TypeVar("T")


@overload
def all_reduce(
    array: Array,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> None: ...
@overload
def all_reduce(
    array: Array,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[None]: ...
def all_reduce(
    array: Array,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
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
    return run_call(chosen, _all_reduce_piece(array, op, chosen, label), async_op, timeout)


@overload
def reduce(
    array: Array,
    dst: Rank = 0,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> None: ...
@overload
def reduce(
    array: Array,
    dst: Rank = 0,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[None]: ...
def reduce(
    array: Array,
    dst: Rank = 0,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[None] | None:
    """Replaces the array of one rank, in place, by the reduction of the arrays of all ranks.

    The arrays of the other ranks keep their values. The result has the same bits as that of
    `all_reduce` for arrays up to 256 KiB. Returns once every rank has called it.

    Args:
        array: As for `all_reduce`; it may be read-only on ranks other than `dst`.
        dst: The rank in the job that gets the result.
        op: The operation that combines items.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Raises:
        ValueError: `dst` is no member.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.array([1.0, group.rank])
        ...     collectives.reduce(x, dst=1)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[1.0, 0.0], [2.0, 1.0]]
    """
    chosen = group_of(group)
    return run_call(chosen, _reduce_call(array, dst, op, chosen, label), async_op, timeout)


@overload
def reduce_scatter(
    arrays: Sequence[Array],
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Array: ...
@overload
def reduce_scatter(
    arrays: Sequence[Array],
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[Array]: ...
def reduce_scatter(
    arrays: Sequence[Array],
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[Array] | Array:
    """Returns the reduction of the arrays that all ranks have for this rank.

    Args:
        arrays: An array for each rank, by rank in the group, all of one dtype. The r-th ones have
            the same shape on every rank. They are not written.
        op: The operation that combines items.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new array, on the device of this rank's own one among `arrays`; or the Work.

    Raises:
        TypeError: `arrays` is no list of arrays.
        ValueError: There is not one array for each rank, or their dtypes differ.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     mine = group.rank + 1.0
        ...     x = collectives.reduce_scatter([np.array(mine), np.array([mine, 10 * mine])])
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [3.0, [3.0, 30.0]]
    """
    chosen = group_of(group)
    return run_call(chosen, _reduce_scatter_call(arrays, op, chosen, label), async_op, timeout)


@overload
def reduce_scatter_single(
    array: Array,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    split_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Array: ...
@overload
def reduce_scatter_single(
    array: Array,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    split_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Work[Array]: ...
def reduce_scatter_single(
    array: Array,
    op: ReduceOp | PremulSum = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    split_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Work[Array] | Array:
    """Returns this rank's part of the reduction of the arrays of all ranks.

    Args:
        array: An array of the same shape and dtype on every rank, with at least one axis. It is not
            written.
        op: The operation that combines items.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        split_sizes: The length of each rank's part of the first axis, by rank in the group, the
            same on every rank; None for equal parts.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new array, on the device of `array`; or the Work.

    Raises:
        ValueError: The first axis has no equal parts, or `split_sizes` does not add up to it.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     collectives.init_process_group()
        ...     x = np.arange(3.0)
        ...     return collectives.reduce_scatter_single(x, split_sizes=[1, 2]).tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0], [2.0, 4.0]]
    """
    chosen = group_of(group)
    piece = _reduce_scatter_single_piece(array, op, split_sizes, chosen, label)
    return run_call(chosen, piece, async_op, timeout)


# -- the calls -----------------------------------------------------------------------------------


def _all_reduce_piece(
    array: object, op: object, group: ProcessGroup, label: str
) -> JoinableCall[None]:
    checked = check_array("all_reduce", array, written=True)
    reduction = check_reducible(op, checked.dtype)
    staged = Staged(checked)
    combining = prepare(reduction, [staged])
    return JoinableCall(
        signature=signature_of(
            "all_reduce", checked, label, op=reduction.name, shape=checked.shape
        ),
        staged=staged,
        in_place=True,
        join=partial(_all_reduce, combining),
        on_device=_on_device(
            group, reduction, [checked], lambda backend, op: backend.all_reduce(checked, op)
        ),
    )


def _all_reduce(
    op: ReduceOp, group: ProcessGroup, pieces: Sequence[JoinableCall[None]], _: CallsOf
) -> JoinedRun[None]:
    joined = FlatArrays([each.staged for each in pieces])

    async def run(link: Link) -> Sequence[None]:
        backend = await link.backend()
        await backend.all_reduce(joined.flat, op)
        joined.write_back()
        return [None] * len(pieces)

    return run


def _reduce_call(
    array: object, dst: object, op: object, group: ProcessGroup, label: str
) -> Call[None]:
    root = place_of("dst", dst, group)
    checked = check_array("reduce", array, written=group.rank == root)
    reduction = check_reducible(op, checked.dtype)
    staged = Staged(checked)
    combining = prepare(reduction, [staged])

    async def run(link: Link) -> None:
        backend = await link.backend()
        await backend.reduce(staged.flat, combining, root)
        if link.rank == root:
            staged.write_back()

    signature = signature_of(
        "reduce", checked, label, op=reduction.name, root=group.ranks[root], shape=checked.shape
    )
    return Call(
        signature=signature,
        run=run,
        staged=[staged],
        on_device=_on_device(
            group, reduction, [checked], lambda backend, op: backend.reduce(checked, op, root)
        ),
    )


def _reduce_scatter_call(
    arrays: object, op: object, group: ProcessGroup, label: str
) -> Call[Array]:
    parts = check_parts("reduce_scatter", arrays, group)
    reduction = check_reducible(op, parts[0].dtype)
    staged = [Staged(part) for part in parts]
    combining = prepare(reduction, staged)
    shapes = [part.shape for part in parts]

    async def run(link: Link) -> Array:
        backend = await link.backend()
        scattered = await backend.reduce_scatter([each.shaped for each in staged], combining)
        return staged[link.rank].to_user(scattered)

    return Call(
        signature=signature_of("reduce_scatter", parts[0], label, op=reduction.name, parts=shapes),
        run=run,
        staged=staged,
        on_device=_on_device(
            group, reduction, parts, lambda backend, op: backend.reduce_scatter(parts, op)
        ),
    )


def _reduce_scatter_single_piece(
    array: object, op: object, split_sizes: object, group: ProcessGroup, label: str
) -> JoinableCall[Array]:
    checked = check_array("reduce_scatter_single", array, written=False)
    reduction = check_reducible(op, checked.dtype)
    lengths = check_splits("split_sizes", split_sizes, checked, group)
    staged = Staged(checked)
    combining = prepare(reduction, [staged])

    def run_on_device(backend: DeviceBackend, op: Reduction) -> Steps[Array]:
        return backend.reduce_scatter(cut_rows(checked, lengths), op, checked)

    return JoinableCall(
        signature=signature_of(
            "reduce_scatter_single",
            checked,
            label,
            op=reduction.name,
            shape=checked.shape,
            parts=cut_shapes(checked, lengths),
        ),
        staged=staged,
        in_place=False,
        join=partial(_reduce_scatter_single, combining),
        on_device=_on_device(group, reduction, [checked], run_on_device),
    )


def _reduce_scatter_single(
    op: ReduceOp, group: ProcessGroup, pieces: Sequence[JoinableCall[Array]], _: CallsOf
) -> JoinedRun[Array]:
    own = [each.signature.parts[group.rank] for each in pieces]

    async def run(link: Link) -> Sequence[Array]:
        cut = [views_of(each.staged.flat, each.signature.parts) for each in pieces]
        parts = [joined_flat(each) for each in zip(*cut, strict=True)]  # of all pieces, by rank
        whole = pieces[0].staged.flat if len(pieces) == 1 else None
        backend = await link.backend()
        values = views_of(await backend.reduce_scatter(parts, op, whole), own)
        return [each.staged.to_user(v) for each, v in zip(pieces, values, strict=True)]

    return run


def _on_device(
    group: ProcessGroup,
    reduction: Reduction,
    arrays: Sequence[Array],
    run: Callable[[DeviceBackend, Reduction], Steps[T]],
) -> OnDevice[T] | None:
    """Returns the way of a reduction that leaves arrays on the GPU, in a group that has one.

    Ranks of several hosts share no GPU. So they do not ask each other where the arrays are if NCCL
    cannot reduce them.
    """
    if group.nccl is None:
        return None
    by_nccl = can_reduce(combining(reduction).value, arrays[0].dtype)
    if not (by_nccl or group.sharing.on_one_host):
        return None
    return OnDevice(arrays=arrays, run=lambda backend, _: run(backend, reduction), by_nccl=by_nccl)
