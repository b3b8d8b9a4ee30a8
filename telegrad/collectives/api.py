"""The verbs of `telegrad.collectives`: on arrays, in the process groups of the ambient agent.

Ranks in arguments are ranks of the job, in every group; `get_rank(group)` is the place in one.
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


# -- the operations as calls: what all ranks must agree on, and the algorithm that runs ----------


def all_reduce_call(array: object, op: object, group: ProcessGroup, label: str) -> Call[None]:
    """Returns the call of `all_reduce`; raises what the verb raises for its arguments."""
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
    """Returns the call of `broadcast`; raises what the verb raises for its arguments."""
    checked = check_array("broadcast", array, written=True)
    root = place_of("src", src, group)
    staged = Staged(checked)

    async def run(link: Link) -> None:
        await tree.broadcast(link, staged.flat, root)
        staged.write_back()

    signature = _signature("broadcast", checked, label, root=group.ranks[root])
    return Call(signature=signature, run=run, eager_bytes=_eager(staged, staged.flat.nbytes))


def all_gather_call(array: object, label: str) -> Call[list[Array]]:
    """Returns the call of `all_gather`; raises what the verb raises for its arguments."""
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
    """Returns the call of `send`; raises what the verb raises for its arguments."""
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
    """Returns the call of `recv`; raises what the verb raises for its arguments."""
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
        TypeError: It is no integer.
        ValueError: It is no member.
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
        TypeError: It is no integer.
        ValueError: It is negative.
    """
    if isinstance(tag, bool) or not isinstance(tag, numbers.Integral):
        raise TypeError(f"tag must be an integer, not {tag!r}")
    if tag < 0:
        raise ValueError(f"tag must not be negative (got {tag})")
    return int(tag)


def _eager(staged: Staged, message_bytes: int) -> int:
    """Returns how much of an array goes to a rank that has not asked for it."""
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


# ------------------------------------------------------------------------------------------------

T = TypeVar("T")


# Doors: the composition root is imported when they are called.


