"""How updates go over their arrays: cut alike into parts that stay in a core's cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from telegrad.arrays import namespace
from telegrad.types import Array

__all__ = ["held_arrays", "in_blocks"]

BLOCK_BYTES: Final = 256 * 1024
"""Of each array. A step with momentum of 1.8 million float32 numbers took 1.9 ms whole, and in parts
of 64, 128, 256 and 512 KiB 1.5, 1.4, 1.3 and 1.3: an update has four to six arrays, and a core's
second cache is often of 1 to 2 MiB."""


def in_blocks(*arrays: Any) -> Iterable[tuple[Any, ...]]:
    """Gives views of the same rows of each, block after block; small ones all at once.

    An update is several passes over its arrays; done block by block, all but the first find them in
    the cache, and what is computed on the way is as small as a block. Arrays of a GPU are left
    whole: each pass is a launch there.

    Args:
        arrays: Of one shape.

    >>> [a.shape for a, b in in_blocks(np.zeros((1000, 100)), np.ones((1000, 100)))]
    [(327, 100), (327, 100), (327, 100), (19, 100)]
    """
    first = arrays[0]
    if first.nbytes <= BLOCK_BYTES or type(first) is not np.ndarray:
        return (arrays,)
    return _blocks(first, arrays)


def _blocks(first: Any, arrays: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    rows = max(1, BLOCK_BYTES * len(first) // first.nbytes)
    for i in range(0, len(first), rows):
        yield tuple([array[i : i + rows] for array in arrays])


def held_arrays(state: Mapping[str, Any], names: Iterable[str], like: Array) -> dict[str, Array]:
    """Returns those arrays of `state`; zeros, of the shape of `like`, where it has none yet."""
    return {
        name: state[name] if name in state else namespace(like).zeros_like(like) for name in names
    }
