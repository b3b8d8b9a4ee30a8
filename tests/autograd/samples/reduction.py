"""Samples for reductions and cumulative functions."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.autograd.samples.sample import AXES, Sample, Table, complex_numbers, of_shape, over_axes

__all__ = ["REDUCTIONS"]

_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_ARRAYS: Final = [
    _CUBE,
    of_shape((), -1.0, 1.0),
    of_shape((4,), -1.0, 1.0)[::-1],
    of_shape((2, 2)).T,
]
_EMPTY: Final = of_shape((0, 3))
_MASK: Final = np.array([[True, False, True], [True, True, False]])[..., None]
_ZEROS: Final = np.array([[0.0, 2.0, 3.0], [0.0, 0.5, 0.0]])
_LACKING: Final = np.array([[1.0, np.nan, 3.0], [np.nan, 0.5, -0.7]])
_Z: Final = complex_numbers((2, 3))
_HALF: Final = {"where": _MASK}
_CUMULATIVE: Final[list[dict[str, Any]]] = [{}, {"axis": 0}, {"axis": -2}, {"axis": 2}]
_ANY: Final = over_axes(_ARRAYS, AXES)
_MASKED: Final = [
    Sample((_CUBE,), {**_HALF, **options}, fixed=("where",))
    for options in ({}, {"axis": 1}, {"axis": (0, 1), "keepdims": True})
]
_SPREAD: Final = [
    Sample((_CUBE,), {"axis": 1, "ddof": 1}),
    Sample((_CUBE,), {"axis": (0, 2), "correction": 2, "keepdims": True}),
    Sample((_CUBE,), {"where": _MASK, "axis": 1, "ddof": 0.5}, fixed=("where",)),
    Sample((_CUBE,), {"where": _MASK, "ddof": 1}, fixed=("where",)),
]
_BOUNDED: Final = [
    Sample((_CUBE,), {"initial": 0.2, "axis": 1}),
    Sample((_CUBE,), {"where": _MASK, "initial": -3.0}, fixed=("where",)),
]
_WITH_NAN: Final = [
    Sample((_LACKING,), options) for options in ({}, {"axis": 0}, {"axis": 1, "keepdims": True})
]

REDUCTIONS: Final[Table] = {
    np.sum: [
        *_ANY, *_MASKED, Sample((_EMPTY,)), Sample((_EMPTY, 1)), Sample((_Z, 1)),
        Sample((_CUBE,), {"initial": 2.0}), Sample((_CUBE, 0, np.float64, None, True)),
    ],
    np.prod: [
        *_ANY, *_MASKED, Sample((_EMPTY,)), Sample((_Z, 1)), Sample((_ZEROS,)),
        Sample((_ZEROS, 1)), Sample((_ZEROS, 0)), Sample((_ZEROS[..., None], (0, 1))),
        Sample((np.array(0.0),)), Sample((_CUBE,), {"initial": 2.0, "axis": 1}),
    ],
    np.mean: [*_ANY, *_MASKED, Sample((_Z, 1)), Sample((_EMPTY, 1))],
    # A variance of one number is 0 whatever it is.
    np.var: [*over_axes([_CUBE, *_ARRAYS[2:]], AXES[:-1]), *_SPREAD, Sample((_Z, 1))],
    np.std: [*over_axes([_CUBE, *_ARRAYS[2:]], AXES[:-1]), *_SPREAD, Sample((_Z, 1))],
    np.max: [*_ANY, *_BOUNDED],
    np.min: [*_ANY, *_BOUNDED],
    np.amax: [Sample((_CUBE, 1))],
    np.amin: [Sample((_CUBE, 1))],
    np.ptp: over_axes(_ARRAYS, AXES[:-1]),
    np.cumsum: [
        *over_axes([*_ARRAYS, _Z, _EMPTY], _CUMULATIVE), Sample((_CUBE, 1, np.float64)),
    ],
    np.cumprod: [
        *over_axes([*_ARRAYS, _Z, _EMPTY, _ZEROS], _CUMULATIVE),
    ],
    np.cumulative_sum: [
        Sample((_CUBE,), {"axis": 1, "include_initial": True}), Sample((of_shape((3,)),)),
        Sample((of_shape((3,)),), {"include_initial": True}), Sample((_EMPTY,), {"axis": 0}),
        Sample((_EMPTY,), {"axis": 0, "include_initial": True}),
    ],
    np.cumulative_prod: [
        Sample((_CUBE,), {"axis": 1, "include_initial": True}), Sample((of_shape((3,)),)),
        Sample((_ZEROS,), {"axis": 1}),
    ],
    np.nansum: [*_WITH_NAN, *_ANY, *_MASKED, Sample((_CUBE,), {"initial": 2.0})],
    np.nanprod: [*_WITH_NAN, *_MASKED],
    np.nanmean: [*_WITH_NAN, *_ANY, *_MASKED],
    np.nanvar: [*_WITH_NAN, *_SPREAD],
    np.nanstd: [Sample((_LACKING,)), Sample((_LACKING, 1)), *_SPREAD],
    np.nanmax: [*_WITH_NAN, *_ANY],
    np.nanmin: [*_WITH_NAN, *_ANY],
    np.nancumsum: [Sample((_LACKING,)), Sample((_LACKING, 1))],
    np.nancumprod: [Sample((_LACKING,)), Sample((_LACKING, 1))],
}  # fmt: skip
