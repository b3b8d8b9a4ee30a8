"""`Table`: the addresses of any number of arrays, so that one launch works on all of them.

A table has lists of arrays. The arrays at one place of all lists have the same size, for instance a
parameter, its gradient and its new value. Each array is cut into chunks of CHUNK items, and a block
works on one chunk after the other. `struct Table` in `common.cuh` reads this:

    numbers of arrays, chunks and lists │ bytes of an item, by list │ chunks: array, first item │
    sizes of the arrays │ addresses, by list and array

The table travels to the GPU by CuPy's pinned memory, on the caller's stream. The host does not
wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import namespace

CHUNK: Final = 1 << 14
"""Items of a chunk; `common.cuh` has the same number."""


@final
class Table:
    """Lists of CuPy arrays of one device, for the parameter `const Table*` of a kernel.

    The arrays must be contiguous. The table keeps them.

    Args:
        sizes: The numbers of items of the arrays; all lists have these.
        lists: By their names in messages, each a sequence of arrays of one dtype; or one array that
            holds the items of all, one after the other.

    Raises:
        ValueError: An array is in host memory or misaligned.

    Attributes:
        words: The table on the GPU, of int64.
        blocks: The number of chunks, which is 0 without items.
    """

    def __init__(self, sizes: Sequence[int], **named: Any) -> None:
        self._lists = lists = [*named.values()]
        layout, self.blocks = _layout(tuple(sizes))
        head = [len(sizes), self.blocks, len(lists), *(_first(each).itemsize for each in lists)]
        parts = [np.array(head, np.int64), layout]
        for name, arrays in named.items():
            if isinstance(arrays, (list, tuple)):
                try:
                    places = np.array([array.data.ptr for array in arrays], np.int64)
                except AttributeError:  # of an array of NumPy
                    raise _misplaced(name, arrays) from None
            else:
                ends = np.cumsum(np.array([0, *sizes[:-1]], np.int64))
                places = ends * arrays.itemsize + arrays.data.ptr
            if (places % _alignment(_first(arrays))).any():
                raise _misplaced(name, arrays)
            parts.append(places)
        self.words: Any = namespace(_first(lists[0])).asarray(np.concatenate(parts))


def _alignment(array: Any) -> int:
    """Returns what addresses must be a multiple of: kernels copy 16 bytes as two words of 8."""
    return min(8, int(array.itemsize))


def _misplaced(name: str, arrays: Any) -> ValueError:
    """Returns the error of the first array that no GPU can read."""
    for i, array in enumerate(arrays if isinstance(arrays, (list, tuple)) else [arrays]):
        which = f"array {i} of {name}"
        if isinstance(array, np.ndarray):
            return ValueError(f"{which} is in host memory; move it, for instance with cupy.asarray")
        if array.data.ptr % _alignment(array):
            break
    return ValueError(
        f"{which} is misaligned: its address {array.data.ptr:#x} is no multiple of "
        f"{_alignment(array)} bytes"
    )


def _first(arrays: Any) -> Any:
    return arrays[0] if isinstance(arrays, (list, tuple)) else arrays


@lru_cache(maxsize=64)
def _layout(sizes: tuple[int, ...]) -> tuple[Any, int]:
    """Returns the part of a table that depends on the sizes alone, and the number of chunks."""
    chunks = [(i, start) for i, size in enumerate(sizes) for start in range(0, size, CHUNK)]
    words = [word for chunk in chunks for word in chunk]
    return np.array([*words, *sizes], np.int64), len(chunks)
