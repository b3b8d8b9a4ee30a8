"""NumPy and CuPy arrays behind one face; CuPy need not be installed."""

from telegrad.arrays.backend import as_array, is_array, is_cupy, is_floating, is_inexact, namespace
from telegrad.arrays.copy_into import copy_into
from telegrad.arrays.device import (
    CPU,
    array_beside,
    check_devices,
    device_name,
    device_of,
    to_device,
)
from telegrad.arrays.host_copy import host_copy, to_host

__all__ = [
    "CPU",
    "array_beside",
    "as_array",
    "check_devices",
    "copy_into",
    "device_name",
    "device_of",
    "host_copy",
    "is_array",
    "is_cupy",
    "is_floating",
    "is_inexact",
    "namespace",
    "to_device",
    "to_host",
]
