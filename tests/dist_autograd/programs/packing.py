"""Tensors in containers, dataclasses and references, as calls carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from telegrad import rpc
from telegrad.autograd import Tensor, tensor

__all__ = ["Packed", "fetched", "pack"]

Packed: TypeAlias = Any


@dataclass(frozen=True)
class Parcel:
    """Tensors in a dataclass, beside other things."""

    values: list[Any]
    indices: Tensor
    note: str


def pack(packing: str, values: list[Tensor]) -> Packed:
    """Returns values in a container, with other things that need no gradient."""
    match packing:
        case "tuple":
            return (7, *values, np.arange(4))
        case "dict":
            return {"counts": tensor(np.arange(2)), "values": dict(enumerate(values))}
        case "dataclass":
            return Parcel([values, None], tensor(np.arange(3)), "with a parcel")
        case "references":
            return [rpc.RRef(each) for each in values]
        case _:
            return values


def unpack(packing: str, packed: Packed) -> list[Any]:
    """Returns the values; references to them, where such were packed."""
    match packing:
        case "tuple":
            return list(packed[1:-1])
        case "dict":
            assert not packed["counts"].requires_grad
            return list(packed["values"].values())
        case "dataclass":
            return list(packed.values[0])
        case _:
            return list(packed)


async def fetched(packing: str, packed: Packed, *, task: bool) -> list[Tensor]:
    """Returns the Tensors; a task awaits references, a thread waits for them."""
    values = unpack(packing, packed)
    if packing != "references":
        return values
    return [await each if task else each.to_here() for each in values]
