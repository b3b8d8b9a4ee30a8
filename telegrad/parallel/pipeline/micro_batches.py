"""The arguments of a step, and their parts: one for each micro-batch.

split       rows of the first axis, as equal as they can be: 10 rows in 4 parts are 3, 3, 2, 2
replicate   the whole argument for each micro-batch
a function  function(argument, number) returns the parts, one for each micro-batch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from telegrad.arrays import as_array, is_cupy
from telegrad.autograd import Tensor
from telegrad.types import Array

Spec: TypeAlias = "str | Callable[[Any, int], Sequence[Any]]"
"""The rule for one argument: `split`, `replicate` or a function."""


class Argument(NamedTuple):
    """One argument of a step, as it is sent to the stage that needs it.

    Attributes:
        values: The whole argument, or a list of its parts.
        rows: The first row of each micro-batch, and the end of the last one; empty if the argument
            is not split here.
        parted: True if `values` is a list of parts.
    """

    values: Any
    rows: list[int]
    parted: bool = False

    @property
    def on_gpu(self) -> bool:
        """True if any of it is in the memory of a GPU."""
        return any(map(is_cupy, self.values)) if self.parted else is_cupy(self.values)

    def part(self, i: int) -> Any:
        """Returns the part of micro-batch `i`."""
        if self.parted:
            return self.values[i]
        return self.values[self.rows[i] : self.rows[i + 1]] if self.rows else self.values


def check_spec(spec: object) -> None:
    """Raises TypeError for anything that is no spec."""
    if spec not in ("split", "replicate") and not callable(spec):
        raise TypeError(f"a spec is 'split', 'replicate' or a function, not {spec!r}")


def bounds(rows: int, count: int) -> list[int]:
    """Returns the first row of each micro-batch, and the number of rows.

    >>> bounds(10, 4)
    [0, 3, 6, 8, 10]
    """
    size, more = divmod(rows, count)
    return [i * size + min(i, more) for i in range(count + 1)]


def split_arguments(given: Sequence[Any], specs: Sequence[Spec], count: int) -> list[Argument]:
    """Returns the arguments of a step in `count` parts each.

    Raises:
        TypeError: An argument is no array of numbers.
        ValueError: An argument has fewer rows than there are micro-batches, or another number of
            rows than the one before; or a function returned another number of parts.
    """
    found: list[Argument] = []
    rows = None
    for k, (value, spec) in enumerate(zip(given, specs, strict=True)):
        if callable(spec):
            parts = [_plain(each, k) for each in spec(value, count)]
            if len(parts) != count:
                raise ValueError(
                    f"the spec of argument {k} returned {len(parts)} parts for {count} "
                    "micro-batches"
                )
            found.append(Argument(parts, [], parted=True))
            continue
        array = _plain(value, k)
        if spec == "replicate":
            found.append(Argument(array, []))
            continue
        if not array.ndim or (rows is not None and len(array) != rows):
            others = "" if rows is None else f" like the others, which have {rows} rows"
            raise ValueError(
                f"argument {k} has shape {array.shape} and cannot be split{others}; its spec may "
                "be 'replicate'"
            )
        rows = len(array)
        if rows < count:
            raise ValueError(
                f"num_microbatches={count} is more than the {rows} rows of argument {k}: each "
                "micro-batch needs one; pass larger mini-batches or make the pipeline with fewer"
            )
        found.append(Argument(array, bounds(rows, count)))
    return found


def most_parts(given: Sequence[Any], specs: Sequence[Spec], count: int) -> int:
    """Returns the largest number of parts, up to `count`, for which each argument has rows enough.

    Raises:
        TypeError: An argument is no array of numbers.

    >>> most_parts([[1.0, 2.0, 3.0]], ["split"], 4)
    3
    """
    cut = [
        _plain(x, k)
        for k, (x, spec) in enumerate(zip(given, specs, strict=True))
        if spec == "split"
    ]
    return max(1, min([count, *(len(x) for x in cut if x.ndim)]))


def whole_arguments(sample: Any) -> list[Argument]:
    """Returns the inputs of one micro-batch, given as an array or as a tuple of several."""
    inputs = sample if isinstance(sample, (tuple, list)) else (sample,)
    return [Argument(_plain(each, k), []) for k, each in enumerate(inputs)]


def described(arrays: Sequence[Array]) -> str:
    """Returns dtypes and shapes in words.

    >>> import numpy as np
    >>> described([np.zeros((2, 3)), np.zeros(2, np.float32)])
    'float64 of shape (2, 3), float32 of shape (2,)'
    """
    return ", ".join(f"{x.dtype} of shape {x.shape}" for x in arrays) or "nothing"


def shares(given: Sequence[Argument], count: int) -> list[float]:
    """Returns the share of each micro-batch in the mini-batch, by rows; they add up to 1."""
    for each in given:
        if each.rows:
            total = each.rows[-1]
            return [(each.rows[i + 1] - each.rows[i]) / total for i in range(count)]
    for each in given:
        if each.parted and all(getattr(part, "ndim", 0) for part in each.values):
            sizes = [len(part) for part in each.values]
            return [size / sum(sizes) for size in sizes]
    return [1 / count] * count


def _plain(value: Any, k: int) -> Array:
    """Returns argument `k`, or a part of it, as an array."""
    if isinstance(value, Tensor):
        return value.data
    try:
        return as_array(value)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"argument {k} cannot be an input or a target: {error}") from error
