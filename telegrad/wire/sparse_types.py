"""scipy.sparse arrays and matrices on the wire; scipy is used where it is imported already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.builtin_types import integers
from telegrad.wire.conversion import MARKERS, Conversion, Reading, Refused
from telegrad.wire.tags import Tag

__all__ = ["COMPOUND_DECODERS", "encode_sparse", "is_sparse"]

_PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "dia": ("data", "offsets"),
}


def is_sparse(value: object) -> bool:
    """Whether it is an array or a matrix of scipy.sparse."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(value))


def encode_sparse(conversion: Conversion, value: Any) -> object:
    """Encodes it as class, shape and parts; the parts are externals."""
    name, layout = type(value).__name__, value.format
    if layout not in (*_PARTS, "coo") or name not in (f"{layout}_array", f"{layout}_matrix"):
        raise Refused(f"a sparse {name}; send array.tocsr() or array.tocoo()")
    if layout == "coo":
        steps = (".data", *(f".coords[{i}]" for i in range(len(value.coords))))
        parts = [value.data, *value.coords]
    else:
        steps = tuple(f".{part}" for part in _PARTS[layout])
        parts = [getattr(value, part) for part in _PARTS[layout]]
    shape = [int(n) for n in value.shape]
    return [MARKERS[Tag.SPARSE], name, shape, *conversion.items(parts, steps.__getitem__)]


def _decode_sparse(reading: Reading, items: list[Any]) -> object:
    name, dimensions, *parts = items
    if type(name) is not str:
        raise DecodeError("a sparse array without a name")
    layout, _, kind = name.partition("_")
    if layout not in (*_PARTS, "coo") or kind not in ("array", "matrix"):
        raise DecodeError(f"not a sparse array: {name[:100]!r}")
    if type(dimensions) is not list or any(type(part) is not np.ndarray for part in parts):
        raise DecodeError(f"a {name} whose parts are no arrays")
    module = sys.modules.get("scipy.sparse")
    if module is None:
        raise DecodeError(f"a {name} arrived and scipy.sparse is not imported here")
    if any(part.dtype.kind not in "iu" for part in parts[1:]):
        raise DecodeError(f"a {name} whose indices are no integers")
    shape = tuple(integers(dimensions, len(dimensions)))
    reading.allowance.looks(parts)
    if layout == "coo":
        data, *coords = parts
        array = getattr(module, name)((data, tuple(coords)), shape=shape)
        built = [array.data, *array.coords]
    elif len(parts) != len(_PARTS[layout]):
        raise DecodeError(f"a {name} of {len(parts)} parts")
    else:
        array = getattr(module, name)(tuple(parts), shape=shape)
        built = [getattr(array, part) for part in _PARTS[layout]]
    if layout not in ("coo", "dia"):
        array.check_format(full_check=True)  # indices out of bounds would read foreign memory
    for new, part in zip(built, parts, strict=False):
        if not np.may_share_memory(new, part):  # scipy makes indices as narrow as it can
            reading.allowance.copies(new)
    return array


COMPOUND_DECODERS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    Tag.SPARSE: _decode_sparse,
}
