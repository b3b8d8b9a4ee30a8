"""`np.einsum` on Tensors, in all of its forms; its gradient is made of contractions too.

Three operands and more are contracted two at a time, in the order of `np.einsum_path`: also where
`optimize` is False, for the backward pass would otherwise go over all of them for each one.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from telegrad.autograd.extend import composed
from telegrad.autograd.rules.contraction import arrays_of, collapse, contraction
from telegrad.types import Shape

__all__: list[str] = []

_REMEMBERED: Final = 1024  # subscripts and numbers of axes; with three operands, also shapes
_OF_SUBLISTS: Final = string.ascii_uppercase + string.ascii_lowercase  # in the order of 0, 1, ...


class _Parsed(NamedTuple):
    """Subscripts without ellipses.

    Attributes:
        operands: The labels of each operand, none twice in one.
        out: Those of the result.
        diagonals: For each operand that has a label twice, the subscripts that take its diagonal.
        subscripts: All of it again, `ij,jk->ik`.
    """

    operands: tuple[str, ...]
    out: str
    diagonals: tuple[str | None, ...]
    subscripts: str


@composed(np.einsum)
def _einsum(*operands: Any, optimize: Any = False) -> Any:
    subscripts, given = _sorted(operands)
    arrays = arrays_of(given)
    parsed = _parse(subscripts, tuple([x.ndim for x in arrays]))
    if len(arrays) == 1:
        return collapse(arrays[0], subscripts=parsed.subscripts)
    for k, diagonal in enumerate(parsed.diagonals):
        if diagonal is not None:
            arrays[k] = collapse(arrays[k], subscripts=diagonal)
    if len(arrays) == 2:
        return contraction(parsed.subscripts)(*arrays)
    way = tuple(map(_frozen, optimize)) if isinstance(optimize, (list, tuple)) else optimize
    shapes = tuple([x.shape for x in arrays])
    for i, j, step in _steps(parsed.subscripts, shapes, way or "greedy"):
        two = arrays.pop(max(i, j)), arrays.pop(min(i, j))
        arrays.append(contraction(step)(*two))
    return arrays[0]


def _sorted(operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Returns the subscripts as one string, and the operands."""
    if not operands:
        raise ValueError("einsum needs subscripts and an operand, or an operand and its sublist")
    if isinstance(operands[0], str):
        return operands[0], operands[1:]
    pairs = len(operands) // 2
    subscripts = ",".join([_text(operands[2 * k + 1]) for k in range(pairs)])
    if len(operands) % 2:
        subscripts += f"->{_text(operands[-1])}"
    return subscripts, operands[: 2 * pairs : 2]


def _text(sublist: Any) -> str:
    outside = [k for k in sublist if k is not Ellipsis and not 0 <= k < len(_OF_SUBLISTS)]
    if outside:
        raise ValueError(f"labels of a sublist are from 0 to 51, not {outside[0]}")
    return "".join(["..." if k is Ellipsis else _OF_SUBLISTS[k] for k in sublist])


def _frozen(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


@lru_cache(_REMEMBERED)
def _parse(subscripts: str, ndims: tuple[int, ...]) -> _Parsed:
    """Returns what subscripts mean for operands of `ndims` axes.

    Raises:
        ValueError: NumPy's own, if they mean nothing.
    """
    np.einsum(subscripts, *[np.ones((1,) * n) for n in ndims])
    given, arrow, out = subscripts.replace(" ", "").partition("->")
    parts = given.split(",")
    widths = [n - len(part.replace("...", "")) for part, n in zip(parts, ndims, strict=True)]
    width = max(widths)
    free = [x for x in string.ascii_letters if x not in given][:width]
    anywhere = "".join(free)
    if not arrow:
        count = Counter(given.replace("...", "").replace(",", ""))
        out = "..." + "".join(sorted(x for x in count if count[x] == 1))
    out = out.replace("...", anywhere)
    # The axes of an ellipsis are counted from the last one.
    parts = [
        part.replace("...", anywhere[width - own :])
        for part, own in zip(parts, widths, strict=True)
    ]
    if len(parts) == 1:
        return _Parsed((parts[0],), out, (None,), f"{parts[0]}->{out}")
    unique = ["".join(dict.fromkeys(part)) for part in parts]
    diagonals = [
        None if len(one) == len(part) else f"{part}->{one}"
        for part, one in zip(parts, unique, strict=True)
    ]
    return _Parsed(tuple(unique), out, tuple(diagonals), f"{','.join(unique)}->{out}")


@lru_cache(_REMEMBERED)
def _steps(subscripts: str, shapes: tuple[Shape, ...], way: Any) -> list[tuple[int, int, str]]:
    """Returns which two operands to contract, by which subscripts; the result goes to the end."""
    way = list(way) if isinstance(way, tuple) else way
    given, out = subscripts.split("->")
    labels = given.split(",")
    like = [np.broadcast_to(0.0, shape) for shape in shapes]
    path, _ = np.einsum_path(subscripts, *like, optimize=way)
    steps = []
    for places in path[1:]:
        rest = sorted(places)
        while len(rest) > 1:
            i, j = rest.pop(0), rest.pop(0)
            two, one = labels.pop(j), labels.pop(i)
            wanted = {*out, *"".join(labels)}
            both = "".join(x for x in dict.fromkeys(two + one) if x in wanted)
            kept = out if not labels else both
            steps.append((i, j, f"{two},{one}->{kept}"))
            labels.append(kept)
            rest = [k - (k > i) - (k > j) for k in rest] + [len(labels) - 1] * bool(rest)
    return steps
