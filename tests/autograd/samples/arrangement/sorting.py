"""Samples for functions that order items, for sets, and for what stands at parts of an order."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.autograd.samples.sample import Sample, Table, complex_numbers, of_shape

__all__ = ["ORDER_STATISTICS", "SORTING"]

_A: Final = of_shape((2, 3))
_CUBE: Final = of_shape((2, 3, 2), -1.0, 1.0)
_LINE: Final = of_shape((6,))[::-1]
_EMPTY: Final = of_shape((0, 3))
_SCALAR: Final = of_shape(())
_Z: Final = complex_numbers((2, 3))
_PART: Final = _CUBE[0] + 5.0
_GAPS: Final = np.where(of_shape((3, 4)) > 1.6, np.nan, of_shape((3, 4), seed=1))
_METHODS: Final = ["inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest"]  # fmt: skip

# Equal items share a gradient in no one way, so finite differences see distinct ones.
SORTING: Final[Table] = {
    np.sort: [
        Sample((_A,)), Sample((_CUBE, 1)), Sample((_A, None)), Sample((_LINE,), {"kind": "stable"}), Sample((_EMPTY, 0)),
        Sample((_A.T[::-1],), {"axis": 0, "stable": True}), Sample((_Z,)),
    ],
    np.partition: [Sample((_LINE, (0, 1, 2, 3, 4, 5))), Sample((_A, [0, 1, 2], 1)), Sample((_A.T, (0, 1, 2)), {"axis": 0}), Sample((_LINE[:2], 0))],
    np.sort_complex: [Sample((_LINE,)), Sample((_Z,))],
    np.unique: [
        Sample((_A,)), Sample((_CUBE,), {"axis": 1}), Sample((_LINE, True, True, True)), Sample((_EMPTY,)),
        Sample((_SCALAR,)), Sample((_A, False, True), {"equal_nan": False}), Sample((_Z,)),
    ],
    np.unique_values: [Sample((_LINE,))],
    np.unique_all: [Sample((_A,))],
    np.unique_counts: [Sample((_A,))],
    np.unique_inverse: [Sample((_A,))],
    np.union1d: [Sample((_LINE, _PART))],
    # None has an item in common: beside one that is taken out, the result has another shape.
    np.setdiff1d: [Sample((_A, _PART)), Sample((_LINE, _PART[:, 0], True))],
    np.setxor1d: [Sample((_A, _PART)), Sample((_LINE, _PART[0], True))],
    np.intersect1d: [Sample((_A, _PART)), Sample((_LINE, _PART[:, 0]), {"return_indices": True})],
}  # fmt: skip

ORDER_STATISTICS: Final[Table] = {
    np.median: [
        Sample((_A,)), Sample((_A, 1)), Sample((_A, 0)), Sample((_CUBE, (0, 2)), {"keepdims": True}), Sample((_SCALAR,)),
        Sample((_LINE,)), Sample((_A.T[::-1],), {"axis": -1, "keepdims": True}), Sample((_Z, 1)),
    ],
    np.nanmedian: [Sample((_GAPS,)), Sample((_GAPS, 0)), Sample((_GAPS, -1), {"keepdims": True}), Sample((_CUBE, (2, 1)))],
    np.quantile: [
        Sample((_A, 0.3)), Sample((_CUBE, [0.1, 0.5, 1.0], 1)), Sample((_A, np.array([[0.07, 0.93]])), {"axis": (0, 1)}),
        Sample((_CUBE, 0.4), {"axis": (2, 0), "keepdims": True}), Sample((_SCALAR, 0.7)), Sample((_LINE, [0.2, 0.25])),
        *[Sample((_LINE, [0.21, 0.67]), {"method": method}) for method in _METHODS],
        Sample((_A, 0.4), {"weights": of_shape((2, 3), seed=1), "method": "inverted_cdf"}, fixed=("weights",)),
        Sample((_CUBE, [0.4, 0.9], 1), {"weights": of_shape((3,), seed=1), "method": "inverted_cdf"}, fixed=("weights",)),
    ],
    np.nanquantile: [
        Sample((_GAPS, [0.3, 0.8], 1)), Sample((_GAPS, np.array([0.53, 0.3]), 0)), Sample((_GAPS, [0.25]), {"keepdims": True}),
        Sample((_GAPS, 0.6), {"axis": -1, "method": "hazen"}),
        Sample((_GAPS, [0.4, 0.7], 0), {"weights": of_shape((3, 4), seed=2), "method": "inverted_cdf"}, fixed=("weights",)),
    ],
    np.percentile: [Sample((_A, 30)), Sample((_CUBE, [10, 50.5], 1)), Sample((_LINE, 77.0), {"method": "weibull"}), Sample((_LINE, np.array(23.0)))],
    np.nanpercentile: [Sample((_GAPS, 30)), Sample((_GAPS, [10, 50.5], 1)), Sample((_GAPS, 77.0), {"axis": (0, 1), "keepdims": True})],
}  # fmt: skip
