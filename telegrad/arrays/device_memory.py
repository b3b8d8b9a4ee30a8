"""Memory of a GPU that processes of one host share by CUDA's handles, and what others share, opened here.

A handle names a whole allocation of `cudaMalloc`, not a place in it; so this is no memory of CuPy's pool.
What holds for it is NVIDIA's to say: the process that made it cannot open it; opened twice it is one
mapping with a count; and it is to be closed by others before its maker frees it.
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

__all__ = ["DeviceMemory", "Mappings", "SharedPlace", "gpu_identities"]

HANDLE_BYTES = 64
IDENTITY_CHARACTERS = 16


def gpu_identities() -> tuple[str, ...]:
    """Returns what tells the GPUs of this host apart, in the order of their numbers here.

    Another process may number the same GPUs otherwise.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: It finds no driver.
    """
    runtime: Any = importlib.import_module("cupy").cuda.runtime
    return tuple(_identity(runtime, number) for number in range(runtime.getDeviceCount()))


def _identity(runtime: Any, number: int) -> str:
    # Of MIG's parts one alone may differ.
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
    """Memory of a GPU here that other processes may open; freed when nothing refers to it.

    Attributes:
        number: Of the GPU.
        size: In bytes.
        pointer: Its address.
        handle: By which others open it.

    Args:
        number: Of the GPU.
        size: In bytes. Of less than 2 MiB CUDA would share what lies beside it, too.

    Raises:
        MemoryError: There is not so much.
        RuntimeError: It cannot be shared here.
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
                self._free()  # now: the error keeps this object
                raise

    def fill(self, offset: int, array: Array) -> None:
        """Copies an array of this GPU to there, in the order of C, in the current stream.

        That is waited for.
        """
        with self._cuda.Device(self.number):
            there = _array(self, offset, array.shape, array.dtype)
            there[...] = array
            self._cuda.get_current_stream().synchronize()

    def read(self, offset: int, octets: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        """Copies bytes to the host; waits for that, and not for what else the GPU does."""
        with self._cuda.Device(self.number), self._cuda.Stream(non_blocking=True):
            octets_from_gpu(octets, _array(self, offset, octets.shape, np.uint8))

    def __del__(self) -> None:
        """Frees it."""
        self._free()

    def _free(self) -> None:
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with contextlib.suppress(Exception):  # CUDA may be gone before this
                self._cuda.runtime.free(pointer)


@final
@dataclass(frozen=True, slots=True)
class SharedPlace:
    """Where something lies in memory of a GPU that another process has made.

    Attributes:
        gpu: Which one, as `gpu_identities` tells them apart.
        handle: Of the memory.
        size: Of all of it, in bytes.
        offset: Of the first byte.
    """

    gpu: str
    handle: bytes
    size: int
    offset: int


@final
@dataclass(slots=True)
class _Mapping:
    """Memory of another process, as it is open here."""

    cuda: Any
    number: int
    pointer: int
    size: int
    users: int = 0
    used: float = 0.0


@final
class Mappings:
    """What is open here of other processes' memory; any thread.

    Opening takes long, so that it stays open for a while: not for as long as its maker keeps memory
    that nobody uses.

    Args:
        clock: In seconds.
        idle_seconds: After which it is closed.
    """

    def __init__(self, clock: Callable[[], float], idle_seconds: float) -> None:
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()  # guards the next two
        self._numbers: dict[str, int] | None = None
        self._open: dict[tuple[str, bytes], _Mapping] = {}

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    @contextlib.contextmanager
    def array(
        self, place: SharedPlace, shape: Shape, dtype: DTypeLike, size: int
    ) -> Iterator[Array]:
        """Has an array of somebody else's memory for a while, C-contiguous, on its GPU.

        Args:
            place: Where it lies.
            shape: Its shape.
            dtype: Its dtype.
            size: Its bytes.

        Raises:
            ValueError: It would not lie in there.
            LookupError: This process does not see that GPU.
            RuntimeError: CUDA cannot open it.
        """
        if len(place.handle) != HANDLE_BYTES or not 0 <= place.offset <= place.size - size:
            raise ValueError(f"{size} bytes at {place.offset} of a GPU's memory of {place.size}")
        mapping = self._use(place)
        try:
            yield _array(mapping, place.offset, shape, dtype)
        finally:
            with self._lock:
                mapping.users -= 1
                mapping.used = self._clock()

    @property
    def idle(self) -> bool:
        """Whether there is something to close."""
        then = self._clock() - self._idle_seconds
        with self._lock:
            return any(not each.users and each.used <= then for each in self._open.values())

    def close_idle(self, seconds: float | None = None) -> None:
        """Closes what was not used for so long, or as long as agreed; may wait for the GPU."""
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
                raise ValueError(f"memory of {mapping.size} bytes, and now of {place.size}")
            mapping.users += 1
            return mapping

    def _opened(self, place: SharedPlace) -> _Mapping:
        if self._numbers is None:
            self._numbers = {each: number for number, each in enumerate(gpu_identities())}
        number = self._numbers.get(place.gpu)
        if number is None:
            raise LookupError("memory of a GPU that is not visible to this process")
        cuda: Any = importlib.import_module("cupy").cuda
        with cuda.Device(number):
            pointer = int(cuda.runtime.ipcOpenMemHandle(place.handle))
        return _Mapping(cuda, number, pointer, place.size)

    def __del__(self) -> None:
        """Closes all of it."""
        for each in self._open.values():
            _close(each)


def _close(mapping: _Mapping) -> None:
    with contextlib.suppress(Exception), mapping.cuda.Device(mapping.number):
        mapping.cuda.runtime.ipcCloseMemHandle(mapping.pointer)
