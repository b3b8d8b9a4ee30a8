"""Ranks that share one GPU, which NCCL refuses: each shows its array to the others by CUDA IPC.

    rank 0  ─▶ block ─┐      ┌─▶ rank 0: 0 + 1 + 2
    rank 1  ─▶ block ─┤ meet ├─▶ rank 1: 0 + 1 + 2        arrays and blocks all lie on the GPU
    rank 2  ─▶ block ─┘      └─▶ rank 2: 0 + 1 + 2

The bytes that a rank shows go through its block in pieces. Two blocks take turns, so that one
meeting for each piece is enough: a rank that has come to the meeting of piece k + 1 has read piece
k. A rank waits for its stream before a meeting, as nothing else orders the work of two processes on
a GPU, and after it has read, as the memory is another rank's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TypeAlias, final

import numpy as np

from telegrad.arrays import (
    DeviceMemory,
    Mappings,
    Moment,
    SharedPlace,
    copy_into,
    to_host,
)
from telegrad.collectives.algorithms import direct
from telegrad.collectives.algorithms.shared_exchange import WantedPart
from telegrad.collectives.link import Link, Steps
from telegrad.collectives.on_device import (
    DeviceBackend,
    flat_of,
    is_contiguous,
    times,
)
from telegrad.collectives.operation import Group
from telegrad.collectives.reduction import (
    PremulSum,
    ReduceOp,
    Reduction,
    combine_all,
    combining,
    items_of,
)
from telegrad.types import Array, Shape

# A block is a multiple of all items that are reduced. Not measured: no GPU was available. By the
# speed of its memory, an H200 copies 16 MiB in less time than a meeting and two waits take.
BLOCK_BYTES = 16 * 2**20
TOKEN_BYTES = 16
# After a rank has left its group, its memory stays for so long: the others close it when they hear
# that, and NVIDIA forbids to free what somebody has open.
KEEP_SECONDS = 30.0

Meet: TypeAlias = Callable[[], Steps[None]]


# -- the memory of all ranks ---------------------------------------------------------------------


@final
class GpuBlocks:
    """The blocks of some ranks, as one of them sees them; for one operation at a time.

    Args:
        gpu: The identity of the GPU.

    Attributes:
        trouble: The reason why this rank cannot share memory, or open that of others, in words.
    """

    def __init__(self, rank: int, gpu: str) -> None:
        self.trouble = ""
        self._rank = rank
        self._gpu = gpu
        self._memory: DeviceMemory | None = None
        self._mappings = Mappings(time.monotonic, 0.0)
        self._handles: dict[int, bytes] = {}
        self._start = 0
        self._keeps_open = True

    @property
    def own(self) -> Array:
        """The present block of this rank, as bytes."""
        assert self._memory is not None
        return self._memory.array(self._start, (BLOCK_BYTES,), np.uint8)

    def make(self, called: Moment) -> bytes:
        """Makes the blocks of this rank; returns their handle, and bytes that lie in them."""
        token = os.urandom(TOKEN_BYTES)
        try:
            self._memory = DeviceMemory(called.number, 2 * BLOCK_BYTES)
            with called.current():
                copy_into(self.own[:TOKEN_BYTES], np.frombuffer(token, np.uint8))
        except (MemoryError, RuntimeError) as error:
            self.trouble = f"memory of the GPU cannot be shared ({error})"
            return b""
        return self._memory.handle + token

    def take(self, rank: int, said: bytes, called: Moment) -> None:
        """Opens the blocks of another rank, which has said what `make` returned."""
        handle, token = said[:-TOKEN_BYTES], said[-TOKEN_BYTES:]
        try:
            with called.current(), self._open(handle, TOKEN_BYTES) as there:
                found = to_host(there).tobytes()
        except (LookupError, RuntimeError, ValueError) as error:
            self.trouble = (
                f"memory of the GPU that another process shares cannot be opened ({error})"
            )
            return
        self._handles[rank] = handle
        if found != token:
            self.trouble = "other bytes are found in memory of the GPU than another process wrote"

    def turn(self) -> None:
        """Goes to the other block; every rank must call it."""
        self._start ^= BLOCK_BYTES

    @contextmanager
    def opened(self, ranks: Sequence[int]) -> Iterator[dict[int, Array]]:
        """Yields the present blocks of some ranks, as bytes; not valid after that."""
        try:
            with ExitStack() as stack:
                yield {
                    r: self.own
                    if r == self._rank
                    else stack.enter_context(self._open(self._handles[r], BLOCK_BYTES))
                    for r in ranks
                }
        finally:
            if not self._keeps_open:
                self._mappings.close_idle()

    def close_others(self) -> None:
        """Closes the blocks of other ranks: now, or after the use in which they are."""
        self._keeps_open = False
        self._mappings.close_idle()

    def close(self, group: Group) -> None:
        """Closes the blocks of other ranks, and frees those of this one after a while."""
        self.close_others()
        kept = [self._memory]
        group.after(KEEP_SECONDS, partial(group.submit, kept.clear))

    def _open(self, handle: bytes, size: int) -> AbstractContextManager[Array]:
        place = SharedPlace(self._gpu, handle, 2 * BLOCK_BYTES, self._start)
        return self._mappings.array(place, (size,), np.uint8, size)


@final
class OneGpu:
    """The blocks of a group, or of the sender of messages, shared when an operation needs them.

    There are others for each GPU that the arrays of an operation lie on.

    Args:
        group: The group, which lets memory go later.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._found: dict[str, GpuBlocks | str] = {}  # by GPU; a reason if there can be none

    async def share(
        self, link: Link, gpu: str, called: Moment, makers: Sequence[int]
    ) -> GpuBlocks | str:
        """Returns the blocks; or the reason why not all ranks can share memory, on all of them.

        Steps: 2, the first time. Each maker sends a handle to the others, each rank then a word.

        Args:
            link: The ranks, all of which call it.
            gpu: The identity of the GPU.
            called: The moment of the call.
            makers: The ranks that will show arrays.
        """
        found = self._found.get(gpu)
        if found is not None:
            return found
        blocks = self._found[gpu] = GpuBlocks(link.rank, gpu)  # now: `close` must find them
        try:
            why_not = await self._shared(blocks, link, called, makers)
        except BaseException:
            blocks.close(self._group)
            raise
        if not why_not:
            return blocks
        blocks.close(self._group)
        self._found[gpu] = why_not
        return why_not

    async def _shared(
        self, blocks: GpuBlocks, link: Link, called: Moment, makers: Sequence[int]
    ) -> str:
        """Lets all ranks open the blocks of makers; returns the first trouble of any rank."""
        others = [r for r in range(link.size) if r != link.rank]
        if link.rank in makers:
            said = blocks.make(called)
            for r in others:
                link.send(r, said)
        for r in makers:
            if r != link.rank and (handle := bytes(await link.receive(r))):
                blocks.take(r, handle, called)
        words = {link.rank: blocks.trouble}
        for r in others:
            link.send(r, blocks.trouble.encode())
        for r in others:
            words[r] = bytes(await link.receive(r)).decode(errors="replace")
        return next((words[r] for r in sorted(words) if words[r]), "")

    def release(self) -> None:
        """Keeps no blocks of others open any more; never waits."""
        for each in [*self._found.values()]:
            if isinstance(each, GpuBlocks):
                self._group.submit(each.close_others)

    def close(self) -> None:
        """Lets go of all blocks; never waits. An operation that uses them goes on."""
        found, self._found = self._found, {}
        for each in found.values():
            if isinstance(each, GpuBlocks):
                self._group.submit(each.close, self._group)


