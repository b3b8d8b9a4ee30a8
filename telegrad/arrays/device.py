"""Device names (`cpu`, `cuda:0`, `cuda:1`, ...) and copies of arrays between devices."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

from telegrad.arrays.backend import as_array, is_array, is_cupy, namespace
from telegrad.arrays.staging import fill_from_gpu, fill_gpu
from telegrad.errors import InvalidUseError
from telegrad.types import Array

_GPU_KINDS: Final = (2, 13)
"""DLPack's device types for CUDA memory and for CUDA managed memory."""

CPU: Final = "cpu"
_NUMPY_ALONE: Final = {np.ndarray}
OLD_DRIVER: Final = "InsufficientDriver"


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
    """Returns `device` in the form that `device_of` returns; `cuda` becomes `cuda:0`.

    Raises:
        ValueError: `device` is not a device name.
    """
    return CPU if device == CPU else f"cuda:{_gpu_number(device)}"


def to_device(array: Array, device: str) -> Array:
    """Returns `array` on `device`; the same object if it already is there.

    The copy is complete when this function returns: any thread and any CUDA stream may use it.

    Args:
        array: A NumPy or CuPy array.
        device: `cpu`, `cuda` (the first GPU) or `cuda:<number>`.

    Raises:
        ValueError: `device` is not a device name.
        InvalidUseError: `device` is a GPU, and CuPy is not installed, its driver is too old, or
            there is no such GPU.
        MemoryError: The GPU has no memory left.
    """
    if device == CPU:
        return _to_cpu(array)
    number = _gpu_number(device)
    if device_of(array) == f"cuda:{number}":
        return array
    return copy_to_device(array, device)


def copy_to_device(array: Array, device: str) -> Array:
    """Returns a copy of `array` on a GPU, even if `array` already is on that GPU.

    The copy is complete when this function returns, as with `to_device`.

    Raises:
        ValueError: `device` is not the name of a GPU.
        InvalidUseError: CuPy is not installed, its driver is too old, or there is no such GPU.
        MemoryError: The GPU has no memory left.
    """
    number, cupy = _find_gpu(device)
    with cupy.cuda.Device(number):
        if array.nbytes and _is_plain(array):
            moved: Array = cupy.empty(array.shape, array.dtype, order=_order(array))
            fill_gpu(moved, _octets(array), cupy)
        else:  # an array of CuPy; or one that CuPy copies to pinned memory of its own
            moved = cupy.array(array)
            cupy.cuda.get_current_stream().synchronize()
    return moved


def octets_from_gpu(octets: np.ndarray[Any, np.dtype[np.uint8]], array: Array) -> None:
    """Copies a GPU array into host memory, its items in C order.

    The copy runs in the current stream; this function waits for that stream.

    Args:
        octets: The target, with as many bytes as `array` has.
        array: A CuPy array.
    """
    there: Any = array
    with there.device:
        if there.nbytes:
            source = there if there.flags.c_contiguous else there.copy()
            fill_from_gpu(octets, source, namespace(there))


def array_beside(value: object, neighbour: Array) -> Array:
    """Returns `value` as an array; a value that is not an array yet goes where `neighbour` lives.

    >>> array_beside([1, 2], np.zeros(3))
    array([1, 2])

    Raises:
        TypeError: `value` holds something that is not a number.
    """
    if type(value) is np.ndarray or is_array(value):
        return value
    return to_device(as_array(value), device_of(neighbour))


def array_from_dlpack(source: Any) -> Array:
    """Returns an array that shares the memory of another library's array.

    It is a CuPy array if that memory is on a GPU, else a NumPy array.

    Args:
        source: An object with the methods `__dlpack__` and `__dlpack_device__`.

    Raises:
        TypeError: `source` lacks these methods.
        BufferError: NumPy or CuPy does not support the dtype or the device.
        InvalidUseError: The memory is on a GPU and CuPy is not installed.
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
    """Checks that all arrays among `values` live on one device.

    Args:
        what: The use of the arrays, a noun for the error message.
        values: Arrays and other objects; the other objects are ignored.

    Raises:
        ValueError: The arrays live on different devices.
    """
    if set(map(type, values)) == _NUMPY_ALONE:
        return
    xp = namespace(*values)
    if xp is np:
        return
    numbers = {  # every step of an optimizer comes by here, for each parameter
        value.data.device_id if isinstance(value, xp.ndarray) else -1
        for value in values
        if isinstance(value, (xp.ndarray, np.ndarray))
    }
    if len(numbers) > 1:
        devices = {device_of(value) for value in values if is_array(value)}
        raise ValueError(
            f"{what} of arrays on different devices ({', '.join(sorted(devices))}); move one, for"
            " instance with tensor.to(device)"
        )


def _to_cpu(array: Array) -> Array:
    if not is_cupy(array):
        return np.asarray(array)
    host = np.empty(array.shape, array.dtype)
    octets_from_gpu(_octets(host), array)
    return host


def _octets(array: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the bytes of a contiguous NumPy array, not copied."""
    return np.asarray(array).reshape(-1, order="A").view(np.uint8)


