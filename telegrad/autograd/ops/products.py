"""Products of vectors, matrices and tensors, `einsum`, convolutions and polynomials, with rules.

The rule of a product is the gradient of the `einsum` with the same meaning: for `np.dot` of two
matrices that is `ij,jk->ik`. NumPy's `vdot`, `vecdot` and `vecmat` conjugate their first argument.
"""

from __future__ import annotations

import math
import operator
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from telegrad.arrays import array_beside, computing_dtype, namespace
from telegrad.autograd.extend import Operation, composed, numpy_function, primitive
from telegrad.autograd.graph.user_warning import warn_user
from telegrad.autograd.ops.joining import alike
from telegrad.autograd.ops.reduction import matmul
from telegrad.autograd.ops.shape import astype, broadcast_to, concatenate, reshape, scatter, stack
from telegrad.autograd.tensor.tensor import Tensor
from telegrad.types import Shape

# -- contractions of one or two arrays by subscripts ---------------------------------------------
#
#     contraction("ij,jk->ik")(a, b)              each label at most once in an operand
#     collapse(a, subscripts="iij->j")            one operand: diagonals, sums, transposes
#     place(g, subscripts="iij->j", into=shape)   the gradient of collapse
#
# The gradients of contractions are contractions. Labels are single letters; an axis of length 1
# broadcasts. `np.einsum` and NumPy's products use these three. A contraction multiplies two arrays
# with `@`, which was faster than `np.einsum` at every size measured, from 2 x 2 (1.4 against 2.3
# us) to attention's bqhd,bkhd->bhqk (0.09 against 1.1 ms).

_REMEMBERED_PLANS: Final = 1024  # a few hundred bytes each; a program has few subscripts


_Order: TypeAlias = "tuple[int, ...] | None"


