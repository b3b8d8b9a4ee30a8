"""Contractions of one or two arrays by subscripts, as primitives whose gradients are contractions.

    contraction("ij,jk->ik")(a, b)              each label at most once in an operand
    collapse(a, subscripts="iij->j")            one operand: diagonals, sums, transposes
    place(g, subscripts="iij->j", into=shape)   the gradient of collapse

Labels are single letters; an axis of length 1 broadcasts. `np.einsum` and NumPy's products are
written with these. Two arrays are multiplied by `@`, which was faster than `np.einsum` at every
size measured, from 2 x 2 (1.4 against 2.3 us) to attention's bqhd,bkhd->bhqk (0.09 against 1.1 ms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from telegrad.arrays import array_beside, is_array, namespace
from telegrad.autograd.extend import Operation, primitive
from telegrad.autograd.ops import broadcast_to
from telegrad.autograd.tensor import Tensor
from telegrad.types import Array, Shape

__all__ = ["arrays_of", "collapse", "contraction", "place", "toward"]

_REMEMBERED: Final = 1024  # of each a few hundred bytes; a program has few subscripts


def arrays_of(operands: Sequence[Any]) -> list[Any]:
    """Returns the operands, numbers and lists as arrays where the others are."""
    if all(map(_is_known, operands)):
        return list(operands)
    beside = next(x.data if isinstance(x, Tensor) else x for x in operands if _is_known(x))
    return [x if _is_known(x) else array_beside(x, beside) for x in operands]


def _is_known(x: Any) -> bool:
    return isinstance(x, Tensor) or is_array(x)


_Order: TypeAlias = "tuple[int, ...] | None"


class _Plan(NamedTuple):
    """How `@` or `*` does a contraction.

    Attributes:
        sums: For each operand, its axes that neither the other nor the result has.
        orders: For each operand, its other axes: batch, own, contracted of the first; batch,
            contracted, own of the second. Without contracted ones, the order of the result.
        counts: How many batch, own (first), contracted, own (second) axes there are.
        spread: Without contracted axes, for each operand the index that gives it all axes.
        back: From batch, own, own to the order of the result.
        subscripts: All of it, for NumPy.

    An order is None where it changes nothing.
    """

    sums: tuple[tuple[int, ...], tuple[int, ...]]
    orders: tuple[_Order, _Order]
    counts: tuple[int, int, int, int]
    spread: tuple[Any, Any] | None
    back: _Order
    subscripts: str


def _plan(subscripts: str) -> _Plan:
    first, second, out = _parts(subscripts)
    one = [x for x in first if x in second or x in out]
    two = [x for x in second if x in first or x in out]
    sums = (
        tuple([k for k, x in enumerate(first) if x not in one]),
        tuple([k for k, x in enumerate(second) if x not in two]),
    )
    batch = [x for x in out if x in one and x in two]
    contracted = [x for x in one if x not in out]
    left = [x for x in out if x in one and x not in two]
    right = [x for x in out if x in two and x not in one]
    counts = (len(batch), len(left), len(contracted), len(right))
    if not contracted:
        orders = (
            _order(one, [x for x in out if x in one]),
            _order(two, [x for x in out if x in two]),
        )
        return _Plan(sums, orders, counts, (_spread(one, out), _spread(two, out)), None, subscripts)
    orders = (_order(one, batch + left + contracted), _order(two, batch + contracted + right))
    product = batch + left + right
    return _Plan(sums, orders, counts, None, _order(product, out), subscripts)


def _parts(subscripts: str) -> tuple[str, str, str]:
    operands, out = subscripts.split("->")
    first, second = operands.split(",")
    return first, second, out


def _order(labels: Sequence[str], wanted: Sequence[str]) -> _Order:
    return None if list(labels) == list(wanted) else tuple([labels.index(x) for x in wanted])


def _spread(labels: Sequence[str], out: str) -> tuple[slice | None, ...]:
    return tuple([slice(None) if x in labels else None for x in out])


@lru_cache(_REMEMBERED)
def contraction(subscripts: str) -> Operation:
    """Returns the contraction of two arrays: an operation of its own, for one with options is slower.

    Args:
        subscripts: `ij,jk->ik`, each label at most once in an operand.
    """
    # fmt: off
    return primitive("einsum", _kernel(subscripts), "a b", complex_rule="holomorphic", a=lambda g, b, shape: toward(g, b, shape, subscripts, 0),
                                                                                       b=lambda g, a, shape: toward(g, a, shape, subscripts, 1))
    # fmt: on


@lru_cache(_REMEMBERED)
def _kernel(subscripts: str) -> Callable[[Any, Any], Any]:
    return partial(_contract, _plan(subscripts))


def _contract(plan: _Plan, a: Any, b: Any) -> Any:
    one = a.sum(axis=plan.sums[0], dtype=a.dtype) if plan.sums[0] else a
    two = b.sum(axis=plan.sums[1], dtype=b.dtype) if plan.sums[1] else b
    first, second = plan.orders
    one = one if first is None else one.transpose(first)
    two = two if second is None else two.transpose(second)
    if plan.spread is not None:
        return one[plan.spread[0]] * two[plan.spread[1]]
    batch, left, contracted, _ = plan.counts
    own, met = one.shape[batch : batch + left], one.shape[batch + left :]
    other = two.shape[batch + contracted :]
    if met != two.shape[batch : batch + contracted]:
        return np.einsum(plan.subscripts, a, b)  # length 1 broadcasts, or NumPy says what is wrong
    single = plan.counts[1:] == (1, 1, 1)
    if not single:
        number = math.prod(met)
        one = one.reshape(*one.shape[:batch], math.prod(own), number)
        two = two.reshape(*two.shape[:batch], number, math.prod(other))
    product = one @ two
    if not single:
        product = product.reshape((*product.shape[: product.ndim - 2], *own, *other))
    return product if plan.back is None else product.transpose(plan.back)


class _Back(NamedTuple):
    subscripts: str
    axes: tuple[int | None, ...]  # of each axis of the operand, the axis of what is computed


@lru_cache(_REMEMBERED)
def _back(subscripts: str, i: int, narrow: tuple[bool, ...]) -> _Back:
    first, second, out = _parts(subscripts)
    own, other = (first, second) if i == 0 else (second, first)
    # An axis of length 1 gets the sum over what it was broadcast to: here, not afterwards.
    kept = [x for x, one in zip(own, narrow, strict=True) if (x in out or x in other) and not one]
    axes = tuple([kept.index(x) if x in kept else None for x in own])
    return _Back(f"{out},{other}->{''.join(kept)}", axes)


def toward(g: Any, other: Any, shape: Shape, subscripts: str, i: int) -> Any:
    """Returns the gradient of operand `i` of a contraction.

    Args:
        g: The gradient of the result.
        other: The other operand.
        shape: That of the operand.
        subscripts: `ij,jk->ik`, each label at most once in an operand.
        i: 0 or 1.
    """
    plan = _back(subscripts, i, tuple([n == 1 for n in shape]))
    recorded = isinstance(g, Tensor) or isinstance(other, Tensor)
    part = (contraction if recorded else _kernel)(plan.subscripts)(g, other)
    if part.shape == shape:
        return part
    lengths = part.shape
    part = part.reshape(tuple([1 if k is None else lengths[k] for k in plan.axes]))
    return part if part.shape == shape else broadcast_to(part, to=shape)


def _collapse(a: Any, *, subscripts: str) -> Any:
    return np.einsum(subscripts, a)


def _place(a: Any, *, subscripts: str, into: Shape) -> Array:
    labels, out = subscripts.split("->")
    xp = namespace(a)
    unique = list(dict.fromkeys(labels))
    a = a.transpose([out.index(x) for x in unique if x in out])
    a = a[_spread(out, "".join(unique))]
    if len(unique) == len(labels):
        whole: Array = xp.broadcast_to(a, into)
        return whole
    whole = xp.zeros(into, dtype=a.dtype)
    # Along a diagonal a step goes one further in each of its axes.
    lengths = dict(zip(labels, into, strict=True))
    strides = [sum(whole.strides[k] for k, x in enumerate(labels) if x == y) for y in unique]
    shape = tuple([lengths[x] for x in unique])
    xp.lib.stride_tricks.as_strided(whole, shape, tuple(strides))[...] = a
    return whole


place: Operation  # declared, as a rule names it
_BY: Final = {"subscripts": ""}

# fmt: off
collapse = primitive("einsum",   _collapse, "a", options=_BY, view=True, complex_rule="own", a=lambda g, shape, subscripts: place(g, subscripts=subscripts, into=shape))
place    = primitive("diagonal", _place,    "a", options={**_BY, "into": ()}, complex_rule="own", a=lambda g, subscripts: collapse(g, subscripts=subscripts))
# fmt: on
