"""The loans of a peer: its slabs, as they are mapped here, and the arrays that live in them.

A loan is given back when the last view of it is freed. For that each loan has an exporter of its
own, to which NumPy's arrays and memoryviews all lead. Its finaliser, which may run anywhere and at
any time, only puts it into a queue.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self, final

import numpy as np

from telegrad.arrays import SharedMemory
from telegrad.critical import critical
from telegrad.errors import DecodeError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.channels.ledger import Bounds
from telegrad.wire import FIRST_BUFFER, Buffer, Envelope, Frame, Lent

OWN = 0  # in the place of a slab's number: the loan is one that the reader has made
FIRST_HANDLE = (
    2**32
)  # numbers of memory that belongs to a program; slabs of the ledger have lower ones

# Loans that are given back, and parts that came and have no receipt, wait for the next frame, that
# of a heartbeat at the latest. This much is told at once.
RETURN_BYTES = 128 * 2**20
MOST_RETURNS = 4096  # of one frame, which has a bound; the rest goes with the next
MOST_SLABS = 256  # of one peer; a worker of this version makes 64


@final
class Watch(weakref.ref[Any]):
    """A weak reference that knows the purpose of its object, and goes into a queue with it.

    Args:
        watched: The object: an array that exports some memory, or the memory itself.
        freed: Gets this when nothing refers to the object any more, from any thread.
        what: The thing for which the object stands.
    """

    __slots__ = ("given", "key", "what")
    given: bool  # True if it goes back to the lender together with its bytes
    key: int  # the object's id
    what: Any

    def __new__(cls, watched: object, freed: queue.SimpleQueue[Watch], what: object) -> Self:
        """Makes a watch."""
        self = super().__new__(cls, watched, freed.put)
        self.key = id(watched)
        self.what = what
        self.given = False
        return self

    def __init__(self, watched: object, freed: object, what: object) -> None:
        """Does nothing more."""


@final
class Loans:
    """The receiving end of one stream; any thread.

    Attributes:
        untold: Bytes that came, or were given back, since the last frame was written.
        freed: The loans to give back that were not looked at yet.

    Args:
        descriptor: Returns the next descriptor that came with the stream, to be closed here; None
            if there is none.
        own: Returns the bytes of a loan that this end has made and the peer gives back.
        bounds: The bounds of the peer, if it has the same ones as this worker.
    """

    def __init__(
        self,
        descriptor: Callable[[], int | None],
        own: Callable[[Lent], memoryview],
        bounds: Bounds,
    ) -> None:
        self._descriptor = descriptor
        self._bounds = bounds
        self._own = own
        self._lock = threading.Lock()  # guards the next six
        self._mapped: dict[int, SharedMemory] = {}
        self._out: dict[int, Watch] = {}  # by loan
        self._exporters: dict[int, Watch] = {}  # the same, by the exporter's id
        self._out_bytes = 0
        self._returned: list[int] = []
        self.untold = 0
        self.freed: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    def take(self, frame: Frame) -> int:
        """Puts lent parts in their places in the envelopes of a frame; returns their bytes.

        If the peer has lent much already, a buffer is read-only: a receiver that wants to keep it
        has to copy it.

        Raises:
            DecodeError: The frame says something impossible.
            CarrierClosedError: This process has no room for more mappings.
        """
        lending, total = frame.lending, 0
        assert lending is not None
        texts: list[tuple[Envelope, int, memoryview]] = []
        with critical.section, self._lock:
            for number, size in lending.slabs:
                self._map(number, size)
            self._drain()
            for envelope in frame.envelopes:
                lent = lending.lent.get(envelope.number)
                if lent:
                    buffers = list(envelope.buffers)
                    for part, each in lent.items():
                        view = self._own(each) if each.slab == OWN else self._view(each)
                        if part < FIRST_BUFFER:
                            texts.append((envelope, part, view))
                        else:
                            buffers[part - FIRST_BUFFER] = view
                        total += each.size
                    envelope.buffers = buffers
            self.untold += total
            for number in lending.dropped:
                if self._mapped.pop(number, None) is None:
                    raise DecodeError(f"slab {number} is dropped, and was never named")
        for envelope, part, view in texts:  # copies: bytes read twice must not change in between
            if part == 0:
                envelope.document = bytes(view)
            else:
                envelope.externals = bytes(view)
        return total

    @property
    def due(self) -> bool:
        """True if there is so much to tell that it should not wait."""
        if not self.freed.empty():
            with critical.section, self._lock:
                self._drain()
        return self.untold >= RETURN_BYTES

    def returned(self) -> list[int]:
        """Returns the loans to give back with the frame that is written now."""
        with critical.section, self._lock:
            self._drain()
            now, self._returned = self._returned[:MOST_RETURNS], self._returned[MOST_RETURNS:]
            self.untold = len(self._returned)  # the rest goes with the next frame
            return now

    def whole(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Returns the exporter of a part that the peer has lent, if an array takes all of it."""
        below: object = array if self._out else None
        while isinstance(below, (np.ndarray, memoryview)):
            watch = self._exporters.get(id(below))
            if watch is not None and watch() is below:
                lent: Lent = watch.what
                fits = lent.size == array.nbytes and lent.slab < FIRST_HANDLE
                return watch() if fits else None
            below = below.base if isinstance(below, np.ndarray) else below.obj
        return None

    def holders(self, buffer: Buffer) -> list[np.ndarray[Any, Any]]:
        """Returns the exporter of which a buffer has all bytes, in a list for `take_over`."""
        octets: object = buffer.obj if type(buffer) is memoryview else None
        exporter = self.whole(octets) if isinstance(octets, np.ndarray) else None
        return [] if exporter is None else [exporter]

    def take_over(self, holders: list[np.ndarray[Any, Any]]) -> memoryview | None:
        """Lets go of an exporter; takes its bytes over, if nothing else refers to it by then.

        Args:
            holders: The exporter, and nothing else; removed if it is taken over.

        Returns:
            The bytes, to which nobody here writes any more, for `gives`; None where somebody may.
        """
        with critical.section, self._lock:  # under it no loan that ends is told to the peer
            watch = self._exporters[id(holders[0])]
            lent: Lent = watch.what
            slab = self._mapped.get(lent.slab)
            # A hostile peer may have dropped that slab, and given its number to a smaller one.
            if slab is None or lent.offset + lent.size > len(slab):
                return None
            holders.clear()
            if (exporter := watch()) is not None:
                holders.append(exporter)
                return None
            self._drain()
            self._returned.remove(lent.loan)
            self.untold -= lent.size
            return self._export(lent, slab, given=True)

    def is_given(self, buffer: memoryview) -> bool:
        """Returns True if `take_over` returned this buffer."""
        exporter: object = buffer.obj
        watch = self._exporters.get(id(exporter))
        return watch is not None and watch.given and watch() is exporter

    def gives(self, buffer: memoryview) -> Lent | None:
        """Gives the peer back a part that was taken over, with its bytes; None for others."""
        exporter: object = buffer.obj
        with critical.section, self._lock:
            watch = self._exporters.get(id(exporter))
            if watch is None or watch() is not exporter or not watch.given:
                return None
            lent: Lent = watch.what
            self._forget(watch)
            return Lent(lent.loan, OWN, 0, lent.size)

    def close(self) -> None:
        """Maps nothing any more; arrays that are lent live on, as memory of their holders."""
        with critical.section, self._lock:
            self._mapped.clear()

    def _map(self, number: int, size: int) -> None:
        descriptor = self._descriptor()
        if descriptor is None:
            raise DecodeError(f"slab {number} came without its descriptor")
        try:
            known = number == OWN or number in self._mapped
            if known or len(self._mapped) >= MOST_SLABS:
                raise DecodeError(f"slab {number} once more, or more than {MOST_SLABS}")
            self._mapped[number] = SharedMemory.of(descriptor, size)
        except OSError as error:
            raise CarrierClosedError(f"a slab of {size} bytes cannot be mapped: {error}") from error
        except ValueError as error:
            raise DecodeError(f"slab {number} of {size} bytes is none: {error}") from error
        finally:
            os.close(descriptor)

    def _view(self, lent: Lent) -> memoryview:
        slab = self._mapped.get(lent.slab)
        if slab is None:
            raise DecodeError(f"slab {lent.slab} was never named")
        if lent.loan in self._out or not 0 <= lent.offset <= len(slab) - lent.size:
            raise DecodeError(
                f"loan {lent.loan} of {lent.size} bytes at {lent.offset} of a slab of {len(slab)}"
            )
        view = self._export(lent, slab)
        return view if self._out_bytes <= self._bounds.lent // 2 else view.toreadonly()

    def _export(self, lent: Lent, slab: SharedMemory, *, given: bool = False) -> memoryview:
        exporter = np.frombuffer(slab, np.uint8, lent.size, lent.offset)
        watch = Watch(exporter, self.freed, lent)
        watch.given = given
        self._out[lent.loan] = self._exporters[watch.key] = watch
        self._out_bytes += lent.size
        return exporter.data

    def _forget(self, watch: Watch) -> None:
        """Forgets a loan: nothing here refers to it any more, or it goes back with its bytes."""
        lent: Lent = watch.what
        del self._out[lent.loan]
        if self._exporters.get(watch.key) is watch:  # not of a later one in the same place
            del self._exporters[watch.key]
        self._out_bytes -= lent.size

    def _drain(self) -> None:
        while not self.freed.empty():
            watch = self.freed.get()
            self._forget(watch)
            self._returned.append(watch.what.loan)
            self.untold += watch.what.size