class _Plan(NamedTuple):
    """The steps with which `@` or `*` computes a contraction.

    An order is None if the axes are in that order already.

    Attributes:
        sums: For each operand, its axes that neither the other operand nor the result has.
        orders: For each operand, the order of its other axes. First operand: batch, own,
            contracted; second operand: batch, contracted, own. If no axis is contracted, the order
            of the result.
        counts: The numbers of axes: batch, own of the first, contracted, own of the second.
        spread: If no axis is contracted, for each operand the index that adds the missing axes.
        back: The order that turns (batch, own, own) into the result.
        subscripts: The whole contraction, for `np.einsum`.
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


@lru_cache(_REMEMBERED_PLANS)
def contraction(subscripts: str) -> Operation:
    """Returns the contraction of two arrays as an operation.

    There is one operation for each `subscripts`, because one operation with options is slower.

    Args:
        subscripts: The labels, such as `ij,jk->ik`; each at most once in an operand.
    """
    # fmt: off
    return primitive("einsum", partial(_contract, _plan(subscripts)), "a b", complex_rule=_H,
                     a=lambda g, b, shape: toward(g, b, shape, subscripts, 0),
                     b=lambda g, a, shape: toward(g, a, shape, subscripts, 1))
    # fmt: on


def _contract(plan: _Plan, a: Any, b: Any) -> Any:
    one = _summed(a, plan.sums[0]) if plan.sums[0] else a
    two = _summed(b, plan.sums[1]) if plan.sums[1] else b
    first, second = plan.orders
    one = one if first is None else one.transpose(first)
    two = two if second is None else two.transpose(second)
    if plan.spread is not None:
        return one[plan.spread[0]] * two[plan.spread[1]]
    batch, left, contracted, _ = plan.counts
    own, met = one.shape[batch : batch + left], one.shape[batch + left :]
    other = two.shape[batch + contracted :]
    if met != two.shape[batch : batch + contracted]:
        return np.einsum(plan.subscripts, a, b)  # length 1 broadcasts; NumPy reports other lengths
    single = plan.counts[1:] == (1, 1, 1)
    if not single:
        number = math.prod(met)
        one = one.reshape(*one.shape[:batch], math.prod(own), number)
        two = two.reshape(*two.shape[:batch], number, math.prod(other))
    product = one @ two
    if not single:
        product = product.reshape((*product.shape[: product.ndim - 2], *own, *other))
    return product if plan.back is None else product.transpose(plan.back)


def _summed(a: Any, axes: tuple[int, ...]) -> Any:
    """Returns the sum in the dtype of `a`, added up in float32 if that is shorter."""
    total = a.sum(axis=axes, dtype=computing_dtype(a.dtype))
    return total if total.dtype == a.dtype else total.astype(a.dtype)


class _Back(NamedTuple):
    subscripts: str
    axes: tuple[int | None, ...]  # for each axis of the operand, its axis in the product


@lru_cache(_REMEMBERED_PLANS)
def gradient_plan(subscripts: str, i: int, narrow: tuple[bool, ...]) -> _Back:
    """Returns how to make the gradient of operand i; `narrow`: which of its axes have length 1."""
    first, second, out = _parts(subscripts)
    own, other = (first, second) if i == 0 else (second, first)
    # An axis of length 1 gets the sum over the axis it was broadcast to, as part of the
    # contraction.
    kept = [x for x, one in zip(own, narrow, strict=True) if (x in out or x in other) and not one]
    axes = tuple([kept.index(x) if x in kept else None for x in own])
    return _Back(f"{out},{other}->{''.join(kept)}", axes)


def toward(g: Any, other: Any, shape: Shape, subscripts: str, i: int) -> Any:
    """Returns the gradient of operand `i` of a contraction.

    Args:
        g: The gradient of the result.
        other: The other operand.
        shape: The shape of operand `i`.
        subscripts: The labels, such as `ij,jk->ik`; each at most once in an operand.
        i: The number of the operand, 0 or 1.
    """
    plan = gradient_plan(subscripts, i, tuple([n == 1 for n in shape]))
    part = contraction(plan.subscripts)(g, other)
    if part.shape == shape:
        return part
    lengths = part.shape
    part = part.reshape(tuple([1 if k is None else lengths[k] for k in plan.axes]))
    return part if part.shape == shape else broadcast_to(part, to=shape)


def _place(a: Any, *, subscripts: str, into: Shape) -> Any:
    labels, out = subscripts.split("->")
    xp = namespace(a)
    unique = list(dict.fromkeys(labels))
    a = a.transpose([out.index(x) for x in unique if x in out])
    a = a[_spread(out, "".join(unique))]
    if len(unique) == len(labels):
        return xp.broadcast_to(a, into)
    whole = xp.zeros(into, dtype=a.dtype)
    # One step along a diagonal is one step along each of its axes, so its stride is their sum.
    lengths = dict(zip(labels, into, strict=True))
    strides = [sum(whole.strides[k] for k, x in enumerate(labels) if x == y) for y in unique]
    shape = tuple([lengths[x] for x in unique])
    xp.lib.stride_tricks.as_strided(whole, shape, tuple(strides))[...] = a
    return whole


_BY: Final = {"subscripts": ""}

# fmt: off
collapse = primitive(
    "einsum", lambda a, *, subscripts: np.einsum(subscripts, a), "a", options=_BY, view=True,
    complex_rule="own", a=lambda g, shape, subscripts: place(g, subscripts=subscripts, into=shape))
place: Operation = primitive(
    "diagonal", _place, "a", options={**_BY, "into": ()}, complex_rule="own",
    a=lambda g, subscripts: collapse(g, subscripts=subscripts))
# fmt: on


# -- NumPy's products ----------------------------------------------------------------------------

_LETTERS: Final = string.ascii_letters
_REMEMBERED: Final = 256  # entries, one for each pair of numbers of axes


@lru_cache(_REMEMBERED)
def _of_tensordot(n: int, m: int, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    a, b = list(_LETTERS[:n]), list(_LETTERS[n : n + m])
    for i, j in zip(*axes, strict=True):
        b[j] = a[i]
    out = [x for x in a if x not in b] + [x for x in b if x not in a]
    return f"{''.join(a)},{''.join(b)}->{''.join(out)}"


def _of_dot(n: int, m: int) -> str:
    return _of_tensordot(n, m, ((n - 1,), (max(m - 2, 0),)) if n and m else ((), ()))


def _of_inner(n: int, m: int) -> str:
    return _of_tensordot(n, m, ((n - 1,), (m - 1,)) if n and m else ((), ()))


def _axes_of_tensordot(n: int, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(axes, (int, np.integer)):
        return tuple(range(n - int(axes), n)), tuple(range(int(axes)))
    one, two = axes
    return _tuple(one), _tuple(two)


def _tuple(axes: Any) -> tuple[int, ...]:
    return tuple(np.atleast_1d(axes).tolist())


@lru_cache(_REMEMBERED)
def _of_vectors(n: int, m: int, axis: int = -1) -> str:
    """Returns the subscripts of vectors times vectors along `axis`; all other axes broadcast."""
    batch = _LETTERS[1 : max(n, m)]
    a, b = list(batch[len(batch) - n + 1 :]), list(batch[len(batch) - m + 1 :])
    a.insert(axis % n, "a")
    b.insert(axis % m, "a")
    return f"{''.join(a)},{''.join(b)}->{batch}"


@lru_cache(_REMEMBERED)
def _of_matvec(n: int, m: int) -> str:
    batch = _LETTERS[2 : 1 + max(n - 1, m)]
    return f"{batch[len(batch) - n + 2 :]}ab,{batch[len(batch) - m + 1 :]}b->{batch}a"


@lru_cache(_REMEMBERED)
def _of_vecmat(n: int, m: int) -> str:
    batch = _LETTERS[2 : 1 + max(n, m - 1)]
    return f"{batch[len(batch) - n + 1 :]}a,{batch[len(batch) - m + 2 :]}ab->{batch}b"


def _toward(i: int, g: Any, other: Any, shape: Shape, of: Any, *how: Any) -> Any:
    """Returns the gradient of operand `i`, where `of` gives the subscripts of the product."""
    if isinstance(other, (int, float, complex)):
        return g * other
    ndims = (len(shape), other.ndim) if i == 0 else (other.ndim, len(shape))
    return toward(g, other, shape, of(*ndims, *how), i)


def _conjugate(g: Any) -> Any:
    return np.conjugate(g) if g.dtype.kind == "c" else g


def _there(of: Any, *, conjugate: bool = False) -> dict[str, Any]:
    """Returns a kernel for CuPy, which lacks these functions or has them only since version 14."""

    def multiply(x1: Any, x2: Any, axis: int | None = None) -> Any:
        subscripts = of(x1.ndim, x2.ndim) if axis is None else of(x1.ndim, x2.ndim, axis)
        return contraction(subscripts)(_conjugate(x1) if conjugate else x1, x2)

    return {"cupy": multiply}


_H: Final = "holomorphic"
_UFUNC: Final = {"dtype": None, "casting": "same_kind", "order": "K", "subok": True}

# fmt: off
dot       = numpy_function(np.dot, "a b", complex_rule=_H,
                           a=lambda g, b, shape: _toward(0, g, b, shape, _of_dot),
                           b=lambda g, a, shape: _toward(1, g, a, shape, _of_dot))
inner     = numpy_function(np.inner, "a b", complex_rule=_H,
                           a=lambda g, b, shape: _toward(0, g, b, shape, _of_inner),
                           b=lambda g, a, shape: _toward(1, g, a, shape, _of_inner))
outer     = numpy_function(np.outer, "a b", complex_rule=_H,
                           a=lambda g, b, shape: (g @ np.ravel(b)).reshape(shape),
                           b=lambda g, a, shape: (np.ravel(a) @ g).reshape(shape))
tensordot = numpy_function(
    np.tensordot, "a b", complex_rule=_H, options={"axes": 2},
    a=lambda g, b, shape, axes:
        _toward(0, g, b, shape, _of_tensordot, _axes_of_tensordot(len(shape), axes)),
    b=lambda g, a, shape, axes:
        _toward(1, g, a, shape, _of_tensordot, _axes_of_tensordot(a.ndim, axes)))
matvec    = numpy_function(np.matvec, "x1 x2", kernels=_there(_of_matvec), complex_rule=_H,
                           x1=lambda g, x2, shape: _toward(0, g, x2, shape, _of_matvec),
                           x2=lambda g, x1, shape: _toward(1, g, x1, shape, _of_matvec))
vecmat    = numpy_function(np.vecmat, "x1 x2", kernels=_there(_of_vecmat, conjugate=True),
                           complex_rule="own",
                           x1=lambda g, x2, shape: _toward(0, _conjugate(g), x2, shape, _of_vecmat),
                           x2=lambda g, x1, shape: _toward(1, g, x1, shape, _of_vecmat))
vecdot    = numpy_function(
    np.vecdot, "x1 x2", kernels=_there(_of_vectors, conjugate=True), complex_rule="own",
    options={**_UFUNC, "axis": -1},
    x1=lambda g, x2, shape, axis: _toward(0, _conjugate(g), x2, shape, _of_vectors, axis),
    x2=lambda g, x1, shape, axis: _toward(1, g, x1, shape, _of_vectors, axis))
# The cross product of vectors of three items in the last axis.
cross: Operation = primitive("cross", np.cross, "a b", complex_rule=_H,
                             a=lambda g, b: cross(b, g), b=lambda g, a: cross(g, a))
# fmt: on


@composed(np.vdot)
def _vdot(a: Any, b: Any, /) -> Any:
    a, b = alike((a, b))
    return dot(_conjugate(np.ravel(a)), np.ravel(b))


@composed(np.kron)
def _kron(a: Any, b: Any) -> Any:
    ndim = max(np.ndim(a), np.ndim(b))
    one = (1,) * (ndim - np.ndim(a)) + np.shape(a)
    two = (1,) * (ndim - np.ndim(b)) + np.shape(b)
    # Interleave the axes of both, then merge each pair into one axis.
    by_turns = np.reshape(a, [n for k in one for n in (k, 1)]) * np.reshape(
        b, [n for k in two for n in (1, k)]
    )
    return np.reshape(by_turns, tuple([n * m for n, m in zip(one, two, strict=True)]))


@composed(np.cross)
def _cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(a, axisa, -1), np.moveaxis(b, axisb, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise ValueError(
            f"cross of tensors takes vectors of 3 items, not of {a.shape[-1]} and {b.shape[-1]}; "
            "append a 0 to one of 2 items (NumPy deprecates these)"
        )
    return np.moveaxis(cross(a, b), -1, axisc)


composed(np.linalg.cross)(lambda x1, x2, /, *, axis=-1: _cross(x1, x2, axis=axis))
composed(np.linalg.vecdot)(lambda x1, x2, /, *, axis=-1: vecdot(x1, x2, axis=axis))
composed(np.linalg.tensordot)(lambda x1, x2, /, *, axes=2: np.tensordot(x1, x2, axes=axes))
composed(np.linalg.matmul)(lambda x1, x2, /: matmul(x1, x2))


@composed(np.linalg.outer)
def _linalg_outer(x1: Any, x2: Any, /) -> Any:
    if np.ndim(x1) != 1 or np.ndim(x2) != 1:
        raise ValueError(f"outer takes two vectors, not {np.ndim(x1)} and {np.ndim(x2)} axes")
    return np.outer(x1, x2)


# -- `np.einsum` on Tensors ----------------------------------------------------------------------
#
# Three or more operands are contracted two at a time, in the order of `np.einsum_path`. This holds
# for `optimize=False`, too: else the backward would go over all operands again for each of them.

_REMEMBERED_SPECS: Final = 1024  # entries by subscripts and numbers of axes (or shapes)
_OF_SUBLISTS: Final = string.ascii_uppercase + string.ascii_lowercase  # labels 0, 1, ... in order


class _Parsed(NamedTuple):
    """Subscripts without ellipses.

    Attributes:
        operands: The labels of each operand, each label once.
        out: The labels of the result.
        diagonals: For each operand with a repeated label, the subscripts that take its diagonal.
        subscripts: The whole contraction, such as `ij,jk->ik`.
    """

    operands: tuple[str, ...]
    out: str
    diagonals: tuple[str | None, ...]
    subscripts: str


@composed(np.einsum)
def _einsum(*operands: Any, optimize: Any = False) -> Any:
    subscripts, given = _sorted(operands)
    arrays = alike(given)
    parsed = parse_subscripts(subscripts, tuple([x.ndim for x in arrays]))
    if len(arrays) == 1:
        return collapse(arrays[0], subscripts=parsed.subscripts)
    for k, diagonal in enumerate(parsed.diagonals):
        if diagonal is not None:
            arrays[k] = collapse(arrays[k], subscripts=diagonal)
    if len(arrays) == 2:
        return contraction(parsed.subscripts)(*arrays)
    way = tuple(map(_frozen, optimize)) if isinstance(optimize, (list, tuple)) else optimize
    shapes = tuple([x.shape for x in arrays])
    for i, j, step in pair_order(parsed.subscripts, shapes, way or "greedy"):
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


@lru_cache(_REMEMBERED_SPECS)
def parse_subscripts(subscripts: str, ndims: tuple[int, ...]) -> _Parsed:
    """Returns the parsed subscripts for operands of `ndims` axes.

    Raises:
        ValueError: The subscripts are invalid; the error is NumPy's own.
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
    # An ellipsis aligns its axes at the end, so operands with fewer axes take the last ones.
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


