"""Tensors on the wire: the array, and nothing of the graph; a Parameter arrives as a Tensor.

Whether a Tensor needs a gradient is the interceptor's affair: it travels beside the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from telegrad.autograd import Tensor, attach
from telegrad.errors import DecodeError
from telegrad.wire import Buffer, ExternalType, describe, rebuild, register_external

__all__ = ["TENSOR"]


def _describe(tensor: Tensor) -> tuple[object, Sequence[Buffer]]:
    return describe([tensor.data])


def _rebuild(meta: Any, buffers: Sequence[Buffer]) -> Tensor:
    held: list[Any] = rebuild(meta, buffers) if isinstance(meta, bytes) else []
    if len(held) != 1 or isinstance(held[0], Tensor):
        raise DecodeError("the description of a Tensor is not that of one array")
    return attach(held[0], None)


TENSOR = ExternalType("tensor", Tensor, _describe, _rebuild)

register_external(TENSOR)
