"""Normalisation layers, as functions and as modules.

Means and variances have the dtype of the input, or float32 for float16 and bfloat16. Variances are
means of squared distances, never differences of squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from telegrad.arrays import computing_dtype, namespace
from telegrad.autograd import Tensor, as_tensor, once, ops
from telegrad.autograd.seams import array_of, replace_data
from telegrad.nn.module import Module, OfFunction, Parameter, check_floating
from telegrad.types import Array, DTypeLike


def layer_norm(
    x: Tensor | Array,
    normalized_shape: Sequence[int],
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias`, over the last axes together.

    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization" (2016).

    Args:
        x: Floating-point numbers, of shape (..., *normalized_shape).
        normalized_shape: The lengths of the last axes.
        weight: The factor, of shape `normalized_shape`; None for ones.
        bias: The shift, of shape `normalized_shape`; None for zeros.
        eps: The number added to the variance.

    Raises:
        ValueError: The shapes do not fit, or there are no items.

    >>> layer_norm(np.array([[1.0, 2.0, 3.0]]), (3,))
    tensor([[-1.22473569,  0.        ,  1.22473569]])
    """
    return _over_last(x, tuple(normalized_shape), weight, bias, eps, centred=True)


def rms_norm(
    x: Tensor | Array,
    normalized_shape: Sequence[int],
    weight: Tensor | Array | None = None,
    eps: float | None = None,
) -> Tensor:
    """Returns `x / sqrt(mean of squares + eps) * weight`, over the last axes together.

    B. Zhang and R. Sennrich, "Root mean square layer normalization" (2019).

    Args:
        x: Floating-point numbers, of shape (..., *normalized_shape).
        normalized_shape: The lengths of the last axes.
        weight: The factor, of shape `normalized_shape`; None for ones.
        eps: The number added to the mean of squares; None for the distance from 1 to the next
            number in the dtype of `x`, of float32 for float16 and bfloat16.

    Raises:
        ValueError: The shapes do not fit, or there are no items.

    >>> rms_norm(np.array([[3.0, 4.0]]), (2,))
    tensor([[0.84852814, 1.13137085]])
    """
    added = float(np.finfo(computing_dtype(x.dtype)).eps) if eps is None else eps
    return _over_last(x, tuple(normalized_shape), weight, None, added, centred=False)


def _over_last(
    x: Any, shape: tuple[int, ...], weight: Any, bias: Any, eps: float, *, centred: bool
) -> Tensor:
    over = len(shape)
    if not shape or x.shape[-over:] != shape or math.prod(shape) == 0:
        raise ValueError(
            f"an input of shape (..., *{shape}) is needed, not {x.shape}; all lengths positive"
        )
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None and part.shape != shape:
            raise ValueError(f"{name} has shape {part.shape}, {shape} needed")
    return as_tensor(
        ops.layers.normalize(x, weight=weight, bias=bias, over=over, eps=eps, centred=centred)[0]
    )