@lru_cache(_REMEMBERED_SPECS)
def pair_order(subscripts: str, shapes: tuple[Shape, ...], way: Any) -> list[tuple[int, int, str]]:
    """Returns the pairs of operands to contract, with subscripts; each result goes to the end."""
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


# -- traces, diagonals and products of many matrices ---------------------------------------------


# fmt: off
composed(np.trace)(lambda a, offset=0, axis1=0, axis2=1, dtype=None:
    np.sum(np.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype))
composed(np.linalg.trace)(lambda x, /, *, offset=0, dtype=None: np.trace(x, offset, -2, -1, dtype))
composed(np.linalg.diagonal)(lambda x, /, *, offset=0: np.diagonal(x, offset, -2, -1))
# fmt: on


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
    """Returns, for the product of the matrices i to j, the matrix after which to split it.

    The algorithm is dynamic programming: Cormen, Leiserson, Rivest, Stein, Introduction to
    Algorithms, 15.2.
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


# -- convolution and correlation of sequences ----------------------------------------------------


def _middle(a: int, v: int, mode: str | int) -> slice:
    """Returns the slice of the full convolution of lengths `a` and `v` that a mode keeps.

    NumPy numbers the modes, too: 0 valid, 1 same, 2 full.
    """
    longer, shorter = max(a, v), min(a, v)
    if mode in ("full", 2):
        return slice(0, a + v - 1)
    if mode in ("same", 1):
        return slice((shorter - 1) // 2, (shorter - 1) // 2 + longer)
    return slice(shorter - 1, longer)


def _of_convolution(g: Any, own: Any, other: Any, mode: str | int) -> Any:
    """Returns the gradient of one operand: `g` convolved with the other operand in reverse."""
    n, m = max(own.size, 1), max(np.size(other), 1)
    if mode not in ("full", 2):
        g = scatter(g, index=_middle(n, m, mode), into=(n + m - 1,))
    return reshape(np.convolve(g, np.ravel(other)[::-1], "valid"), to=own.shape)


# fmt: off
convolve = numpy_function(np.convolve, "a v", options={"mode": "full"}, complex_rule="holomorphic",
                          a=lambda g, a, v, mode: _of_convolution(g, a, v, mode),
                          v=lambda g, a, v, mode: _of_convolution(g, v, a, mode))
# fmt: on


@composed(np.correlate)
def _correlate(a: Any, v: Any, mode: Any = "valid") -> Any:
    a, v = (
        np.asarray(x) if isinstance(x, (int, float, complex, list, tuple)) else x for x in (a, v)
    )
    if mode in ("same", 1) and a.size < v.size:
        # NumPy swaps the operands and reverses the result, so an even length loses its other end.
        return np.correlate(np.conjugate(v), np.conjugate(a), mode)[::-1]
    return np.convolve(a, reshape(np.conjugate(v), to=(-1,))[::-1], mode)


# -- polynomials, as vectors of coefficients from the highest power to the constant --------------


def _tensors(*given: Any) -> list[Any]:
    """Returns Tensors of at least one axis, on the device of the first one that is a Tensor."""
    return [reshape(x, to=(1,)) if x.ndim == 0 else x for x in alike(given)]


@composed(np.polyval)
def _polyval(p: Any, x: Any) -> Any:
    # This is W. G. Horner's scheme.
    if not isinstance(x, Tensor):
        x = array_beside(x, p.data)
    y = x * 0
    for coefficient in p if isinstance(p, Tensor) else array_beside(p, x.data):
        y = y * x + coefficient
    return y


def _aligned(combine: Any, a1: Any, a2: Any) -> Any:
    """Combines the coefficients of equal powers."""
    parts = _tensors(a1, a2)
    n = max(len(x) for x in parts)
    padded = [np.pad(x, (n - len(x), 0)) if len(x) < n else x for x in parts]
    return combine(*padded)


composed(np.polyadd)(lambda a1, a2: _aligned(operator.add, a1, a2))
composed(np.polysub)(lambda a1, a2: _aligned(operator.sub, a1, a2))


def _without_leading_zeros(p: Any) -> Any:
    present = np.flatnonzero(p.data)
    return p[int(present[0]) :] if len(present) else p[:1] * 0


# fmt: off
composed(np.polymul)(lambda a1, a2:
    np.convolve(*(_without_leading_zeros(x) for x in _tensors(a1, a2))))
# fmt: on


@composed(np.polyder)
def _polyder(p: Any, m: Any = 1) -> Any:
    if m < 0:
        raise ValueError(f"the number of derivatives must not be negative, it is {m}")
    for _ in range(int(m)):
        p = p[:-1] * _powers(p, 0)
    return p


@composed(np.polyint)
def _polyint(p: Any, m: Any = 1, k: Any = None) -> Any:
    if m < 0:
        raise ValueError(f"the number of integrations must not be negative, it is {m}")
    p, k = _tensors(p, 0.0 if k is None else k)
    if len(k) not in (1, m) and len(k) < m:
        raise ValueError(f"{len(k)} constants are given for {m} integrations")
    for i in range(int(m)):
        p = concatenate(p / _powers(p, 1), k[i : i + 1] if len(k) > 1 else k)
    return p


def _powers(p: Any, more: int) -> Any:
    """Returns the powers of all coefficients but the last; with `more` = 1, each power plus one."""
    powers = np.arange(len(p) - 1 + more, 0, -1)
    return array_beside(powers.tolist(), p.data)


@composed(np.vander)
def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    count = len(x) if N is None else N
    x = astype(x, dtype=np.promote_types(x.dtype, int))
    columns = [x**0, x]
    for _ in range(count - 2):
        columns.append(columns[-1] * x)
    columns = columns[:count] if increasing else columns[:count][::-1]
    return stack(*columns, axis=-1) if columns else reshape(x[:0], to=(len(x), 0))


@composed(np.polydiv)
def _polydiv(u: Any, v: Any) -> Any:
    rest, v = (x + 0.0 for x in _tensors(u, v))
    dtype = np.result_type(rest.dtype, v.dtype)
    rest, v = (astype(x, dtype=dtype) for x in (rest, v))
    steps = len(rest) - len(v) + 1
    quotient = []
    for k in range(steps):
        quotient.append(rest[k : k + 1] / v[:1])
        rest = rest - np.pad(quotient[-1] * v, (k, steps - 1 - k))
    present = np.flatnonzero(~np.isclose(rest.data, 0.0, rtol=1e-14))
    first = int(present[0]) if len(present) else len(rest) - 1
    return concatenate(*quotient) if quotient else v[:1] * 0, rest[first:]


@composed(np.polyfit)
def _polyfit(
    x: Any,
    y: Any,
    deg: Any,
    rcond: Any = None,
    full: bool = False,
    w: Any = None,
    cov: Any = False,
) -> Any:
    if cov:
        raise TypeError("polyfit of tensors does not take cov")
    x, y = (t + 0.0 for t in _tensors(x, y))
    columns = np.vander(x, int(deg) + 1)
    if w is not None:
        _, w = _tensors(x, w)
        columns, y = columns * w[:, None], y * (w[:, None] if y.ndim == 2 else w)
    if rcond is None:
        rcond = len(x) * float(np.finfo(x.dtype).eps)
    scale = np.sqrt((columns * columns).sum(axis=0))
    found, residuals, rank, values = np.linalg.lstsq(columns / scale, y, rcond)
    found = found / (scale[:, None] if y.ndim == 2 else scale)
    if full:
        return found, residuals, rank, values, rcond
    if rank.item() != int(deg) + 1:
        warn_user("polyfit may be poorly conditioned", np.exceptions.RankWarning)
    return found
