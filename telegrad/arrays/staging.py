"""Copies between GPU and host by way of pinned memory, which a GPU reads and writes by itself.

    shared memory   GPU ◀─────▶ host         the memory is registered with CUDA once, and so pinned
    to the host     GPU ─▶ A │ B ─▶ host     the GPU fills one while this thread empties the other
    to the GPU      host ─▶ A │ B ─▶ GPU     this thread fills one while the GPU empties the other

Pinned memory is scarce and pinning takes long. A and B therefore come from CuPy's pool, which keeps
them for the next copy; small arrays need A alone. Shared memory is used again and again, for which
registering it pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from telegrad.arrays.shared import memory_below
from telegrad.types import Array

# Pieces of 0.5 to 16 MiB took the same time on an NVIDIA H200, within a tenth (64 MiB in 5.7 to 6.9
# ms each way). A piece is big enough to hide the start of a transfer, some 10 us, and small enough
# that the first and the last transfer, which overlap with nothing, cost little.
PIECE_BYTES = 4 * 2**20

Octets = np.ndarray[Any, np.dtype[np.uint8]]


@final
@dataclass(slots=True)
class _Place:
    """Pinned memory for one piece.

    Attributes:
        memory: CuPy's pinned memory; its `ptr` is the address.
        octets: The same memory as a NumPy array of bytes.
        done: A CUDA event, recorded after the last transfer that used this memory.
    """

    memory: Any
    octets: Octets
    done: Any

    @classmethod
    def make(cls, cupy: Any, size: int) -> _Place:
        memory = cupy.cuda.alloc_pinned_memory(size)
        octets = np.frombuffer(memory, np.uint8, size)
        return cls(memory, octets, cupy.cuda.Event(disable_timing=True))


def _places(size: int, cupy: Any) -> list[_Place]:
    """Returns two places for pieces; or one for all bytes, of one of few sizes for CuPy's pool."""
    if size > PIECE_BYTES:
        return [_Place.make(cupy, PIECE_BYTES) for _ in range(2)]
    return [_Place.make(cupy, 1 << (size - 1).bit_length())]


def _pieces(places: list[_Place], size: int) -> Iterator[tuple[_Place, slice]]:
    """Yields each slice of `size` bytes with its place; two places take turns."""
    for i, start in enumerate(range(0, size, PIECE_BYTES)):
        yield places[i % len(places)], slice(start, min(start + PIECE_BYTES, size))


def _is_pinned(octets: Octets, cupy: Any) -> bool:
    """Returns True if the bytes lie in shared memory that CUDA has registered."""
    memory = memory_below(octets)
    return memory is not None and memory.pin(cupy.cuda.runtime)


def fill_from_gpu(octets: Octets, array: Array, cupy: Any) -> None:
    """Copies an array's bytes to host memory in the current stream and waits for that stream.

    Args:
        octets: The target, with as many bytes as `array` has, one or more.
        array: A C-contiguous CuPy array of the current device.
        cupy: The module `cupy`.
    """
    source: Any = array
    pending: tuple[_Place, slice] | None = None
    stream = cupy.cuda.get_current_stream()
    copy, kind = cupy.cuda.runtime.memcpyAsync, cupy.cuda.runtime.memcpyDeviceToHost
    try:
        if _is_pinned(octets, cupy):
            copy(octets.ctypes.data, source.data.ptr, source.nbytes, kind, stream.ptr)
            return
        places = _places(source.nbytes, cupy)  # kept until the stream has finished
        for place, part in _pieces(places, source.nbytes):
            start, size = source.data.ptr + part.start, part.stop - part.start
            copy(place.memory.ptr, start, size, kind, stream.ptr)
            place.done.record(stream)
            if pending is not None:
                pending[0].done.synchronize()
                _empty(*pending, octets)
            pending = place, part
    finally:  # after an error, too: no transfer may outlive its pinned memory
        stream.synchronize()
    if pending is not None:
        _empty(*pending, octets)


def _empty(place: _Place, part: slice, octets: Octets) -> None:
    np.copyto(octets[part], place.octets[: part.stop - part.start])


def fill_gpu(array: Array, octets: Octets, cupy: Any) -> None:
    """Copies bytes of host memory to an array in the current stream and waits for that stream.

    Args:
        array: A contiguous CuPy array of the current device, with as many bytes as `octets` has,
            one or more.
        octets: The source.
        cupy: The module `cupy`.
    """
    target: Any = array
    stream = cupy.cuda.get_current_stream()
    copy, kind = cupy.cuda.runtime.memcpyAsync, cupy.cuda.runtime.memcpyHostToDevice
    try:
        if _is_pinned(octets, cupy):
            copy(target.data.ptr, octets.ctypes.data, target.nbytes, kind, stream.ptr)
            return
        places = _places(target.nbytes, cupy)
        for i, (place, part) in enumerate(_pieces(places, target.nbytes)):
            if i > 1:
                place.done.synchronize()  # the GPU may still read the previous piece
            start, size = target.data.ptr + part.start, part.stop - part.start
            np.copyto(place.octets[:size], octets[part])
            copy(start, place.memory.ptr, size, kind, stream.ptr)
            place.done.record(stream)
    finally:
        stream.synchronize()
