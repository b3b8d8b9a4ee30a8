"""Memory of the stand-in for CuPy: of its devices, shared between processes; and pinned memory.

It is as strict as CUDA's documentation. A handle stands for a whole allocation. Other processes alone
open it, and not after the process that made it has ended or freed the memory. An allocation that is
opened twice is one mapping with a count. Copies that are not waited for go to pinned memory and from
it. Freed memory is overwritten, so that whoever reads it all the same gets garbage.

    STAND_IN_IPC=no-export    memory cannot be shared, as on a Tegra
    STAND_IN_IPC=no-import    what others share cannot be opened, as in another container
    STAND_IN_IPC=garbage      it can, and is something else
    STAND_IN_PIN=refused      memory of the program cannot be registered
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "DEVICE",
    "MemoryPointer",
    "OutOfMemoryError",
    "UnownedMemory",
    "alloc_pinned_memory",
    "allocated",
    "finish",
    "full_after",
    "is_pinned",
    "memory_at",
    "published",
    "queued",
    "registered",
    "rest_of",
    "runtime",
    "take_memory",
    "unreadable",
]

HANDLE = struct.Struct("=qqqq32s")  # process, descriptor, size, serial number; 64 bytes
FREED = 0xDD
DEVICE = 2  # CUDA's type of memory of devices; that of host memory is 0
_SERIALS = itertools.count(1)
# Reentrant: a collection of garbage frees memory wherever it happens, in blocks of this lock too.
_LOCK = threading.RLock()


class CudaError(RuntimeError):
    """As CuPy's: the name of the error, and words."""


class OutOfMemoryError(MemoryError):
    """As CuPy's, which is made of numbers and not of its words."""

    def __init__(self, size: int, total: int) -> None:
        words = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes)."
        super().__init__(words)


_LEFT: list[int] = []  # arrays for which a device has memory left; empty: for any number
_UNREADABLE: dict[int, int] = {}  # CUDA's types of memory, by addresses


@contextmanager
def full_after(arrays: int) -> Iterator[None]:
    """Lets devices have memory for so many further arrays inside a block, in all threads."""
    _LEFT.append(arrays)
    try:
        yield
    finally:
        _LEFT.clear()


def take_memory() -> None:
    """Takes the memory of one array."""
    if _LEFT:
        _LEFT[0] -= 1
        if _LEFT[0] < 0:
            raise OutOfMemoryError(512, 0)


@contextmanager
def unreadable(pointer: int, kind: int) -> Iterator[None]:
    """Lets the current device read nothing at an address of a CUDA memory type, inside a block."""
    _UNREADABLE[pointer] = kind
    try:
        yield
    finally:
        del _UNREADABLE[pointer]


@dataclass(slots=True)
class _Allocation:
    memory: mmap.mmap
    octets: Any  # keeps it mapped
    descriptor: int
    handle: bytes = b""
    count: int = 1


_OWN: dict[int, _Allocation] = {}  # by their addresses
_OPENED: dict[int, _Allocation] = {}
_COPIES = threading.local()
# An array, its device and its memory, by the address. It keeps neither: memory whose last array is
# gone goes back to the pool at once, and is judged then.
_PUBLISHED: dict[int, tuple[Callable[[], Any], int, Callable[[], Any]]] = {}
_NOTHING = (lambda: None), -1, (lambda: None)
_WHOLE: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their addresses
MOST_PUBLISHED = 1000
_PINNED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_REGISTERED: dict[int, int] = {}  # bytes by their addresses


def allocated() -> tuple[int, int]:
    """How many allocations this process has, and how many of others it has open."""
    return len(_OWN), len(_OPENED)


def _address(octets: Any) -> int:
    there: int = octets.__array_interface__["data"][0]
    return there


def published(array: Any, number: int, memory: Any) -> int:
    """Returns the address of an array, by which `memory_at` finds it."""
    pointer = _address(array)
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    with _LOCK:
        _WHOLE[_address(whole)] = whole
        _PUBLISHED[pointer] = weakref.ref(array), number, weakref.ref(memory)
        if len(_PUBLISHED) > MOST_PUBLISHED:
            for old in [p for p, (reference, _, _) in _PUBLISHED.items() if reference() is None]:
                del _PUBLISHED[old]
    return pointer


