"""Functions about complex numbers that are no ufuncs, each with its gradient rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from telegrad.autograd.extend import composed, numpy_function
from telegrad.autograd.ops import where

__all__: list[str] = []


def _of_angle(g: Any, z: Any, deg: bool) -> Any:
    # The angle grows across z, the slower the farther out; it jumps at 0, where this gives 0.
    if z.dtype.kind != "c":
        return g * 0
    across = where(z == 0, 0.0, 1j / np.conjugate(where(z == 0, 1.0, z)))
    return g * across * (180.0 / np.pi) if deg else g * across


# fmt: off
angle = numpy_function(np.angle, "z", options={"deg": False}, complex_rule="own", z=_of_angle)
# fmt: on


@composed(np.real_if_close)
def _real_if_close(a: Any, tol: Any = 100) -> Any:
    return np.real(a) if np.real_if_close(a.data, tol).dtype.kind != "c" else a
