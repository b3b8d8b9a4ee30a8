"""Reductions: operations that combine the arrays of all ranks, item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, overload

from telegrad.arrays import can_reduce, joined_flat, views_of
from telegrad.collectives.api.calls import (
    RunOn,
    array_call,
    check_parts,
    check_splits,
    cut_shapes,
    group_of,
    join_in_place,
    place_of,
    signature_of,
    told_to_group,
)
from telegrad.collectives.api.coalescing import run_call
from telegrad.collectives.groups.process_group import ProcessGroup
from telegrad.collectives.link import Backend, Steps
from telegrad.collectives.messages import Signature
from telegrad.collectives.operation import Call, CallsOf, Join
from telegrad.collectives.reduction import (
    PremulSum,
    ReduceOp,
    Reduction,
    check_array,
    check_reducible,
    combining,
    cut_rows,
)
from telegrad.collectives.work import Work
from telegrad.types import Array, Rank


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
@told_to_group
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
    checked = check_array("all_reduce", array, written=True)
    reduction = check_reducible(op, checked.dtype)

    def run(backend: Backend, arrays: Sequence[Array], op: Any) -> Steps[None]:
        return backend.all_reduce(arrays[0], op)

    signature = signature_of("all_reduce", checked, label, op=reduction.name, shape=checked.shape)
    join = partial(join_in_place, _with_op(run, combining(reduction)))
    call: Call[None] = _reduction_call(
        chosen, signature, [checked], reduction, run, flat=True, written=True, join=join
    )
    return run_call(chosen, call, async_op, timeout)


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
@told_to_group
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
    root = place_of("dst", dst, chosen)
    checked = check_array("reduce", array, written=chosen.rank == root)
    reduction = check_reducible(op, checked.dtype)

    def run(backend: Backend, arrays: Sequence[Array], op: Any) -> Steps[None]:
        return backend.reduce(arrays[0], op, root)

    signature = signature_of(
        "reduce", checked, label, op=reduction.name, root=chosen.ranks[root], shape=checked.shape
    )
    call: Call[None] = _reduction_call(
        chosen, signature, [checked], reduction, run, flat=True, written=chosen.rank == root
    )
    return run_call(chosen, call, async_op, timeout)


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
@told_to_group
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
    parts = check_parts("reduce_scatter", arrays, chosen)
    reduction = check_reducible(op, parts[0].dtype)

    def run(backend: Backend, arrays: Sequence[Array], op: Any) -> Steps[Array]:
        return backend.reduce_scatter(arrays, op)

    shapes = [part.shape for part in parts]
    signature = signature_of("reduce_scatter", parts[0], label, op=reduction.name, parts=shapes)
    call: Call[Array] = _reduction_call(chosen, signature, parts, reduction, run)
    return run_call(chosen, call, async_op, timeout)


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
@told_to_group
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
    checked = check_array("reduce_scatter_single", array, written=False)
    reduction = check_reducible(op, checked.dtype)
    lengths = check_splits("split_sizes", split_sizes, checked, chosen)

    def run(backend: Backend, arrays: Sequence[Array], op: Any) -> Steps[Array]:
        return backend.reduce_scatter(cut_rows(arrays[0], lengths), op, arrays[0])

    signature = signature_of(
        "reduce_scatter_single",
        checked,
        label,
        op=reduction.name,
        shape=checked.shape,
        parts=cut_shapes(checked, lengths),
    )
    join = partial(_scatter_joined, combining(reduction), chosen.rank)
    call: Call[Array] = _reduction_call(chosen, signature, [checked], reduction, run, join=join)
    return run_call(chosen, call, async_op, timeout)


# -- what the calls share ------------------------------------------------------------------------


async def _scatter_joined(
    op: ReduceOp, rank: int, backend: Backend, pieces: Sequence[Call[Array]], _: CallsOf
) -> list[Array]:
    cut = [views_of(each.staged[0].flat, each.signature.parts) for each in pieces]
    parts = [joined_flat(each) for each in zip(*cut, strict=True)]  # of all pieces, by rank
    whole = pieces[0].staged[0].flat if len(pieces) == 1 else None
    own = [each.signature.parts[rank] for each in pieces]
    values = views_of(await backend.reduce_scatter(parts, op, whole), own)
    return [each.staged[0].to_user(v) for each, v in zip(pieces, values, strict=True)]


# Runs a reduction by a backend, on arrays. Backends of GPUs multiply for PREMUL_SUM themselves; for
# others the arrays were multiplied before.
_Reduce: TypeAlias = Callable[[Any, Sequence[Array], Any], Steps[Any]]


def _with_op(run: _Reduce, op: Reduction) -> RunOn:
    return lambda backend, arrays, _: run(backend, arrays, op)


def _reduction_call(
    group: ProcessGroup,
    signature: Signature,
    arrays: Sequence[Array],
    reduction: Reduction,
    run: _Reduce,
    *,
    flat: bool = False,
    written: bool = False,
    join: Join | None = None,
) -> Call[Any]:
    """Returns the call of a reduction; for the arguments see `array_call`.

    Ranks of several hosts share no GPU. So they do not ask each other where the arrays are if NCCL
    cannot reduce them.
    """
    op = combining(reduction)
    by_nccl = group.nccl is not None and can_reduce(op.value, arrays[0].dtype)
    return array_call(
        group,
        signature,
        arrays,
        _with_op(run, op),
        flat=flat,
        written=written,
        join=join,
        by_gpu=_with_op(run, reduction) if by_nccl or group.sharing.on_one_host else None,
        by_nccl=by_nccl,
        factor=reduction if isinstance(reduction, PremulSum) else None,
    )
