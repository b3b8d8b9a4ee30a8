"""The functions of `telegrad.collectives`: operations on arrays in the groups of the ambient agent.

Rank arguments are always ranks of the job; `get_rank(group)` returns the rank within a group.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Literal, TypeVar, overload

from telegrad.arrays import device_of, to_device
from telegrad.collectives.algorithms import direct, dissemination, tree
from telegrad.collectives.groups import TIMEOUT, Groups
from telegrad.collectives.link import Link
from telegrad.collectives.messages import Signature, dtype_label
from telegrad.collectives.operation import EAGER_BYTES, Call
from telegrad.collectives.process_group import ProcessGroup, Work
from telegrad.collectives.reduction import (
    ReduceOp,
    Staged,
    as_bytes,
    check_array,
    check_reducible,
    from_bytes,
)
from telegrad.collectives.select import select_all_reduce
from telegrad.rpc import RpcOptions
from telegrad.rpc.seams import current_agent, seconds
from telegrad.types import Array, Rank

__all__ = [
    "all_gather",
    "all_gather_call",
    "all_reduce",
    "all_reduce_call",
    "barrier",
    "barrier_call",
    "broadcast",
    "broadcast_call",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "new_group",
    "recv",
    "recv_call",
    "send",
    "send_call",
    "world_group",
]


# -- operations as calls: the facts that all ranks must agree on, and the algorithm to run -------


def all_reduce_call(array: object, op: object, group: ProcessGroup, label: str) -> Call[None]:
    """Returns the call of `all_reduce`; raises the errors of `all_reduce` for its arguments."""
    checked = check_array("all_reduce", array, written=True)
    reduction: ReduceOp = check_reducible(op, checked.dtype)
    staged = Staged(checked)
    algorithm = select_all_reduce(staged.flat.nbytes, group.size)

    async def run(link: Link) -> None:
        await algorithm(link, staged.flat, reduction)
        staged.write_back()

    signature = _signature("all_reduce", checked, label, op=reduction.name)
    message = (
        staged.flat.nbytes if algorithm is direct.all_reduce else staged.flat.nbytes // group.size
    )
    return Call(signature=signature, run=run, eager_bytes=_eager(staged, message))


def broadcast_call(array: object, src: object, group: ProcessGroup, label: str) -> Call[None]:
    """Returns the call of `broadcast`; raises the errors of `broadcast` for its arguments."""
    checked = check_array("broadcast", array, written=True)
    root = place_of("src", src, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        await tree.broadcast(link, staged.flat, root)
        staged.write_back()

    signature = _signature("broadcast", checked, label, root=group.ranks[root])
    return Call(signature=signature, run=run, eager_bytes=_eager(staged, staged.flat.nbytes))


def all_gather_call(array: object, label: str) -> Call[list[Array]]:
    """Returns the call of `all_gather`; raises the errors of `all_gather` for its arguments."""
    checked = check_array("all_gather", array, written=False)
    staged = Staged(checked)

    async def run(link: Link) -> list[Array]:
        gathered = await direct.all_gather(link, staged.flat.reshape(checked.shape))
        return [to_device(each, device_of(checked)) for each in gathered]

    signature = _signature("all_gather", checked, label)
    return Call(signature=signature, run=run, eager_bytes=_eager(staged, staged.flat.nbytes))


def barrier_call() -> Call[None]:
    """Returns the call of `barrier`."""
    return Call(signature=Signature(operation="barrier"), run=dissemination.barrier)


def send_call(array: object, dst: object, tag: object, group: ProcessGroup) -> Call[None]:
    """Returns the call of `send`; raises the errors of `send` for its arguments."""
    checked = check_array("send", array, written=False)
    to = partner_of("send", "dst", dst, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        link.send(to, as_bytes(staged.flat.copy()))

    return Call(
        signature=_signature("send", checked, ""),
        run=run,
        channel=(group.rank, to, check_tag(tag)),
        partner=to,
    )


def recv_call(array: object, src: object, tag: object, group: ProcessGroup) -> Call[None]:
    """Returns the call of `recv`; raises the errors of `recv` for its arguments."""
    checked = check_array("recv", array, written=True)
    source = partner_of("recv", "src", src, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        data = await link.receive(source)
        staged.flat[...] = from_bytes(data, checked.dtype, staged.flat.shape)
        staged.write_back()

    return Call(
        signature=_signature("recv", checked, ""),
        run=run,
        channel=(source, group.rank, check_tag(tag)),
        partner=source,
    )


def place_of(what: str, rank: object, group: ProcessGroup) -> int:
    """Returns the rank in the group of a rank in the job.

    Raises:
        TypeError: The rank is no integer.
        ValueError: The rank is not a member of the group.
    """
    if isinstance(rank, bool) or not isinstance(rank, numbers.Integral):
        raise TypeError(f"{what} must be a rank of the job, not {rank!r}")
    try:
        return group.ranks.index(int(rank))
    except ValueError:
        raise ValueError(
            f"{what} {rank} is no member of group {group.name!r} (ranks: {list(group.ranks)}); "
            f"{what} is a rank of the job"
        ) from None


def partner_of(verb: str, what: str, rank: object, group: ProcessGroup) -> int:
    """Returns the rank in the group of the other end of a message; raises as `place_of`."""
    place = place_of(what, rank, group)
    if place == group.rank:
        raise ValueError(f"{verb} needs another rank, and {what} {rank} is this one")
    return place


def check_tag(tag: object) -> int:
    """Returns a tag.

    Raises:
        TypeError: The tag is no integer.
        ValueError: The tag is negative.
    """
    if isinstance(tag, bool) or not isinstance(tag, numbers.Integral):
        raise TypeError(f"tag must be an integer, not {tag!r}")
    if tag < 0:
        raise ValueError(f"tag must not be negative (got {tag})")
    return int(tag)


def _eager(staged: Staged, message_bytes: int) -> int:
    """Returns the bytes of an array that are sent to a rank before it asks for them."""
    return staged.flat.nbytes if message_bytes <= EAGER_BYTES else 0


def _signature(
    operation: str, array: Array, label: object, *, op: str = "", root: int = -1
) -> Signature:
    if not isinstance(label, str):
        raise TypeError(f"label must be a str, not {label!r}")
    return Signature(
        operation=operation,
        op=op,
        root=root,
        dtype=dtype_label(array.dtype),
        shape=tuple(array.shape),
        label=label,
    )


# -- the functions -------------------------------------------------------------------------------

T = TypeVar("T")


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
    return current_agent().attachments[Groups].current_world()


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
    return _group(group).rank


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
    return _group(group).size


# Operations of all members.


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
    chosen = _group(group)
    return _run(chosen, all_reduce_call(array, op, chosen, label), async_op, timeout)


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
    chosen = _group(group)
    return _run(chosen, broadcast_call(array, src, chosen, label), async_op, timeout)


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
    chosen = _group(group)
    return _run(chosen, all_gather_call(array, label), async_op, timeout)


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
    _group(group).call(barrier_call(), timeout)


# Messages between two ranks.


def send(
    array: Array,
    dst: Rank,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> None:
    """Sends an array to one rank, which calls `recv`.

    The n-th `send` to a rank with a tag meets that rank's n-th `recv` from this one with the same
    tag. A small array is sent at once, up to an allowance; a larger one waits for its `recv`. When
    this returns, the array may be changed.

    Args:
        array: A NumPy or CuPy array, of the same shape and dtype as the receiver's.
        dst: The rank in the job to send to; not this one.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        ValueError: `dst` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The receiver expects another shape or dtype, or has left.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     if group.rank == 0:
        ...         collectives.send(np.array([1.0, 2.0]), dst=1)
        ...     else:
        ...         collectives.recv(x, src=0)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 0.0], [1.0, 2.0]]
    """
    chosen = _group(group)
    chosen.call(send_call(array, dst, tag, chosen), timeout)


def recv(
    array: Array,
    src: Rank,
    *,
    tag: int = 0,
    group: ProcessGroup | None = None,
    timeout: float | None = None,
) -> None:
    """Receives an array from one rank, in place; see `send`.

    Args:
        array: A NumPy or CuPy array, of the same shape and dtype as the sender's; it is written.
        src: The rank in the job to receive from; not this one.
        tag: A number from 0.
        group: The group; None for all workers.
        timeout: Seconds above 0; None for the group's default; `math.inf` for no limit.

    Raises:
        ValueError: `src` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The sender sent another shape or dtype, or has left.
        Exception: Any error of `all_reduce`.

    Example:
        >>> import numpy as np
        >>> from telegrad import collectives
        >>> from telegrad.testing import Cluster
        >>> def step():  # runs on every worker
        ...     group = collectives.init_process_group()
        ...     x = np.zeros(2)
        ...     if group.rank == 0:
        ...         collectives.send(np.array([1.0, 2.0]), dst=1)
        ...     else:
        ...         collectives.recv(x, src=0)
        ...     return x.tolist()
        >>> with Cluster(2) as cluster:
        ...     cluster.run(step)
        [[0.0, 0.0], [1.0, 2.0]]
    """
    chosen = _group(group)
    chosen.call(recv_call(array, src, tag, chosen), timeout)


def _run(group: ProcessGroup, call: Call[T], async_op: bool, timeout: float | None) -> Work[T] | T:
    return group.start(call, timeout) if async_op else group.call(call, timeout)


def _group(group: object) -> ProcessGroup:
    if group is None:
        return world_group()
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be a ProcessGroup or None, not {group!r}; new_group(ranks) makes one"
        )
    return group


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
