"""Row-sparse gradients on their way through a reduction: packed rows, and their mean.

    rank 0   rows 3 17   ─┐                     ┌─ rows 3 17 40, each the sum over ranks / n
    rank 1   rows 17 40  ─┼─ two all_gathers ─▶ ┤  bitwise equal on every rank
    rank 2   no gradient ─┘                     └─

A rank sends its rows and their values, each row once. A rank with a dense gradient sends all rows
and says so; the mean is then an array on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from telegrad.arrays import namespace, to_host
from telegrad.autograd import RowSparse, is_row_sparse
from telegrad.collectives import ProcessGroup, all_gather_single, coalesced
from telegrad.rpc.seams import refuse_to_block
from telegrad.types import Array, Shape


def all_reduce_rows(
    array: RowSparse,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
    *,
    label: str = "",
) -> RowSparse:
    """Returns the sum of the row-sparse arrays of all ranks.

    The results are bitwise equal on all ranks: the values are added in the order of the ranks. Only
    rows travel, each row once for each rank that has it. A rank may have none.

    Args:
        array: An array whose shape and dtype are the same on every rank; its rows may differ.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new array on the device of `array`, with each row once, in ascending order.

    Raises:
        TypeError: `array` is no RowSparse; for arrays there is `collectives.all_reduce`.
        ValueError: A row is not inside the shape of the whole array.
        CollectiveMismatchError: The shapes or dtypes of the ranks differ, or one calls another
            operation; raised on all of them.
        Exception: Any error of `collectives.all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives, parallel
        >>> from telegrad.autograd import RowSparse
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     mine = RowSparse(np.array([7, group.rank]), np.array([[1.0], [2.0]]), (1000, 1))
        ...     total = parallel.all_reduce_rows(mine)
        ...     return total.rows.tolist(), total.values.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [([0, 1, 7], [[2.0], [2.0], [2.0]]), ([0, 1, 7], [[2.0], [2.0], [2.0]])]
    """
    refuse_to_block(
        "all_reduce_rows()",
        "in an async def function write `await rpc.to_thread(all_reduce_rows, ...)`",
    )
    if not is_row_sparse(array):
        raise TypeError(
            f"all_reduce_rows takes a RowSparse, not {type(array).__name__}; "
            "of an array write collectives.all_reduce"
        )
    own = array.to("cpu").coalesce()
    if own.rows.size and not 0 <= own.rows[0] <= own.rows[-1] < own.shape[0]:
        raise ValueError(
            f"a RowSparse of shape {own.shape} has rows from 0 to {own.shape[0] - 1}, not "
            f"{own.rows[0]} to {own.rows[-1]}"
        )
    said = f"all_reduce_rows of shape {own.shape}" + (f", {label}" if label else "")
    with coalesced(group, timeout=timeout):
        rows = all_gather_single(own.rows.astype(np.int64), group=group, async_op=True, label=said)
        values = all_gather_single(own.values, group=group, async_op=True, label=said)
    return RowSparse(rows.wait(), values.wait(), own.shape).coalesce().to(array.device)


# The first item of the packed rows.
_NONE, _ROWS, _WHOLE = range(3)


def pack_rows(gradient: Any, shape: Shape, dtype: np.dtype[Any], xp: Any) -> tuple[Array, Array]:
    """Returns the rows of one rank's gradient, after an item for their kind, and their values.

    Args:
        gradient: A RowSparse, an array, or None.
        shape: The shape of the whole gradient.
        dtype: The dtype of the values.
        xp: The namespace of the values, `numpy` or `cupy`.

    Returns:
        Integers of shape (rows + 1,) on the host, and values of shape (rows, *shape[1:]).

    >>> gradient = RowSparse(np.array([2, 0, 2]), np.array([[1.0], [2.0], [3.0]]), (3, 1))
    >>> rows, values = pack_rows(gradient, (3, 1), np.dtype(float), np)
    >>> rows.tolist(), values.tolist()
    ([1, 0, 2], [[2.0], [4.0]])
    """
    if gradient is None:
        return np.array([_NONE], np.int64), xp.zeros((0, *shape[1:]), dtype)
    if not is_row_sparse(gradient):
        return np.array([_WHOLE, *range(shape[0])], np.int64), xp.ascontiguousarray(gradient)
    once = gradient.coalesce()
    rows = to_host(once.rows).astype(np.int64)
    return np.concatenate([np.array([_ROWS], np.int64), rows]), once.values


def mean_of_rows(
    rows: Sequence[Array], values: Sequence[Array], shape: Shape
) -> RowSparse | Array | None:
    """Returns the mean of the gradients that all ranks have packed; None if no rank has one.

    The values are added in the order of the ranks, so the mean is the same on every rank.

    >>> one = np.array([_ROWS, 1]), np.array([[4.0]])
    >>> two = np.array([_ROWS, 0, 1]), np.array([[2.0], [6.0]])
    >>> mean = mean_of_rows(*zip(one, two), (3, 1))
    >>> mean, mean.values.tolist()
    (RowSparse(rows=[0 1], shape=(3, 1), dtype=float64), [[1.0], [5.0]])
    """
    kinds = {int(each[0]) for each in rows}
    if kinds == {_NONE}:
        return None
    xp = namespace(values[0])
    places = xp.asarray(np.concatenate([each[1:] for each in rows]))
    total = RowSparse(places, xp.concatenate(list(values)), shape).coalesce()
    mean: RowSparse = total / len(rows)
    return mean.to_dense() if _WHOLE in kinds else mean
