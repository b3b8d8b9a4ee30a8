"""Externals beside their document: one line of metadata for each, with its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgpack
import numpy as np

from telegrad.arrays import is_cupy, octets_from_gpu, to_host
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire.document import DEFAULT_LIMITS, DecodeLimits, Refused, unpack
from telegrad.wire.envelope import Buffer
from telegrad.wire.memory import NO_MEMORY, SHADOW_BYTES, Memory, Shadow
from telegrad.wire.registry import (
    Gpu,
    Land,
    Place,
    external_type,
    external_type_by_tag,
    first_gpu,
    gpu_number,
    land,
)
from telegrad.wire.values.array_types import (
    describe_array,
    encode_dtype,
    rebuild_array,
)

# -- arrays of CuPy: by way of host memory, or as shadows of memory on a shared GPU --------------

SHADOW: Final = "shadow"


def describe_gpu_array(array: Any, memory: Memory) -> tuple[Gpu, object, Sequence[Buffer]]:
    """Copies an array of a GPU once: on the GPU if the receiver shares that, else to the host.

    Args:
        array: An array of CuPy.
        memory: The memory that the receiver shares.

    Returns:
        A placeholder for the tag, the meta, and one buffer.
    """
    meta = [encode_dtype(array.dtype), "C", *array.shape]
    shadow = memory.shadow(array)
    if shadow is not None:
        return Gpu.of(array, shared=True), [SHADOW, meta], [shadow]
    room = memory.take(array.nbytes)
    if room is None:
        host = np.asarray(to_host(array), order="C")
        return Gpu.of(array), meta, [host.reshape(-1).view(np.uint8).data]
    octets_from_gpu(np.frombuffer(room, np.uint8), array)
    return Gpu.of(array), meta, [room]


def rebuild_gpu_array(meta: Any, buffers: Sequence[Buffer], land: Land, number: int) -> Any:
    """Rebuilds an array from the output of `describe_gpu_array`.

    Args:
        meta: The meta that was returned, or anything.
        buffers: The buffers that were returned, or anything.
        land: Moves the array to its destination.
        number: The number of the destination's GPU, or HOST.

    Raises:
        DecodeError: Meta and buffers are something else.
    """
    if type(meta) is not list or len(meta) != 2 or meta[0] != SHADOW:
        return land(rebuild_array(meta, buffers), number)
    view = memoryview(buffers[0]).cast("B") if len(buffers) == 1 else memoryview(b"")
    if view.nbytes < SHADOW_BYTES:
        raise DecodeError(f"no shadow of an array of a GPU: {view.nbytes} bytes")
    room = rebuild_array(meta[1], [view[:-SHADOW_BYTES]], as_is=True)
    return land(Shadow(np.frombuffer(view, np.uint8), room), number)


# -- all externals -------------------------------------------------------------------------------

# The bytes with which a packer begins. Its own default, 256 KiB, is allocated and freed by the
# system each time, which may cost three times as much as packing a call.
PACKER_BYTES = 2**10
# The number of metadata to remember: 256 bytes each, which become 16 KiB at worst. Reading one
# takes 1.5 us, finding it 0.1.
KEPT_LINES = 256


def describe(
    externals: Sequence[object], place: Place = first_gpu, memory: Memory = NO_MEMORY
) -> tuple[bytes, list[Buffer]]:
    """Describes externals for one destination; copies the bytes of arrays as they are now.

    Args:
        externals: The externals from `encode`, perhaps replaced by interceptors.
        place: Returns the device on which arrays of a GPU are to arrive.
        memory: The memory to copy the bytes of arrays into, if it has any.

    Returns:
        Metadata, one msgpack list `[tag, meta, number of buffers]` for each; and all buffers, in
        order.

    Raises:
        EncodeError: One of them is of no external type, or cannot be described.
    """
    if not externals:
        return b"", []
    lines, buffers = describe_lines(externals, memory)
    return pack_lines(lines, place), buffers


def describe_lines(
    externals: Sequence[object], memory: Memory = NO_MEMORY
) -> tuple[list[object], list[Buffer]]:
    """Describes externals for any number of destinations, for `pack_lines`.

    Args:
        externals: The externals, as for `describe`.
        memory: The memory, as for `describe`; for one destination alone.

    Returns:
        A line for each, and all buffers, in order.

    Raises:
        EncodeError: One of them is of no external type, or cannot be described.
    """
    buffers: list[Buffer] = []
    lines: list[object] = []
    for index, external in enumerate(externals):
        try:
            tag, meta, own = _describe(external, memory)
        except Refused as refused:
            path = f"external {index}"
            raise EncodeError(f"{path} cannot travel: {refused}", path=path) from refused
        lines.append([tag, meta, len(own)])
        buffers.extend(own)
    return lines, buffers


def pack_lines(lines: Sequence[object], place: Place = first_gpu) -> bytes:
    """Returns lines of `describe_lines` as metadata for one destination."""
    packed: bytes = msgpack.Packer(default=place, buf_size=PACKER_BYTES).pack(lines)
    return packed


def describe_held(array: Any, memory: Memory = NO_MEMORY) -> tuple[list[object], Sequence[Buffer]]:
    """Describes an array that is a part of another external; copies its bytes.

    Args:
        array: An array of NumPy or CuPy.
        memory: The memory that the description of the other external got.

    Returns:
        `[tag, meta]`, to be put into the meta of the other external as it is; and its buffers.

    Raises:
        Refused: The array cannot travel.
    """
    tag, meta, buffers = _describe(array, memory)
    return [tag, meta], buffers


def rebuild_held(line: object, buffers: Sequence[Buffer], land: Land) -> Any:
    """Rebuilds an array from the output of `describe_held`.

    Args:
        line: The `[tag, meta]` in the meta of the other external.
        buffers: The buffers of the array.
        land: The function that the rebuild of the other external got.

    Raises:
        DecodeError: The line does not describe an array.
    """
    match line:
        case ["array", meta]:
            return rebuild_array(meta, buffers)
        case [str(tag), meta] if (number := gpu_number(tag)) is not None:
            return rebuild_gpu_array(meta, buffers, land, number)
    raise DecodeError(f"not an array: {str(line)[:100]}")


def _describe(external: Any, memory: Memory) -> tuple[str | Gpu, object, Sequence[Buffer]]:
    if type(external) is np.ndarray:
        return ("array", *describe_array(external, memory))
    known = external_type(type(external))
    if known is not None:
        return (known.tag, *known.describe(external, memory))
    if is_cupy(external):
        return describe_gpu_array(external, memory)
    raise Refused(f"a {type(external).__qualname__} is no external")


def rebuild(
    metadata: bytes,
    buffers: Sequence[Buffer],
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    land: Land = land,
) -> list[object]:
    """Rebuilds the externals of a document; arrays use the memory of the buffers.

    Args:
        metadata: Metadata from `describe`, or from anyone.
        buffers: Writable ones become the memory of arrays; read-only ones are copied.
        limits: The limits on the resources that the description may use here.
        land: Moves arrays that are to live on a GPU.

    Returns:
        The externals, in order.

    Raises:
        DecodeError: Metadata and buffers are not an output of `describe`.
    """
    if not metadata:
        if buffers:
            raise DecodeError(f"{len(buffers)} buffers and no externals")
        return []
    # Small ones are remembered, since arrays of one shape have equal metadata.
    small = len(metadata) <= limits.unchecked_bytes
    lines = _kept_lines(metadata) if small else _read_lines(metadata, limits)
    rebuilt: list[object] = []
    used = 0
    for index, (tag, meta, count) in enumerate(lines):
        own = buffers[used : used + count]
        used += count
        try:
            rebuilt.append(_rebuild(tag, meta, own, land))
        except DecodeError as error:
            raise DecodeError(f"external {index}: {error}") from error
        except Exception as error:  # a rebuild of an upper floor, because of garbage
            raise DecodeError(f"external {index} ({tag[:50]!r}): {error!r}") from error
    if used != len(buffers):
        raise DecodeError(f"externals of {used} buffers arrived with {len(buffers)}")
    return rebuilt


@lru_cache(KEPT_LINES)
def _kept_lines(metadata: bytes) -> Sequence[tuple[str, Any, int]]:
    return _read_lines(metadata, DEFAULT_LIMITS)


def _read_lines(metadata: bytes, limits: DecodeLimits) -> Sequence[tuple[str, Any, int]]:
    try:
        lines = unpack(metadata, limits)
    except Exception as error:  # msgpack raises a dozen types
        raise DecodeError(f"not a description of externals: {error}") from error
    if type(lines) is not list:
        raise DecodeError("not a description of externals")
    for line in lines:
        if type(line) is not list or len(line) != 3 or type(line[0]) is not str:
            raise DecodeError(f"not an external: {str(line)[:100]}")
        if type(line[2]) is not int or line[2] < 0:
            raise DecodeError(f"an external with {str(line[2])[:50]} buffers")
    return lines  # nobody modifies them


def _rebuild(tag: str, meta: object, buffers: Sequence[Buffer], land: Land) -> object:
    if tag == "array":
        return rebuild_array(meta, buffers)
    known = external_type_by_tag(tag)
    if known is not None:
        return known.rebuild(meta, buffers, land)
    if (number := gpu_number(tag)) is not None:
        return rebuild_gpu_array(meta, buffers, land, number)
    raise DecodeError(f"an external of the unknown type {tag[:50]!r}; is its package imported?")