# -- the backend ---------------------------------------------------------------------------------


@final
class OneGpuBackend(DeviceBackend):
    """The backend of one operation; returns when the GPU has run it.

    It combines in the order of the ranks, with the same bits on all of them.

    Args:
        link: The operation; all ranks have entered it.
        blocks: The blocks of its ranks.
        called: The moment of the call on the caller's stream, which runs all work.
        meet: Returns once all ranks have called it.
    """

    def __init__(self, link: Link, blocks: GpuBlocks, called: Moment, meet: Meet) -> None:
        super().__init__(link, called)
        self._blocks = blocks
        self._meet = meet

    async def broadcast(self, flat: Array, root: int) -> None:
        """Replaces `flat` by that of rank `root`."""
        own = self._flat(flat)
        if self._link.rank == root:
            await self._exchange([own], own.nbytes, {})
        else:
            await self._exchange([], own.nbytes, {root: WantedPart(own)})
            self._put_back(flat, own)

    async def all_reduce(self, flat: Array, op: Reduction) -> None:
        """Replaces `flat` by the reduction over all ranks."""
        await self._reduce(flat, op, wanted=True)

    async def reduce(self, flat: Array, op: Reduction, root: int) -> None:
        """Replaces `flat` at rank `root` by the reduction over all ranks."""
        await self._reduce(flat, op, wanted=self._link.rank == root)

    async def all_gather(
        self, array: Array, shape_of: Callable[[int], Shape] | None = None, *, heard: bool = False
    ) -> list[Array]:
        """Returns a copy of each rank's array; needs the calls of all ranks."""
        found = self._new_joined(list(map(shape_of or self._shape_of, self._ranks)), array.dtype)
        read = {r: WantedPart(each.reshape(-1)) for r, each in enumerate(found)}
        await self._exchange([self._flat(array)], max(each.nbytes for each in found), read)
        return found

    async def gather(self, array: Array, root: int) -> list[Array] | None:
        """Returns a copy of each rank's array at rank `root`, None elsewhere."""
        if self._link.rank == root:
            return await self.all_gather(array)
        longest = max(items_of([self._shape_of(r)]) for r in self._ranks)
        await self._exchange([self._flat(array)], longest * array.itemsize, {})
        return None

    async def scatter(self, flat: Array, parts: Sequence[Array], root: int) -> None:
        """Replaces `flat` by the part that rank `root` has for this one; compares all shapes."""
        shapes = self._parts_to_scatter(root)
        own = self._flat(flat)
        wanted = WantedPart(own, items_of(shapes[: self._link.rank]) * own.itemsize)
        total = items_of(shapes) * own.itemsize
        await self._exchange([self._flat(part) for part in parts], total, {root: wanted})
        self._put_back(flat, own)

    async def all_to_all(self, parts: Sequence[Array], whole: Array | None = None) -> list[Array]:
        """Returns the parts that all ranks have for this one."""
        direct.check_wanted(self._link)
        found = self._new_joined(self._own_parts(), parts[0].dtype)
        rank, size = self._link.rank, parts[0].itemsize
        shapes = [self._link.call_of(r).parts for r in self._ranks]
        before = [items_of(each[:rank]) * size for each in shapes]
        wanted = {r: WantedPart(found[r].reshape(-1), before[r]) for r in self._ranks}
        longest = max(items_of(each) for each in shapes) * size
        await self._exchange([self._flat(part) for part in parts], longest, wanted)
        return found

    async def reduce_scatter(
        self, parts: Sequence[Array], op: Reduction, whole: Array | None = None
    ) -> Array:
        """Returns the reduction of the parts that all ranks have for this one."""
        rank = self._link.rank
        with self._called.current():
            parts, _ = self._multiplied(parts, op, whole)
        out = self._new(parts[rank].shape, parts[rank].dtype)
        into = WantedPart(out.reshape(-1), sum(part.nbytes for part in parts[:rank]))
        total = sum(part.nbytes for part in parts)
        shown = [self._flat(part) for part in parts]
        await self._exchange(shown, total, dict.fromkeys(self._ranks, into), combining(op))
        return out

    async def send(self, array: Array) -> None:
        """Sends an array to the receiver, the second of two ranks."""
        await self._exchange([self._flat(array)], array.nbytes, {})

    async def receive(self, array: Array) -> int:
        """Replaces an array by that of the sender, the first of two ranks; returns its rank."""
        own = self._flat(array)
        await self._exchange([], own.nbytes, {0: WantedPart(own)})
        self._put_back(array, own)
        return await self._link.sender()

    async def _reduce(self, array: Array, op: Reduction, *, wanted: bool) -> None:
        own = self._flat(array, op)
        parts = dict.fromkeys(self._ranks if wanted else (), WantedPart(own))
        await self._exchange([own], own.nbytes, parts, combining(op))
        if wanted:
            self._put_back(array, own, multiplied=isinstance(op, PremulSum))

    async def _exchange(
        self,
        shown: Sequence[Array],
        longest: int,
        wanted: Mapping[int, WantedPart],
        op: ReduceOp | None = None,
    ) -> None:
        """Shows arrays of this rank, one after the other, and reads parts of what others show.

        Meetings: 1 for each block of the longest.

        Args:
            shown: The arrays, each with one axis.
            longest: The most bytes that any rank shows.
            wanted: The parts that this rank wants, by rank, each into an array of one axis.
            op: The operation that combines the parts, into one array; None to copy each.
        """
        parts = [each.view(np.uint8) for each in shown]
        for start in range(0, longest, BLOCK_BYTES):
            self._blocks.turn()
            if parts:
                self._show(parts, start)
            await self._meet()
            if wanted:
                self._read(wanted, start, op)

    def _show(self, parts: Sequence[Array], start: int) -> None:
        block, before = self._blocks.own, -start
        with self._working():
            for part in parts:
                mine, there = _overlap(before, part.size)
                block[there] = part[mine]
                before += part.size

    def _read(self, wanted: Mapping[int, WantedPart], start: int, op: ReduceOp | None) -> None:
        ranks = sorted(wanted)
        with self._blocks.opened(ranks) as blocks, self._working():
            for r in ranks if op is None else ranks[:1]:  # one part is combined of all ranks
                into, before = wanted[r]
                mine, there = _overlap(before - start, into.nbytes)
                target = into.view(np.uint8)[mine]
                if op is None:
                    target[...] = blocks[r][there]
                else:
                    pieces = [blocks[each][there].view(into.dtype) for each in ranks]
                    combine_all(op, pieces, target.view(into.dtype))

    def _flat(self, array: Array, op: Reduction = ReduceOp.SUM) -> Array:
        with self._called.current():
            return flat_of(times(array, op))

    def _put_back(self, array: Array, own: Array, *, multiplied: bool = False) -> None:
        """Writes what `_flat` returned to the array, unless that is its own memory."""
        if multiplied or not is_contiguous(array):
            with self._working():
                array[...] = own.reshape(array.shape)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Runs a block on the caller's stream, and waits for what it enqueues."""
        with self._called.current():
            try:
                yield
            finally:  # after an error, too: no work may outlive the memory that it reads
                self._called.stream.synchronize()


def _overlap(before: int, size: int) -> tuple[slice, slice]:
    """Returns the part of some bytes that lies in a block, and its place in the block.

    Args:
        before: The place of their first byte, as seen from the block's.
        size: The number of bytes.
    """
    first = max(before, 0)
    end = max(first, min(before + size, BLOCK_BYTES))
    return slice(first - before, end - before), slice(first, end)
