"""NumPy's array methods on Tensors; each calls the NumPy function of the same name.

`TensorT` is the type of their results: Tensor, which inherits them in a file above this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from telegrad.arrays import to_device
from telegrad.autograd.graph.dispatch import TABLE, dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from telegrad.types import DTypeLike

# -- reductions and cumulative sums --------------------------------------------------------------

TensorT = TypeVar("TensorT")
Axis: TypeAlias = "int | tuple[int, ...] | None"


class Reductions(Generic[TensorT]):
    """The reductions. They are recorded, except those that return indices or truth values.

    The parameters are NumPy's; `out` is refused.
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
    ) -> TensorT:
        """Returns the sum over `axis`, or of all items if it is None."""
        if axis is None and dtype is out is initial is None and not keepdims and where is True:
            return TABLE[np.sum](self)
        over = _over(axis, out, keepdims, where)
        return TABLE[np.sum](self, **over, **without_none(dtype=dtype, initial=initial))

    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> TensorT:
        """Returns the product over `axis`, or of all items if it is None."""
        over = _over(axis, out, keepdims, where)
        return TABLE[np.prod](self, **over, **without_none(dtype=dtype, initial=initial))

    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: None = None,
        *,
        keepdims: bool = False,
        where: Any = True,
    ) -> TensorT:
        """Returns the mean over `axis`, or of all items if it is None."""
        if axis is None and dtype is out is None and not keepdims and where is True:
            return TABLE[np.mean](self)
        return TABLE[np.mean](
            self, **_over(axis, out, keepdims, where), **without_none(dtype=dtype)
        )

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
    ) -> TensorT:
        """Returns the variance over `axis`, divided by the number of items less `ddof`."""
        others = without_none(dtype=dtype, ddof=ddof or None, correction=correction)
        return TABLE[np.var](self, **_over(axis, out, keepdims, where), **others)

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
    ) -> TensorT:
        """Returns the standard deviation over `axis`; where it is 0, its gradient is 0."""
        others = without_none(dtype=dtype, ddof=ddof or None, correction=correction)
        return TABLE[np.std](self, **_over(axis, out, keepdims, where), **others)

    def max(
        self,
        axis: Axis = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> TensorT:
        """Returns the largest item; if several are equal, they share its gradient equally."""
        return TABLE[np.max](
            self, **_over(axis, out, keepdims, where), **without_none(initial=initial)
        )

    def min(
        self,
        axis: Axis = None,
        out: None = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> TensorT:
        """Returns the smallest item; if several are equal, they share its gradient equally."""
        return TABLE[np.min](
            self, **_over(axis, out, keepdims, where), **without_none(initial=initial)
        )

    def argmax(
        self, axis: int | None = None, out: None = None, *, keepdims: bool = False
    ) -> TensorT:
        """Returns the index of the largest item; an integer Tensor, never recorded."""
        return TABLE[np.argmax](self, **_over(axis, out, keepdims, True))

    def argmin(
        self, axis: int | None = None, out: None = None, *, keepdims: bool = False
    ) -> TensorT:
        """Returns the index of the smallest item; an integer Tensor, never recorded."""
        return TABLE[np.argmin](self, **_over(axis, out, keepdims, True))

    def any(
        self, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = True
    ) -> TensorT:
        """Returns True where any item over `axis` is true; never recorded."""
        return TABLE[np.any](self, **_over(axis, out, keepdims, where))

    def all(
        self, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = True
    ) -> TensorT:
        """Returns True where all items over `axis` are true; never recorded."""
        return TABLE[np.all](self, **_over(axis, out, keepdims, where))

    def cumsum(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> TensorT:
        """Returns the cumulative sums along `axis`; None flattens the array first."""
        return TABLE[np.cumsum](self, **without_none(axis=axis, dtype=dtype, out=out))

    def cumprod(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> TensorT:
        """Returns the cumulative products along `axis`; None flattens the array first."""
        return TABLE[np.cumprod](self, **without_none(axis=axis, dtype=dtype, out=out))


def _over(axis: Axis, out: None, keepdims: bool, where: Any) -> dict[str, Any]:
    """Returns those of the options of most reductions that the caller gave."""
    given = without_none(axis=axis, out=out, where=None if where is True else where)
    if keepdims:
        given["keepdims"] = True
    return given


def without_none(**options: Any) -> dict[str, Any]:
    """Returns the options that are not None, which is the default of all of them."""
    return {name: x for name, x in options.items() if x is not None}


# -- selections ----------------------------------------------------------------------------------


class Selections(Reductions[TensorT]):
    """The methods that select, repeat or find items; those that return indices are not recorded.

    The parameters are NumPy's; `out` is refused.
    """

    __slots__ = ()

    def take(
        self, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise"
    ) -> TensorT:
        """Returns the items at `indices` along `axis`; None flattens the array first."""
        others = without_none(out=out, mode=None if mode == "raise" else mode)
        return _of(np.take, self, indices, axis=axis, **others)

    def compress(self, condition: Any, axis: int | None = None, out: None = None) -> TensorT:
        """Returns the items along `axis` where `condition` is true."""
        chosen: TensorT = dispatch(
            np.compress, (condition, self), {"axis": axis, **without_none(out=out)}
        )
        return chosen

    def choose(self, choices: Sequence[Any], out: None = None, mode: str = "raise") -> TensorT:
        """Returns at each index the item of the array in `choices` whose number is there."""
        others = without_none(out=out, mode=None if mode == "raise" else mode)
        return _of(np.choose, self, choices, **others)

    def repeat(self, repeats: Any, axis: int | None = None) -> TensorT:
        """Returns each item `repeats` times along `axis`; None flattens the array first."""
        return _of(np.repeat, self, repeats, axis=axis)

    def argsort(
        self,
        axis: int | None = -1,
        kind: str | None = None,
        order: None = None,
        *,
        stable: bool | None = None,
    ) -> TensorT:
        """Returns the indices that sort this; an integer Tensor, never recorded."""
        return _of(
            np.argsort, self, axis=axis, **without_none(kind=kind, order=order, stable=stable)
        )

    def argpartition(
        self, kth: Any, axis: int | None = -1, kind: str = "introselect", order: None = None
    ) -> TensorT:
        """Returns the indices that partition this; an integer Tensor, never recorded."""
        return _of(np.argpartition, self, kth, axis=axis, kind=kind, **without_none(order=order))

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None) -> TensorT:
        """Returns the index at which `v` fits into this sorted array; never recorded."""
        return _of(np.searchsorted, self, v, side=side, **without_none(sorter=sorter))

    def nonzero(self) -> tuple[TensorT, ...]:
        """Returns the indices of the items that are not 0, one Tensor for each axis."""
        found: tuple[TensorT, ...] = dispatch(np.nonzero, (self,), {})
        return found


# -- the other array methods ---------------------------------------------------------------------


class ArrayMethods(Selections[TensorT]):
    """The methods that change shape, items, dtype or device; they are recorded.

    The parameters are NumPy's; `out` is refused.
    """

    __slots__ = ()

    # Shape.

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> TensorT:
        """Returns the same items in another shape: `reshape(2, 3)` or `reshape((2, 3))`."""
        to = shape[0] if len(shape) == 1 else shape
        if order == "C" and copy is None:
            return TABLE[np.reshape](self, to)
        return TABLE[np.reshape](self, to, order=order, copy=copy)

    def ravel(self, order: str = "C") -> TensorT:
        """Returns the items in one axis; the result shares the memory if possible."""
        return TABLE[np.ravel](self, **({} if order == "C" else {"order": order}))

    def flatten(self, order: str = "C") -> TensorT:
        """Returns a copy of the items in one axis."""
        return TABLE[np.copy](self.ravel(order))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> TensorT:
        """Returns this without its axes of length 1, or without the axes in `axis`."""
        return TABLE[np.squeeze](self, axis=axis)

    def transpose(self, *axes: Any) -> TensorT:
        """Returns this with its axes reversed, or in the order of `axes`."""
        return TABLE[np.transpose](self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    def swapaxes(self, axis1: int, axis2: int, /) -> TensorT:
        """Returns this with two axes exchanged."""
        return TABLE[np.swapaxes](self, axis1, axis2)

    @property
    def T(self) -> TensorT:
        """This with its axes reversed."""
        return TABLE[np.transpose](self)

    @property
    def mT(self) -> TensorT:
        """This with its last two axes exchanged: each matrix of a batch transposed.

        Raises:
            ValueError: There are fewer than two axes.
        """
        held: Any = self
        if held.ndim < 2:
            raise ValueError(f"a matrix transpose needs two axes, this one has {held.ndim}")
        return TABLE[np.swapaxes](self, -2, -1)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TensorT:
        """Returns the diagonals of the matrices that two axes span."""
        return _of(np.diagonal, self, offset, axis1, axis2)

    def trace(
        self,
        offset: int = 0,
        axis1: int = 0,
        axis2: int = 1,
        dtype: DTypeLike | None = None,
        out: None = None,
    ) -> TensorT:
        """Returns the sums along the diagonals."""
        return _of(np.trace, self, offset, axis1, axis2, **without_none(dtype=dtype, out=out))

    # Elementwise.

    def clip(
        self,
        min: Any = None,  # noqa: A002  NumPy's name
        max: Any = None,  # noqa: A002
        out: None = None,
    ) -> TensorT:
        """Returns this with items below `min` replaced by `min`, and above `max` by `max`."""
        return TABLE[np.clip](self, min, max, **without_none(out=out))

    def round(self, decimals: int = 0, out: None = None) -> TensorT:
        """Returns this rounded, halves to even; never recorded, as it is piecewise constant."""
        return _of(np.round, self, decimals, **without_none(out=out))

    def conj(self) -> TensorT:
        """Returns this with its imaginary parts negated."""
        return _of(np.conjugate, self)

    conjugate = conj

    @property
    def real(self) -> TensorT:
        """The real parts."""
        return _of(np.real, self)

    @property
    def imag(self) -> TensorT:
        """The imaginary parts."""
        return _of(np.imag, self)

    def dot(self, other: Any, out: None = None) -> TensorT:
        """Returns the dot product with `other`, as `np.dot` does for any number of axes."""
        return _of(np.dot, self, other, **without_none(out=out))

    # Dtype, device, memory.

    def astype(
        self,
        dtype: DTypeLike,
        order: str = "K",
        casting: str = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> TensorT:
        """Returns this in another dtype; the gradient is cast back to this one.

        Args:
            dtype: The dtype of the result.
            order: NumPy's default; no other value is allowed.
            casting: The casting rule: `unsafe`, `same_kind`, `safe`, `equiv` or `no`.
            subok: NumPy's default; no other value is allowed.
            copy: False to return this Tensor itself if it already has the dtype.

        Raises:
            TypeError: `casting` does not allow the cast.
            ValueError: `order` or `subok` is not the default.
        """
        held: Any = self
        if order != "K" or not subok:
            raise ValueError("astype of tensors takes neither order nor subok")
        how: Any = casting
        if how != "unsafe" and not np.can_cast(held.dtype, dtype, how):
            raise TypeError(
                f"cannot cast {held.dtype} to {np.dtype(dtype)} by the rule {casting!r}"
            )
        if not copy and held.dtype == np.dtype(dtype):
            same: TensorT = held
            return same
        return TABLE[np.astype](self, dtype)

    def to(self, device: str) -> TensorT:
        """Returns this on `device` (`cpu`, `cuda`, `cuda:<number>`); the gradient is moved back.

        If the Tensor is already on `device`, the method returns the Tensor itself.

        Raises:
            ValueError: `device` is no device name.
            RuntimeError: `device` is a GPU and CuPy is not installed.
        """
        return TABLE[to_device](self, device)

    def copy(self, order: str = "C") -> TensorT:
        """Returns a copy of this; the gradient flows back to this."""
        return TABLE[np.copy](self, **({} if order == "C" else {"order": order}))

    def clone(self) -> TensorT:
        """Returns a copy of this; the gradient flows back to this, as for `copy`."""
        return TABLE[np.copy](self)


def _of(
    function: Callable[..., Any], tensor: Reductions[TensorT], *args: Any, **kwargs: Any
) -> TensorT:
    """Calls `function` by `dispatch`, also without a rule if no gradient is needed."""
    result: TensorT = dispatch(function, (tensor, *args), kwargs)
    return result
