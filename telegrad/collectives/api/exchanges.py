"""Exchanges: operations that copy arrays between all ranks, or from one rank to all others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, overload

from telegrad.arrays import joined_flat, views_of
from telegrad.collectives.api.calls import (
    array_call,
    check_lengths,
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
from telegrad.collectives.on_device import CallOf
from telegrad.collectives.operation import Call, CallsOf
from telegrad.collectives.reduction import check_array, cut_rows, items_of, rows_of
from telegrad.collectives.work import Work
from telegrad.types import Array, Rank, Shape


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
@told_to_group
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
    checked = check_array("broadcast", array, written=True)
    root = place_of("src", src, chosen)

    def run(backend: Backend, arrays: Sequence[Array], _: CallOf) -> Steps[None]:
        return backend.broadcast(arrays[0], root)

    call: Call[None] = array_call(
        chosen,
        signature_of("broadcast", checked, label, root=chosen.ranks[root], shape=checked.shape),
        [checked],
        run,
        flat=True,
        written=True,
        join=partial(join_in_place, run),
        by_gpu=run,
    )
    return run_call(chosen, call, async_op, timeout)


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
@told_to_group
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
    checked = check_array("all_gather", array, written=False)

    def run(backend: Backend, arrays: Sequence[Array], _: CallOf) -> Steps[list[Array]]:
        return backend.all_gather(arrays[0])

    signature = signature_of("all_gather", checked, label, shape=checked.shape)
    call: Call[list[Array]] = array_call(chosen, signature, [checked], run, by_gpu=run, heard=True)
    return run_call(chosen, call, async_op, timeout)


@overload
def all_gather_single(
    array: Array,
    *,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    label: str = "",
) -> Array: ...
@overload
def all_gather_single(
    array: Array,
    *,
    group: ProcessGroup | None = None,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[Array]: ...
@told_to_group
def all_gather_single(
    array: Array,
    *,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    label: str = "",
) -> Work[Array] | Array:
    """Returns the arrays of all ranks, joined along the first axis.

    Args:
        array: An array whose dtype and lengths of all axes but the first are the same on every
            rank; one without axes counts as one item. It is not written.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new array, joined in the order of the ranks, on the device of `array`; or the Work.

    Raises:
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     return collectives.all_gather_single(np.full(group.rank + 1, group.rank)).tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0, 1, 1], [0, 1, 1]]
    """
    chosen = group_of(group)
    checked = check_array("all_gather_single", array, written=False)

    async def run(backend: Backend, arrays: Sequence[Array], call_of: CallOf) -> Array:
        return rows_of(await backend.all_gather(arrays[0], lambda r: call_of(r).shape or ()))

    signature = signature_of("all_gather_single", checked, label, shape=checked.shape)
    call: Call[Array] = array_call(
        chosen, signature, [checked], run, join=_gather_joined, by_gpu=run, heard=True
    )
    return run_call(chosen, call, async_op, timeout)


@overload
def gather(
    array: Array,
    dst: Rank = 0,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> list[Array] | None: ...
@overload
def gather(
    array: Array,
    dst: Rank = 0,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[list[Array] | None]: ...
@told_to_group
def gather(
    array: Array,
    dst: Rank = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[list[Array] | None] | list[Array] | None:
    """Returns copies of the arrays of all ranks at one rank, None at the others.

    Returns once every rank has called it.

    Args:
        array: An array of the same dtype on every rank; shapes may differ. It is not written.
        dst: The rank in the job that gets the arrays.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        At `dst` new arrays by rank in the group, on the device of `array`; or the Work.

    Raises:
        ValueError: `dst` is no member.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     parts = collectives.gather(np.arange(group.rank), dst=1)
        ...     return parts and [part.tolist() for part in parts]
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [None, [[], [0]]]
    """
    chosen = group_of(group)
    checked = check_array("gather", array, written=False)
    root = place_of("dst", dst, chosen)

    def run(backend: Backend, arrays: Sequence[Array], _: CallOf) -> Steps[list[Array] | None]:
        return backend.gather(arrays[0], root)

    signature = signature_of("gather", checked, label, root=chosen.ranks[root], shape=checked.shape)
    call: Call[list[Array] | None] = array_call(
        chosen, signature, [checked], run, by_gpu=run, heard=True
    )
    return run_call(chosen, call, async_op, timeout)


@overload
def scatter(
    array: Array,
    scatter_list: Sequence[Array] | None = None,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> None: ...
@overload
def scatter(
    array: Array,
    scatter_list: Sequence[Array] | None = None,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[None]: ...
@told_to_group
def scatter(
    array: Array,
    scatter_list: Sequence[Array] | None = None,
    src: Rank = 0,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[None] | None:
    """Replaces the array of each rank, in place, by the part that one rank has for it.

    Returns once every rank has called it.

    Args:
        array: The array that is written, of the shape of this rank's part and of one dtype on
            every rank.
        scatter_list: At `src` an array for each rank, by rank in the group; None at other ranks.
        src: The rank in the job that has the arrays.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Raises:
        ValueError: `src` is no member, or `array` is read-only. Or `scatter_list` is missing at
            `src`, is given at another rank, or holds arrays of another number, dtype or shape.
        CollectiveMismatchError: The part of a rank has another shape than its array; raised on all
            ranks.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     parts = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
        ...     collectives.scatter(x, parts if group.rank == 0 else None)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[1.0, 2.0], [3.0, 4.0]]
    """
    chosen = group_of(group)
    checked = check_array("scatter", array, written=True)
    root = place_of("src", src, chosen)
    parts: list[Array] = []
    if chosen.rank == root:
        parts = check_parts("scatter", scatter_list, chosen)
        _check_own_part(checked, parts[root])
    elif scatter_list is not None:
        raise ValueError(
            f"scatter_list is for rank {chosen.ranks[root]}, the source, alone; pass None here"
        )

    def run(backend: Backend, arrays: Sequence[Array], _: CallOf) -> Steps[None]:
        return backend.scatter(arrays[0], arrays[1:], root)

    signature = signature_of(
        "scatter",
        checked,
        label,
        root=chosen.ranks[root],
        shape=checked.shape,
        parts=[part.shape for part in parts],
    )
    call: Call[None] = array_call(
        chosen, signature, [checked, *parts], run, flat=True, written=True, by_gpu=run, heard=True
    )
    return run_call(chosen, call, async_op, timeout)


@overload
def all_to_all(
    arrays: Sequence[Array],
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> list[Array]: ...
@overload
def all_to_all(
    arrays: Sequence[Array],
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[list[Array]]: ...
@told_to_group
def all_to_all(
    arrays: Sequence[Array],
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[list[Array]] | list[Array]:
    """Sends an array to each rank, and returns the arrays that the ranks have sent to this one.

    Args:
        arrays: An array for each rank, by rank in the group, of one dtype on all ranks; shapes may
            differ. They are not written.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        New arrays by rank in the group, on the device of this rank's own one among `arrays`; or the
        Work.

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
        ...     parts = [np.full(r, group.rank) for r in (1, 2)]
        ...     return [part.tolist() for part in collectives.all_to_all(parts)]
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[[0], [1]], [[0, 0], [1, 1]]]
    """
    chosen = group_of(group)
    parts = check_parts("all_to_all", arrays, chosen)

    def run(backend: Backend, arrays: Sequence[Array], _: CallOf) -> Steps[list[Array]]:
        return backend.all_to_all(arrays)

    shapes = [part.shape for part in parts]
    signature = signature_of("all_to_all", parts[0], label, parts=shapes)
    call: Call[list[Array]] = array_call(chosen, signature, parts, run, by_gpu=run, heard=True)
    return run_call(chosen, call, async_op, timeout)


@overload
def all_to_all_single(
    array: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: Literal[False] = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Array: ...
@overload
def all_to_all_single(
    array: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    *,
    async_op: Literal[True],
    timeout: float | None = None,
    label: str = "",
) -> Work[Array]: ...
@told_to_group
def all_to_all_single(
    array: Array,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    timeout: float | None = None,
    *,
    label: str = "",
) -> Work[Array] | Array:
    """Sends a part of the array to each rank, and joins the parts that the ranks have for this one.

    Args:
        array: An array with at least one axis. Its dtype and the lengths of its other axes are the
            same on every rank. It is not written.
        output_split_sizes: The length of the part that each rank has for this one, by rank in the
            group, which is compared with the length that arrives; None for any lengths.
        input_split_sizes: The length of each rank's part of the first axis; None for equal parts.
        group: The group; None for all workers.
        async_op: If True, returns a Work at once, whose value is the result; the arrays belong to
            the Work until it is done.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.
        label: A name for this operation in errors; the same on every rank.

    Returns:
        A new array, the parts joined along the first axis in the order of the ranks, on the device
        of `array`; or the Work.

    Raises:
        ValueError: The first axis has no equal parts, or the lengths of a list do not fit.
        CollectiveMismatchError: A rank has a part of another length than `output_split_sizes`
            states; raised on all ranks.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.arange(3) + 10 * group.rank
        ...     return collectives.all_to_all_single(x, input_split_sizes=[1, 2]).tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0, 10], [1, 2, 11, 12]]
    """
    chosen = group_of(group)
    checked = check_array("all_to_all_single", array, written=False)
    lengths = check_splits("input_split_sizes", input_split_sizes, checked, chosen)
    wanted: list[Shape] = []
    if output_split_sizes is not None:
        stated = check_lengths("output_split_sizes", output_split_sizes, chosen)
        wanted = cut_shapes(checked, stated)

    async def run(backend: Backend, arrays: Sequence[Array], _: CallOf) -> Array:
        return rows_of(await backend.all_to_all(cut_rows(arrays[0], lengths), arrays[0]))

    signature = signature_of(
        "all_to_all_single",
        checked,
        label,
        shape=checked.shape,
        parts=cut_shapes(checked, lengths),
        wanted=wanted,
    )
    call: Call[Array] = array_call(chosen, signature, [checked], run, by_gpu=run, heard=True)
    return run_call(chosen, call, async_op, timeout)


# -- what the calls share ------------------------------------------------------------------------


async def _gather_joined(
    backend: Backend, pieces: Sequence[Call[Array]], calls_of: CallsOf
) -> list[Array]:
    """Hears from every rank, as the joined array does not tell the shapes of the arrays in it."""

    def shapes_of(r: int) -> list[Shape]:
        return [call.shape or () for call in calls_of(r)]

    staged = [each.staged[0] for each in pieces]
    gathered = await backend.all_gather(
        joined_flat([each.flat for each in staged]),
        lambda r: (items_of(shapes_of(r)),),
        heard=True,
    )
    cut = [views_of(each, shapes_of(r)) for r, each in enumerate(gathered)]
    joined = map(rows_of, zip(*cut, strict=True))
    return [each.to_user(rows) for each, rows in zip(staged, joined, strict=True)]


def _check_own_part(array: Array, part: Array) -> None:
    if part.shape != array.shape or part.dtype != array.dtype:
        raise ValueError(
            f"the source's own part has shape {part.shape} and dtype {part.dtype}, but its array "
            f"has shape {array.shape} and dtype {array.dtype}"
        )
