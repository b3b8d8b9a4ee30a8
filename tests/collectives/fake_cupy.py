"""As much of CuPy as collectives need, in host memory; what is used of it is counted."""

from __future__ import annotations

import types
from typing import Any

import numpy as np


class FakeDevice:
    """A GPU; entered where something runs on it."""

    def __init__(self, number: int = 0) -> None:
        self.id = number
        self.entered = 0

    def __enter__(self) -> FakeDevice:
        self.entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeCupyArray:
    """An array on a GPU: NumPy must not see what is inside."""

    def __init__(self, values: Any, device: int = 0) -> None:
        self.inside = np.array(values)
        self.device = FakeDevice(device)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inside.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inside.dtype

    @property
    def nbytes(self) -> int:
        return self.inside.nbytes

    def get(self) -> Any:
        return self.inside.copy(order="K")

    def __setitem__(self, place: Any, values: Any) -> None:
        assert isinstance(values, FakeCupyArray)
        assert self.device.entered
        self.inside[place] = values.inside

    def __array__(self, *_: object) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")


def make_module() -> Any:
    """Returns what stands in for the module `cupy`."""
    module: Any = types.ModuleType("cupy")
    module.ndarray = FakeCupyArray
    module.array = module.asarray = FakeCupyArray
    stream = types.SimpleNamespace(synchronised=0)

    def synchronize() -> None:
        stream.synchronised += 1

    stream.synchronize = synchronize
    module.cuda = types.SimpleNamespace(Device=FakeDevice, get_current_stream=lambda: stream)
    module.stream = stream
    return module
