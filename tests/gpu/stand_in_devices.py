"""The `cuda` part of the stand-in for CuPy: devices, and streams and events that tell the time."""

from __future__ import annotations

import threading
import time
import types
from functools import partial

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
    def synchronize(self) -> None:
        return


class _Event:
    def __init__(self) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        return


def cuda(devices: int = 1) -> types.SimpleNamespace:
    """Returns it, for a machine of so many GPUs."""
    return types.SimpleNamespace(
        Device=partial(Device, count=devices),
        Event=_Event,
        get_current_stream=_Stream,
        get_elapsed_time=lambda start, end: (end.time - start.time) * 1e3,
    )
