"""Traces, diagonals and products of many matrices, written with what has rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from telegrad.autograd.extend import composed

__all__: list[str] = []


@composed(np.trace)
def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    return np.sum(np.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@composed(np.linalg.trace)
def _linalg_trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return _trace(x, offset, -2, -1, dtype)


@composed(np.linalg.diagonal)
def _linalg_diagonal(x: Any, /, *, offset: int = 0) -> Any:
    return np.diagonal(x, offset, -2, -1)


@composed(np.linalg.matrix_power)
def _matrix_power(a: Any, n: int) -> Any:
    if n < 0:
        return _matrix_power(np.linalg.inv(a), -n)
    if n == 0:
        return a * 0.0 + np.linalg.matrix_power(a.detach().data, 0)
    power, square = None, a
    while True:
        n, odd = divmod(n, 2)
        if odd:
            power = square if power is None else power @ square
        if not n:
            return power
        square = square @ square


@composed(np.linalg.multi_dot)
def _multi_dot(arrays: Sequence[Any]) -> Any:
    if len(arrays) < 2:
        raise ValueError(f"multi_dot takes two arrays at least, not {len(arrays)}")
    first, last = np.shape(arrays[0]), np.shape(arrays[-1])
    lengths = [first[0] if len(first) == 2 else 1, *(np.shape(a)[0] for a in arrays[1:])]
    split = _cheapest([*lengths, last[1] if len(last) == 2 else 1])

    def product(i: int, j: int) -> Any:
        if i == j:
            return arrays[i]
        k = split[i, j]
        return np.dot(product(i, k), product(k + 1, j))

    return product(0, len(arrays) - 1)


def _cheapest(lengths: Sequence[int]) -> dict[tuple[int, int], int]:
    """Returns after which matrix to split the product of those from i to j.

    By dynamic programming: Cormen, Leiserson, Rivest, Stein, Introduction to Algorithms, 15.2.
    """
    number = len(lengths) - 1
    cost = {(i, i): 0 for i in range(number)}
    split = {}
    for width in range(1, number):
        for i in range(number - width):
            j = i + width
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + lengths[i] * lengths[k + 1] * lengths[j + 1], k)
                for k in range(i, j)
            )
    return split
