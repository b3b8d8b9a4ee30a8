"""The `cuda` part of the stand-in for CuPy: devices, and streams and events that tell the time.

Its memory is in `stand_in_memory`.
"""

from __future__ import annotations

import threading
import time
import types
from functools import partial

from tests.gpu.stand_in_memory import (
    MemoryPointer,
    UnownedMemory,
    alloc_pinned_memory,
    finish,
    queued,
    runtime,
)

__all__ = ["Device", "cuda", "current_device"]

_CURRENT = threading.local()


def current_device() -> int:
    """Returns the number of the device on which this thread makes arrays."""
    return getattr(_CURRENT, "number", 0)


class Device:
    """One of `count` devices; entering one that is not there is an error, as CuPy's."""

    def __init__(self, device: int, count: int) -> None:
        self.id = device
        self._count = count
        self._before: list[int] = []

    def __enter__(self) -> Device:
        if self.id >= self._count:
            raise RuntimeError(f"cudaErrorInvalidDevice: the stand-in has no device {self.id}")
        self._before.append(current_device())
        _CURRENT.number = self.id
        return self

    def __exit__(self, *exc_info: object) -> None:
        _CURRENT.number = self._before.pop()


class _Stream:
    ptr = 0

    def __init__(self, *, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return

    def synchronize(self) -> None:
        finish(queued())


class _Event:
    def __init__(self, *, disable_timing: bool = False) -> None:
        self.time = 0.0
        self.before = -1

    def record(self, stream: _Stream | None = None) -> None:
        self.time = time.perf_counter()
        self.before = queued()

    def synchronize(self) -> None:
        if self.before < 0:
            raise AssertionError("an event that was never recorded is waited for")
        finish(self.before)


def cuda(devices: int = 1) -> types.SimpleNamespace:
    """Returns it, for a machine of so many GPUs."""
    return types.SimpleNamespace(
        Device=partial(Device, count=devices),
        Event=_Event,
        MemoryPointer=MemoryPointer,
        Stream=_Stream,
        UnownedMemory=UnownedMemory,
        alloc_pinned_memory=alloc_pinned_memory,
        get_current_stream=_Stream,
        get_elapsed_time=lambda start, end: (end.time - start.time) * 1e3,
        runtime=runtime(devices),
    )
