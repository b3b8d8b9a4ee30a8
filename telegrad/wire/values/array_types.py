"""NumPy's arrays, scalars and dtypes on the wire; CuPy's arrays by way of the host."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, Literal

import msgpack
import numpy as np

from telegrad.errors import DecodeError
from telegrad.wire.document import MARKERS, Conversion, Reading, Refused, Tag
from telegrad.wire.envelope import Buffer
from telegrad.wire.memory import NO_MEMORY, Memory, bytes_of, copy_of
from telegrad.wire.names import is_exactly
from telegrad.wire.registry import ExternalType, Land, register_external
from telegrad.wire.values.builtin_types import integers

MAX_DIMENSIONS = 64  # NumPy's own limit
MAX_DTYPE_DEPTH = 32  # levels of structured dtypes in each other
BESIDE_BYTES = 2**20  # bytes of this length or longer travel beside their document, as arrays do
MAX_ITEMS = 2**48  # of an array whose items have no bytes, so that its buffer bounds nothing
# Descriptions to remember, because those of one layer's arrays are equal. Reading one takes 0.6 us,
# finding it 0.2. Each is a short text and at most 64 numbers.
KEPT_FORMS = 1000

_NUMBERS = {code: np.dtype(code) for code in (np.dtype(each).str for each in "?bhilBHILefdFD")}
_NAMES = {dtype: name for name, dtype in _NUMBERS.items()}
_SIMPLE = re.compile(r"[<>|=][biufcSUVmM][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Zμ]{1,7}\])?")


# -- dtypes ------------------------------------------------------------------------------------


def encode_dtype(dtype: np.dtype[Any]) -> object:
    """Turns a dtype into plain msgpack data.

    A simple one is its string (`<f8`). The others are lists: `["ml", name]` of ml_dtypes,
    `["sub", base, shape]`, `["struct", itemsize, aligned, [[name, title, offset, dtype], ...]]`.

    Raises:
        Refused: The items are Python objects, or the dtype is unknown.
    """
    if dtype.isbuiltin == 1 and dtype.kind in "biufc":
        return dtype.str
    if dtype.hasobject:
        raise Refused(
            f"an array of dtype {dtype}, whose items are Python objects; convert it to a numeric"
            " dtype, or send array.tolist()"
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["sub", encode_dtype(base), list(shape)]
    if dtype.names is not None and dtype.fields is not None:
        fields = [_encode_field(name, *dtype.fields[name]) for name in dtype.names]
        return ["struct", dtype.itemsize, dtype.isalignedstruct, fields]
    if dtype.type.__module__ == "ml_dtypes":
        return ["ml", dtype.type.__name__]
    if not _SIMPLE.fullmatch(dtype.str) or np.dtype(dtype.str) != dtype:
        raise Refused(f"an array of dtype {dtype}; convert it first, for instance to a '<U' dtype")
    return dtype.str


def _encode_field(name: str, dtype: np.dtype[Any], offset: int, title: object = None) -> object:
    return [name, title if isinstance(title, str) else None, offset, encode_dtype(dtype)]


def decode_dtype(plain: object, depth: int = 0) -> np.dtype[Any]:
    """Builds the dtype that `encode_dtype` described.

    Only numbers and texts are given to NumPy, and nothing is compared or printed: the parts of a
    dtype that stands in a document as a value may be any value that a document can hold.

    Raises:
        DecodeError: It is not such a description, or its items would be Python objects.
    """
    if type(plain) is str and (number := _NUMBERS.get(plain)) is not None:
        return number
    if depth > MAX_DTYPE_DEPTH:
        raise DecodeError(f"a dtype nested deeper than {MAX_DTYPE_DEPTH}")
    try:
        dtype = _decode_dtype(plain, depth)
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError("not a dtype") from error
    if dtype.hasobject:
        raise DecodeError(f"a dtype of Python objects: {dtype}"[:200])
    return dtype


def _decode_dtype(plain: Any, depth: int) -> np.dtype[Any]:
    if type(plain) is str:
        if not _SIMPLE.fullmatch(plain):
            raise DecodeError(f"not a dtype: {plain[:100]!r}")
        return np.dtype(plain)
    if type(plain) is not list or not plain or type(plain[0]) is not str:
        raise DecodeError("not a dtype")
    kind, *rest = plain
    if kind == "ml":
        return _ml_dtype(*rest)
    if kind == "sub":
        base, shape = rest
        _check_shape(shape)
        return np.dtype((decode_dtype(base, depth + 1), tuple(shape)))
    if kind == "struct":
        return _struct_dtype(rest, depth)
    raise DecodeError(f"not a dtype: {kind[:100]!r}")


def _struct_dtype(rest: list[Any], depth: int) -> np.dtype[Any]:
    itemsize, aligned, fields = rest
    right = type(itemsize) is int and type(aligned) is bool and type(fields) is list
    if not right or any(type(field) is not list or len(field) != 4 for field in fields):
        raise DecodeError("not a dtype of fields")
    for name, title, offset, _ in fields:
        if type(name) is not str or type(offset) is not int or not is_exactly(title, str, NoneType):
            raise DecodeError("a dtype with a field that has no name or no place")
    names, titles, offsets, formats = zip(*fields, strict=True) if fields else ((), (), (), ())
    return np.dtype(
        {
            "names": list(names),
            "formats": [decode_dtype(each, depth + 1) for each in formats],
            "offsets": list(offsets),
            "titles": list(titles),
            "itemsize": itemsize,
        },
        align=aligned,
    )


def _ml_dtype(name: object) -> np.dtype[Any]:
    if type(name) is not str:
        raise DecodeError("a dtype of ml_dtypes without a name")
    module = sys.modules.get("ml_dtypes")
    if module is None:
        raise DecodeError(f"dtype {name!r} is one of ml_dtypes, which is not imported here")
    scalar = vars(module).get(name)
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        raise DecodeError(f"ml_dtypes has no dtype {name[:100]!r} here")
    return np.dtype(scalar)


# -- arrays ------------------------------------------------------------------------------------


def refusal_of(value: object) -> str | None:
    """Returns the reason for which an array of a subclass cannot travel; None if it can."""
    kind = type(value)
    if kind is np.ndarray or kind is np.memmap or not isinstance(value, np.ndarray):
        return None
    if isinstance(value, np.ma.MaskedArray):
        return "a masked array; send (array.data, array.mask), or array.filled(value)"
    return f"an array of the subclass {kind.__qualname__}; send np.asarray(array)"


def check_dtype(value: object) -> None:
    """Raises Refused for an array that cannot travel."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":  # numbers always can
        encode_dtype(value.dtype)


