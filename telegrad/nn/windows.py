"""What users say of windows (numbers, pairs, "same"), checked and made `kernels.Windows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from telegrad.kernels import Windows

__all__ = ["Pair", "of_convolution", "of_pooling", "pair"]

Pair: TypeAlias = int | Sequence[int]
"""A number for rows and columns, or one for each."""


def pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    """Returns `value` as two integers.

    Raises:
        ValueError: It is not one or two integers of at least `least`.
    """
    given: tuple[Any, ...] = (value, value) if isinstance(value, int) else tuple(value)
    if len(given) != 2 or not all(isinstance(x, int) and x >= least for x in given):
        raise ValueError(f"{name} is one integer or two, at least {least}; got {value!r}")
    return given


def of_convolution(
    size: tuple[int, int], stride: Pair, padding: Pair | str, dilation: Pair
) -> Windows:
    """Returns the windows of a convolution.

    Args:
        size: Rows and columns of the filters.
        stride: At least 1.
        padding: On both sides; "valid" for none; "same" for an output as large as the input, with
            the odd row or column at the end.
        dilation: At least 1.

    Raises:
        ValueError: One of them is none of this, or "same" with a stride.
    """
    steps, gaps = pair("stride", stride, 1), pair("dilation", dilation, 1)
    if padding == "same":
        if steps != (1, 1):
            raise ValueError(f"padding 'same' needs a stride of 1, not {stride}")
        reach = [gap * (length - 1) for gap, length in zip(gaps, size, strict=True)]
        rows, columns = [(x // 2, x - x // 2) for x in reach]
        return Windows(size, steps, (rows, columns), gaps)
    if isinstance(padding, str) and padding != "valid":
        raise ValueError(f"padding is a number, two, 'same' or 'valid', not {padding!r}")
    top, left = (0, 0) if isinstance(padding, str) else pair("padding", padding, 0)
    return Windows(size, steps, ((top, top), (left, left)), gaps)


def of_pooling(size: Pair, stride: Pair | None, padding: Pair, dilation: Pair = 1) -> Windows:
    """Returns the windows of a pooling; `stride` None means their size.

    Raises:
        ValueError: As `pair`, or the padding is more than half a window.
    """
    both = pair("kernel_size", size, 1)
    steps = both if stride is None else pair("stride", stride, 1)
    top, left = pair("padding", padding, 0)
    if top > both[0] // 2 or left > both[1] // 2:
        raise ValueError(
            f"padding is at most half a window; got {padding} with a window of {both[0]} by {both[1]}"
        )
    return Windows(both, steps, ((top, top), (left, left)), pair("dilation", dilation, 1))
