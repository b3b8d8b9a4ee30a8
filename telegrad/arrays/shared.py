"""Unnamed memory that processes of one host share by passing its file descriptor (memfd).

The memory lives as long as a process maps it or holds its descriptor. It goes away with the last
of them, even if a process is killed. It is sealed, so that no process can shrink it under another
process that has mapped it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from functools import partial
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

NAME = "telegrad"  # shown in /proc/PID/maps, for people
PORTABLE = 1  # cudaHostRegisterPortable: pinned for all GPUs
ALREADY = "AlreadyRegistered"


def can_share() -> bool:
    """Returns True if this system supports such memory."""
    if not HAS_MEMFD:
        return False
    try:
        SharedMemory.make(1).close()
    except OSError:  # for instance, this process is forbidden to make one
        return False
    return True


@final
class SharedMemory(mmap):
    """A mapping of shared memory, which the arrays made over it keep alive.

    The memory is unmapped when the last view of it is freed.

    Attributes:
        descriptor: The file descriptor of the memory, in the process that made it; -1 without one.
        travels: True if arrays in this memory are sent to local workers without a copy.
        copied: True if that is for collectives alone, and what a program sends is copied.

    >>> memory = SharedMemory.make(4096)
    >>> again = SharedMemory.of(memory.descriptor, 4096)
    >>> memory[:2] = b"hi"
    >>> again[:2]
    b'hi'
    """

    descriptor: int = -1
    travels: bool = False
    copied: bool = False
    _unpin: Callable[[], None] | None = None
    _pinnable: bool = True

    @classmethod
    def make(cls, size: int) -> Self:
        """Makes `size` bytes of memory, all zero; a page takes RAM when it is first used.

        Raises:
            OSError: The system has no memfd, or no file descriptor is left.
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
        """Maps memory that another process made; the caller keeps the descriptor.

        Raises:
            ValueError: The descriptor is not such memory, or its size or its seals are different.
            OSError: This process has no address space left for it.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            found = os.fstat(descriptor).st_size
        except OSError as error:
            raise ValueError(f"not memory that can be shared: {error}") from error
        if seals != _seals() or found != size or not size:
            raise ValueError(f"got memory of {found} bytes with the seals {seals:#x}, not {size}")
        return cls(descriptor, size)

    def take_descriptor(self) -> int:
        """Hands the descriptor over to the caller, which must close it; later calls return -1."""
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def close_descriptor(self) -> None:
        """Closes the descriptor, so that no further process can get it; idempotent."""
        if (descriptor := self.take_descriptor()) >= 0:
            os.close(descriptor)

    def pin(self, runtime: Any) -> bool:
        """Registers the memory with CUDA, so that GPUs copy to and from it by themselves.

        The first call takes long, as it locks all pages in RAM. The memory is registered until it
        is unmapped.

        Args:
            runtime: The module `cupy.cuda.runtime`.

        Returns:
            True if the memory is registered; False if CUDA cannot register it.
        """
        if self._unpin is None and self._pinnable:
            address = np.frombuffer(self, np.uint8).ctypes.data
            try:
                runtime.hostRegister(address, len(self), PORTABLE)
                self._unpin = partial(runtime.hostUnregister, address)
            except RuntimeError as error:
                if ALREADY not in str(error):  # another thread does it at the same time
                    self._pinnable = False
        return self._pinnable

    def __del__(self) -> None:
        """Closes the descriptor, and ends the registration with CUDA."""
        self.close_descriptor()
        if self._unpin is not None:
            with contextlib.suppress(Exception):  # CUDA may be gone before this
                self._unpin()


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def shared_empty(shape: Shape | int, dtype: DTypeLike = np.float64) -> np.ndarray[Any, Any]:
    """Returns a new array, all zero, that workers of this host receive without a copy.

    The array, or a contiguous part of it, is shared if it is larger than 64 KiB and is sent to a
    worker of the same host over the local transport. The receiver's array is then the same memory.
    Each of the two workers sees the other's writes, from the call on and as long as both have it;
    the program must order these accesses itself. All other receivers get a copy, as of any array:
    workers of other hosts, workers reached over another transport, and workers that get the same
    message together with others.

    Args:
        shape: The shape of the array.
        dtype: The dtype of its items; Python objects are not allowed.

    Raises:
        ValueError: The items are Python objects.
        OSError: This system has no such memory, or fewer than two file descriptors are left.

    >>> array = shared_empty((2, 3), np.int32)
    >>> array[1] = 7
    >>> array.tolist()
    [[0, 0, 0], [7, 7, 7]]
    """
    item = np.dtype(dtype)
    if item.hasobject:
        raise ValueError(f"items of dtype {item} cannot be shared; use a dtype of numbers")
    if not HAS_MEMFD:
        raise OSError("this system does not support shared memory; use numpy.empty")
    size = math.prod((shape,) if isinstance(shape, int) else shape) * item.itemsize
    memory = SharedMemory.make(max(1, size))
    memory.travels = True
    return np.ndarray(shape, item, np.frombuffer(memory, np.uint8, size))


def shared_below(view: np.ndarray[Any, Any] | memoryview) -> SharedMemory | None:
    """Returns the memory below an array of `shared_empty` or below a view of it, else None.

    >>> shared_below(shared_empty(8)[2:5].reshape(1, 3)) is None
    False
    >>> shared_below(np.zeros(3))
    """
    memory = memory_below(view)
    return memory if memory is not None and memory.travels else None


def memory_below(view: np.ndarray[Any, Any] | memoryview) -> SharedMemory | None:
    """Returns the shared memory below an array, of this process or of another one; else None."""
    below: object = view
    while isinstance(below, (np.ndarray, memoryview)):
        below = below.base if isinstance(below, np.ndarray) else below.obj
    return below if isinstance(below, SharedMemory) else None
