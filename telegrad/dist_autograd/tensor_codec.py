"""Tensors on the wire: the array, and nothing of the graph; a Parameter arrives as a Tensor.

Whether a Tensor needs a gradient is the interceptor's affair: it travels beside the document. The
gradients of some rows alone travel as these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telegrad.autograd import RowSparse, Tensor, attach
from telegrad.errors import AutogradError, DecodeError
from telegrad.wire import (
    Buffer,
    ExternalType,
    Land,
    Memory,
    describe_held,
    rebuild_held,
    register_external,
)

__all__ = ["ROW_SPARSE", "TENSOR"]


def _describe(tensor: Tensor, memory: Memory) -> tuple[object, Sequence[Buffer]]:
    return describe_held(tensor.data, memory)


def _rebuild(meta: Any, buffers: Sequence[Buffer], land: Land) -> Tensor:
    return attach(rebuild_held(meta, buffers, land), None)


def _describe_rows(gradient: RowSparse, memory: Memory) -> tuple[object, Sequence[Buffer]]:
    rows, first = describe_held(gradient.rows, memory)
    values, second = describe_held(gradient.values, memory)
    return [rows, values, list(gradient.shape)], [*first, *second]


def _rebuild_rows(meta: Any, buffers: Sequence[Buffer], land: Land) -> RowSparse:
    match meta:
        case [rows, values, list(shape)] if all(type(n) is int and n >= 0 for n in shape):
            held = [rebuild_held(rows, buffers[:1], land), rebuild_held(values, buffers[1:], land)]
        case _:
            raise DecodeError("the description of a RowSparse is not [its arrays, its shape]")
    if held[0].dtype.kind not in "iu":
        raise DecodeError("a RowSparse is not of a vector of rows and an array of values")
    rows, values = held
    try:
        gradient = RowSparse(rows, values, tuple(shape))
    except AutogradError as error:
        raise DecodeError(str(error)) from error
    if len(rows) and not 0 <= rows.min() <= rows.max() < shape[0]:
        raise DecodeError(f"a RowSparse of {shape[0]} rows names others")
    return gradient


TENSOR = ExternalType("tensor", Tensor, _describe, _rebuild)
ROW_SPARSE = ExternalType("row_sparse", RowSparse, _describe_rows, _rebuild_rows)

register_external(TENSOR)
register_external(ROW_SPARSE)