def _is_plain(array: Array) -> bool:
    """Returns True if `array` is a contiguous NumPy array of a dtype that CuPy supports."""
    if type(array) is not np.ndarray or array.dtype.kind not in "biufc":
        return False
    flags = array.flags
    return bool(array.dtype.isnative and (flags.c_contiguous or flags.f_contiguous))


def _order(array: Any) -> str:
    return "C" if array.flags.c_contiguous else "F"


def _gpu_number(device: str) -> int:
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ValueError(f"no such device: {device!r}; write 'cpu', 'cuda' or 'cuda:<number>'")
    return int(number or 0)


def _import_cupy(device: str) -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise InvalidUseError(
            f"device {device!r} needs CuPy, which is not installed; "
            "pip install 'telegrad[cuda13x]' (or [cuda12x])"
        ) from error


def _find_gpu(device: str) -> tuple[int, Any]:
    """Returns the number of a GPU of this process, and CuPy.

    Raises:
        ValueError: `device` is not the name of a GPU.
        InvalidUseError: There is no CuPy, no driver that fits, or no such GPU.
    """
    number, cupy = _gpu_number(device), _import_cupy(device)
    runtime = cupy.cuda.runtime
    try:
        found = int(runtime.getDeviceCount())
    except RuntimeError as error:
        if OLD_DRIVER in str(error):
            needed, here = runtime.runtimeGetVersion(), runtime.driverGetVersion()
            raise InvalidUseError(
                f"device {device!r} needs a driver for CUDA {_version(needed)}, for which this "
                f"CuPy is made; this driver knows CUDA {_version(here)}: install a newer driver, "
                f"or pip install 'telegrad[cuda{here // 1000}x]'"
            ) from error
        raise InvalidUseError(f"device {device!r} cannot be used: {error}") from error
    if number >= found:
        raise InvalidUseError(
            f"there is no device {device!r}: this process sees {found} GPUs, numbered from 0 "
            "(nvidia-smi and CUDA_VISIBLE_DEVICES tell which)"
        )
    return number, cupy


def _version(number: int) -> str:
    """Returns CUDA's number of a version as people write it: 12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


# -- copies to host memory, for sockets, files and printing --------------------------------------


def to_host(array: Array) -> Array:
    """Returns `array` as a NumPy array: the same object if it is one, else a copy."""
    return to_device(array, CPU)


def host_copy(array: Array) -> Array:
    """Returns a fresh, writable, C-contiguous NumPy array with the values of `array`.

    A CuPy array is copied once, in the current stream; this function waits for that stream.

    >>> source = np.zeros((2, 3)).T
    >>> copied = host_copy(source)
    >>> copied.flags.c_contiguous, np.shares_memory(copied, source)
    (True, False)
    """
    if is_cupy(array):
        return np.ascontiguousarray(to_host(array)).reshape(array.shape)
    return np.array(array, order="C", copy=True)


# -- writes of host values into an existing array -------------------------------------------------


def copy_into(target: Array, values: Array) -> None:
    """Writes the values of a NumPy array into `target`, which has the same shape and dtype.

    The write is complete when this function returns: any thread and CUDA stream may read it.

    >>> import numpy as np
    >>> target = np.zeros(2)
    >>> copy_into(target, np.ones(2))
    >>> target
    array([1., 1.])
    """
    if not is_cupy(target):
        target[...] = values
        return
    cupy = namespace(target)
    there: Any = target
    with there.device:
        if values.nbytes and there.flags.c_contiguous and values.flags.c_contiguous:
            fill_gpu(there, _octets(values), cupy)
        else:
            there[...] = cupy.asarray(values)
            cupy.cuda.get_current_stream().synchronize()
