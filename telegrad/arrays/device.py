"""Where an array lives, as a string: `cpu`, or `cuda:0`, `cuda:1`, ...; and moving it."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

from telegrad.arrays.backend import is_cupy
from telegrad.types import Array

__all__ = ["CPU", "device_of", "to_device"]

CPU: Final = "cpu"


def device_of(array: Array) -> str:
    """Returns the device of `array`.

    >>> device_of(np.zeros(3))
    'cpu'
    """
    if is_cupy(array):
        device: Any = array.device
        return f"cuda:{int(device.id)}"
    return CPU


def to_device(array: Array, device: str) -> Array:
    """Returns `array` on `device`; the same object where it already is there.

    Args:
        array: A NumPy or CuPy array.
        device: `cpu`, `cuda` (the first GPU) or `cuda:<number>`.

    Raises:
        ValueError: `device` is no device name.
        RuntimeError: A GPU is asked for and CuPy is not installed.
    """
    if device == CPU:
        return _to_cpu(array)
    number = _gpu_number(device)
    if device_of(array) == f"cuda:{number}":
        return array
    cupy = _import_cupy(device)
    with cupy.cuda.Device(number):
        moved: Array = cupy.array(array)
    return moved


def _to_cpu(array: Array) -> Array:
    source: Any = array
    host: Array = source.get() if is_cupy(array) else np.asarray(array)
    return host


def _gpu_number(device: str) -> int:
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ValueError(f"no such device: {device!r}; write 'cpu', 'cuda' or 'cuda:<number>'")
    return int(number or 0)


def _import_cupy(device: str) -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise RuntimeError(
            f"device {device!r} needs CuPy, which is not installed; "
            "pip install 'telegrad[cuda13x]' (or [cuda12x])"
        ) from error
