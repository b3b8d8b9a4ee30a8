"""Copies between a GPU and host memory by way of pinned memory, piece by piece, two under way.

    to the host     GPU ─▶ A │ B ─▶ host     the GPU fills the one while this thread empties the other
    to the GPU      host ─▶ A │ B ─▶ GPU     this thread fills the one while the GPU empties the other

A GPU reads and writes pinned memory by itself, without a thread and without a copy by the driver. Of it
little is to be had, and pinning takes long: A and B are from CuPy's pool, which keeps them for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from telegrad.types import Array

__all__ = ["STAGED_BYTES", "fill_from_gpu", "fill_gpu"]

# Not measured: no GPU was to be had. Big enough that starting a transfer, some 10 us, does not count
# (4 MiB take about 200 us over PCIe 4), small enough that the first and last one, which overlap with
# nothing, do not either.
PIECE_BYTES = 4 * 2**20
# From here on there are two pieces; of one, nothing overlaps.
STAGED_BYTES = PIECE_BYTES + 1

Octets = np.ndarray[Any, np.dtype[np.uint8]]


@final
@dataclass(slots=True)
class _Place:
    """Pinned memory for one piece.

    Attributes:
        memory: CuPy's; its `ptr` is the address.
        octets: The same, for NumPy.
        done: Comes after the last transfer from here or to here.
    """

    memory: Any
    octets: Octets
    done: Any

    @classmethod
    def make(cls, cupy: Any) -> _Place:
        memory = cupy.cuda.alloc_pinned_memory(PIECE_BYTES)
        octets = np.frombuffer(memory, np.uint8, PIECE_BYTES)
        return cls(memory, octets, cupy.cuda.Event(disable_timing=True))


def _pieces(places: tuple[_Place, _Place], size: int) -> Iterator[tuple[_Place, slice]]:
    """Yields where each stretch of so many bytes is staged: at one place, at the other, and so on."""
    for i, start in enumerate(range(0, size, PIECE_BYTES)):
        yield places[i % 2], slice(start, min(start + PIECE_BYTES, size))


def fill_from_gpu(octets: Octets, array: Array, cupy: Any) -> None:
    """Copies an array's bytes to host memory, in the current stream, which is waited for.

    Args:
        octets: Where to; as many bytes.
        array: CuPy's, C-contiguous.
        cupy: The module.
    """
    source: Any = array
    pending: tuple[_Place, slice] | None = None
    with cupy.cuda.Device(source.device.id):
        stream = cupy.cuda.get_current_stream()
        kind = cupy.cuda.runtime.memcpyDeviceToHost
        places = _Place.make(cupy), _Place.make(cupy)  # kept until all has been waited for
        try:
            for place, part in _pieces(places, source.nbytes):
                start, size = source.data.ptr + part.start, part.stop - part.start
                cupy.cuda.runtime.memcpyAsync(place.memory.ptr, start, size, kind, stream.ptr)
                place.done.record(stream)
                _empty(pending, octets)
                pending = place, part
            _empty(pending, octets)
        finally:  # an error, too, leaves no transfer to memory that somebody else gets next
            stream.synchronize()


def _empty(pending: tuple[_Place, slice] | None, octets: Octets) -> None:
    if pending is not None:
        place, part = pending
        place.done.synchronize()
        np.copyto(octets[part], place.octets[: part.stop - part.start])


def fill_gpu(array: Array, octets: Octets, cupy: Any) -> None:
    """Copies bytes of host memory to an array, in the current stream, which is waited for.

    Args:
        array: CuPy's, contiguous, of as many bytes.
        octets: Where from.
        cupy: The module.
    """
    target: Any = array
    with cupy.cuda.Device(target.device.id):
        stream = cupy.cuda.get_current_stream()
        kind = cupy.cuda.runtime.memcpyHostToDevice
        places = _Place.make(cupy), _Place.make(cupy)
        try:
            for i, (place, part) in enumerate(_pieces(places, target.nbytes)):
                if i > 1:
                    place.done.synchronize()  # the GPU may still read what was here before
                start, size = target.data.ptr + part.start, part.stop - part.start
                np.copyto(place.octets[:size], octets[part])
                cupy.cuda.runtime.memcpyAsync(start, place.memory.ptr, size, kind, stream.ptr)
                place.done.record(stream)
        finally:
            stream.synchronize()
