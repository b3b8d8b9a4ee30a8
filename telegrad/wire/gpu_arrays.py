"""CuPy's arrays on the wire: by way of host memory, or as shadows of what lies on a shared GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from telegrad.arrays import octets_from_gpu, to_host
from telegrad.errors import DecodeError
from telegrad.wire.array_types import describe_own_array, encode_dtype, rebuild_array
from telegrad.wire.copies import Memory
from telegrad.wire.envelope import Buffer
from telegrad.wire.placement import Gpu, Land
from telegrad.wire.shadow import SHADOW_BYTES, Shadow

__all__ = ["describe_gpu_array", "rebuild_gpu_array"]

SHADOW: Final = "shadow"


def describe_gpu_array(array: Any, memory: Memory) -> tuple[Gpu, object, Sequence[Buffer]]:
    """Copies an array of a GPU, once: on the GPU where the receiver shares that, else to the host.

    Args:
        array: CuPy's.
        memory: What the receiver shares.

    Returns:
        What stands where the tag will, the meta, and one buffer.
    """
    meta = [encode_dtype(array.dtype), "C", *array.shape]
    shadow = memory.shadow(array)
    if shadow is not None:
        return Gpu.of(array, shared=True), [SHADOW, meta], [shadow]
    room = memory.take(array.nbytes)
    if room is None:
        host = np.asarray(to_host(array), order="C")
        return (Gpu.of(array), *describe_own_array(host))
    octets_from_gpu(np.frombuffer(room, np.uint8), array)
    return Gpu.of(array), meta, [room]


def rebuild_gpu_array(meta: Any, buffers: Sequence[Buffer], land: Land, number: int) -> Any:
    """Rebuilds what `describe_gpu_array` described.

    Args:
        meta: That was returned, or anything.
        buffers: Likewise.
        land: Moves it where it is to live.
        number: Of that GPU, or HOST.

    Raises:
        DecodeError: They are something else.
    """
    if type(meta) is not list or len(meta) != 2 or meta[0] != SHADOW:
        return land(rebuild_array(meta, buffers), number)
    view = memoryview(buffers[0]).cast("B") if len(buffers) == 1 else memoryview(b"")
    if view.nbytes < SHADOW_BYTES:
        raise DecodeError(f"no shadow of an array of a GPU: {view.nbytes} bytes")
    room = rebuild_array(meta[1], [view[:-SHADOW_BYTES]], as_is=True)
    return land(Shadow(np.frombuffer(view, np.uint8), room), number)
