"""Samples for Fourier transforms: odd and even lengths, padded and cropped, each norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["FOURIER", "linear"]

_REAL: Final = [of_shape((n,), -1.0, 1.0) for n in (1, 2, 5, 6)]
_COMPLEX: Final = [complex_numbers((n,)) for n in (1, 4, 5)]
_MATRIX: Final = of_shape((2, 3), -1.0, 1.0)
_Z: Final = complex_numbers((3, 2))
_EMPTY: Final = of_shape((0, 3))
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)


def linear(samples: list[Sample], number: int = 4) -> list[Sample]:
    """The gradient of a linear function is one too, so a few samples prove the second order."""
    step = max(len(samples) // number, 1)
    return [replace(sample, second=k % step == 0) for k, sample in enumerate(samples)]


def _lines(arrays: list[Any], matrix: Any) -> list[Sample]:
    return linear(
        [
            *[Sample((a,)) for a in arrays],
            *[Sample((arrays[-1], n)) for n in (1, 2, 3, 7, 8)],
            *[Sample((matrix, n, 0, norm)) for n in (None, 1, 5) for norm in ("ortho", "forward")],
            Sample((matrix.T[::-1],), {"axis": -2, "norm": "backward"}),
            Sample((_EMPTY,)),
        ]
    )


def _planes(real: bool) -> list[Sample]:
    return linear(
        [
            Sample((_MATRIX,)),
            *([] if real else [Sample((_Z,))]),
            Sample((_MATRIX, (1, 4), (0, 1))),
            Sample((_MATRIX.T, (-1, 3), (1, 0), "ortho")),
            Sample((_CUBE,), {"norm": "forward"}),
            Sample((_CUBE, (3, 1), (0, 2))),
        ]
    )


def _bodies(real: bool) -> list[Sample]:
    return linear(
        [
            *_planes(real)[:-2],
            Sample((_CUBE,)),
            Sample((_CUBE, (3, 2, 1), (0, 1, 2))),
            Sample((_CUBE,), {"axes": (2, 0), "norm": "ortho"}),
            Sample((_CUBE,), {"axes": (1,)}),
            Sample((_CUBE[:, :2], None, (1, 1, -1))),  # an axis twice
            Sample((_CUBE[0], (2, 5), (0, 0))),
            Sample((_REAL[2],)),
        ]
    )


def _shifts() -> list[Sample]:
    return linear(
        [
            *[Sample((a,)) for a in (_REAL[2], _REAL[3], _Z, _CUBE[::-1])],
            Sample((_MATRIX, 0)),
            Sample((_CUBE,), {"axes": (0, 2)}),
        ]
    )


# More than one frequency is what `irfft` without a length needs.
_HALVES: Final = _COMPLEX[1:]

FOURIER: Final[Table] = {
    np.fft.fft: _lines([*_REAL, *_COMPLEX], _MATRIX),
    np.fft.ifft: _lines([*_REAL, *_COMPLEX], _Z),
    np.fft.rfft: _lines(_REAL, _MATRIX),
    np.fft.irfft: _lines([*_HALVES, _REAL[3], _HALVES[-1]], _Z),
    np.fft.hfft: _lines([*_HALVES, _REAL[3], _HALVES[-1]], _Z),
    np.fft.ihfft: _lines(_REAL, _MATRIX),
    np.fft.fft2: _planes(False),
    np.fft.ifft2: _planes(False),
    np.fft.rfft2: _planes(True),
    np.fft.irfft2: _planes(False),
    np.fft.fftn: _bodies(False),
    np.fft.ifftn: _bodies(False),
    np.fft.rfftn: _bodies(True),
    np.fft.irfftn: _bodies(False),
    np.fft.fftshift: _shifts(),
    np.fft.ifftshift: _shifts(),
}
