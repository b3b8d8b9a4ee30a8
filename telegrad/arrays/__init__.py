"""One interface to NumPy and CuPy arrays; CuPy need not be installed."""

from telegrad.arrays.backend import (
    as_array,
    computing_dtype,
    is_array,
    is_cupy,
    is_floating,
    is_inexact,
    namespace,
    takes_ufuncs,
)
from telegrad.arrays.device import (
    CPU,
    array_beside,
    array_from_dlpack,
    check_devices,
    copy_into,
    copy_to_device,
    device_name,
    device_of,
    host_copy,
    octets_from_gpu,
    to_device,
    to_host,
)
from telegrad.arrays.device_memory import DeviceMemory, Mappings, SharedPlace, gpu_identities
from telegrad.arrays.joining import joined_flat, joined_rows, views_of
from telegrad.arrays.shared import SharedMemory, can_share, memory_below, shared_below, shared_empty
from telegrad.arrays.sparse import is_sparse, sparse_product, sparse_product_asks

__all__ = [
    "CPU",
    "DeviceMemory",
    "Mappings",
    "SharedMemory",
    "SharedPlace",
    "array_beside",
    "array_from_dlpack",
    "as_array",
    "can_share",
    "check_devices",
    "computing_dtype",
    "copy_into",
    "copy_to_device",
    "device_name",
    "device_of",
    "gpu_identities",
    "host_copy",
    "is_array",
    "is_cupy",
    "is_floating",
    "is_inexact",
    "is_sparse",
    "joined_flat",
    "joined_rows",
    "memory_below",
    "namespace",
    "octets_from_gpu",
    "shared_below",
    "shared_empty",
    "sparse_product",
    "sparse_product_asks",
    "takes_ufuncs",
    "to_device",
    "to_host",
    "views_of",
]
