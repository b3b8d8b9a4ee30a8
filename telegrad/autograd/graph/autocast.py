"""`autocast`: a block in which operations choose their dtype: a short one, or float32.

    short     matrix products, linear layers, convolutions, attention, recurrent layers
    float32   softmax, losses, normalisation, exponentials, logarithms, powers, sums and products
    as it is  all others: they compute in the dtype of their inputs, promoted as NumPy does

The casts are recorded like any `astype`, so a gradient comes back in the dtype of its parameter,
and the backward uses the dtypes of the forward. Micikevicius et al., "Mixed precision training"
(2018).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from telegrad.arrays import Place, current_place, is_array, is_floating
from telegrad.autograd.graph.grad_mode import ModeBlock, is_grad_enabled, setting
from telegrad.autograd.tensor.tensor import Tensor

if TYPE_CHECKING:
    from telegrad.autograd.graph.node import Value
    from telegrad.types import DTypeLike

_SHORT: Final = """conv2d dot einsum inner linear matmul matvec tensordot vecmat
    attention recurrence"""
_WIDE: Final = """affine arccos arcsin binary_cross_entropy binary_cross_entropy_with_logits cosh
    cross_entropy cumprod cumsum exp exp2 expm1 float_power log log10 log1p log2 log_softmax
    matrix_norm mean_cross_entropy norm normalize power prod reciprocal sinh softmax softplus sum
    tan vector_norm loss"""

PRECISION: Final[Mapping[str, bool]] = {
    **dict.fromkeys(_SHORT.split(), True),
    **dict.fromkeys(_WIDE.split(), False),
}
"""True for operations of the short dtype, False for those of float32; by name, as torch has it."""

_BYTES: Final = 4
"""Those of float32. Longer arrays stay as they are: who asks for float64 wants its digits."""


@final
class Casting:
    """The short dtype of one `autocast` block, and the leaves that were cast in it.

    Args:
        dtype: The dtype.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        # By leaf, grad mode and stream: the leaf's array and version when it was cast, and the cast
        # Tensor. A stream never uses what another one may still be casting.
        self._leaves: dict[tuple[Tensor, bool, Place | None], tuple[Value, int, Any]] = {}

    def of_call(
        self, inputs: tuple[Any, ...], keywords: dict[str, Any], *, short: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of an operation cast to its dtype, if one of them is a Tensor."""
        if not any(isinstance(x, Tensor) for x in (*inputs, *keywords.values())):
            return inputs, keywords
        return (
            tuple([self.of(x, short=short) for x in inputs]),
            {name: self.of(x, short=short) for name, x in keywords.items()},
        )

    def of(self, x: Any, *, short: bool) -> Any:
        """Returns a Tensor or an array in the short dtype, or in float32 at least."""
        if not isinstance(x, Tensor) and not is_array(x):
            return x
        dtype = x.dtype
        if dtype.itemsize > _BYTES or not is_floating(dtype):
            return x
        if not short:
            return x if dtype.itemsize == _BYTES else x.astype(np.float32)
        if dtype == self.dtype:
            return x
        if isinstance(x, Tensor) and x._edge is None and x._requires_grad:
            return self._of_leaf(x)
        return x.astype(self.dtype)

    def _of_leaf(self, leaf: Tensor) -> Any:
        value = leaf._value
        key = leaf, is_grad_enabled(), current_place(value.array)
        version = value.version
        known = self._leaves.get(key)
        if known is not None and known[0] is value and known[1] == version:
            return known[2]
        cast = leaf.astype(self.dtype)
        self._leaves[key] = value, version, cast
        return cast


CASTING: Final[ContextVar[Casting | None]] = ContextVar("telegrad_autocast", default=None)
"""The casting of this context, or None outside of `autocast`."""


def cast_as(name: str, *values: Any) -> tuple[Any, ...]:
    """Returns values as an operation of that name would get them here.

    >>> from telegrad.autograd import tensor
    >>> with autocast("float16"):
    ...     [x.dtype for x in cast_as("attention", tensor([1.0], dtype=np.float32))]
    [dtype('float16')]
    """
    casting = CASTING.get()
    return values if casting is None else casting.of_call(values, {}, short=PRECISION[name])[0]


def casting_dtype() -> np.dtype[Any] | None:
    """Returns the short dtype of this context, or None outside of `autocast`."""
    casting = CASTING.get()
    return None if casting is None else casting.dtype


def casting_in(dtype: np.dtype[Any] | None) -> AbstractContextManager[None]:
    """Makes `dtype` that of the block, without the leaves that were cast before; None for none."""
    return setting(CASTING, None if dtype is None else Casting(dtype))


class autocast(ModeBlock):
    """A block, or a decorated function, in which operations on Tensors choose their dtype.

    Matrix products and layers made of them compute in `dtype`; softmax, losses, normalisation,
    exponentials, logarithms, powers and sums in float32. Float64 stays float64. A parameter is cast
    once per block, as long as its values stay. The dtype holds for this thread and the tasks that
    it starts; calls to other workers do not take it along. A backward needs no block.
    NumPy has no matrix product of bfloat16: its products and recurrent layers are in float32 then.

    Args:
        dtype: `float16`, for which small gradients need a `optim.LossScale`; or `bfloat16`, which
            has the range of float32 and needs the package ml_dtypes.
        enabled: False to compute in the dtypes of the inputs, also inside another block.

    Raises:
        ValueError: `dtype` is another one.
        ImportError: `dtype` is bfloat16, and the package ml_dtypes is not installed.

    >>> from telegrad import nn
    >>> layer = nn.Linear(3, 2)
    >>> x = np.ones((1, 3), np.float32)
    >>> with autocast("float16"):
    ...     y = layer(x)
    ...     loss = nn.functional.mse_loss(y, np.zeros((1, 2)))
    >>> loss.backward()
    >>> y.dtype, loss.dtype, layer.weight.grad.dtype
    (dtype('float16'), dtype('float32'), dtype('float32'))
    """

    def __init__(self, dtype: DTypeLike = "float16", *, enabled: bool = True) -> None:
        super().__init__()
        self._dtype = _short_dtype(dtype)
        self._enabled = enabled

    def _set(self) -> Token[Casting | None]:
        outer = CASTING.get()
        if not self._enabled:
            outer = None
        elif outer is None or outer.dtype != self._dtype:
            outer = Casting(self._dtype)
        return CASTING.set(outer)


def _short_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    if dtype == "bfloat16":
        try:
            dtype = importlib.import_module("ml_dtypes").bfloat16
        except ImportError as error:
            raise ImportError(
                "autocast('bfloat16') needs the package ml_dtypes: pip install ml_dtypes, or use "
                "'float16' with optim.LossScale"
            ) from error
    exact = np.dtype(dtype)
    if exact.itemsize != 2 or not is_floating(exact):
        raise ValueError(f"autocast computes in 'float16' or 'bfloat16', not in {exact}")
    return exact