def describe_array(
    array: np.ndarray[Any, Any], memory: Memory = NO_MEMORY
) -> tuple[object, Sequence[Buffer]]:
    """Copies an array's bytes, in their present order.

    Args:
        array: The array.
        memory: The memory to copy its bytes into.

    Returns:
        `[dtype, "C" or "F", *shape]`, and one buffer.
    """
    flags = array.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    dtype = _NAMES.get(array.dtype) or encode_dtype(array.dtype)
    return [dtype, order, *array.shape], [bytes_of(array, order, memory)]


def rebuild_array(
    meta: Any, buffers: Sequence[Buffer], *, as_is: bool = False
) -> np.ndarray[Any, Any]:
    """Makes an array over the received buffer; copies it only if it is not writable.

    Raises:
        DecodeError: Description and buffer do not fit each other.
    """
    if type(meta) is not list or len(meta) < 2 or len(buffers) != 1:
        raise DecodeError(f"not an array: {str(meta)[:100]} with {len(buffers)} buffers")
    # Long descriptions are not remembered, and objects of users' classes are not hashed.
    short = type(meta[0]) is str and type(meta[1]) is str and len(meta[1]) == 1
    form_of = _kept_form if short else _form
    try:
        dtype, shape, size = form_of(*meta)
    except TypeError:  # an item without a hash, which is no number
        dtype, shape, size = _form(*meta)
    memory: Any = buffers[0]
    if type(memory) is bytearray:  # as small ones are
        found = len(memory)
    else:
        memory = memoryview(memory)
        found = memory.nbytes
        if memory.readonly and not as_is and found == size:
            memory = copy_of(memory)
    if found != size:
        raise DecodeError(
            f"an array of dtype {dtype}, shape {shape} and order {str(meta[1])[:10]!r}"
            f" with {found} bytes"
        )
    owner: object = memory.obj if type(memory) is memoryview else None
    if type(owner) is np.ndarray and owner.nbytes == found:
        memory = owner  # the base of the array is what owns the memory
    try:
        if meta[1] == "F":
            return np.ndarray(shape, dtype, memory, order="F")
        return np.ndarray(shape, dtype, memory)  # which takes half as long as with a keyword
    except (ValueError, TypeError) as error:
        raise DecodeError(f"an array of shape {shape}: {error}") from error


