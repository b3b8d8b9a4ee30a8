"""The `cuda` part of the stand-in for CuPy: devices. Streams and memory have their own files."""

from __future__ import annotations

import types
from functools import partial

from tests.gpu.stand_in import stand_in_cublas
from tests.gpu.stand_in.stand_in_memory import (
    MemoryPointer,
    UnownedMemory,
    alloc_pinned_memory,
    runtime,
)
from tests.gpu.stand_in.stand_in_streams import (
    THREAD,
    Event,
    Stream,
    current_stream,
    wait_for_kernels,
)

__all__ = ["Device", "cuda", "current_device"]


def current_device() -> int:
    """Returns the number of the device on which this thread makes arrays."""
    return getattr(THREAD, "number", 0)


class Device:
    """One of `count` devices; entering one that is not there is an error, as CuPy's."""

    def __init__(self, device: int, count: int) -> None:
        self.id = device
        self._count = count
        self._before: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        if self.id >= self._count:
            raise RuntimeError(f"cudaErrorInvalidDevice: the stand-in has no device {self.id}")
        self._before.append(current_device())
        THREAD.number = self.id
        return self

    def __exit__(self, *exc_info: object) -> None:
        THREAD.number = self._before.pop()


def cuda(devices: int = 1) -> types.SimpleNamespace:
    """Returns it, for a machine of so many GPUs."""
    return types.SimpleNamespace(
        Device=partial(Device, count=devices),
        Event=Event,
        MemoryPointer=MemoryPointer,
        Stream=Stream,
        UnownedMemory=UnownedMemory,
        alloc_pinned_memory=alloc_pinned_memory,
        cublas=stand_in_cublas,
        get_cublas_handle=stand_in_cublas.get_cublas_handle,
        get_current_stream=current_stream,
        get_elapsed_time=lambda start, end: (end.time - start.time) * 1e3,
        runtime=runtime(devices, wait_for_kernels),
    )
