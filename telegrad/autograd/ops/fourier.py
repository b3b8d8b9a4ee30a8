"""Discrete Fourier transforms, with their gradient rules.

The matrix of a transform is symmetric, so the rule of a complex transform is the transform itself.
The rule of a real transform is the other real transform with weights. `rfft` leaves out the mirror
image of each frequency and `irfft` adds it, so a frequency counts once or twice:

    frequency    0    1    2   ...   n/2, if n is even
    counts       1    2    2   ...   1

The gradient of padding is cropping; the gradient of cropping is padding with zeros.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops.shape import along, getitem, put, scatter
from telegrad.types import Shape

# For each norm of a transform, the norm with which the inverse transform is its transpose.
_DUAL: Final[dict[Any, Any]] = {
    None: "forward",
    "backward": "forward",
    "ortho": "ortho",
    "forward": "backward",
}


def _fitted(x: Any, shape: Shape) -> Any:
    """Returns `x` in `shape`: each axis is cropped, or padded with zeros at the end."""
    if x.shape == shape:
        return x
    both = tuple([slice(0, min(pair)) for pair in zip(x.shape, shape, strict=True)])
    part = getitem(x, index=both)
    return part if part.shape == shape else scatter(part, index=both, into=shape)


def _alone(n: int, axis: int, ndim: int) -> tuple[Any, ...]:
    """Returns the index of the frequencies of `n` that are their own mirror image."""
    alone = slice(0, None, n // 2) if n % 2 == 0 else slice(0, 1)
    return along(axis % ndim, alone)


def _of_rfft(g: Any, shape: Shape, n: Any, axis: int, norm: Any) -> Any:
    n = shape[axis] if n is None else n
    index = _alone(n, axis, len(shape))
    spectrum = put(g * 0.5, getitem(g, index=index), index=index)
    return _fitted(np.fft.irfft(spectrum, n=n, axis=axis, norm=_DUAL[norm]), shape)


def _of_irfft(g: Any, shape: Shape, axis: int, norm: Any) -> Any:
    spectrum = np.fft.rfft(g, axis=axis, norm=_DUAL[norm])
    index = _alone(g.shape[axis], axis, len(shape))
    return _fitted(put(spectrum * 2, getitem(spectrum, index=index), index=index), shape)


_ONE: Final = {"n": None, "axis": -1, "norm": None}
_H: Final = "holomorphic"

# fmt: off
fft       = numpy_function(
    np.fft.fft, "a", options=_ONE, complex_rule=_H,
    a=lambda g, shape, axis, norm: _fitted(np.fft.fft(g, axis=axis, norm=norm), shape))
ifft      = numpy_function(
    np.fft.ifft, "a", options=_ONE, complex_rule=_H,
    a=lambda g, shape, axis, norm: _fitted(np.fft.ifft(g, axis=axis, norm=norm), shape))
rfft      = numpy_function(np.fft.rfft,      "a", options=_ONE,  complex_rule="own", a=_of_rfft)
irfft     = numpy_function(np.fft.irfft,     "a", options=_ONE,  complex_rule="own", a=_of_irfft)
fftshift  = numpy_function(np.fft.fftshift, "x", options={"axes": None}, complex_rule=_H,
                           x=lambda g, axes: np.fft.ifftshift(g, axes))
ifftshift = numpy_function(np.fft.ifftshift, "x", options={"axes": None}, complex_rule=_H,
                           x=lambda g, axes: np.fft.fftshift(g, axes))
# fmt: on


# -- transforms of several axes, one axis after the other ----------------------------------------


def _lengths(shape: Shape, s: Any, axes: Any) -> tuple[list[Any], list[int]]:
    """Returns the length of each axis after cropping or padding (None: unchanged), and the axes."""
    if axes is None:
        axes = range(-len(shape if s is None else s), 0)
    lengths = [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    if len(lengths) != len(axes):
        raise ValueError(f"s has {len(lengths)} lengths for {len(axes)} axes")
    return lengths, [np.lib.array_utils.normalize_axis_index(axis, len(shape)) for axis in axes]


def _enter_several(function: Any, transform: Any) -> None:
    """Enters a transform of several axes; `transform` is that of one axis."""

    @composed(function)
    def of_several(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
        lengths, axes = _lengths(a.shape, s, axes)
        for n, axis in zip(lengths[::-1], axes[::-1], strict=True):
            a = transform(a, n, axis, norm)
        return a


_enter_several(np.fft.fftn, np.fft.fft)
_enter_several(np.fft.ifftn, np.fft.ifft)


@composed(np.fft.rfftn)
def _rfftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    lengths, axes = _lengths(a.shape, s, axes)
    a = np.fft.rfft(a, lengths[-1], axes[-1], norm)
    return np.fft.fftn(a, lengths[:-1], axes[:-1], norm)


@composed(np.fft.irfftn)
def _irfftn(a: Any, s: Any = None, axes: Any = None, norm: Any = None) -> Any:
    lengths, axes = _lengths(a.shape, s, axes)
    for n, axis in zip(lengths[:-1], axes[:-1], strict=True):
        a = np.fft.ifft(a, n, axis, norm)
    return np.fft.irfft(a, lengths[-1], axes[-1], norm)


# fmt: off
composed(np.fft.fft2)(lambda a, s=None, axes=(-2, -1), norm=None: np.fft.fftn(a, s, axes, norm))
composed(np.fft.ifft2)(lambda a, s=None, axes=(-2, -1), norm=None: np.fft.ifftn(a, s, axes, norm))
composed(np.fft.rfft2)(lambda a, s=None, axes=(-2, -1), norm=None: np.fft.rfftn(a, s, axes, norm))
composed(np.fft.irfft2)(lambda a, s=None, axes=(-2, -1), norm=None: np.fft.irfftn(a, s, axes, norm))
composed(np.fft.hfft)(lambda a, n=None, axis=-1, norm=None:
    np.fft.irfft(np.conjugate(a), n, axis, _DUAL.get(norm, norm)))
composed(np.fft.ihfft)(lambda a, n=None, axis=-1, norm=None:
    np.conjugate(np.fft.rfft(a, n, axis, _DUAL.get(norm, norm))))
# fmt: on