def _form(plain: object, order: object, *shape: int) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Returns dtype, shape and bytes; -1 bytes, which no buffer has, for an invalid description."""
    dtype = decode_dtype(plain)
    _check_shape(list(shape))
    items = math.prod(shape)
    right = order in ("C", "F") and items <= MAX_ITEMS
    return dtype, shape, items * dtype.itemsize if right else -1


# Typed, as 1 and True would otherwise be the same key.
_kept_form = lru_cache(KEPT_FORMS, typed=True)(_form)


def _check_shape(shape: Any) -> None:
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise DecodeError("not a shape")
    for n in shape:
        if type(n) is not int or n < 0:
            raise DecodeError("not a shape")


def _rebuild(meta: Any, buffers: Sequence[Buffer], land: Land) -> np.ndarray[Any, Any]:
    return rebuild_array(meta, buffers)


register_external(ExternalType("array", np.ndarray, describe_array, _rebuild))


# -- scalars and dtypes as values --------------------------------------------------------------


def encode_scalar(conversion: Conversion, value: np.generic) -> object:
    """Encodes a NumPy scalar as its dtype and its bytes."""
    dtype = value.dtype
    if dtype.itemsize == 0 and dtype.kind in "SU":  # the bytes of an empty string are one zero item
        dtype = np.dtype(f"{dtype.kind}1")
    return [MARKERS[Tag.SCALAR], encode_dtype(dtype), value.tobytes()]


def encode_dtype_value(conversion: Conversion, value: np.dtype[Any]) -> object:
    """Encodes a dtype that is sent as a value."""
    return [MARKERS[Tag.DTYPE], encode_dtype(value)]


def _decode_scalar(reading: Reading, items: list[Any]) -> object:
    plain, payload = items
    if type(payload) is not bytes:
        raise DecodeError("a NumPy scalar without its bytes")
    array = rebuild_array([plain, "C"], [payload])
    return array[()]


def _decode_dtype_value(reading: Reading, items: list[Any]) -> object:
    (plain,) = items
    return decode_dtype(plain)


# -- bytes -------------------------------------------------------------------------------------


def encode_bytes(conversion: Conversion, value: bytes | bytearray) -> object:
    """Encodes bytes in place, big ones as an array, as a document is packed under the lock."""
    mutable = type(value) is bytearray
    if len(value) >= BESIDE_BYTES:
        octets = conversion.lift(np.frombuffer(value, np.uint8))
        return [MARKERS[Tag.BIG_BYTEARRAY if mutable else Tag.BIG_BYTES], octets]
    return msgpack.ExtType(Tag.BYTEARRAY, bytes(value)) if mutable else value


def _octets(reading: Reading, items: list[Any]) -> np.ndarray[Any, Any]:
    (octets,) = items
    if type(octets) is not np.ndarray or octets.dtype != np.uint8 or octets.ndim != 1:
        raise DecodeError("bytes that are no array of bytes")
    reading.allowance.copies(octets)
    return octets


# -- scipy.sparse arrays and matrices; scipy is used only if it is already imported --------------

_PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "dia": ("data", "offsets"),
}


def is_sparse(value: object) -> bool:
    """Returns True for an array or a matrix of scipy.sparse."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(value))


def encode_sparse(conversion: Conversion, value: Any) -> object:
    """Encodes a sparse array as class, shape and parts; the parts are externals."""
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


# -- the tables -------------------------------------------------------------------------------

LEAF_ENCODERS: dict[type, Callable[[Conversion, Any], object]] = {
    bytes: encode_bytes,
    bytearray: encode_bytes,
    np.ndarray: lambda conversion, value: conversion.lift(value),
    np.memmap: lambda conversion, value: conversion.lift(value),
    **dict.fromkeys(
        (np.bool_, np.int32, np.int64, np.float32, np.float64, np.complex64, np.complex128),
        encode_scalar,
    ),
}

COMPOUND_DECODERS: dict[Tag, Callable[[Reading, list[Any]], object]] = {
    Tag.SPARSE: _decode_sparse,
    Tag.SCALAR: _decode_scalar,
    Tag.DTYPE: _decode_dtype_value,
    Tag.BIG_BYTES: lambda reading, items: bytes(_octets(reading, items).data),
    Tag.BIG_BYTEARRAY: lambda reading, items: bytearray(_octets(reading, items).data),
}
