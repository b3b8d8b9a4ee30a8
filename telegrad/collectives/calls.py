"""The operations as calls: what all ranks must agree on, and the algorithm that runs."""

from __future__ import annotations

import numbers

from telegrad.arrays import device_of, to_device
from telegrad.collectives.algorithms import direct, dissemination, tree
from telegrad.collectives.consistency import Signature, dtype_label
from telegrad.collectives.link import Link
from telegrad.collectives.operation import EAGER_BYTES, Call
from telegrad.collectives.process_group import ProcessGroup
from telegrad.collectives.reduce_op import ReduceOp, check_reducible
from telegrad.collectives.select import select_all_reduce
from telegrad.collectives.staging import Staged, as_bytes, check_array, from_bytes
from telegrad.types import Array

__all__ = [
    "all_gather_call",
    "all_reduce_call",
    "barrier_call",
    "broadcast_call",
    "recv_call",
    "send_call",
]


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
