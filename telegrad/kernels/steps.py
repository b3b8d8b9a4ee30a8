"""Optimizer steps of any number of CuPy arrays in one launch: `cuda/steps.cu`.

A step of several launches is planned as a whole first: without memory left, nothing is written.

Their twins for NumPy arrays are the methods `update` of the optimizers in `telegrad.optim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import numpy as np

from telegrad.arrays import is_array, namespace
from telegrad.kernels.cuda import Kernel, Table, all_contiguous, blocks_for, contiguous
from telegrad.types import Array

_DTYPES: Final = ("float32", "float64", "float16", "bfloat16")


@final
@dataclass(frozen=True, slots=True)
class StepRule:
    """A rule by which a kernel steps parameters.

    Attributes:
        kernel: The name of the kernel.
        state: The names of the arrays of a parameter's state, in the kernel's order.
        decay: The decay of the weights.
        numbers: The kernel's numbers after the decay, up to the count of steps.
        counts: True if the kernel counts steps.

    >>> StepRule("sgd_step", (), 0.0, (0.1, 0.0, 1.0, 0, 0), counts=False).kernel
    'sgd_step'
    """

    kernel: str
    state: tuple[str, ...]
    decay: float
    numbers: tuple[float, ...]
    counts: bool = True


@cache
def steps_dtype(dtype: Any) -> bool:
    """Returns True if the kernels step arrays of this dtype.

    >>> steps_dtype(np.dtype(np.float32)), steps_dtype(np.dtype(np.complex64))
    (True, False)
    """
    return np.dtype(dtype).name in _DTYPES


def plan_step(
    rule: StepRule,
    arrays: Sequence[Array],
    gradients: Sequence[Array],
    state: Sequence[Sequence[Array]],
    made: Sequence[Array],
    *,
    steps: Any = 0,
    skip: Array | None = None,
    scale: float | Array = 1.0,
) -> tuple[Any, Callable[[], None]]:
    """Makes all further memory that a step of arrays needs, and returns the function to launch it.

    Args:
        rule: The rule; the launch writes into its state.
        arrays: CuPy arrays of one dtype and device, at least one.
        gradients: Their gradients, of the same shapes and dtype.
        state: For each name of the rule's state the contiguous arrays, in the same shapes; of
            float32 if the arrays are shorter.
        made: The arrays that the launch fills, of the same shapes and dtype.
        steps: The number of steps before this one, or an array without axes that holds it.
        skip: An array without axes that is True if nothing shall change.
        scale: The factor of the gradients, or an array without axes that holds it.

    Returns:
        The new count of steps, an int, or an array if `steps` or `skip` is one; and the function
        that launches.

    Raises:
        ValueError: An array is in host memory or misaligned.
    """
    first: Any = arrays[0]
    xp = namespace(first)
    with first.device:
        sizes = [array.size for array in made]
        table = Table(
            sizes,
            arrays=all_contiguous(arrays),
            gradients=all_contiguous(gradients),
            made=made,
            **dict(zip(rule.state, state, strict=True)),
        )
        count, made_count = _counted(rule, steps, skip, xp)
        factor, more = (1.0, scale) if is_array(scale) else (float(scale), None)
        run, given = Kernel("steps", rule.kernel).prepare(
            table,
            skip,
            more,
            factor,
            float(rule.decay),
            *rule.numbers,
            *count,
            blocks=blocks_for(max(1, table.blocks), 1),
            ITEM=first.dtype,
            MORE="float" if more is None else more.dtype,
        )

    def launch(kept: object = table) -> None:  # its words alone keep no arrays
        run(given)

    return made_count, launch


def step_rows(
    rule: StepRule, array: Any, gradient: Array, state: Sequence[Any], rows: Array, steps: Any = 0
) -> Any:
    """Steps some rows of a CuPy array by one launch, in place; returns the new count of steps.

    Args:
        rule: The rule, of SGD without momentum or of Adagrad, without decay.
        array: The array, contiguous; it is written into.
        gradient: The gradient of the rows: shape (len(rows), *array.shape[1:]), of the same dtype.
        state: The contiguous arrays of the rule's state, at most one, of float32 if the array is
            shorter; they are written into.
        rows: The numbers of the rows, each once.
        steps: The number of steps before this one, or an array without axes that holds it.
    """
    with array.device:
        count, made_count = _counted(rule, steps, None, namespace(array))
        Kernel("steps", rule.kernel.replace("_step", "_rows")).launch(
            array,
            contiguous(gradient),
            *(state or [None]),
            contiguous(rows).astype(np.int64, copy=False),
            len(rows),
            math.prod(array.shape[1:]),
            *rule.numbers,
            *count,
            blocks=blocks_for(max(1, len(rows)), 1),
            threads=128,
            ITEM=array.dtype,
            MORE="float",
        )
    return made_count


def _counted(rule: StepRule, steps: Any, skip: Any, xp: Any) -> tuple[tuple[Any, ...], Any]:
    """Returns the kernel's arguments for the count of steps, and the new count."""
    if not rule.counts:
        return (), steps
    if skip is None and not is_array(steps):
        return (int(steps), None, None), steps + 1
    counts = xp.empty((), np.int64)
    if is_array(steps):
        return (0, steps.astype(np.int64, copy=False), counts), counts
    return (int(steps), None, counts), counts
