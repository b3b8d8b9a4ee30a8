"""`Windows`: the positions of the windows of a convolution or pooling over the last two axes.

For CuPy arrays of floats, `cuda/windows.cu` does in one launch what NumPy does place by place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from telegrad.arrays import is_cupy, namespace
from telegrad.kernels.cuda import Kernel, blocks_for, contiguous
from telegrad.types import Array, Shape

_DTYPES: Final = ("float32", "float64", "float16", "bfloat16")


class Part(NamedTuple):
    """The items at one place in every window.

    Attributes:
        place: The number of the place, counted row by row.
        inside: The index of these items in the array without padding.
        windows: The index of the windows whose item at this place is inside the array.
    """

    place: int
    inside: tuple[Any, ...]
    windows: tuple[Any, ...]


class Windows(NamedTuple):
    """Windows of one size at even distances.

    Attributes:
        size: The rows and columns of a window.
        stride: The distances from one window to the next, down and across.
        padding: The padding before and after the rows, and before and after the columns.
        dilation: The distances from one item of a window to the next, down and across.

    >>> Windows((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)).counts((28, 28))
    (14, 14)
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]

    def counts(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Returns the number of windows, down and across.

        Args:
            shape: The shape of an array; it ends with rows and columns.

        Raises:
            ValueError: No window fits.
        """
        found = [self._count(axis, shape[axis - 2]) for axis in (0, 1)]
        if min(found) <= 0:
            raise ValueError(
                f"a window of {self.size[0]} by {self.size[1]} (dilation {self.dilation}) does not "
                f"fit into {shape[-2]} by {shape[-1]} with padding {self.padding}"
            )
        return found[0], found[1]

    def _count(self, axis: int, length: int) -> int:
        reach = self.dilation[axis] * (self.size[axis] - 1) + 1
        return (length + sum(self.padding[axis]) - reach) // self.stride[axis] + 1

    @property
    def padded(self) -> bool:
        """True if there is padding."""
        return any(map(any, self.padding))

    @property
    def apart(self) -> bool:
        """True if no item is in two windows."""
        reaches = zip(self.dilation, self.size, self.stride, strict=True)
        return all(gap * (length - 1) < step for gap, length, step in reaches)

    def pad(self, a: Any, fill: float = 0.0) -> Array:
        """Returns a copy of `a` with padding around it; `a` itself if there is no padding."""
        if not self.padded:
            return a  # type: ignore[no-any-return]
        (top, bottom), (left, right) = self.padding
        rows, columns = a.shape[-2:]
        shape = (*a.shape[:-2], top + rows + bottom, left + columns + right)
        xp = namespace(a)
        padded: Any = xp.full(shape, fill, dtype=a.dtype) if fill else xp.zeros(shape, a.dtype)
        padded[..., top : top + rows, left : left + columns] = a
        return padded  # type: ignore[no-any-return]

    def parts(self, shape: tuple[int, ...]) -> Iterator[Part]:
        """Yields one `Part` for each place of a window that lies inside the array.

        Args:
            shape: The shape of the array without padding; it ends with rows and columns.
        """
        counts = self.counts(shape)
        for i in range(self.size[0]):
            rows = self._reach(0, i, shape[-2], counts[0])
            for j in range(self.size[1]):
                columns = self._reach(1, j, shape[-1], counts[1])
                if rows is not None and columns is not None:
                    yield Part(
                        i * self.size[1] + j,
                        (..., rows[0], columns[0]),
                        (..., rows[1], columns[1]),
                    )

    def _reach(self, axis: int, i: int, length: int, count: int) -> tuple[slice, slice] | None:
        stride = self.stride[axis]
        start = i * self.dilation[axis] - self.padding[axis][0]
        first = max(0, -(start // stride))
        end = min(count, (length - 1 - start) // stride + 1)
        if first >= end:
            return None
        inside = slice(start + first * stride, start + (end - 1) * stride + 1, stride)
        return inside, slice(first, end)


def on_kernels(*arrays: Array) -> bool:
    """Returns True if `cuda/windows.cu` takes these arrays: of CuPy, of one dtype of floats."""
    kinds = {array.dtype.name for array in arrays}
    return is_cupy(arrays[0]) and len(kinds) == 1 and not kinds.isdisjoint(_DTYPES)


def launch_windows(
    name: str, windows: Windows, shape: Shape, *arrays: Array, over: Array, **define: Any
) -> None:
    """Launches a kernel of `cuda/windows.cu`.

    Args:
        name: The kernel.
        windows: The windows.
        shape: The shape of the array without padding; it ends with rows and columns.
        arrays: The arrays of the kernel, in its order.
        over: That of the arrays which has one item for each thread.
        define: Macros besides ITEM.
    """
    padding = windows.padding[0][0], windows.padding[1][0]
    places = *shape[-2:], *windows.counts(shape), *windows.size
    size = math.prod(over.shape)
    Kernel("windows", name).launch(
        *map(contiguous, arrays),
        size,
        *places,
        *windows.stride,
        *padding,
        *windows.dilation,
        blocks=blocks_for(size, 256),
        ITEM=arrays[0].dtype,
        **define,
    )
