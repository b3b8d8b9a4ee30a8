"""Operations over several hosts with several ranks each: in memory, between hosts, in memory.

     host A   0 ─┐                                ┌─▶ 0
              1 ─┴─▶ 0 ═══╗              ╔═══▶ 0 ─┴─▶ 1
     host B   2 ─┐        ╠═ all_reduce ═╣        ┌─▶ 2
              3 ─┴─▶ 2 ═══╝              ╚═══▶ 2 ─┴─▶ 3

     host A   1 ───▶ 0 ═══╗                       0        a broadcast by rank 1; all ranks wait
                          ╠═ broadcast ═╗         1        until the other hosts have the array
     host B   2, 3 meet   ╚═════════════╩══▶ 2 ───▶ 3

Between two hosts go the bytes of two ranks, however many ranks each has.
"""

from __future__ import annotations

from telegrad.collectives.algorithms import shared_memory
from telegrad.collectives.link import Backend
from telegrad.collectives.reduction import ReduceOp, finish
from telegrad.collectives.shared_memory.room import Room
from telegrad.types import Array

__all__ = ["all_reduce", "broadcast"]


async def all_reduce(
    room: Room, leaders: Backend | None, flat: Array, op: ReduceOp, size: int
) -> None:
    """Replaces `flat` by the reduction over all ranks.

    The first rank of each host sends and receives what an `all_reduce` of the hosts takes; the
    others meet in memory alone. The results are bitwise equal on all ranks, since those of the
    leaders are. The ranks of a host are combined first, in their order.

    Args:
        room: The ranks of this host.
        leaders: The backend of the first ranks of all hosts; None unless this is one.
        flat: The array.
        op: The operation.
        size: The number of ranks on all hosts.
    """
    inner = ReduceOp.SUM if op is ReduceOp.AVG else op
    await shared_memory.reduce(room, flat, inner, 0)
    if leaders is not None:
        await leaders.all_reduce(flat, inner)
        finish(op, flat, size)
    await shared_memory.broadcast(room, flat, 0)


async def broadcast(
    room: Room, leaders: Backend | None, flat: Array, source: int, root: int | None
) -> None:
    """Replaces `flat` by the root's array.

    The first rank of each host sends and receives what a `broadcast` of the hosts takes. No rank
    returns before the ranks of all hosts have come.

    Args:
        room: The ranks of this host.
        leaders: The backend of the first ranks of all hosts; None unless this is one.
        flat: The array.
        source: The place of the root's host among the hosts.
        root: The place of the root among the ranks of this host; None on other hosts.
    """
    if root is None:
        await room.meet()
    else:
        await shared_memory.broadcast(room, flat, root)
    if leaders is not None:
        await leaders.broadcast(flat, source)
    if root is None:
        await shared_memory.broadcast(room, flat, 0)
    else:
        await room.meet()
