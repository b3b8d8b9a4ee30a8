"""What a peer has lent: its slabs, as they are mapped here, and the arrays that live in them.

A loan is given back when the last view of it is freed. For that each has an exporter of its own, to
which NumPy's arrays and memoryviews all lead. Its finaliser, which may run anywhere and at any time,
only puts it into a queue.
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
from telegrad.errors import DecodeError
from telegrad.transport.base import CarrierClosedError
from telegrad.transport.slab_ledger import Bounds
from telegrad.wire import Frame, Lent

__all__ = ["RETURN_BYTES", "Loans", "Watch"]

# What is given back, or came and has no receipt, waits for the next frame, that of a heartbeat at the
# latest; so much is told at once.
RETURN_BYTES = 128 * 2**20
MOST_RETURNS = 4096  # of one frame, which has a bound; the rest goes with the next
MOST_SLABS = 256  # of one peer; our own make 64


@final
class Watch(weakref.ref[np.ndarray[Any, Any]]):
    """A weak reference that knows what its exporter stands for, and goes into a queue with it.

    Args:
        exporter: Over some memory.
        freed: Gets this when nothing refers to the exporter any more, from any thread.
        what: It stands for.
    """

    __slots__ = ("key", "what")
    key: int  # the exporter's id
    what: Any

    def __new__(
        cls, exporter: np.ndarray[Any, Any], freed: queue.SimpleQueue[Watch], what: object
    ) -> Self:
        """Makes one."""
        self = super().__new__(cls, exporter, freed.put)
        self.key = id(exporter)
        self.what = what
        return self

    def __init__(self, exporter: object, freed: object, what: object) -> None:
        """Does nothing more."""


@final
class Loans:
    """The receiving end of one stream; any thread.

    Attributes:
        untold: Bytes that came, or were given back, since the last frame was written.
        freed: What is to be given back, and was not looked at yet.

    Args:
        descriptor: Returns the next one that came with the stream, to be closed here; None if there
            is none.
        bounds: What the peer keeps to, if it is as this one.
    """

    def __init__(self, descriptor: Callable[[], int | None], bounds: Bounds) -> None:
        self._descriptor = descriptor
        self._bounds = bounds
        self._lock = threading.Lock()  # guards the next five
        self._mapped: dict[int, SharedMemory] = {}
        self._out: dict[int, Watch] = {}  # by loan
        self._out_bytes = 0
        self._returned: list[int] = []
        self.untold = 0
        self.freed: queue.SimpleQueue[Watch] = queue.SimpleQueue()

    def take(self, frame: Frame) -> int:
        """Puts what is lent in its place in the envelopes of a frame; returns how many bytes.

        Where the peer has lent much already a buffer is read-only: it has to be copied by whoever
        wants to keep it.

        Raises:
            DecodeError: What the frame says cannot be.
            CarrierClosedError: This process has no room for more mappings.
        """
        lending, total = frame.lending, 0
        assert lending is not None
        with self._lock:
            for number, size in lending.slabs:
                self._map(number, size)
            self._drain()
            for envelope in frame.envelopes:
                lent = lending.lent.get(envelope.number)
                if lent:
                    buffers = list(envelope.buffers)
                    for part, each in lent.items():
                        buffers[part - 2] = self._view(each)
                        total += each.size
                    envelope.buffers = buffers
            self.untold += total
            for number in lending.dropped:
                if self._mapped.pop(number, None) is None:
                    raise DecodeError(f"slab {number} is dropped, and was never named")
        return total

    @property
    def due(self) -> bool:
        """Whether so much is to be told that it should not wait."""
        if not self.freed.empty():
            with self._lock:
                self._drain()
        return self.untold >= RETURN_BYTES

    def returned(self) -> list[int]:
        """Returns the loans to give back with the frame that is written now."""
        with self._lock:
            self._drain()
            now, self._returned = self._returned[:MOST_RETURNS], self._returned[MOST_RETURNS:]
            self.untold = len(self._returned)  # what is left goes with the next frame
            return now

    def close(self) -> None:
        """Maps nothing any more; what is lent lives on, as memory of whoever has it."""
        with self._lock:
            self._mapped.clear()

    def _map(self, number: int, size: int) -> None:
        descriptor = self._descriptor()
        if descriptor is None:
            raise DecodeError(f"slab {number} came without its descriptor")
        try:
            if number in self._mapped or len(self._mapped) >= MOST_SLABS:
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
        exporter = np.frombuffer(slab, np.uint8, lent.size, lent.offset)
        self._out[lent.loan] = Watch(exporter, self.freed, lent)
        self._out_bytes += lent.size
        view = exporter.data
        return view if self._out_bytes <= self._bounds.lent // 2 else view.toreadonly()

    def _drain(self) -> None:
        while not self.freed.empty():
            lent: Lent = self.freed.get().what
            del self._out[lent.loan]
            self._out_bytes -= lent.size
            self._returned.append(lent.loan)
            self.untold += lent.size
