"""NumPy's array methods that reduce axes or add up along them, on Tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from telegrad.autograd.dispatch import call

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor
    from telegrad.types import DTypeLike

__all__ = ["Reductions", "without_none"]

Axis: TypeAlias = "int | tuple[int, ...] | None"


class Reductions:
    """Sums, extrema, moments; recorded, but for indices and truth values.

    The parameters are NumPy's; `out` is one of them, and refused.
    """

    __slots__ = ()

    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Tensor:
        """Returns the sum over `axis`; over everything if it is None."""
        if axis is None and dtype is out is initial is None and not keepdims and where is True:
            return call(np.sum, self)
        over = _over(axis, out, keepdims, where)
        return call(np.sum, self, **over, **without_none(dtype=dtype, initial=initial))

    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Tensor:
        """Returns the product over `axis`; over everything if it is None."""
        over = _over(axis, out, keepdims, where)
        return call(np.prod, self, **over, **without_none(dtype=dtype, initial=initial))

    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        *,
        keepdims: bool = False,
        where: Any = True,
    ) -> Tensor:
        """Returns the mean over `axis`; over everything if it is None."""
        if axis is None and dtype is out is None and not keepdims and where is True:
            return call(np.mean, self)
        return call(np.mean, self, **_over(axis, out, keepdims, where), **without_none(dtype=dtype))

    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: float = 0,
        *,
        keepdims: bool = False,
        where: Any = True,
        correction: float | None = None,
    ) -> Tensor:
        """Returns the variance over `axis`, divided by the number of items less `ddof`."""
        others = without_none(dtype=dtype, ddof=ddof or None, correction=correction)
        return call(np.var, self, **_over(axis, out, keepdims, where), **others)

    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        ddof: float = 0,
        *,
        keepdims: bool = False,
        where: Any = True,
        correction: float | None = None,
    ) -> Tensor:
        """Returns the standard deviation over `axis`; its gradient is 0 where it is 0."""
        others = without_none(dtype=dtype, ddof=ddof or None, correction=correction)
        return call(np.std, self, **_over(axis, out, keepdims, where), **others)

    def max(
        self,
        axis: Axis = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Tensor:
        """Returns the largest item; where several are, they share its gradient equally."""
        return call(
            np.max, self, **_over(axis, out, keepdims, where), **without_none(initial=initial)
        )

    def min(
        self,
        axis: Axis = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Tensor:
        """Returns the smallest item; where several are, they share its gradient equally."""
        return call(
            np.min, self, **_over(axis, out, keepdims, where), **without_none(initial=initial)
        )

    def argmax(
        self, axis: int | None = None, out: None = None, *, keepdims: bool = False
    ) -> Tensor:
        """Returns the index of the largest item; an integer Tensor, never recorded."""
        return call(np.argmax, self, **_over(axis, out, keepdims, True))

    def argmin(
        self, axis: int | None = None, out: None = None, *, keepdims: bool = False
    ) -> Tensor:
        """Returns the index of the smallest item; an integer Tensor, never recorded."""
        return call(np.argmin, self, **_over(axis, out, keepdims, True))

    def any(
        self, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = True
    ) -> Tensor:
        """Returns whether an item is true; never recorded."""
        return call(np.any, self, **_over(axis, out, keepdims, where))

    def all(
        self, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = True
    ) -> Tensor:
        """Returns whether all items are true; never recorded."""
        return call(np.all, self, **_over(axis, out, keepdims, where))

    def cumsum(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> Tensor:
        """Returns the sums so far along `axis`; of all items in a row if it is None."""
        return call(np.cumsum, self, **without_none(axis=axis, dtype=dtype, out=out))

    def cumprod(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> Tensor:
        """Returns the products so far along `axis`; of all items in a row if it is None."""
        return call(np.cumprod, self, **without_none(axis=axis, dtype=dtype, out=out))


def _over(axis: Axis, out: None, keepdims: bool, where: Any) -> dict[str, Any]:
    """Returns what was given of what most reductions take."""
    given = without_none(axis=axis, out=out, where=None if where is True else where)
    if keepdims:
        given["keepdims"] = True
    return given


def without_none(**options: Any) -> dict[str, Any]:
    """Returns the options that are given; None is what all of them have by default."""
    return {name: x for name, x in options.items() if x is not None}