def group_norm(
    x: Tensor | Array,
    num_groups: int,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias`, for each group of channels.

    Mean and variance are those of the channels of one group of one example together. With one
    channel in each group this is instance normalisation. Y. Wu and K. He, "Group normalization"
    (2018).

    Args:
        x: Floating-point numbers, of shape (n, channels, ...).
        num_groups: The number of groups; it divides the number of channels.
        weight: The factor, of shape (channels,); None for ones.
        bias: The shift, of shape (channels,); None for zeros.
        eps: The number added to the variance.

    Raises:
        ValueError: The shapes do not fit, or the groups have no items.

    >>> group_norm(np.array([[1.0, 3.0, 2.0, 2.0]]), 2, eps=0.5).data.round(4)
    array([[-0.8165,  0.8165,  0.    ,  0.    ]])
    """
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups or 0 in x.shape[1:]:
        raise ValueError(
            f"an input of shape (n, channels, ...) with groups of equal size is needed, not "
            f"{x.shape} with {num_groups} groups; all lengths but n are positive"
        )
    groups = num_groups, x.shape[1] // num_groups
    parts: dict[str, Any] = {}
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None and part.shape != x.shape[1:2]:
            raise ValueError(f"{name} has shape {part.shape}, {x.shape[1:2]} needed")
        parts[name] = None if part is None else ops.reshape(part, to=groups)
    split = ops.reshape(x, to=(x.shape[0], *groups, *x.shape[2:]))
    y = ops.layers.normalize(split, **parts, over="groups", eps=eps)[0]
    return as_tensor(ops.reshape(y, to=x.shape))


def batch_norm(
    x: Tensor | Array,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias`, for each channel.

    S. Ioffe and C. Szegedy, "Batch normalization" (2015).

    Args:
        x: Floating-point numbers, of shape (n, channels, ...).
        running_mean: The running means, of shape (channels,). Training replaces their array by one
            that is nearer to the means of this batch.
        running_var: The running variances, in the same shape; divided by count - 1.
        weight: The factor, of shape (channels,); None for ones.
        bias: The shift, of shape (channels,); None for zeros.
        training: True to use mean and variance of this batch, False to use the running ones.
        momentum: The part of the way that running statistics move towards those of this batch.
        eps: The number added to the variance.

    Raises:
        ValueError: A shape does not fit; or, in training, each channel has only one value; or,
            outside of it, there are no running statistics.

    >>> batch_norm(np.array([[1.0], [3.0]]), None, None, training=True, eps=0.0)
    tensor([[-1.],
            [ 1.]])
    """
    if x.ndim < 2:
        raise ValueError(f"batches have shape (n, channels, ...), not {x.shape}")
    channels = x.shape[1]
    parts = {
        "running_mean": running_mean,
        "running_var": running_var,
        "weight": weight,
        "bias": bias,
    }
    for name, part in parts.items():
        if part is not None and part.shape != (channels,):
            raise ValueError(f"{name} has shape {part.shape}, ({channels},) needed")
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("there are no running statistics; pass training=True")
        return _by_running(x, running_mean.data, running_var.data, weight, bias, eps)
    count = x.shape[0] * math.prod(x.shape[2:])
    if count < 2:
        raise ValueError(
            f"training needs more than one value for each channel; the shape is {x.shape}"
        )
    y, _, mean, variance = ops.layers.normalize(x, weight=weight, bias=bias, over=None, eps=eps)

    def move() -> None:
        _approach(running_mean, mean, momentum, 1.0)
        _approach(running_var, variance, momentum, count / (count - 1))

    once(move)
    return as_tensor(y)


def _by_running(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    xp = namespace(mean)
    dtype = np.result_type(*[part.dtype for part in (x, mean, weight, bias) if part is not None])
    scale: Any = 1 / xp.sqrt(variance.astype(computing_dtype(variance.dtype)) + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    y = as_tensor(ops.layers.affine(x, scale, shift))
    return y if y.dtype == dtype else y.astype(dtype)


def _approach(running: Tensor | None, found: Any, momentum: float, factor: float) -> None:
    if running is None:
        return
    values: Any = array_of(found)

    def nearer(array: Any) -> Any:
        there = values.reshape(array.shape) * (factor * momentum)  # three launches on a GPU
        return (array * (1 - momentum) + there).astype(array.dtype, copy=False)

    replace_data(running, nearer)


class LayerNorm(OfFunction):
    """The module form of `functional.layer_norm`.

    Args:
        normalized_shape: The lengths of the last axes; a number for one axis.
        eps: The number added to the variance.
        elementwise_affine: True to have a weight (ones at first) and a bias (zeros at first).
        bias: False to have the weight only.
        dtype: The dtype of the parameters; floating-point.

    Raises:
        ValueError: A length is not positive, or `dtype` is not floating-point.

    Attributes:
        weight: The factor, of shape `normalized_shape`, or None.
        bias: The shift, of shape `normalized_shape`, or None.

    >>> y = LayerNorm(4)(np.arange(8, dtype=np.float32).reshape(2, 4))
    >>> y.data.mean(axis=-1).tolist()
    [0.0, 0.0]
    """

    _function = staticmethod(layer_norm)
    _shown = "{normalized_shape}"
    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        shape = _lengths(normalized_shape)
        self._keep(
            normalized_shape=shape,
            eps=eps,
            weight=_parameter(shape, 1.0, dtype, wanted=elementwise_affine),
            bias=_parameter(shape, 0.0, dtype, wanted=elementwise_affine and bias),
        )


class RMSNorm(OfFunction):
    """The module form of `functional.rms_norm`.

    Args:
        normalized_shape: The lengths of the last axes; a number for one axis.
        eps: The number added to the mean of squares; None for the default of the function.
        elementwise_affine: True to have a weight (ones at first).
        dtype: The dtype of the weight; floating-point.

    Raises:
        ValueError: A length is not positive, or `dtype` is not floating-point.

    Attributes:
        weight: The factor, of shape `normalized_shape`, or None.

    >>> RMSNorm(2, dtype=np.float64)(np.array([[3.0, 4.0]]))
    tensor([[0.84852814, 1.13137085]], grad_fn=<normalize>)
    """

    _function = staticmethod(rms_norm)
    _shown = "{normalized_shape}"
    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        shape = _lengths(normalized_shape)
        weight = _parameter(shape, 1.0, dtype, wanted=elementwise_affine)
        self._keep(normalized_shape=shape, eps=eps, weight=weight)


class GroupNorm(Module):
    """The module form of `functional.group_norm`.

    Args:
        num_groups: The number of groups.
        num_channels: The number of channels; a multiple of `num_groups`.
        eps: The number added to the variance.
        affine: True to have a weight (ones at first) and a bias (zeros at first).
        dtype: The dtype of the parameters; floating-point.

    Raises:
        ValueError: A number is not positive, the groups differ in size, or `dtype` is not
            floating-point.

    Attributes:
        weight: The factor, of shape (num_channels,), or None.
        bias: The shift, of shape (num_channels,), or None.

    >>> y = GroupNorm(2, 4)(np.arange(8, dtype=np.float32).reshape(2, 4))
    >>> y.data.reshape(2, 2, 2).mean(axis=-1).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """

    _shown = "{num_groups}, {num_channels}"
    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        *,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        shape = _lengths((num_channels, num_groups))[:1]
        if num_channels % num_groups:
            raise ValueError(f"{num_channels} channels do not make {num_groups} equal groups")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = _parameter(shape, 1.0, dtype, wanted=affine)
        self.bias = _parameter(shape, 0.0, dtype, wanted=affine)

    def forward(self, x: Any) -> Tensor:
        """Returns `x`, of shape (n, num_channels, ...), normalised.

        Raises:
            ValueError: The shape is different, or `functional.group_norm` raises.
        """
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ValueError(f"{self!r} does not take an input of shape {x.shape}")
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _BatchNorm(Module):
    """The base of batch normalisations of all dimensions."""

    _ndims: ClassVar[tuple[int, ...]]
    _shown = "{num_features}"
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        shape = _lengths(num_features)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = _parameter(shape, 1.0, dtype, wanted=affine)
        self.bias = _parameter(shape, 0.0, dtype, wanted=affine)
        if track_running_stats:
            self.register_buffer("running_mean", Tensor(np.zeros(shape, dtype)))
            self.register_buffer("running_var", Tensor(np.ones(shape, dtype)))
            self.register_buffer("num_batches_tracked", Tensor(np.array(0)))
        else:
            self.running_mean = self.running_var = self.num_batches_tracked = None

    def forward(self, x: Any) -> Tensor:
        """Returns `x`, of shape (n, num_features, ...), normalised.

        Raises:
            ValueError: The shape is different, or `functional.batch_norm` raises.
        """
        if x.ndim not in self._ndims or x.shape[1] != self.num_features:
            raise ValueError(f"{self!r} does not take an input of shape {x.shape}")
        momentum = self.momentum
        batch = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            momentum = once(partial(self._count_batch, self.num_batches_tracked))
        return batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=batch,
            momentum=0.0 if momentum is None else momentum,
            eps=self.eps,
        )

    def _count_batch(self, counter: Tensor) -> float:
        """Counts a batch; returns the momentum with which its statistics count."""
        replace_data(counter, lambda seen: seen + 1)
        return 1 / int(counter.item()) if self.momentum is None else self.momentum


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of images (n, channels, rows, columns) by `functional.batch_norm`.

    Args:
        num_features: The number of channels.
        eps: The number added to the variance.
        momentum: The part of the way that running statistics move towards those of a batch; None
            for the mean over all batches.
        affine: True to have a weight (ones at first) and a bias (zeros at first).
        track_running_stats: True to have running statistics. If False, `eval()` uses those of the
            batch, too.
        dtype: The dtype of parameters and running statistics; floating-point.

    Raises:
        ValueError: `num_features` is not positive, or `dtype` is not floating-point.

    Attributes:
        weight: The factor, of shape (num_features,), or None.
        bias: The shift, of shape (num_features,), or None.
        running_mean: A buffer of shape (num_features,), or None.
        running_var: A buffer of shape (num_features,), or None.
        num_batches_tracked: A buffer with the number of batches in the running statistics, or None.

    >>> norm = BatchNorm2d(3)
    >>> _ = norm(np.full((2, 3, 4, 4), 5.0, np.float32))
    >>> norm.running_mean.data.tolist()
    [0.5, 0.5, 0.5]
    """

    _ndims = (4,)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of inputs of shape (n, channels) or (n, channels, length).

    Arguments and attributes are those of `BatchNorm2d`.

    >>> norm = BatchNorm1d(2)
    >>> _ = norm(np.full((3, 2), 5.0, np.float32))
    >>> norm.running_mean.data.tolist()
    [0.5, 0.5]
    """

    _ndims = (2, 3)


def _lengths(shape: int | Sequence[int]) -> tuple[int, ...]:
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths are positive, and there is one at least; got {shape}")
    return lengths


def _parameter(
    shape: tuple[int, ...], value: float, dtype: DTypeLike, *, wanted: bool
) -> Parameter | None:
    check_floating(dtype)
    return Parameter(np.full(shape, value, dtype)) if wanted else None