def init_process_group(
    *,
    name: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    timeout: float | None = TIMEOUT,
    options: RpcOptions | None = None,
) -> ProcessGroup:
    """Joins the job, unless `init_rpc` has, and makes the group of all its workers.

    `init_rpc` may be called before or after; both mean the same job and the same agent.

    Args:
        name: This worker's; by default `TELEGRAD_NAME`, else `worker{rank}`.
        rank: From 0; by default from the environment.
        world_size: By default from the environment. Where this worker has joined already: how many
            ranks the group has, from 0; by default all that it has heard of until now. Where others
            join on top of the job (`LocalWorkers`, late workers), write it, so that all mean one.
        init_method: As for `init_rpc`.
        timeout: Seconds above 0 for an operation that names none; None for 30 minutes;
            `math.inf` for no limit.
        options: As for `init_rpc`.

    Returns:
        The group that operations use which are given none.

    Raises:
        AlreadyInitializedError: There is a process group, or `init_rpc` was told something else.
        WorkerLostError: A worker of the job is lost.
        Exception: What `init_rpc` raises.
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
    """Leaves all groups of this worker; idempotent, legal in any state.

    Ranks that wait for an operation that this one took no part in hear so. Where `init_rpc` was
    never called this also shuts the agent down, gracefully.

    Raises:
        BlockingCallError: On an event loop that telegrad runs, where it shuts the agent down.
    """
    from telegrad import _distributed  # noqa: PLC0415 - a door

    _distributed.destroy_process_group()


# Groups.


def world_group() -> ProcessGroup:
    """Returns the group of all workers of the job.

    Raises:
        NotInitializedError: `init_process_group` was not called.
    """
    return current_agent().attached(Groups).current_world()


def new_group(ranks: Sequence[Rank], *, timeout: float | None = None) -> ProcessGroup:
    """Makes a group of some workers; returns when each of them has called this.

    The members call it with the same ranks in the same order, and two workers that have several
    groups in common make these in the same order. Others may call it too, which has no effect.
    Also the way to go on after a failure: among the living, whatever became of other groups.

    Args:
        ranks: Of the job, each once; a member's rank in the group is its place here.
        timeout: Seconds for this and for operations that name none; None for that of
            `init_process_group`, which need not have been called.

    Returns:
        The group; on a worker that is no member one of rank -1, whose operations are refused.

    Raises:
        TypeError: `ranks` is no sequence of integers.
        ValueError: No ranks, one twice, or one that the job has not.
        CollectiveMismatchError: A member called it with other ranks; on every one of both.
        WorkerLostError: A member is lost.
        CallTimeoutError: A member did not call it in time.
        NotInitializedError: No agent runs here.
    """
    agent = current_agent()
    return agent.attached(Groups).form(_check_ranks(ranks, agent.world_size), timeout)


def get_rank(group: ProcessGroup | None = None) -> Rank:
    """Returns this worker's rank in a group; -1 if it is no member.

    Raises:
        NotInitializedError: `init_process_group` was not called.
    """
    return _group(group).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Returns how many members a group has.

    Raises:
        NotInitializedError: `init_process_group` was not called.
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
    """Replaces the array, in place, by the reduction of those of all ranks.

    The results are bitwise equal on all ranks. After an error the array holds anything.

    Args:
        array: NumPy or CuPy, of the same shape and dtype on every rank, of any strides.
        op: How items are combined.
        group: None for all workers.
        async_op: Returns a Work at once; until it is done the array belongs to it.
        timeout: Seconds above 0; None for the group's; `math.inf` for no limit. What the served
            call has left bounds it, unless `async_op`.
        label: What errors call this operation; the same on every rank.

    Returns:
        None, or the Work.

    Raises:
        TypeError: The array is none (of a Tensor pass `tensor.data`), or `op` is no ReduceOp.
        ValueError: The array is read-only, or `op` has no meaning for its dtype.
        CollectiveMismatchError: The ranks called different operations; raised on every one.
        WorkerLostError: A rank is lost; raised on every other.
        CallTimeoutError: A rank did not come in time, and is named; raised on every one.
        BlockingCallError: On an event loop that telegrad runs, unless `async_op`.
        NotInitializedError: `init_process_group` was not called, or the group was left.
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
    """Replaces the array, in place, by that of one rank; returns when every rank has called it.

    Args:
        array: As for `all_reduce`.
        src: The rank in the job whose array it is.
        group: None for all workers.
        async_op: Returns a Work at once; until it is done the array belongs to it.
        timeout: Seconds above 0; None for the group's; `math.inf` for no limit.
        label: What errors call this operation; the same on every rank.

    Returns:
        None, or the Work.

    Raises:
        ValueError: `src` is no member, or the array is read-only.
        Exception: What `all_reduce` raises.
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
        array: Of the same dtype on every rank; shapes may differ. Not written.
        group: None for all workers.
        async_op: Returns a Work at once, whose value is the list; until it is done the array must
            not change.
        timeout: Seconds above 0; None for the group's; `math.inf` for no limit.
        label: What errors call this operation; the same on every rank.

    Returns:
        New arrays by rank in the group, on the device of `array`; or the Work.

    Raises:
        Exception: What `all_reduce` raises.
    """
    chosen = _group(group)
    return _run(chosen, all_gather_call(array, label), async_op, timeout)


def barrier(group: ProcessGroup | None = None, timeout: float | None = None) -> None:
    """Returns when every rank has called it.

    Args:
        group: None for all workers.
        timeout: Seconds above 0; None for the group's; `math.inf` for no limit.

    Raises:
        Exception: What `all_reduce` raises.
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

    The n-th `send` to a rank with a tag meets its n-th `recv` from this one with that tag. A small
    array leaves at once, up to an allowance; a larger one waits for its `recv`. When this returns
    the array may be changed.

    Args:
        array: NumPy or CuPy, of the shape and dtype of the receiver's.
        dst: The rank in the job; another one.
        tag: From 0.
        group: None for all workers.
        timeout: Seconds above 0; None for the group's; `math.inf` for no limit.

    Raises:
        ValueError: `dst` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The receiver wants another shape or dtype, or has left.
        Exception: What `all_reduce` raises.
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
        array: NumPy or CuPy, of the shape and dtype of the sender's; is written.
        src: The rank in the job; another one.
        tag: From 0.
        group: None for all workers.
        timeout: Seconds above 0; None for the group's; `math.inf` for no limit.

    Raises:
        ValueError: `src` is no member or is this rank, or the tag is negative.
        CollectiveMismatchError: The sender sent another shape or dtype, or has left.
        Exception: What `all_reduce` raises.
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
