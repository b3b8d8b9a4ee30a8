"""GPU memory that processes of one host share by CUDA's handles (CUDA IPC).

A handle names a whole allocation of `cudaMalloc`, not a place in it. So this memory does not come
from CuPy's pool. NVIDIA sets three rules for a handle. The process that made it cannot open it.
Opening it twice gives one mapping with a count. All others must close it before its maker frees
the memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from telegrad.arrays.device import octets_from_gpu
from telegrad.types import Array, DTypeLike, Shape

HANDLE_BYTES = 64
IDENTITY_CHARACTERS = 16


def gpu_identities() -> tuple[str, ...]:
    """Returns one string per GPU of this host, in this process's order of GPU numbers.

    The strings are the same in all processes. The order is not: another process may number the same
    GPUs differently.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: CuPy finds no driver.
    """
    runtime: Any = importlib.import_module("cupy").cuda.runtime
    return tuple(_identity(runtime, number) for number in range(runtime.getDeviceCount()))


def _identity(runtime: Any, number: int) -> str:
    # Two parts of one MIG GPU may have the same uuid or the same bus id, so both are hashed.
    uuid = bytes(runtime.getDeviceProperties(number)["uuid"])
    bus = str(runtime.deviceGetPCIBusId(number)).encode()
    return hashlib.sha256(uuid + b"|" + bus).hexdigest()[:IDENTITY_CHARACTERS]


def _array(memory: Any, offset: int, shape: Shape, dtype: DTypeLike) -> Array:
    cupy: Any = importlib.import_module("cupy")
    unowned = cupy.cuda.UnownedMemory(memory.pointer, memory.size, memory, memory.number)
    array: Array = cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(unowned, offset))
    return array


@final
class DeviceMemory:
    """An allocation on one of this worker's GPUs that other processes may open.

    The memory is freed when nothing refers to this object.

    Attributes:
        number: The number of the GPU.
        size: The size in bytes.
        pointer: The address of the memory.
        handle: The CUDA handle with which other processes open the memory.

    Args:
        number: The number of the GPU.
        size: The size in bytes; it should be at least 2 MiB. CUDA packs smaller allocations
            together, and the handle would share the neighbours, too.

    Raises:
        MemoryError: The GPU has not enough free memory.
        RuntimeError: CUDA cannot share the memory on this system.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.pointer = number, size, 0
        self._cuda: Any = importlib.import_module("cupy").cuda
        with self._cuda.Device(number):
            try:
                self.pointer = int(self._cuda.runtime.malloc(size))
            except RuntimeError as error:
                if "MemoryAllocation" in str(error):
                    raise MemoryError(f"{size} bytes of GPU {number}: {error}") from error
                raise
            try:
                self.handle = bytes(self._cuda.runtime.ipcGetMemHandle(self.pointer))
            except BaseException:
                self._free()  # now: the error's traceback keeps this object alive
                raise

    def array(self, offset: int, shape: Shape, dtype: DTypeLike) -> Array:
        """Returns a C-contiguous array over this memory from `offset` on, which keeps it."""
        return _array(self, offset, shape, dtype)

    def fill(self, offset: int, array: Array) -> None:
        """Copies an array of this GPU to `offset`, its items in C order.

        The copy runs in the current stream; this method waits for that stream.
        """
        with self._cuda.Device(self.number):
            self.array(offset, array.shape, array.dtype)[...] = array
            self._cuda.get_current_stream().synchronize()

    def read(self, offset: int, octets: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Copies the bytes at `offset` to the host; waits for the copy, not for other GPU work."""
        with self._cuda.Device(self.number), self._cuda.Stream(non_blocking=True):
            octets_from_gpu(octets, self.array(offset, octets.shape, np.uint8))

    def __del__(self) -> None:
        """Frees the memory."""
        self._free()

    def _free(self) -> None:
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with contextlib.suppress(Exception):  # CUDA may be gone before this
                self._cuda.runtime.free(pointer)


@final
@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A place in GPU memory that another process has made.

    Attributes:
        gpu: The identity of the GPU, one of `gpu_identities`.
        handle: The CUDA handle of the memory.
        size: The size of the whole memory, in bytes.
        offset: The offset of the first byte.
    """

    gpu: str
    handle: bytes
    size: int
    offset: int


@final
@dataclass(slots=True)
class _Mapping:
    """Memory of another process that is open in this process."""

    cuda: Any
    number: int
    pointer: int
    size: int
    users: int = 0
    used: float = 0.0


@final
class Mappings:
    """The GPU memory of other processes that is open in this process; safe for any thread.

    Opening a handle takes long, so a mapping stays open for a while after its last use. It does not
    stay open until the maker frees the memory, because the maker also keeps memory that is unused.

    Args:
        clock: A function that returns the time in seconds.
        idle_seconds: The time without use after which a mapping is closed.
    """

    def __init__(self, clock: Callable[[], float], idle_seconds: float) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._lock = threading.RLock()  # guards _numbers and _open
        self._numbers: dict[str, int] | None = None
        self._open: dict[tuple[str, bytes], _Mapping] = {}

    @property
    def count(self) -> int:
        """The number of open mappings."""
        return len(self._open)

    @contextlib.contextmanager
    def array(
        self, place: SharedPlace, shape: Shape, dtype: DTypeLike, size: int
    ) -> Iterator[Array]:
        """Yields a C-contiguous array over another process's memory, on its GPU.

        The array is valid inside the `with` block only.

        Args:
            place: The place of the array in the memory.
            shape: The shape of the array.
            dtype: The dtype of the array.
            size: The size of the array in bytes.

        Raises:
            ValueError: The array does not fit into the memory at that place.
            LookupError: This process does not see that GPU.
            RuntimeError: CUDA cannot open the handle.
        """
        if len(place.handle) != HANDLE_BYTES or not 0 <= place.offset <= place.size - size:
            raise ValueError(f"invalid GPU memory: {size} bytes at {place.offset} of {place.size}")
        mapping = self._use(place)
        try:
            yield _array(mapping, place.offset, shape, dtype)
        finally:
            with self._lock:
                mapping.users -= 1
                mapping.used = self._clock()

    @property
    def idle(self) -> bool:
        """True if `close_idle` would close a mapping."""
        then = self._clock() - self._idle_seconds
        with self._lock:
            return any(not each.users and each.used <= then for each in self._open.values())

    def close_idle(self, seconds: float | None = None) -> None:
        """Closes the mappings that were not used for `seconds` (default: `idle_seconds`).

        It may wait for the GPU.
        """
        then = self._clock() - (self._idle_seconds if seconds is None else seconds)
        with self._lock:
            for key, each in list(self._open.items()):
                if not each.users and each.used <= then:
                    del self._open[key]
                    _close(each)

    def _use(self, place: SharedPlace) -> _Mapping:
        key = place.gpu, place.handle
        with self._lock:
            mapping = self._open.get(key)
            if mapping is None:
                mapping = self._open[key] = self._opened(place)
            elif mapping.size != place.size:
                raise ValueError(f"one handle for memory of {mapping.size} and {place.size} bytes")
            mapping.users += 1
            return mapping

    def _opened(self, place: SharedPlace) -> _Mapping:
        if self._numbers is None:
            self._numbers = {each: number for number, each in enumerate(gpu_identities())}
        number = self._numbers.get(place.gpu)
        if number is None:
            raise LookupError("the memory is on a GPU that is not visible to this process")
        cuda: Any = importlib.import_module("cupy").cuda
        with cuda.Device(number):
            pointer = int(cuda.runtime.ipcOpenMemHandle(place.handle))
        return _Mapping(cuda, number, pointer, place.size)

    def __del__(self) -> None:
        """Closes all mappings."""
        for each in self._open.values():
            _close(each)


def _close(mapping: _Mapping) -> None:
    with contextlib.suppress(Exception), mapping.cuda.Device(mapping.number):
        mapping.cuda.runtime.ipcCloseMemHandle(mapping.pointer)
