"""Shared memory for the buffers of envelopes between two workers of one host.

    sender                                                receiver
      memory ─▶ the caller copies its array there
      post ─▶ lend ══ frame: slab, offset; once: its descriptor ══▶ take ─▶ array over that memory
      the block is free again ◀══ a later frame: returned ══ the last view of the array was freed
      an array over it ◀══ the reply: given ══ it is the value of the call, and nothing else has it

A loan is counted by its sender alone, per stream. When the stream breaks, memory that was lent
through it is never used again. Parts that were not handed over are sent as pieces, from where they
lie.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self, final

import numpy as np

from telegrad.arrays import SharedMemory, shared_below
from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, Direct
from telegrad.transport.channels.answers import Answering
from telegrad.transport.channels.device_memory import DeviceSlabs, DeviceStream, Hold
from telegrad.transport.channels.ledger import Account, Block, Bounds, Ledger
from telegrad.transport.channels.loans import FIRST_HANDLE, Loans, Watch
from telegrad.wire import LENT_BYTES, Buffer, Envelope, Frame, Lending, Lent, Memory

__all__ = ["MOST_HANDLES", "SLABS", "Handles", "SlabPool", "SlabStream"]

SLABS = "slabs"  # the capability in a hello
NOTHING: Mapping[int, memoryview] = MappingProxyType({})
MOST_LENT = 1024  # parts of one envelope: a frame has a bound, and each takes 20 bytes of it
DEFAULT_BOUNDS = Bounds()

# -- arrays that were made in shared memory (`arrays.shared_empty`): a peer gets them uncopied -----
#
# Such memory belongs to the program. It is lent as often as its arrays are sent, to any number of
# peers, and is never used for anything else. A peer maps it once on a stream, until it is told that
# the memory is gone here.

MOST_HANDLES = 64  # of one stream; each takes one descriptor of the peer


@final
class _BlockWatch(weakref.ref[SharedMemory]):
    """A weak reference that goes into a queue when its memory is gone."""

    __slots__ = ("key",)
    key: int

    def __new__(cls, memory: SharedMemory, gone: queue.SimpleQueue[_BlockWatch]) -> Self:
        self = super().__new__(cls, memory, gone.put)
        self.key = id(memory)
        return self

    def __init__(self, memory: SharedMemory, gone: object) -> None:
        """Does nothing more."""


@final
@dataclass(slots=True)
class _Handle:
    number: int
    watch: _BlockWatch
    loans: int = 0
    gone: bool = False


@final
class Handles:
    """The memory of arrays that the peer of one stream knows; under the pool's lock.

    Attributes:
        known: The handles by the id of the memory.

    Args:
        account: Numbers the loans, and tells the peer of memory that is dropped.
    """

    def __init__(self, account: Account[SharedMemory]) -> None:
        self._account = account
        self.known: dict[int, _Handle] = {}
        self._loans: dict[int, _Handle] = {}
        self._last = FIRST_HANDLE
        self._gone: queue.SimpleQueue[_BlockWatch] = queue.SimpleQueue()

    @property
    def due(self) -> bool:
        """True if there is something to drain."""
        return not self._gone.empty()

    def lend(
        self, memory: SharedMemory, buffer: memoryview, new: list[tuple[int, int, int]]
    ) -> Lent | None:
        """Lends a stretch of memory.

        Args:
            memory: The memory.
            buffer: The stretch.
            new: Gets the number, the size and a descriptor of memory that the peer does not know.

        Returns:
            The place of the stretch; None if the peer knows too many handles.
        """
        self.drain()
        if not self._account.open:
            return None
        handle = self.known.get(id(memory))
        if handle is None:
            if len(self.known) >= MOST_HANDLES:
                return None
            try:
                descriptor = os.dup(memory.descriptor)
            except OSError:  # too many descriptors are open
                return None
            self._last += 1
            handle = self.known[id(memory)] = _Handle(self._last, _BlockWatch(memory, self._gone))
            new.append((handle.number, len(memory), descriptor))
        self._account.loan += 1
        self._loans[self._account.loan] = handle
        handle.loans += 1
        offset = _place_of(buffer) - _place_of(memoryview(memory))
        return Lent(self._account.loan, handle.number, offset, buffer.nbytes)

    def returned(self, loan: int) -> bool:
        """Records that the peer has given a loan back; returns True if it had that loan."""
        handle = self._loans.pop(loan, None)
        if handle is None:
            return False
        handle.loans -= 1
        self._drop_unused(handle)
        return True

    def drain(self) -> None:
        """Tells the peer of memory that is gone here, once it has given all of it back."""
        while not self._gone.empty():
            watch = self._gone.get()
            handle = self.known.get(watch.key)
            if handle is not None and handle.watch is watch:
                del self.known[watch.key]
                handle.gone = True
                self._drop_unused(handle)

    def _drop_unused(self, handle: _Handle) -> None:
        if handle.gone and not handle.loans:
            self._account.dropped.append(handle.number)


def _place_of(buffer: memoryview) -> int:
    there: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return there


# -- slabs: memory that the library makes for what it sends ----------------------------------------


@final
class SlabPool:
    """The slabs of one worker; any thread.

    Attributes:
        devices: The memory of its GPUs.

    Args:
        clock: The clock, in seconds.
        bounds: The bounds of the slabs.
    """

    def __init__(self, clock: Callable[[], float], bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.bounds = bounds
        self.devices = DeviceSlabs(clock)
        self._clock = clock
        self._lock = threading.Lock()  # guards the next two
        self._ledger: Ledger[SharedMemory] = Ledger(SharedMemory.make, bounds)
        self._held: dict[int, Watch] = {}  # by the id of the exporter
        self._freed: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    def open(self, carrier: Carrier, capabilities: Sequence[str]) -> SlabStream | None:
        """Begins to share memory with the peer of a stream, where both ends are able to.

        Args:
            carrier: The carrier of the stream.
            capabilities: The capabilities of the peer.
        """
        direct = carrier.direct
        if direct is None or SLABS not in capabilities or SLABS not in carrier.told:
            return None
        stream = SlabStream(self, direct)
        stream.share_gpus(carrier.told, capabilities)
        return stream

    def tick(self) -> None:
        """Releases memory that was unused for a while."""
        with self._lock:
            self._drain()
            for slab in self._ledger.trim(self._clock()):
                slab.memory.close_descriptor()
        self.devices.tick()

    def close(self) -> None:
        """Releases the memory of GPUs; may wait for one."""
        self.devices.end()

    def take(
        self, account: Account[SharedMemory], size: int, beside: Hold | None = None
    ) -> memoryview | None:
        """Returns memory of so many bytes that can be lent once; None where there is none.

        Args:
            account: The account of the peer.
            size: Bytes.
            beside: The companion that lives as long as this memory.
        """
        with self._lock:
            self._drain()
            try:
                block = self._ledger.take(account, size)
            except (OSError, ValueError):  # no memory, or no descriptor: the part goes without
                return None
            if block is None:
                return None
            if beside is not None:
                block.beside = beside
                beside.lies(np.frombuffer(block.slab.memory, np.uint8, size, block.offset))
            return self._export(block)

    def lend(
        self,
        account: Account[SharedMemory],
        handles: Handles,
        buffer: memoryview,
        new: list[tuple[int, int, int]],
    ) -> Lent | None:
        """Lends all of a memory that `take` returned, or a part of an array's shared memory.

        Args:
            account: The account of the peer.
            handles: The handles of the peer.
            buffer: The memory to lend.
            new: Gets the number, the size and the descriptor of a slab that the peer does not know.

        Returns:
            Its place; None if it is other memory, or was lent before.
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
        """Records the loans that the peer has given back.

        Raises:
            DecodeError: The peer did not have one of them.
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

    def lies(self, buffer: memoryview) -> bool:
        """Returns True if `take` returned a buffer, or it lies in an array's own shared memory."""
        exporter: object = buffer.obj
        watch = self._held.get(id(exporter))
        return (watch is not None and watch() is exporter) or shared_below(buffer) is not None

    def given_back(self, account: Account[SharedMemory], lent: Lent) -> memoryview:
        """Records that a peer gives a loan back together with its bytes; returns these.

        They are read-only where much is held or lent already: a receiver that wants to keep them
        has to copy them.

        Raises:
            DecodeError: The peer did not have the loan, or the sizes differ.
        """
        with self._lock:
            self._drain()
            block = account.loans.get(lent.loan)
            if block is None or block.size != lent.size:
                raise DecodeError(f"{lent.size} bytes of loan {lent.loan}, which was not made so")
            self._ledger.given_back(account, lent.loan)
            holder = block.holder
            exporter = holder() if isinstance(holder, Watch) else None
            view = self._export(block) if exporter is None else exporter.data
            return view if account.out <= self.bounds.lent // 2 else view.toreadonly()

    def close_account(self, account: Account[SharedMemory]) -> None:
        """Lets go of all that is shared with a peer; memory that is still in use here lives on."""
        with self._lock:
            self._drain()
            for slab in self._ledger.close(account):
                slab.memory.close_descriptor()
            for key, each in list(self._held.items()):
                if each.what.slab.account is account:
                    each.what.holder = None  # nobody hears of its end any more
                    del self._held[key]

    def _export(self, block: Block[SharedMemory]) -> memoryview:
        exporter = np.frombuffer(block.slab.memory, np.uint8, block.size, block.offset)
        block.holder = self._held[id(exporter)] = Watch(exporter, self._freed, block)
        return exporter.data

    def _drain(self) -> None:
        while not self._freed.empty():
            watch = self._freed.get()
            block: Block[SharedMemory] = watch.what
            if self._held.get(watch.key) is watch:  # not of a later exporter at the same address
                del self._held[watch.key]
            if block.holder is watch:  # not of an earlier exporter of the same block
                block.holder = None
                self._ledger.released(block, self._clock())


