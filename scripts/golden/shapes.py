"""How the arguments of functions that move, join and choose items are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golden.builder import Builder
from golden.domains import Drawing, axis_of, bounded, each, is_real, real, vector

__all__ = ["SHAPES"]


def shaped(arguments: Callable[[Builder, Any], tuple[Any, ...]], *, least: int = 1) -> Drawing:
    """One array and what `arguments` makes of it; of at least `least` dimensions."""

    def draw(b: Builder, name: str) -> None:
        a = b.of(b.last)
        b.need(a.ndim >= least)
        *given, options = arguments(b, a)
        b.emit(name, b.last, *given, **options)

    return draw


def factored(b: Builder, a: Any) -> tuple[Any, ...]:
    ways = [(a.size,), (1, -1), (-1, 1)]
    ways += [(k, a.size // k) for k in (2, 3, 4) if a.size % k == 0 and a.size > k]
    return (b.one_of(*ways), {})


def permuted(b: Builder, a: Any) -> tuple[Any, ...]:
    return (tuple(int(k) for k in b.rng.permutation(a.ndim)), {})


def an_axis(b: Builder, a: Any) -> int:
    return int(b.rng.integers(-a.ndim, a.ndim))


def squeezed(b: Builder, a: Any) -> tuple[Any, ...]:
    b.need(1 in a.shape)
    return (b.one_of({}, {"axis": a.shape.index(1)}),)


def offset(b: Builder, a: Any) -> tuple[Any, ...]:
    b.need(a.ndim > 1 or a.size < 4)
    return (b.one_of(-1, 0, 1), {})


def flat_enough(b: Builder, a: Any) -> tuple[Any, ...]:
    b.need(a.ndim in (1, 2) and (a.ndim == 2 or a.size < 4))
    return (b.one_of(-1, 0, 1), {})


def widths(b: Builder, a: Any) -> tuple[Any, ...]:
    b.need(a.shape[-1] > 1 and min(a.shape) > 0)
    mode = b.one_of("constant", "edge", "wrap", "reflect", "symmetric")
    width = (*[(0, 0) for _ in a.shape[1:]], (1, b.one_of(0, 1)))
    return (width, mode, {"constant_values": 0.75} if mode == "constant" else {})


def parts(b: Builder, name: str) -> None:
    """split, array_split, hsplit, vsplit, dsplit, unstack: one of what they give."""
    a = b.of(b.last)
    axis = {"hsplit": min(1, a.ndim - 1), "vsplit": 0, "dsplit": 2}.get(name, 0)
    b.need(a.ndim > axis >= 0 and (name != "vsplit" or a.ndim > 1))
    length = a.shape[axis]
    if name == "unstack":
        b.emit(name, b.last, axis=0, pick=int(b.rng.integers(length)))
        return
    ways = [k for k in (2, 3) if k <= length and (name == "array_split" or length % k == 0)]
    b.need(bool(ways))
    count = b.one_of(*ways)
    b.emit(name, b.last, count, pick=int(b.rng.integers(count)))


def joined(b: Builder, name: str) -> None:
    x = b.last
    a = b.of(x)
    y = b.emit("sin", bounded(b, x)) if b.rng.random() < 0.5 else b.constant(*a.shape)
    if name in ("stack", "concatenate"):
        b.need(a.ndim > 0)
        b.emit(name, [x, y, x][: b.one_of(2, 3)], axis_of(b, x))
    elif name == "append":
        b.need(is_real(b, x))
        b.emit(name, x, y, **(b.one_of({}, {"axis": axis_of(b, x)})))
    elif name == "block":
        b.need(a.ndim == 2 and is_real(b, x))
        b.emit(name, [[x, y], [y, x]])
    else:
        b.need(is_real(b, x) and a.ndim > 0)
        b.emit(name, [x, y])


def grids(b: Builder, name: str) -> None:
    x = vector(b, b.last)
    y = b.constant(3)
    pick = b.one_of(0, 1)
    b.emit(name, *((x, y) if pick == 0 else (y, x)), indexing=b.one_of("xy", "ij"), pick=pick)


def broadcast_together(b: Builder, name: str) -> None:
    x = b.last
    b.emit(name, x, b.constant(2, *b.of(x).shape), pick=0)


def raised_shape(b: Builder, a: Any) -> tuple[Any, ...]:
    return (b.one_of((2, *a.shape), (3, 1, *a.shape), (1, *a.shape)), {})


# -- selection -----------------------------------------------------------------------------------


def places_of(b: Builder, length: int, count: int = 3) -> Any:
    return b.rng.integers(-length, length, count)


def taken(b: Builder, name: str) -> None:
    a = b.of(b.last)
    b.need(a.ndim > 0)
    axis = b.one_of(None, an_axis(b, a))
    length = a.size if axis is None else a.shape[axis]
    b.emit(name, b.last, places_of(b, length), axis)


def taken_along(b: Builder, name: str) -> None:
    x = real(b, b.last)
    axis = axis_of(b, x)
    shape = [*b.of(x).shape]
    shape[axis] = 2
    b.emit(name, x, b.rng.integers(0, b.of(x).shape[axis], shape), axis)


def indexed(b: Builder, name: str) -> None:
    """Basic, advanced and boolean indices, with new axes and ellipses."""
    a = b.of(b.last)
    b.need(a.ndim > 0)
    n, last = a.shape[0], a.shape[-1]
    mask = b.rng.random(a.shape) < 0.6
    ways: list[Any] = [
        -1,
        slice(0, n, 2),
        (..., 0),
        (None, ...),
        places_of(b, n),
        (..., slice(1, None)),
    ]
    ways += [mask] * bool(mask.any())
    if a.ndim > 1:
        second = a.shape[1]
        ways += [(places_of(b, n), places_of(b, second)), (slice(None), places_of(b, second)),
                 (0, slice(0, second)), (places_of(b, n), None), (..., places_of(b, last), None)]  # fmt: skip
    if a.ndim > 2:
        ways += [(places_of(b, n), slice(None), places_of(b, last)), (0, places_of(b, a.shape[1]))]
    b.emit(name, b.last, b.one_of(*ways))


def masked(b: Builder, name: str) -> None:
    x = real(b, b.last)
    a = b.of(x)
    b.need(a.ndim > 0)
    if name == "extract":
        b.emit(name, b.rng.random(a.shape) < 0.6, x)
    else:
        axis = axis_of(b, x)
        b.emit(name, b.rng.random(a.shape[axis]) < 0.6, x, axis=axis)


def one_less(b: Builder, a: Any) -> tuple[Any, ...]:
    b.need(a.shape[-1] > 2 and a.dtype.kind == "f")
    return (1, {"axis": a.ndim - 1})


def one_more(b: Builder, a: Any) -> tuple[Any, ...]:
    b.need(a.dtype.kind == "f" and a.shape[-1] > 1)
    return (1, b.one_of(0.5, -1.0), {"axis": a.ndim - 1})


def resized(b: Builder, a: Any) -> tuple[Any, ...]:
    return (b.one_of((2, 3), (5,), (3, 2, 2)), {})


# fmt: off
SHAPES: dict[str, Drawing] = {
    "reshape": shaped(factored), "transpose": shaped(lambda b, a: (b.one_of({}, {"axes": permuted(b, a)[0]}),)), "permute_dims": shaped(permuted, least=2), "matrix_transpose": shaped(lambda b, a: ({},), least=2),
    "ravel": shaped(lambda b, a: ({},)), "copy": shaped(lambda b, a: ({},)), "squeeze": shaped(squeezed), "expand_dims": shaped(lambda b, a: (an_axis(b, a), {})),
    "swapaxes": shaped(lambda b, a: (0, an_axis(b, a), {}), least=2), "moveaxis": shaped(lambda b, a: (0, an_axis(b, a), {}), least=2), "broadcast_to": shaped(raised_shape, least=0),
    "flip": shaped(lambda b, a: (b.one_of({}, {"axis": an_axis(b, a)}),)), "flipud": shaped(lambda b, a: ({},)), "fliplr": shaped(lambda b, a: ({},), least=2),
    "rot90": shaped(lambda b, a: (b.one_of(1, 2, 3), {}), least=2), "roll": shaped(lambda b, a: (b.one_of(1, -2), b.one_of({}, {"axis": an_axis(b, a)}))),
    "tile": shaped(lambda b, a: ((2, *[1] * (a.ndim - 1)), {})), "repeat": shaped(lambda b, a: (2, b.one_of({}, {"axis": an_axis(b, a)}))),
    "tril": shaped(lambda b, a: (b.one_of(-1, 0, 1), {}), least=2), "triu": shaped(lambda b, a: (b.one_of(-1, 0, 1), {}), least=2), "diag": shaped(flat_enough), "diagflat": shaped(lambda b, a: offset(b, a) if a.ndim == 1 else b.need(False)),
    "diagonal": shaped(lambda b, a: (b.one_of(0, 1), {}), least=2), "trace": shaped(lambda b, a: ({},) if a.ndim == 2 else b.need(False), least=2), "pad": shaped(widths),
    **each("atleast_1d atleast_2d atleast_3d", shaped(lambda b, a: ({},), least=0)), **each("split array_split hsplit vsplit dsplit unstack", parts),
    **each("stack concatenate append block hstack vstack dstack column_stack", joined), "meshgrid": grids, "broadcast_arrays": broadcast_together,
    "resize": shaped(resized), "rollaxis": shaped(lambda b, a: (a.ndim - 1, {}), least=2), "linalg.matrix_transpose": shaped(lambda b, a: ({},), least=2),
    "take": taken, "take_along_axis": taken_along, "getitem": indexed, **each("extract compress", masked), "insert": shaped(one_more), "delete": shaped(one_less),
}
# fmt: on