def memory_at(pointer: int) -> tuple[Any, int, Any]:
    """Returns the array whose address was asked for last, its device, and its memory."""
    with _LOCK:
        array_of, number, memory_of = _PUBLISHED.get(pointer, _NOTHING)
    array, memory = array_of(), memory_of()
    if array is None or memory is None:
        raise AssertionError("a pointer to no memory of a device")
    return array, number, memory


def rest_of(place: int) -> tuple[int, int]:
    """Returns the bytes from a place in an array to its end, and those of an item."""
    with _LOCK:
        found = list(_WHOLE.items())
    for pointer, array in found:
        if pointer <= place < pointer + array.nbytes:
            return pointer + array.nbytes - place, array.itemsize
    raise AssertionError(f"{place:#x} is in no array whose address was asked for")


def malloc(size: int) -> int:
    descriptor = os.memfd_create("stand-in-gpu", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    memory = mmap.mmap(descriptor, size)
    octets = np.frombuffer(memory, np.uint8)
    with _LOCK:
        _OWN[_address(octets)] = _Allocation(memory, octets, descriptor)
    return _address(octets)


def free(pointer: int) -> None:
    with _LOCK:
        allocation = _OWN.pop(pointer, None)
    if allocation is None:
        raise CudaError("cudaErrorInvalidValue: invalid argument")
    allocation.octets[:] = FREED
    os.close(allocation.descriptor)


def ipc_get_mem_handle(pointer: int) -> bytes:
    if os.environ.get("STAND_IN_IPC") == "no-export":
        raise CudaError("cudaErrorNotSupported: operation not supported")
    with _LOCK:
        allocation = _OWN.get(pointer)  # CUDA takes others for their base; nobody should rely on it
        if allocation is None:
            raise CudaError("cudaErrorInvalidValue: invalid argument")
        if not allocation.handle:
            size = len(allocation.memory)
            numbers = os.getpid(), allocation.descriptor, size, next(_SERIALS)
            allocation.handle = HANDLE.pack(*numbers, b"")
        return allocation.handle


def ipc_open_mem_handle(handle: bytes) -> int:
    process, descriptor, size, _, _ = HANDLE.unpack(handle)
    kind = os.environ.get("STAND_IN_IPC")
    if process == os.getpid() or kind == "no-import":
        raise CudaError("cudaErrorInvalidResourceHandle: invalid resource handle")
    with _LOCK:
        for pointer, opened in _OPENED.items():
            if opened.handle == handle:
                opened.count += 1
                return pointer
        try:
            there = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        except OSError as error:
            raise CudaError("cudaErrorMapBufferObjectFailed: mapping failed") from error
        memory = mmap.mmap(there, size)
        os.close(there)
        if kind == "garbage":
            memory = mmap.mmap(-1, size)
        octets = np.frombuffer(memory, np.uint8)
        _OPENED[_address(octets)] = _Allocation(memory, octets, -1, handle)
        return _address(octets)


def ipc_close_mem_handle(pointer: int) -> None:
    with _LOCK:
        opened = _OPENED.get(pointer)
        if opened is None:
            raise CudaError("cudaErrorInvalidValue: invalid argument")
        opened.count -= 1
        if not opened.count:
            del _OPENED[pointer]


def memcpy_async(target: int, source: int, size: int, kind: int, stream: int) -> None:
    host, there = {1: (source, target), 2: (target, source)}[kind]
    if not is_pinned(host, size):
        raise AssertionError("a copy that is not waited for, of memory that is not pinned")
    with _LOCK:
        array_of, _, memory_of = _PUBLISHED.get(there, _NOTHING)
    if array_of() is not None and (memory := memory_of()) is not None:
        memory.read() if kind == 2 else memory.write()
    _queue().append((target, source, size))


def host_register(pointer: int, size: int, flags: int) -> None:
    if os.environ.get("STAND_IN_PIN") == "refused":
        raise CudaError("cudaErrorNotSupported: operation not supported")
    with _LOCK:
        if any(
            pointer < start + n and start < pointer + size
            for start, n in _REGISTERED.copy().items()
        ):
            raise CudaError("cudaErrorHostMemoryAlreadyRegistered: part or all of the memory")
        _REGISTERED[pointer] = size


def host_unregister(pointer: int) -> None:
    with _LOCK:
        if _REGISTERED.pop(pointer, None) is None:
            raise CudaError("cudaErrorHostMemoryNotRegistered: pointer does not correspond to one")


def registered() -> int:
    """Returns the number of registered pieces of the program's memory."""
    return len(_REGISTERED)


def _queue() -> list[tuple[int, int, int]]:
    """The copies of this thread that nobody has waited for: they are done as late as may be."""
    queue: list[tuple[int, int, int]] | None = getattr(_COPIES, "queue", None)
    if queue is None:
        queue = _COPIES.queue = []
        _COPIES.done = 0
    return queue


def queued() -> int:
    """How many copies this thread has begun so far."""
    return len(_queue()) + int(_COPIES.done)


def finish(copies: int) -> None:
    """Does the first so many of them."""
    queue = _queue()
    while queue and _COPIES.done < copies:
        ctypes.memmove(*queue.pop(0))
        _COPIES.done += 1


def alloc_pinned_memory(size: int) -> Any:
    """Returns what has CuPy's `ptr` and can be read by NumPy."""
    pinned = _Pinned(np.empty(size, np.uint8))
    with _LOCK:
        _PINNED[pinned.ptr] = pinned
    return pinned


class _Pinned(np.ndarray):
    """Bytes, with their address."""

    def __new__(cls, octets: Any) -> _Pinned:
        return octets.view(cls)  # type: ignore[no-any-return]

    @property
    def ptr(self) -> int:
        return _address(self)


def is_pinned(pointer: int, size: int) -> bool:
    """Whether these bytes are of pinned memory."""
    with _LOCK:
        known = [(start, len(each)) for start, each in _PINNED.items()]
        known.extend(_REGISTERED.copy().items())
    return any(start <= pointer and pointer + size <= start + n for start, n in known)


class UnownedMemory:
    """Memory that somebody else frees."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        if device_id < 0:
            raise AssertionError("say the device: CUDA may not know it of memory that was opened")
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class MemoryPointer:
    """A place in such memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset
        self.device_id: int = mem.device_id
        if not 0 <= offset <= mem.size:
            raise AssertionError("a place outside of its memory")

    def octets(self, size: int) -> Any:
        """The bytes from here on."""
        if self.ptr + size > self.mem.ptr + self.mem.size:
            raise AssertionError("an array that is longer than its memory")
        there = (ctypes.c_uint8 * size).from_address(self.ptr)
        there.kept = self  # type: ignore[attr-defined]
        return there


def runtime(devices: int, before_copy: Callable[[], None]) -> types.SimpleNamespace:
    """Returns `cupy.cuda.runtime` of a machine of so many devices.

    Args:
        devices: The number of devices.
        before_copy: Waits for the work before a copy in the current stream.
    """

    def copy(*args: int) -> None:
        before_copy()
        memcpy_async(*args)

    return types.SimpleNamespace(
        free=free,
        driverGetVersion=lambda: 13000,
        getDeviceCount=lambda: devices,
        getDeviceProperties=lambda number: {"name": b"stand-in", "uuid": bytes([7, number])},
        deviceGetPCIBusId=lambda number: f"0000:{number:02x}:00.0",
        ipcCloseMemHandle=ipc_close_mem_handle,
        ipcGetMemHandle=ipc_get_mem_handle,
        ipcOpenMemHandle=ipc_open_mem_handle,
        hostRegister=host_register,
        hostUnregister=host_unregister,
        malloc=malloc,
        memcpyAsync=copy,
        memcpyDeviceToHost=2,
        memcpyHostToDevice=1,
        pointerGetAttributes=lambda pointer: types.SimpleNamespace(
            devicePointer=0 if pointer in _UNREADABLE else pointer,
            type=_UNREADABLE.get(pointer, DEVICE),
        ),
        runtimeGetVersion=lambda: 13000,
    )
