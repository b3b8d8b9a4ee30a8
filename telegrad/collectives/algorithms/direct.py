"""Every rank sends to every other one: a single step.

     0   1   2
0    ·   ◀   ◀
1    ◀   ·   ◀       row receives from column
2    ◀   ◀   ·

Large parts go one after the other, to the next rank first: the pairwise exchange of R. Thakur, R.
Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from telegrad.collectives.link import Link
from telegrad.collectives.reduction import ReduceOp, as_bytes, combine, finish, from_bytes
from telegrad.types import Array, Shape
from telegrad.wire import Buffer

# After a larger part, a rank waits for the part from the other side before it sends the next one.
# That costs n - 2 steps more, of which each takes less than a tenth of the time of such a part. But
# a rank then holds a copy of one part instead of n - 1, and no rank gets n - 1 parts at once.
AT_ONCE_UP_TO_BYTES = 16 * 2**20


async def all_reduce(link: Link, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks, combined in rank order on each.

    Steps: 1. Each rank sends n - 1 messages, (n - 1) B bytes, for an array of B bytes. The results
    are bitwise equal, because every rank combines the same arrays in the same order.
    """
    _send_to_all(link, flat)
    total = flat.copy() if link.rank == 0 else await _receive(link, 0, flat)
    for r in range(1, link.size):
        combine(op, total, flat if r == link.rank else await _receive(link, r, flat))
    finish(op, total, link.size)
    flat[...] = total


async def all_gather(
    link: Link, array: Array, shape_of: Callable[[int], Shape] | None = None
) -> list[Array]:
    """Returns new arrays: a copy of each rank's array, by rank.

    The shape of the array of a rank is that in its call, or what `shape_of` returns for the rank.

    Steps: 1. Each rank sends n - 1 messages, n - 1 times the bytes of its own array.
    """
    _send_to_all(link, array)
    gathered: list[Array] = []
    for r in range(link.size):
        if r == link.rank:
            gathered.append(array.copy())
        else:
            data = await link.receive(r)
            shape = (link.call_of(r).shape or ()) if shape_of is None else shape_of(r)
            gathered.append(from_bytes(data, array.dtype, shape))
    return gathered


async def reduce_scatter(link: Link, parts: Sequence[Array], op: ReduceOp) -> Array:
    """Returns a new array: the reduction of the parts that all ranks have for this one.

    Steps: 1; with parts above 16 MiB n - 1, as for `all_to_all`. Each rank sends n - 1 messages,
    the bytes of its parts for the others. Each part is combined in rank order, so it has the same
    bits as in `all_reduce`. Products of complex numbers are an exception: NumPy's depend on the
    place of an item in its array.
    """
    early = await _send_parts(link, parts)
    own = parts[link.rank]

    async def contribution(r: int) -> Array:
        return from_bytes(await _receive_part(link, early, r), own.dtype, own.shape)

    total = own.copy() if link.rank == 0 else await contribution(0)
    for r in range(1, link.size):
        combine(op, total, own if r == link.rank else await contribution(r))
    finish(op, total, link.size)
    return total


async def all_to_all(link: Link, parts: Sequence[Array]) -> list[Array]:
    """Returns new arrays: the parts that all ranks have for this one, by rank.

    Steps: 1. Each rank sends n - 1 messages, the bytes of its parts for the others. With parts
    above 16 MiB it is a pairwise exchange of n - 1 steps: in step k, rank r sends to r + k and
    waits for the part of r - k. The ranks need not agree on this: the messages are the same.

    Raises:
        CollectiveMismatchError: A rank sends another shape than its receiver expects. Each rank
            compares the calls of all, so all raise it.
    """
    early = await _send_parts(link, parts)
    received: list[Array] = []
    for r in range(link.size):
        if r == link.rank:
            received.append(parts[r].copy())
        else:
            data = await _receive_part(link, early, r)
            shape = link.call_of(r).parts[link.rank]
            received.append(from_bytes(data, parts[0].dtype, shape))
    check_wanted(link)
    return received


def check_wanted(link: Link) -> None:
    """Raises CollectiveMismatchError if a rank has another shape than its receiver expects."""
    calls = [link.call_of(r) for r in range(link.size)]
    for r, call in enumerate(calls):
        for source, shape in enumerate(call.wanted):
            if calls[source].parts[r] != shape:
                raise link.mismatch(sorted({source, r}))


async def _send_parts(link: Link, parts: Sequence[Array]) -> dict[int, Buffer]:
    """Sends each rank its part; returns, by rank, what it received meanwhile.

    Ranks cannot wait for each other in a circle: the part that a rank waits for at a distance is
    sent after waits at smaller distances alone.
    """
    n, r = link.size, link.rank
    early: dict[int, Buffer] = {}
    for distance in range(1, n):
        to, source = (r + distance) % n, (r - distance) % n
        link.send(to, as_bytes(parts[to]), copy=True)
        if parts[to].nbytes > AT_ONCE_UP_TO_BYTES:
            early[source] = await link.receive(source)
    return early


async def _receive_part(link: Link, early: dict[int, Buffer], source: int) -> Buffer:
    return early.pop(source) if source in early else await link.receive(source)


def _send_to_all(link: Link, array: Array) -> None:
    if link.size == 1:
        return
    data = as_bytes(array.copy())  # one copy for all: the array changes before every rank has it
    for distance in range(1, link.size):
        link.send((link.rank + distance) % link.size, data)


async def _receive(link: Link, source: int, like: Array) -> Array:
    return from_bytes(await link.receive(source), like.dtype, like.shape)
