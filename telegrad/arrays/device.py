"""Where an array lives, as a string: `cpu`, or `cuda:0`, `cuda:1`, ...; and moving it."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

from telegrad.arrays.backend import as_array, is_array, is_cupy
from telegrad.types import Array

__all__ = [
    "CPU",
    "array_beside",
    "array_from_dlpack",
    "check_devices",
    "device_name",
    "device_of",
    "to_device",
]

_GPU_KINDS: Final = (2, 13)
"""Of DLPack's device types: CUDA memory, and CUDA managed memory."""

CPU: Final = "cpu"


def device_of(array: Array) -> str:
    """Returns the device of `array`.

    >>> device_of(np.zeros(3))
    'cpu'
    """
    if type(array) is not np.ndarray and is_cupy(array):
        device: Any = array.device
        return f"cuda:{int(device.id)}"
    return CPU


def device_name(device: str) -> str:
    """Returns `device` as `device_of` writes it: `cuda` is the first GPU, `cuda:0`.

    Raises:
        ValueError: `device` is no device name.
    """
    return CPU if device == CPU else f"cuda:{_gpu_number(device)}"


def to_device(array: Array, device: str) -> Array:
    """Returns `array` on `device`; the same object where it already is there.

    The copy is complete when this returns: any thread and any CUDA stream may use it.

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
        cupy.cuda.get_current_stream().synchronize()
    return moved


def array_beside(value: object, neighbour: Array) -> Array:
    """Returns `value` as an array; one that is none yet is made where `neighbour` lives.

    >>> array_beside([1, 2], np.zeros(3))
    array([1, 2])

    Raises:
        TypeError: `value` holds something that is no number.
    """
    return value if is_array(value) else to_device(as_array(value), device_of(neighbour))


def array_from_dlpack(source: Any) -> Array:
    """Returns an array that shares the memory of another library's: CuPy's if it is on a GPU.

    Args:
        source: Has `__dlpack__` and `__dlpack_device__`.

    Raises:
        TypeError: It has not.
        BufferError: Its dtype or its place is none that NumPy or CuPy knows.
        RuntimeError: It is on a GPU and CuPy is not installed.
    """
    try:
        kind, number = source.__dlpack_device__()
    except AttributeError as error:
        raise TypeError(
            f"{type(source).__name__} has no __dlpack__; pass an array of a library that speaks "
            "DLPack, or use as_tensor"
        ) from error
    xp = _import_cupy(f"cuda:{number}") if int(kind) in _GPU_KINDS else np
    array: Array = xp.from_dlpack(source)
    return array


def check_devices(what: str, *values: object) -> None:
    """Checks that those of `values` that are arrays live on one device.

    Args:
        what: What they are for, for the message.
        values: Arrays, and anything else, which is not looked at.

    Raises:
        ValueError: They do not.
    """
    devices = {device_of(value) for value in values if is_array(value)}
    if len(devices) > 1:
        raise ValueError(
            f"{what} of arrays on different devices ({', '.join(sorted(devices))}); move one, for"
            " instance with tensor.to(device)"
        )


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
