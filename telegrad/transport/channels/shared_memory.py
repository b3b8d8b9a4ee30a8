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

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, final

import numpy as np

from telegrad.arrays import SharedMemory, shared_below
from telegrad.critical import critical
from telegrad.errors import DecodeError
from telegrad.transport.base import Carrier, Direct
from telegrad.transport.channels.answers import Answering
from telegrad.transport.channels.device_memory import DeviceSlabs, Hold
from telegrad.transport.channels.handles import Handles
from telegrad.transport.channels.ledger import Account, Block, Bounds, Ledger
from telegrad.transport.channels.loans import Loans, Watch
from telegrad.wire import LENT_BYTES, Buffer, Envelope, Frame, Lending, Lent, Memory

SLABS = "slabs"  # the capability in a hello
NOTHING: Mapping[int, memoryview] = MappingProxyType({})
MOST_LENT = 1024  # parts of one envelope: a frame has a bound, and each takes 20 bytes of it
DEFAULT_BOUNDS = Bounds()


@final
class SlabPool:
    """The slabs of one worker; any thread.

    Attributes:
        bounds: The bounds of the slabs.
        devices: The memory of its GPUs.
        lock: Guards the ledger, and what streams say that it guards.
        ledger: The slabs, and the blocks in them.
    """

    def __init__(self, clock: Callable[[], float], bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.bounds = bounds
        self.devices = DeviceSlabs(clock)
        self.lock = threading.Lock()  # guards the next two
        self.ledger: Ledger[SharedMemory] = Ledger(SharedMemory.make, bounds)
        self._held: dict[int, Watch] = {}  # by the id of the exporter
        self._clock = clock
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
        return SlabStream(self, direct, carrier.told, capabilities)

    def tick(self) -> None:
        """Releases memory that was unused for a while."""
        with critical.section, self.lock:
            self.drain()
            for slab in self.ledger.trim(self._clock()):
                slab.memory.close_descriptor()
        self.devices.tick()

    def close(self) -> None:
        """Releases the memory of GPUs; may wait for one."""
        self.devices.end()

    def now(self) -> float:
        """Returns the time."""
        return self._clock()

    def block(self, buffer: memoryview) -> Block[SharedMemory] | None:
        """Returns the block of which `export` made a buffer; None if it is another buffer."""
        exporter: object = buffer.obj
        watch = self._held.get(id(exporter))
        if watch is None or watch() is not exporter:
            return None
        block: Block[SharedMemory] = watch.what
        return block

    def export(self, block: Block[SharedMemory]) -> memoryview:
        """Returns the bytes of a held block, which is released with them. Holds the lock."""
        exporter = block.holder() if isinstance(block.holder, Watch) else None
        if exporter is None:
            exporter = np.frombuffer(block.slab.memory, np.uint8, block.size, block.offset)
            block.holder = self._held[id(exporter)] = Watch(exporter, self._freed, block)
        data: memoryview = exporter.data
        return data

    def forget(self, account: Account[SharedMemory]) -> None:
        """Lets go of an account; memory that is still in use here lives on. Holds the lock."""
        for slab in self.ledger.close(account):
            slab.memory.close_descriptor()
        for key, each in list(self._held.items()):
            if each.what.slab.account is account:
                each.what.holder = None  # nobody hears of its end any more
                del self._held[key]

    def drain(self) -> None:
        """Releases the blocks whose bytes nothing refers to any more. Holds the lock."""
        while not self._freed.empty():
            watch = self._freed.get()
            block: Block[SharedMemory] = watch.what
            if self._held.get(watch.key) is watch:  # not of a later exporter at the same address
                del self._held[watch.key]
            if block.holder is watch:  # not of an earlier exporter of the same block
                block.holder = None
                self.ledger.released(block, self._clock())


@final
class SlabStream(Memory):
    """The memory that both ends of one stream share; any thread.

    Args:
        direct: Moves descriptors beside the stream's messages.
        told: The capabilities in this end's hello.
        capabilities: The capabilities in the peer's hello.
    """

    def __init__(
        self,
        pool: SlabPool,
        direct: Direct,
        told: Sequence[str] = (),
        capabilities: Sequence[str] = (),
    ) -> None:
        self.bytes_sent = self.bytes_received = 0
        self._pool = pool
        self._direct = direct
        self._account: Account[SharedMemory] = Account()  # this and the next are under its lock
        self._new: list[tuple[int, int, int]] = []  # the next frame tells the peer of these
        self._handles = Handles(self._account, self._new)
        self._loans = Loans(direct.descriptor, self._given_back, pool.bounds)
        self._replies = Answering(self, self._loans)
        self._gpus = pool.devices.open(told, capabilities, self.take)

    def lends(self, memory: SharedMemory) -> bool:
        """Returns True if arrays in some memory travel as they are."""
        return self._account.open

    def take(self, size: int, beside: Hold | None = None) -> memoryview | None:
        """Returns memory for a whole part that is posted to the peer next; None if it is small.

        Only this peer can get the part in this way, and once; for others its bytes go like any
        other's. Returns None, too, where so much is lent that no more is allowed.

        Args:
            size: Bytes.
            beside: The companion that lives as long as this memory.
        """
        if size <= LENT_BYTES:
            return None
        pool = self._pool
        with critical.section, pool.lock:
            pool.drain()
            try:
                block = pool.ledger.take(self._account, size)
            except (OSError, ValueError):  # no memory, or no descriptor: the part goes without
                return None
            if block is None:
                return None
            if beside is not None:
                block.beside = beside
                beside.lies(np.frombuffer(block.slab.memory, np.uint8, size, block.offset))
            return pool.export(block)

    def shadow(self, array: Any) -> memoryview | None:
        """Copies an array to GPU memory that the peer shares; returns its shadow.

        The shadow is posted to the peer next, as memory that `take` returns. None if the two share
        no GPU.
        """
        return None if self._gpus is None else self._gpus.shadow(array)

    def answering(self) -> Memory:
        """Returns memory for a reply that is settled; see `Answering`."""
        return self._replies

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
            if type(data) is memoryview and self._lies(data):
                continue
            if len(staged) == MOST_LENT or (room := self.take(size)) is None:
                break
            np.copyto(np.frombuffer(room, np.uint8), np.frombuffer(data, np.uint8))
            staged[part] = room
        return replace(envelope, number=0, staged=staged) if staged else envelope

    def _lies(self, buffer: memoryview) -> bool:
        """Returns True if a buffer can be lent from where it lies."""
        known = self._loans.is_given(buffer) or self._pool.block(buffer) is not None
        return known or shared_below(buffer) is not None

    def lend(self, envelope: Envelope) -> dict[int, Lent]:
        """Lends the peer the buffers of an envelope that lie in its memory; returns the places."""
        lent: dict[int, Lent] = {}
        staged = envelope.staged or NOTHING
        for part, buffer in (*staged.items(), *enumerate(envelope.buffers, start=2)):
            if type(buffer) is memoryview and buffer.nbytes > LENT_BYTES and part not in lent:
                each = None
                if len(lent) < MOST_LENT:
                    each = self._loans.gives(buffer) or self._lend(buffer)
                if each is not None:
                    lent[part] = each
                elif self._gpus is not None:
                    self._gpus.settle(buffer)
        return lent

    def _lend(self, buffer: memoryview) -> Lent | None:
        """Lends all of a memory that `take` returned, or a part of an array's shared memory.

        Returns:
            Its place; None if it is other memory, or was lent before.
        """
        pool = self._pool
        with critical.section, pool.lock:
            block = pool.block(buffer)
            if block is None:
                memory = shared_below(buffer)
                return None if memory is None else self._handles.lend(memory, buffer)
            slab = block.slab
            mine = slab.account is self._account and block.size == buffer.nbytes
            if not mine or not pool.ledger.lend(block):
                return None
            if not slab.told:
                slab.told = True
                told = slab.number, len(slab.memory), slab.memory.take_descriptor()
                self._new.append(told)
            return Lent(block.loan, slab.number, block.offset, block.size)

    @property
    def due(self) -> bool:
        """True if so much is to be given back that it should not wait for the next frame."""
        return self._loans.due

    def write(self, frame: Frame) -> None:
        """Adds the news to a frame, in the thread with the writer's turn, which sends it next."""
        loans, account, lending = self._loans, self._account, frame.lending
        if lending is None:
            gone = account.dropped or not self._handles.gone.empty()
            if not loans.untold and not gone and loans.freed.empty():
                return
            lending = frame.lending = Lending()
        lending.returned = loans.returned()
        with critical.section, self._pool.lock:
            self._handles.drain()
            lending.dropped, account.dropped = account.dropped, []
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
        now = self._pool.now()
        with critical.section, self._pool.lock:
            self._handles.drain()
            for loan in frame.lending.returned:
                if self._handles.returned(loan):
                    continue
                try:
                    self._pool.ledger.returned(self._account, loan, now)
                except KeyError as error:
                    raise DecodeError(f"loan {loan} is given back, and was not made") from error
        self.bytes_received += self._loans.take(frame)

    def _given_back(self, lent: Lent) -> memoryview:
        """Records that a peer gives a loan back together with its bytes; returns these.

        They are read-only where much is held or lent already: a receiver that wants to keep them
        has to copy them.

        Raises:
            DecodeError: The peer did not have the loan, or the sizes differ.
        """
        pool, account = self._pool, self._account
        with critical.section, pool.lock:
            pool.drain()
            block = account.loans.get(lent.loan)
            if block is None or block.size != lent.size:
                raise DecodeError(f"{lent.size} bytes of loan {lent.loan}, which was not made so")
            pool.ledger.given_back(account, lent.loan)
            view = pool.export(block)
            return view if account.out <= pool.bounds.lent // 2 else view.toreadonly()

    def close(self) -> None:
        """Lets go of everything, once the stream has ended for both: nothing is sent any more."""
        if self._gpus is not None:
            self._gpus.close()
        with critical.section, self._pool.lock:
            self._pool.drain()
            self._pool.forget(self._account)
        self._loans.close()
