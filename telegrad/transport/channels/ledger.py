"""The owners of shared memory: slabs, the blocks in them, and loans. Pure.

    take ─▶ held ──lend──▶ held, lent ──released──▶ lent ──returned──▶ free ─▶ take ...
             │                 └──────returned─────▶ held ──released──▶ free
             └─────────────────────────────────────────────released──▶ free
    lent ──given_back──▶ held ──released──▶ free

A block is free when nothing here refers to it and the peer has given it back: only then is it taken
again. The block that was used last is taken first, as its pages are warm. It is lent once in
between: the peer may have written to it.

A slab serves one stream all its life, and with the stream it ends: memory that was lent is never
used again. A slab without a held or lent block is idle; of those some are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, final

M = TypeVar("M")

SMALLEST_BLOCK = 2**15  # the smallest power of two for a part that does not travel in its frame
# Small blocks share a slab: each slab costs a descriptor at both ends. Untouched pages cost
# nothing, so that blocks may well be powers of two.
SLAB_BYTES = 16 * 2**20


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a ledger.

    Attributes:
        lent: Bytes of one stream that are held or lent; parts above that travel otherwise.
        idle: Bytes of idle slabs of all streams together, kept for the next use.
        idle_seconds: Seconds after which an idle slab is dropped all the same.
        slabs: Slabs of one stream.
        all_slabs: Slabs of all streams together; each takes up to two descriptors here, and one
            there.
    """

    lent: int = 2**30
    idle: int = 256 * 2**20
    idle_seconds: float = 30.0
    slabs: int = 64
    all_slabs: int = 256


class Beside(Protocol):
    """A companion elsewhere that lives as long as a block."""

    def returned(self) -> None:
        """Called when the peer has given the block back."""

    def freed(self) -> None:
        """Called when the block is free; not if the account was closed before."""


@final
@dataclass(slots=True, eq=False)
class Slab(Generic[M]):
    """Memory that is shared with one peer.

    Attributes:
        block_bytes: The bytes of each of its blocks.
        busy: The number of blocks that are held or lent.
        touched: The number of blocks that were ever taken.
        idle_since: The time at which the last block became free.
        told: True if the peer knows the slab.
    """

    account: Account[M]
    number: int
    block_bytes: int
    memory: M
    busy: int = 0
    touched: int = 0
    idle_since: float = 0.0
    told: bool = False

    @property
    def touched_bytes(self) -> int:
        """The most memory that it takes up, in bytes."""
        return self.touched * self.block_bytes


@final
@dataclass(slots=True, eq=False)
class Block(Generic[M]):
    """A stretch of a slab.

    Attributes:
        offset: The offset of its first byte.
        size: Bytes of the present use.
        held: True if something here refers to it.
        loan: The number of the loan, while the peer has it; else 0.
        spent: True if it was lent since it was taken.
        holder: The object here that refers to it; for the user of the ledger.
        beside: The companion that lives as long as this use.
    """

    slab: Slab[M]
    offset: int
    size: int = 0
    held: bool = False
    loan: int = 0
    spent: bool = False
    holder: object = None
    beside: Beside | None = None


@final
@dataclass(slots=True, eq=False)
class Account(Generic[M]):
    """The memory that is shared with the peer of one stream.

    Attributes:
        slabs: The slabs by number.
        free: Free blocks by their size; the last one is the next.
        loans: The lent blocks by the number of the loan.
        out: Bytes that are held or lent.
        loan: The number of the last loan.
        last: The number of the last slab.
        dropped: Numbers of slabs of which the peer has to be told that they are gone.
        open: True while the stream is up.
    """

    slabs: dict[int, Slab[M]] = field(default_factory=dict)
    free: dict[int, list[Block[M]]] = field(default_factory=dict)
    loans: dict[int, Block[M]] = field(default_factory=dict)
    out: int = 0
    loan: int = 0
    last: int = 0
    dropped: list[int] = field(default_factory=list)
    open: bool = True


