"""Externals beside their document: one to a line of metadata, each with its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np

from telegrad.arrays import is_cupy
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire.array_types import describe_array, rebuild_array
from telegrad.wire.conversion import Refused
from telegrad.wire.copies import NO_MEMORY, Memory
from telegrad.wire.envelope import Buffer
from telegrad.wire.gpu_arrays import describe_gpu_array, rebuild_gpu_array
from telegrad.wire.limits import DEFAULT_LIMITS, DecodeLimits
from telegrad.wire.placement import Gpu, Land, Place, first_gpu, gpu_number, land
from telegrad.wire.registry import external_type, external_type_by_tag
from telegrad.wire.unpacking import is_small, unpack

__all__ = [
    "PACKER_BYTES",
    "describe",
    "describe_held",
    "describe_lines",
    "pack_lines",
    "rebuild",
    "rebuild_held",
]

# Bytes that a packer begins with: what it takes for itself, 256 KiB, the system gives and takes back
# each time, which may cost three times what packing a call does.
PACKER_BYTES = 2**10
# Of metadata that is read: 256 bytes at most, which become 16 KiB at worst. Reading one takes 1.5 us,
# finding it 0.1.
KEPT_LINES = 256


def describe(
    externals: Sequence[object], place: Place = first_gpu, memory: Memory = NO_MEMORY
) -> tuple[bytes, list[Buffer]]:
    """Describes externals for one destination; copies the bytes of arrays as they are now.

    Args:
        externals: From `encode`, perhaps replaced by interceptors.
        place: Says where arrays of a GPU are to arrive.
        memory: Where the bytes of arrays are copied to, if it has any.

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
        externals: As for `describe`.
        memory: As for `describe`; for one destination alone.

    Returns:
        A line for each, and all buffers, in order.

    Raises:
        EncodeError: As `describe`.
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
    """Describes an array of an external that is more than that; copies its bytes.

    Args:
        array: Of NumPy or CuPy.
        memory: As the description of what holds it got it.

    Returns:
        `[tag, meta]`, for the meta of what holds it, as it is; and its buffers.

    Raises:
        Refused: It cannot travel.
    """
    if type(array) is np.ndarray:
        meta, buffers = describe_array(array, memory)
        return ["array", meta], buffers
    tag, meta, buffers = _describe(array, memory)
    return [tag, meta], buffers


def rebuild_held(line: object, buffers: Sequence[Buffer], land: Land) -> Any:
    """Rebuilds what `describe_held` described.

    Args:
        line: That was in the meta.
        buffers: Of the array.
        land: As the rebuild of what holds it got it.

    Raises:
        DecodeError: It is no array.
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
    if is_cupy(external):
        return describe_gpu_array(external, memory)
    known = external_type(type(external))
    if known is None:
        raise Refused(f"a {type(external).__qualname__} is no external")
    return (known.tag, *known.describe(external, memory))


def rebuild(
    metadata: bytes,
    buffers: Sequence[Buffer],
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    land: Land = land,
) -> list[object]:
    """Rebuilds the externals of a document, arrays over the very buffers.

    Args:
        metadata: From `describe`, or from anyone.
        buffers: Writable ones become the memory of arrays; read-only ones are copied.
        limits: What the description may ask of this end.
        land: Moves arrays that are to live on a GPU.

    Returns:
        The externals, in order.

    Raises:
        DecodeError: Metadata and buffers are not what `describe` makes.
    """
    if not metadata:
        if buffers:
            raise DecodeError(f"{len(buffers)} buffers and no externals")
        return []
    lines = _lines(metadata, limits)
    rebuilt: list[object] = []
    used = 0
    for index, (tag, meta, count) in enumerate(lines):
        own = buffers[used : used + count]
        used += count
        try:
            rebuilt.append(_rebuild(tag, meta, own, land))
        except DecodeError as error:
            raise DecodeError(f"external {index}: {error}") from error
        except Exception as error:  # whatever garbage makes a rebuild of an upper floor raise
            raise DecodeError(f"external {index} ({tag[:50]!r}): {error!r}") from error
    if used != len(buffers):
        raise DecodeError(f"externals of {used} buffers arrived with {len(buffers)}")
    return rebuilt


def _lines(metadata: bytes, limits: DecodeLimits) -> Sequence[tuple[str, Any, int]]:
    """Reads metadata; what is small is kept, as messages with arrays of one shape say the same."""
    if is_small(len(metadata), limits):
        return _kept_lines(metadata)
    return _read_lines(metadata, limits)


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
    return lines  # nobody changes them


def _rebuild(tag: str, meta: object, buffers: Sequence[Buffer], land: Land) -> object:
    if tag == "array":
        return rebuild_array(meta, buffers)
    known = external_type_by_tag(tag)
    if known is not None:
        return known.rebuild(meta, buffers, land)
    if (number := gpu_number(tag)) is not None:
        return rebuild_gpu_array(meta, buffers, land, number)
    raise DecodeError(f"an external of the unknown type {tag[:50]!r}; is its package imported?")
