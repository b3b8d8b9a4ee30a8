"""Operations of many ranks in ceil(log2 n) steps, along a circulant graph.

To gather blocks, rank r receives in each step what a later rank has. n = 6, the blocks at rank r:

    at first         r
    from r + 1       r  r+1
    from r + 2       r  r+1  r+2                    the first of its two blocks
    from r + 3       r  r+1  r+2  r+3  r+4  r+5     its three blocks

A reduction goes the same way backwards. Rank r has partial results for all n blocks. It sends three
of them to r + 3, then one to r + 2, then one to r + 1, and keeps its own.

J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: Efficient algorithms for all-to-all
communications in multiport message-passing systems (1997). J. L. Träff: Optimal, non-pipelined
reduce-scatter and allreduce algorithms (2024).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from telegrad.collectives.algorithms.ring import cut_blocks
from telegrad.collectives.link import Link
from telegrad.collectives.reduction import ReduceOp, as_bytes, combine, finish, from_bytes
from telegrad.errors import DecodeError
from telegrad.types import Array
from telegrad.wire import Buffer

# Blocks up to this size are joined to one message: to copy one takes about as long as to send one
# more message. A larger block is a message of its own, and handed on without a copy.
JOINED_UP_TO_BYTES = 2**20


async def all_gather(link: Link, array: Array) -> list[Array]:
    """Returns new arrays: a copy of each rank's array, by rank.

    Steps: ceil(log2 n). Each rank sends ceil(log2 n) messages, and one more for each block above
    1 MiB. The bytes are those of `direct.all_gather` if all arrays have the same size, (n - 1) B,
    and 16 + 8 ndim bytes for each block, which state its shape.

    Args:
        link: The link.
        array: This rank's array; shapes may differ between ranks.
    """
    head = struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape)
    blocks = await _gather(link, b"".join([head, as_bytes(array)]))
    return [_stated(block, array) for block in blocks]


async def all_reduce_in_order(link: Link, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks, combined in rank order on each.

    Steps: ceil(log2 n). Each rank sends ceil(log2 n) messages, (n - 1) (B + 8) bytes for an array
    of B bytes. Each rank gathers all arrays; the bits are those of `direct.all_reduce`.
    """
    first, *others = await _gather(link, as_bytes(flat.copy()))
    total = from_bytes(first, flat.dtype, flat.shape).copy()
    for other in others:
        combine(op, total, from_bytes(other, flat.dtype, flat.shape))
    finish(op, total, link.size)
    flat[...] = total


async def all_reduce(link: Link, flat: Array, op: ReduceOp) -> None:
    """Replaces `flat` by the reduction over all ranks.

    Steps: 2 ceil(log2 n). Each rank sends 2 ceil(log2 n) messages, one to each of its partners,
    about 2 (n - 1) / n B + 8 (n - 1) bytes, if blocks have at most 1 MiB. The results are bitwise
    equal, because each block is finished on one rank. `flat` is not written before every rank has
    come.
    """
    n, r = link.size, link.rank
    blocks = cut_blocks(flat, n)
    blocks = blocks[r:] + blocks[:r]
    ends = [0, *accumulate(block.size for block in blocks)]
    partial = np.concatenate(blocks, out=np.empty_like(flat))
    for skip, count in halvings(n):
        link.send((r + skip) % n, as_bytes(partial[ends[skip] : ends[count]]))
        rest = partial[: ends[count - skip]]
        received = await link.receive((r - skip) % n)
        combine(op, rest, from_bytes(received, flat.dtype, rest.shape))
    own = partial[: ends[1]]
    finish(op, own, n)
    await _gather_blocks(link, flat, own)


def halvings(n: int) -> list[tuple[int, int]]:
    """Returns the steps of a reduction: the distance to the partner, and the blocks before it.

    A rank sends all but the first `distance` of its blocks. A gathering goes from the last step to
    the first.

    >>> halvings(6)
    [(3, 6), (2, 3), (1, 2)]
    """
    found: list[tuple[int, int]] = []
    while n > 1:
        half = (n + 1) // 2
        found.append((half, n))
        n = half
    return found


async def _gather_blocks(link: Link, flat: Array, own: Array) -> None:
    """Replaces `flat` by the blocks that the ranks have finished."""
    gathered = await _gather(link, as_bytes(own))
    for block, data in zip(cut_blocks(flat, link.size), gathered, strict=True):
        block[...] = from_bytes(data, flat.dtype, block.shape)


async def _gather(link: Link, own: Buffer) -> list[memoryview]:
    """Returns the blocks of all ranks, by rank; they are on their way, so nobody may write them."""
    n, r = link.size, link.rank
    blocks = [memoryview(own)]  # of the ranks r, r + 1, ...
    for skip, count in reversed(halvings(n)):
        _send_blocks(link, (r - skip) % n, blocks[: count - skip])
        blocks += await _receive_blocks(link, (r + skip) % n, count - skip)
    return blocks[n - r :] + blocks[: n - r]


def _send_blocks(link: Link, to: int, blocks: Sequence[memoryview]) -> None:
    lengths = struct.pack(f"<{len(blocks)}q", *(block.nbytes for block in blocks))
    link.send(to, b"".join([lengths, *(each for each in blocks if not _is_alone(each.nbytes))]))
    for block in blocks:
        if _is_alone(block.nbytes):
            link.send(to, block)


async def _receive_blocks(link: Link, source: int, count: int) -> list[memoryview]:
    joined = memoryview(await link.receive(source))
    blocks: list[memoryview] = []
    place = 8 * count
    for length in _integers(joined, 0, count):
        if _is_alone(length):
            blocks.append(memoryview(await link.receive(source)))
        else:
            blocks.append(joined[place : place + length])
            place += length
    return blocks


def _is_alone(nbytes: int) -> bool:
    return nbytes > JOINED_UP_TO_BYTES


def _stated(block: memoryview, like: Array) -> Array:
    """Returns a new array, with the shape that its bytes begin with."""
    (ndim,) = _integers(block, 0, 1)
    shape = _integers(block, 8, ndim)
    return from_bytes(block[8 + 8 * ndim :], like.dtype, shape).copy()


def _integers(data: Buffer, start: int, count: int) -> tuple[int, ...]:
    """Returns integers of 8 bytes, none below 0; raises DecodeError if there are none."""
    try:
        found: tuple[int, ...] = struct.unpack_from(f"<{count}q", data, start)
    except struct.error as error:
        raise DecodeError(f"the lengths of {count} blocks did not arrive: {error}") from error
    if min(found, default=0) < 0:
        raise DecodeError(f"blocks have no negative lengths, but {min(found)} arrived")
    return found
