"""Several arrays as one, and views of one array as several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from telegrad.arrays.backend import is_cupy, namespace
from telegrad.types import Array, Shape


def joined_flat(parts: Sequence[Array]) -> Array:
    """Returns contiguous host arrays of one dtype as one flat array; a single one is not copied.

    It keeps their byte order, which `np.concatenate` alone does not.

    >>> joined_flat([np.zeros((1, 2), ">i2"), np.ones(1, ">i2")])
    array([0, 0, 1], dtype='>i2')
    """
    flat = [part.reshape(-1) for part in parts]
    if len(flat) == 1:
        return flat[0]
    joined = np.empty(sum(map(len, flat)), flat[0].dtype)
    return np.concatenate(flat, out=joined)


def views_of(buffer: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Returns arrays of `shapes`, one after the other, that share the memory of `buffer`.

    >>> [view.tolist() for view in views_of(np.arange(5), [(2, 2), (1,)])]
    [[[0, 1], [2, 3]], [4]]
    """
    if type(buffer) is not np.ndarray and is_cupy(buffer):  # its slices take twice as long
        ends = list(itertools.accumulate(map(math.prod, shapes)))
        parts = namespace(buffer).split(buffer, ends)  # the last part is what no shape has
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]
    views: list[Array] = []
    offset = 0
    for shape in shapes:
        size = math.prod(shape)
        views.append(buffer[offset : offset + size].reshape(shape))
        offset += size
    return views
