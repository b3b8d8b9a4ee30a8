"""Shared memory for the buffers of envelopes between two workers of one host.

    sender                                                receiver
      memory ─▶ the caller copies its array there
      post ─▶ lend ══ frame: slab, offset; once: its descriptor ══▶ take ─▶ an array over that memory
      the block is free again ◀══ a later frame: returned ══ the last view of the array was freed

A loan is counted by its sender alone, per stream. When the stream breaks, whatever was lent through it
is never used again: what was not handed over is sent as pieces, from where it lies.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from telegrad.arrays import SharedMemory, shared_below
from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, Direct
from telegrad.transport.slab_handles import Handles
from telegrad.transport.slab_ledger import Account, Block, Bounds, Ledger
from telegrad.transport.slab_loans import Loans, Watch
from telegrad.wire import INLINE_BYTES, Envelope, Frame, Lending, Lent

__all__ = ["SLABS", "SlabPool", "SlabStream"]

SLABS = "slabs"  # the capability in a hello
MOST_LENT = 1024  # parts of one envelope: a frame has a bound, and each takes 20 bytes of it
DEFAULT_BOUNDS = Bounds()


@final
class SlabPool:
    """The slabs of one worker; any thread.

    Args:
        clock: In seconds.
        bounds: What it keeps to.
    """

    def __init__(self, clock: Callable[[], float], bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.bounds = bounds
        self._clock = clock
        self._lock = threading.Lock()  # guards the next two
        self._ledger: Ledger[SharedMemory] = Ledger(SharedMemory.make, bounds)
        self._held: dict[int, Watch] = {}  # by the id of the exporter
        self._freed: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    def open(self, carrier: Carrier, capabilities: Sequence[str]) -> SlabStream | None:
        """Begins to share memory with the peer of a stream, where both ends are able to.

        Args:
            carrier: Of the stream.
            capabilities: Those of the peer.
        """
        direct = carrier.direct
        if direct is None or SLABS not in capabilities or SLABS not in carrier.told:
            return None
        return SlabStream(self, direct)

    def tick(self) -> None:
        """Lets go of memory that nobody has used for a while."""
        with self._lock:
            self._drain()
            for slab in self._ledger.trim(self._clock()):
                slab.memory.close_descriptor()

    def take(self, account: Account[SharedMemory], size: int) -> memoryview | None:
        """Returns memory of so many bytes that can be lent once; None where there is none."""
        with self._lock:
            self._drain()
            try:
                block = self._ledger.take(account, size)
            except (OSError, ValueError):  # no memory, or no descriptor: it goes without
                return None
            if block is None:
                return None
            exporter = np.frombuffer(block.slab.memory, np.uint8, size, block.offset)
            self._held[id(exporter)] = Watch(exporter, self._freed, block)
            return exporter.data

    def lend(
        self,
        account: Account[SharedMemory],
        handles: Handles,
        buffer: memoryview,
        new: list[tuple[int, int, int]],
    ) -> Lent | None:
        """Lends what `take` returned, the whole of it, or what lies in an array's own shared memory.

        Args:
            account: The peer's.
            handles: The peer's.
            buffer: What is lent.
            new: Gets number, size and descriptor of a slab that the peer does not know.

        Returns:
            Where it lies; None if it is something else, or was lent before.
        """
        with self._lock:
            exporter: object = buffer.obj
            watch = self._held.get(id(exporter))
            if watch is None or exporter is not watch():
                memory = shared_below(buffer)
                return None if memory is None else handles.lend(memory, buffer, new)
            block: Block[SharedMemory] = watch.what
            slab = block.slab
            mine = slab.account is account and block.size == buffer.nbytes
            if not mine or not self._ledger.lend(block):
                return None
            if not slab.told:
                slab.told = True
                new.append((slab.number, len(slab.memory), slab.memory.take_descriptor()))
            return Lent(block.loan, slab.number, block.offset, block.size)

    def dropped(self, account: Account[SharedMemory], handles: Handles) -> list[int]:
        """Returns the slabs that are gone and of which the peer was not told."""
        with self._lock:
            handles.drain()
            dropped, account.dropped = account.dropped, []
            return dropped

    def returned(self, account: Account[SharedMemory], handles: Handles, loans: list[int]) -> None:
        """Hears which loans the peer has given back.

        Raises:
            DecodeError: It did not have one of them.
        """
        now = self._clock()
        with self._lock:
            handles.drain()
            for loan in loans:
                if handles.returned(loan):
                    continue
                try:
                    self._ledger.returned(account, loan, now)
                except KeyError as error:
                    raise DecodeError(f"loan {loan} is given back, and was not made") from error

    def close(self, account: Account[SharedMemory]) -> None:
        """Lets go of all that is shared with a peer; what something here refers to lives on for it."""
        with self._lock:
            self._drain()
            for slab in self._ledger.close(account):
                slab.memory.close_descriptor()
            left = self._held.items()
            self._held = {key: each for key, each in left if each.what.slab.account is not account}

    def _drain(self) -> None:
        while not self._freed.empty():
            watch = self._freed.get()
            block: Block[SharedMemory] = watch.what
            if self._held.get(watch.key) is watch:  # not of a later exporter in the same place
                del self._held[watch.key]
            self._ledger.released(block, self._clock())


@final
class SlabStream:
    """The memory that both ends of one stream share; any thread.

    What concerns a frame is done in the order of the frames, by whoever reads or writes them.

    Attributes:
        bytes_sent: What was lent; by the writer.
        bytes_received: What the peer has lent; by the reader.

    Args:
        pool: Where this worker's own slabs come from.
        direct: What moves descriptors beside the stream's messages.
    """

    def __init__(self, pool: SlabPool, direct: Direct) -> None:
        self.bytes_sent = self.bytes_received = 0
        self._pool = pool
        self._direct = direct
        self._account: Account[SharedMemory] = Account()
        self._handles = Handles(self._account)
        self._new: list[tuple[int, int, int]] = []  # of which the next frame tells the peer
        self._loans = Loans(direct.descriptor, pool.bounds)

    def lends(self, memory: SharedMemory) -> bool:
        """Tells whether arrays in some memory travel as they are."""
        return self._account.open

    def take(self, size: int) -> memoryview | None:
        """Returns memory for a buffer that is posted to the peer next, as a whole; None if it is small.

        The peer alone can get it so, and once; elsewhere its bytes go like any other's. None, too,
        where so much is out that there is no more.
        """
        return self._pool.take(self._account, size) if size > INLINE_BYTES else None

    def lend(self, envelope: Envelope) -> dict[int, Lent]:
        """Lends the peer the buffers of an envelope that lie in its memory; returns where they are."""
        lent: dict[int, Lent] = {}
        for part, buffer in enumerate(envelope.buffers, start=2):
            if (
                type(buffer) is memoryview
                and buffer.nbytes > INLINE_BYTES
                and len(lent) < MOST_LENT
            ):
                each = self._pool.lend(self._account, self._handles, buffer, self._new)
                if each is not None:
                    lent[part] = each
        return lent

    @property
    def due(self) -> bool:
        """Whether so much is to be given back that it should not wait for the next frame."""
        return self._loans.due

    def write(self, frame: Frame) -> None:
        """Says in a frame what there is to say; by whoever has the writer's role, and sends it next."""
        loans, account, lending = self._loans, self._account, frame.lending
        if lending is None:
            gone = account.dropped or (self._handles.known and self._handles.due)
            if not loans.untold and not gone and loans.freed.empty():
                return
            lending = frame.lending = Lending()
        lending.returned = loans.returned()
        lending.dropped = self._pool.dropped(account, self._handles)
        for number, size, descriptor in self._new:
            lending.slabs.append((number, size))
            self._direct.attach(descriptor)
        self._new.clear()
        for lent in lending.lent.values():
            self.bytes_sent += sum([each.size for each in lent.values()])

    def read(self, frame: Frame) -> None:
        """Puts what the peer has lent into the envelopes of a frame; by whoever reads.

        Raises:
            DecodeError: What the frame says cannot be.
            CarrierClosedError: This process has no room for it.
        """
        assert frame.lending is not None
        self._pool.returned(self._account, self._handles, frame.lending.returned)
        self.bytes_received += self._loans.take(frame)

    def close(self) -> None:
        """Lets go of everything, once the stream has ended for both: nothing is sent any more."""
        self._pool.close(self._account)
        self._loans.close()