@final
class SlabStream(Memory):
    """The memory that both ends of one stream share; any thread.

    Args:
        pool: The slabs of this worker.
        direct: Moves descriptors beside the stream's messages.
    """

    def __init__(self, pool: SlabPool, direct: Direct) -> None:
        self.bytes_sent = self.bytes_received = 0
        self._pool = pool
        self._direct = direct
        self._account: Account[SharedMemory] = Account()
        self._handles = Handles(self._account)
        self._new: list[tuple[int, int, int]] = []  # the next frame tells the peer of these
        own = partial(pool.given_back, self._account)
        self._loans = Loans(direct.descriptor, own, pool.bounds)
        self._gpus: DeviceStream | None = None

    def share_gpus(self, told: Sequence[str], capabilities: Sequence[str]) -> None:
        """Shares memory of GPUs, too, before anything is sent.

        Args:
            told: The capabilities in this end's hello.
            capabilities: The capabilities in the peer's hello.
        """
        self._gpus = self._pool.devices.open(
            told, capabilities, partial(self._pool.take, self._account)
        )

    def lends(self, memory: SharedMemory) -> bool:
        """Returns True if arrays in some memory travel as they are."""
        return self._account.open

    def take(self, size: int) -> memoryview | None:
        """Returns memory for a whole part that is posted to the peer next; None if it is small.

        Only this peer can get the part in this way, and once; for others its bytes go like any
        other's. Returns None, too, where so much is lent that no more is allowed.
        """
        return self._pool.take(self._account, size) if size > LENT_BYTES else None

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array to GPU memory that the peer shares; returns its shadow.

        The shadow is posted to the peer next, as memory that `take` returns. None if the two share
        no GPU.
        """
        return None if self._gpus is None else self._gpus.shadow(array)

    def answering(self) -> Memory:
        """Returns memory for a reply that is settled; see `Answering`."""
        return Answering(self, self._loans) if self._loans.any else self

    def stage(self, envelope: Envelope) -> Envelope:
        """Copies big parts of an envelope that lie elsewhere to memory of the peer's.

        A document, an array for several peers, or memory that a program made for itself then goes
        in one piece, and not through the socket.

        Returns:
            The envelope, or another one with copies in the place of its parts.
        """
        staged: dict[int, memoryview] = {}
        parts: tuple[Buffer, ...] = (envelope.document, envelope.externals, *envelope.buffers)
        for part, data in enumerate(parts):
            size = data.nbytes if type(data) is memoryview else len(data)
            if size <= LENT_BYTES:
                continue
            if type(data) is memoryview and (self._loans.is_given(data) or self._pool.lies(data)):
                continue
            if len(staged) == MOST_LENT or (room := self.take(size)) is None:
                break
            np.copyto(np.frombuffer(room, np.uint8), np.frombuffer(data, np.uint8))
            staged[part] = room
        return replace(envelope, number=0, staged=staged) if staged else envelope

    def lend(self, envelope: Envelope) -> dict[int, Lent]:
        """Lends the peer the buffers of an envelope that lie in its memory; returns the places."""
        lent: dict[int, Lent] = {}
        staged = envelope.staged or NOTHING
        for part, buffer in (*staged.items(), *enumerate(envelope.buffers, start=2)):
            if type(buffer) is memoryview and buffer.nbytes > LENT_BYTES and part not in lent:
                each = None
                if len(lent) < MOST_LENT:
                    each = self._loans.gives(buffer)
                    if each is None:
                        each = self._pool.lend(self._account, self._handles, buffer, self._new)
                if each is not None:
                    lent[part] = each
                elif self._gpus is not None:
                    self._gpus.settle(buffer)
        return lent

    @property
    def due(self) -> bool:
        """True if so much is to be given back that it should not wait for the next frame."""
        return self._loans.due

    def write(self, frame: Frame) -> None:
        """Adds the news to a frame, in the thread with the writer's turn, which sends it next."""
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
        if lending.lent:
            lent = [each.size for lent in lending.lent.values() for each in lent.values()]
            self.bytes_sent += sum(lent)

    def read(self, frame: Frame) -> None:
        """Puts lent parts into the envelopes of a frame; called by the thread that reads.

        Raises:
            DecodeError: The frame says something impossible.
            CarrierClosedError: This process has no room for the parts.
        """
        assert frame.lending is not None
        self._pool.returned(self._account, self._handles, frame.lending.returned)
        self.bytes_received += self._loans.take(frame)

    def close(self) -> None:
        """Lets go of everything, once the stream has ended for both: nothing is sent any more."""
        if self._gpus is not None:
            self._gpus.close()
        self._pool.close_account(self._account)
        self._loans.close()
