"""NumPy's functions made of CuPy's, where CuPy's function of that name takes less.

    np.add.at                    CuPy's adds no complex numbers and no short floats but float16
    argsort(stable=)             CuPy's is always stable, and takes no other kind
    sum, mean, var, max, ...     CuPy's take no `where`, `initial` and `correction`
    sliding_window_view          CuPy's takes no axis twice, and waits for the GPU
    scipy.special                CuPy's are fewer, in a module that is imported when one is called

Functions that CuPy lacks and that have no twin here raise in words (`check_supported`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from telegrad.arrays.backend import computing_dtype, is_inexact, namespace
from telegrad.types import Array, DTypeLike


def check_supported(function: Any, error: Exception, *values: object) -> None:
    """Explains an error of CuPy that says that it lacks a function or an option; for handlers.

    Args:
        function: NumPy's or SciPy's function, or another one, which is ignored.
        error: The error that its call raised.
        values: The arguments; without a CuPy array among them nothing is said.

    Raises:
        TypeError: CuPy has no function of that name, or it lacks the option.
    """
    cupy = namespace(*values)
    if cupy is np:
        return
    name = getattr(function, "__name__", str(function))
    module = getattr(function, "__module__", None) or "numpy"  # ufuncs have none
    path = [*module.split(".")[1:], name]
    of_numpy, twin = (_found(home, path) for home in (np, cupy))
    if module.startswith("numpy") and of_numpy is function and twin is None:
        raise TypeError(
            f"CuPy {cupy.__version__} has no np.{'.'.join(path)}; compute it on the host: "
            "tensor.to('cpu')"
        ) from error
    said = str(error)
    if "unexpected keyword" in said or "Wrong arguments" in said:  # the latter by CuPy's ufuncs
        raise TypeError(
            f"{name} of CuPy arrays takes fewer options than NumPy's ({said}); leave it out, or "
            "compute on the host: tensor.to('cpu')"
        ) from error


def _found(home: Any, path: list[str]) -> Any:
    for part in path:
        home = getattr(home, part, None)
    return home


def add_at(target: Array, index: Any, values: Array) -> None:
    """Adds `values` to `target` at `index`, also at places that the index names twice.

    Sums are made in `computing_dtype`; in float64 (complex128) if there are more values than places
    for them. One after the other, a million equal numbers of float32 are off by 1 % in the end.

    Args:
        target: The array that is written into.
        index: Any index of NumPy's, with arrays of the library of `target`.
        values: An array of the dtype of `target` that broadcasts to the indexed part.

    Raises:
        TypeError: CuPy cannot add numbers of this dtype: integers of 8 and 16 bits, bool.

    >>> total = np.zeros(2)
    >>> add_at(total, np.array([0, 0]), np.array([1.0, 2.0]))
    >>> total
    array([3., 0.])
    """
    xp = namespace(target)
    wide = computing_dtype(target.dtype)
    if wide.kind in "fc" and values.size > target.size:
        wide = np.result_type(wide, np.float64)
    into: Any = target
    if wide != target.dtype:  # both, because NumPy is five times as slow if it casts item by item
        into, values = target.astype(wide), values.astype(wide)
    if xp is not np and wide.kind == "c":
        xp.add.at(into.real, index, values.real)
        xp.add.at(into.imag, index, values.imag)
    else:
        xp.add.at(into, index, values)
    if into is not target:
        target[...] = into.astype(target.dtype)


def stable_order(data: Array, axis: int, kind: str | None, stable: bool | None) -> Array:
    """Returns `argsort` of an array; CuPy's is stable, whatever the caller asks for.

    >>> stable_order(np.array([2, 1, 1]), 0, None, True)
    array([1, 2, 0])
    """
    xp = namespace(data)
    options: dict[str, Any] = {}
    if xp is np:
        options |= {"kind": kind} if kind is not None else {}
        options |= {"stable": stable} if stable is not None else {}
    order: Array = xp.argsort(data, axis=axis, **options)
    return order


# -- reductions ----------------------------------------------------------------------------------

_JOINS: Final = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def _neutral(name: str, dtype: np.dtype[Any]) -> Any:
    """Returns the number of `dtype` that changes no result."""
    if name in ("sum", "prod"):
        return dtype.type(name == "prod")
    sign = -1 if name == "max" else 1
    if is_inexact(dtype):
        return dtype.type(sign * np.inf)
    if dtype.kind == "b":
        return dtype.type(sign > 0)
    return dtype.type(np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max)


def reduction_twin(name: str) -> Callable[..., Array]:
    """Returns a function of CuPy arrays that takes the options of `np.sum` and the like.

    Args:
        name: sum, prod, max, min, nanmax, nanmin, mean, var or std.

    The returned function raises ValueError if an extremum of masked items has no `initial`.

    >>> reduction_twin("max")(np.array([1.0, 5.0]), where=np.array([True, False]), initial=2.0)
    np.float64(2.0)
    """
    apart: dict[str, Callable[..., Array]] = {"mean": _mean, "var": _variance, "std": _deviation}
    if name in apart:
        return apart[name]
    plain, skips = name.removeprefix("nan"), name.startswith("nan")

    def reduce(
        a: Any,
        axis: Any = None,
        dtype: DTypeLike | None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        xp = namespace(a)
        over = {"axis": axis, "keepdims": keepdims}
        if where is not None:
            if initial is None and plain in ("max", "min"):
                raise ValueError(f"{name} of masked items needs initial, the value for none")
            a = xp.where(xp.asarray(where), a, _neutral(plain, a.dtype))
        if initial is not None and a.size == 0 and plain in ("max", "min"):
            shape = np.sum(np.broadcast_to(0, a.shape), **over).shape
            return xp.full(shape, initial, dtype=a.dtype)
        typed = {} if dtype is None else {"dtype": dtype}
        result = getattr(xp, name)(a, **over, **typed)
        if initial is None:
            return result
        join = getattr(xp, "f" + _JOINS[plain][:3] if skips else _JOINS[plain])
        return join(result, initial).astype(result.dtype, copy=False)

    return reduce


def _masked(a: Any, dtype: Any, where: Any) -> tuple[Any, Any, np.dtype[Any]]:
    """Returns the items to compute with, the mask in their shape, and the dtype of the result."""
    xp = namespace(a)
    exact = np.dtype(dtype or (np.float64 if a.dtype.kind in "biu" else a.dtype))
    mask = xp.broadcast_to(xp.asarray(where, dtype=bool), a.shape)
    return a.astype(computing_dtype(exact), copy=False), mask, exact


def _mean(
    a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, where: Any = None
) -> Any:
    xp = namespace(a)
    if where is None:
        return xp.mean(a, axis=axis, dtype=dtype, keepdims=keepdims)
    items, mask, exact = _masked(a, dtype, where)
    over = {"axis": axis, "keepdims": keepdims}
    total = xp.where(mask, items, items.dtype.type(0)).sum(**over)
    return (total / mask.sum(**over)).astype(exact)


def _variance(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    correction: Any = None,
) -> Any:
    xp = namespace(a)
    less = ddof if correction is None else correction
    if where is None:
        return xp.var(a, axis=axis, dtype=dtype, ddof=less, keepdims=keepdims)
    items, mask, exact = _masked(a, dtype, where)
    distance = items - _mean(items, axis, items.dtype, keepdims=True, where=mask)
    distance = xp.where(mask, distance, items.dtype.type(0))
    over = {"axis": axis, "keepdims": keepdims}
    total = (distance * distance.conj()).real.sum(**over)
    number = xp.maximum(mask.sum(**over) - less, 0)
    return (total / number).astype(exact.type(0).real.dtype)


def _deviation(a: Any, *args: Any, **options: Any) -> Any:
    xp = namespace(a)
    if options.get("where") is None and options.get("correction") is None:
        options = {key: x for key, x in options.items() if key not in ("where", "correction")}
        return xp.std(a, *args, **options)
    return xp.sqrt(_variance(a, *args, **options))


# -- transforms and windows ----------------------------------------------------------------------


def windows_twin(x: Any, window_shape: Any, axis: Any = None) -> Array:
    """Returns `sliding_window_view` of a CuPy array, of the shapes and with the errors of NumPy.

    >>> windows_twin(np.arange(3), 2).tolist()
    [[0, 1], [1, 2]]
    """
    image = np.broadcast_to(np.empty((), np.bool_), x.shape)  # of one byte
    shape = np.lib.stride_tricks.sliding_window_view(image, window_shape, axis).shape
    axes = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim, None, True)
    strides = (*x.strides, *[x.strides[k] for k in axes])
    seen: Array = namespace(x).lib.stride_tricks.as_strided(x, shape, strides)
    return seen


def special_twin(name: str) -> Callable[..., Any]:
    """Returns a function that computes `scipy.special.<name>` of CuPy arrays.

    The returned function raises TypeError if the installed CuPy does not have it.
    """

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        function = getattr(importlib.import_module("cupyx.scipy.special"), name, None)
        if function is None:
            raise TypeError(
                f"CuPy has no scipy.special.{name}; compute it on the host: tensor.to('cpu')"
            )
        return function(*args, **kwargs)

    evaluate.__name__ = name
    return evaluate
