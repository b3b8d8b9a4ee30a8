"""Externals beside their document: one to a line of metadata, each with its buffers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from telegrad.arrays import is_cupy, to_device, to_host
from telegrad.errors import DecodeError, EncodeError
from telegrad.wire.array_types import describe_array, describe_own_array, rebuild_array
from telegrad.wire.conversion import Refused
from telegrad.wire.envelope import Buffer
from telegrad.wire.limits import DEFAULT_LIMITS, DecodeLimits
from telegrad.wire.registry import external_type, external_type_by_tag
from telegrad.wire.unpacking import check, unpack

__all__ = ["describe", "join_described", "rebuild"]

_CUPY = "cupy"  # an array that was on a GPU; its meta and buffers are those of "array"


def describe(externals: Sequence[object]) -> tuple[bytes, list[Buffer]]:
    """Describes externals for one destination; copies the bytes of arrays as they are now.

    Args:
        externals: From `encode`, perhaps replaced by interceptors.

    Returns:
        Metadata, one msgpack list `[tag, meta, number of buffers]` for each; and all buffers, in
        order.

    Raises:
        EncodeError: One of them is of no external type, or cannot be described.
    """
    if not externals:
        return b"", []
    buffers: list[Buffer] = []
    lines = []
    for index, external in enumerate(externals):
        try:
            tag, meta, own = _describe(external)
        except Refused as refused:
            path = f"external {index}"
            raise EncodeError(f"{path} cannot travel: {refused}", path=path) from refused
        lines.append([tag, meta, len(own)])
        buffers.extend(own)
    return msgpack.packb(lines), buffers


def join_described(parts: Sequence[tuple[bytes, list[Buffer]]]) -> tuple[bytes, list[Buffer]]:
    """Joins what `describe` has returned for some externals each, as if for all of them at once."""
    lines = [line for metadata, _ in parts for line in msgpack.unpackb(metadata)]
    return msgpack.packb(lines), [buffer for _, own in parts for buffer in own]


def _describe(external: Any) -> tuple[str, object, Sequence[Buffer]]:
    if type(external) is np.ndarray:
        return ("array", *describe_array(external))
    if is_cupy(external):
        return (_CUPY, *describe_own_array(np.asarray(to_host(external), order="C")))
    known = external_type(type(external))
    if known is None:
        raise Refused(f"a {type(external).__qualname__} is no external")
    return (known.tag, *known.describe(external))


def _on_gpu(array: np.ndarray[Any, Any]) -> object:
    """Moves it where the receiver has CuPy loaded and a GPU; otherwise it stays NumPy's."""
    if "cupy" not in sys.modules:
        return array
    try:
        return to_device(array, "cuda")
    except Exception:  # no GPU here, whatever CuPy or its driver says about that
        return array


def rebuild(
    metadata: bytes, buffers: Sequence[Buffer], *, limits: DecodeLimits = DEFAULT_LIMITS
) -> list[object]:
    """Rebuilds the externals of a document, arrays over the very buffers.

    Args:
        metadata: From `describe`, or from anyone.
        buffers: Writable ones become the memory of arrays; read-only ones are copied.
        limits: What the description may ask of this end.

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
            rebuilt.append(_rebuild(tag, meta, own))
        except DecodeError as error:
            raise DecodeError(f"external {index}: {error}") from error
        except Exception as error:  # whatever garbage makes a rebuild of an upper floor raise
            raise DecodeError(f"external {index} ({tag[:50]!r}): {error!r}") from error
    if used != len(buffers):
        raise DecodeError(f"externals of {used} buffers arrived with {len(buffers)}")
    return rebuilt


def _lines(metadata: bytes, limits: DecodeLimits) -> list[tuple[str, Any, int]]:
    try:
        check(metadata, limits)
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
    return lines


def _rebuild(tag: str, meta: object, buffers: Sequence[Buffer]) -> object:
    if tag == "array":
        return rebuild_array(meta, buffers)
    if tag == _CUPY:
        return _on_gpu(rebuild_array(meta, buffers))
    known = external_type_by_tag(tag)
    if known is None:
        raise DecodeError(f"an external of the unknown type {tag[:50]!r}; is its package imported?")
    return known.rebuild(meta, buffers)
