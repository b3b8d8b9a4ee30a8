"""Memory that processes of one host share, without a name: whoever holds its descriptor maps it.

It lives as long as anybody maps it or holds its descriptor, and no longer, whatever kills a process.
It is sealed: nobody can take away, by making it shorter, what another one has mapped.
"""

from __future__ import annotations

import math
import os
from mmap import mmap
from typing import Any, Self, final

import numpy as np

from telegrad.types import DTypeLike, Shape

try:
    import fcntl
except ImportError:  # not a Unix
    HAS_MEMFD = False
else:
    HAS_MEMFD = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")

__all__ = ["SharedMemory", "can_share", "shared_below", "shared_empty"]

NAME = "telegrad"  # in /proc/PID/maps, for people


def can_share() -> bool:
    """Tells whether this system has such memory."""
    if not HAS_MEMFD:
        return False
    try:
        SharedMemory.make(1).close()
    except OSError:  # forbidden to this process, for instance
        return False
    return True


@final
class SharedMemory(mmap):
    """A mapping of shared memory; what is made over it keeps it.

    It is unmapped when the last view of it is freed.

    Attributes:
        descriptor: What stands for the memory, of whoever made it; -1 where there is none.
        travels: Whether arrays in it are sent as they are.

    >>> memory = SharedMemory.make(4096)
    >>> again = SharedMemory.of(memory.descriptor, 4096)
    >>> memory[:2] = b"hi"
    >>> again[:2]
    b'hi'
    """

    descriptor: int = -1
    travels: bool = False

    @classmethod
    def make(cls, size: int) -> Self:
        """Makes memory of so many bytes, all zero; those take room when they are first used.

        Raises:
            OSError: There is no such memory here, or no descriptor left.
        """
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals())
            memory = cls(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        memory.descriptor = descriptor
        return memory

    @classmethod
    def of(cls, descriptor: int, size: int) -> Self:
        """Maps what another process made; the descriptor remains the caller's.

        Raises:
            ValueError: It is something else, of another size, or not sealed.
            OSError: This process has no room for it.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            found = os.fstat(descriptor).st_size
        except OSError as error:
            raise ValueError(f"no memory that can be shared: {error}") from error
        if seals != _seals() or found != size or not size:
            raise ValueError(f"memory of {found} bytes, with the seals {seals:#x}, for {size}")
        return cls(descriptor, size)

    def take_descriptor(self) -> int:
        """Returns what stands for it, once: it is the caller's to close from now on."""
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def close_descriptor(self) -> None:
        """Closes what stands for it; nobody gets it any more. Idempotent."""
        if (descriptor := self.take_descriptor()) >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Leaves no descriptor behind."""
        self.close_descriptor()


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def shared_empty(shape: Shape | int, dtype: DTypeLike = np.float64) -> np.ndarray[Any, Any]:
    """Makes an array that workers of this host get without a copy; its items are zero.

    Where it, or a contiguous part of it, is sent to a worker of the same host and has more than 64 KiB,
    the worker's array is the same memory: each of both sees what the other one writes, from the call on
    and for as long as both have it; who waits for whom is the program's affair. Everyone else gets a
    copy, as of any array: workers of other hosts, those reached otherwise than over the local transport,
    and who gets the same message with others.

    Args:
        shape: Of the array.
        dtype: Of its items; no Python objects.

    Raises:
        ValueError: The items are Python objects.
        OSError: This system has no such memory, or no descriptor left; it takes two.

    >>> array = shared_empty((2, 3), np.int32)
    >>> array[1] = 7
    >>> array.tolist()
    [[0, 0, 0], [7, 7, 7]]
    """
    item = np.dtype(dtype)
    if item.hasobject:
        raise ValueError(f"items of dtype {item} cannot be shared; use a dtype of numbers")
    if not HAS_MEMFD:
        raise OSError("this system has no memory that can be shared; use numpy.empty")
    size = math.prod((shape,) if isinstance(shape, int) else shape) * item.itemsize
    memory = SharedMemory.make(max(1, size))
    memory.travels = True
    return np.ndarray(shape, item, np.frombuffer(memory, np.uint8, size))


def shared_below(view: np.ndarray[Any, Any] | memoryview) -> SharedMemory | None:
    """Returns the memory of an array that was made by `shared_empty`, or of a view of it.

    >>> shared_below(shared_empty(8)[2:5].reshape(1, 3)) is None
    False
    >>> shared_below(np.zeros(3))
    """
    below: object = view
    while isinstance(below, (np.ndarray, memoryview)):
        below = below.base if isinstance(below, np.ndarray) else below.obj
    return below if isinstance(below, SharedMemory) and below.travels else None
