"""A backend made of public names alone, in which rank 0 does some of the work: that of docs/extend.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from telegrad.collectives import Backend, Link, MessageBackend, ReduceOp
from telegrad.types import Array


class Star(MessageBackend):
    """Rank 0 adds up all arrays, and hands out what it has; telegrad's own messages do the rest."""

    def __init__(self, link: Link, kept: dict[str, int]) -> None:
        super().__init__(link)
        self.link = link
        self.kept = kept

    async def barrier(self) -> None:
        if self.link.rank != 0:
            self.link.signal(0)
            await self.link.signalled(0)
            return
        for r in range(1, self.link.size):
            await self.link.signalled(r)
        for r in range(1, self.link.size):
            self.link.signal(r)

    async def broadcast(self, flat: Array, root: int) -> None:
        if self.link.rank == root:
            for r in range(self.link.size):
                if r != root:
                    self.link.send(r, flat.tobytes())
        await self.barrier()  # nobody returns before all ranks have called
        if self.link.rank != root:
            flat[...] = np.frombuffer(await self.link.receive(root), flat.dtype)

    async def all_reduce(self, flat: Array, op: ReduceOp) -> None:
        if op is not ReduceOp.SUM:
            await super().all_reduce(flat, op)
            return
        self.kept["sums"] += 1
        if self.link.rank != 0:
            self.link.send(0, flat.tobytes())
            flat[...] = np.frombuffer(await self.link.receive(0), flat.dtype)
            return
        others = range(1, self.link.size)
        parts = [np.frombuffer(await self.link.receive(r), flat.dtype) for r in others]
        for part in parts:
            np.add(flat, part, out=flat)
        for r in others:
            self.link.send(r, flat.tobytes())


def make_star() -> Callable[[Link], Awaitable[Backend]]:
    kept = {"sums": 0}  # what this rank keeps for one group: a communicator, buffers, streams

    async def open_star(link: Link) -> Backend:
        return Star(link, kept)

    return open_star