@final
class Ledger(Generic[M]):
    """All slabs of one worker; not thread-safe.

    Args:
        make: Makes memory of so many bytes.
    """

    def __init__(self, make: Callable[[int], M], bounds: Bounds) -> None:
        self._make = make
        self._bounds = bounds
        self._idle: dict[Slab[M], None] = {}  # the oldest first
        self.idle_bytes = 0
        self.slabs = 0

    def take(self, account: Account[M], size: int) -> Block[M] | None:
        """Returns a free block of so many bytes or more, held from now on; None if there is none.

        Raises:
            OSError: Memory could not be made.
        """
        if not account.open or account.out + size > self._bounds.lent:
            return None
        block_bytes = max(SMALLEST_BLOCK, 1 << (size - 1).bit_length())
        free = account.free.setdefault(block_bytes, [])
        if not free and not self._extend(account, block_bytes, free):
            return None
        block = free.pop()
        block.held, block.size = True, size
        slab = block.slab
        if not slab.busy and slab in self._idle:
            del self._idle[slab]
            self.idle_bytes -= slab.touched_bytes
        slab.busy += 1
        slab.touched = max(slab.touched, block.offset // block_bytes + 1)
        account.out += size
        return block

    def lend(self, block: Block[M]) -> int:
        """Lends the peer a held block; returns the number of the loan, 0 if that is impossible."""
        account = block.slab.account
        if block.spent or not block.held or not account.open:
            return 0
        account.loan += 1
        block.loan, block.spent = account.loan, True
        account.loans[block.loan] = block
        return block.loan

    def returned(self, account: Account[M], loan: int, now: float) -> None:
        """Records that the peer has given a loan back.

        Raises:
            KeyError: The peer has no such loan.
        """
        block = account.loans.pop(loan)
        block.loan = 0
        if block.beside is not None:
            block.beside.returned()
        self._free_unused(block, now)

    def given_back(self, account: Account[M], loan: int) -> Block[M]:
        """Records that the peer gives a loan back together with its bytes; the block is held again.

        Raises:
            KeyError: The peer has no such loan.
        """
        block = account.loans.pop(loan)
        block.loan, block.held = 0, True
        if block.beside is not None:
            block.beside.returned()
        return block

    def released(self, block: Block[M], now: float) -> None:
        """Records that nothing here refers to a block any more."""
        block.held = False
        self._free_unused(block, now)

    def close(self, account: Account[M]) -> list[Slab[M]]:
        """Ends an account with its stream; returns its slabs, which are never used again."""
        account.open = False
        slabs = list(account.slabs.values())
        for slab in slabs:
            self._forget(slab)
        account.free.clear()
        account.loans.clear()
        return slabs

    def trim(self, now: float) -> list[Slab[M]]:
        """Drops idle slabs that are too many or too old; returns them."""
        dropped = []
        for slab in list(self._idle):
            old = slab.idle_since + self._bounds.idle_seconds <= now
            if not old and self.idle_bytes <= self._bounds.idle:
                break
            self._drop(slab)
            dropped.append(slab)
        return dropped

    def _extend(self, account: Account[M], block_bytes: int, free: list[Block[M]]) -> bool:
        """Makes a slab of such blocks, in the place of an idle one if there are too many."""
        if len(account.slabs) >= self._bounds.slabs or self.slabs >= self._bounds.all_slabs:
            own = len(account.slabs) >= self._bounds.slabs
            idle = next((s for s in self._idle if s.account is account or not own), None)
            if idle is None:
                return False
            self._drop(idle)
        size = max(SLAB_BYTES, block_bytes)
        memory = self._make(size)
        account.last += 1
        self.slabs += 1
        slab = account.slabs[account.last] = Slab(account, account.last, block_bytes, memory)
        free += [Block(slab, offset) for offset in range(size - block_bytes, -1, -block_bytes)]
        return True

    def _free_unused(self, block: Block[M], now: float) -> None:
        if block.held or block.loan:
            return
        slab = block.slab
        account = slab.account
        account.out -= block.size
        block.spent = False
        if block.beside is not None:
            beside, block.beside = block.beside, None
            beside.freed()
        slab.busy -= 1
        if not account.open:
            return
        account.free[slab.block_bytes].append(block)
        if not slab.busy:
            slab.idle_since = now
            self._idle[slab] = None
            self.idle_bytes += slab.touched_bytes

    def _drop(self, slab: Slab[M]) -> None:
        """Lets go of an idle slab."""
        account = slab.account
        free = account.free[slab.block_bytes]
        account.free[slab.block_bytes] = [each for each in free if each.slab is not slab]
        self._forget(slab)
        if slab.told:
            account.dropped.append(slab.number)

    def _forget(self, slab: Slab[M]) -> None:
        del slab.account.slabs[slab.number]
        self.slabs -= 1
        if slab in self._idle:
            del self._idle[slab]
            self.idle_bytes -= slab.touched_bytes
