"""All samples in one table; a part that adds rules adds its table here."""

from __future__ import annotations

from typing import Final

from tests.autograd.samples.arithmetic import ARITHMETIC
from tests.autograd.samples.axis_order import AXIS_ORDER
from tests.autograd.samples.complex_numbers import COMPLEX_NUMBERS
from tests.autograd.samples.convolution import CONVOLUTION
from tests.autograd.samples.decompositions import DECOMPOSITIONS
from tests.autograd.samples.diagonals import DIAGONALS, GRIDS
from tests.autograd.samples.differences import CONDITIONS, DIFFERENCES, WEIGHTING
from tests.autograd.samples.elementwise import ELEMENTWISE
from tests.autograd.samples.fourier import FOURIER
from tests.autograd.samples.interpolation import INTERPOLATION
from tests.autograd.samples.linear_systems import LINEAR_SYSTEMS
from tests.autograd.samples.norms import NORMS
from tests.autograd.samples.padding import PADDING
from tests.autograd.samples.polynomials import POLYNOMIALS
from tests.autograd.samples.products import PRODUCTS
from tests.autograd.samples.reduction import REDUCTIONS
from tests.autograd.samples.sample import Table
from tests.autograd.samples.selection import SELECTION
from tests.autograd.samples.shape import SHAPES
from tests.autograd.samples.sorting import ORDER_STATISTICS, SORTING
from tests.autograd.samples.special import SPECIAL
from tests.autograd.samples.splitting import SPLITTING
from tests.autograd.samples.stacking import STACKING

__all__ = ["SAMPLES"]

SAMPLES: Final[Table] = {
    **ELEMENTWISE,
    **ARITHMETIC,
    **REDUCTIONS,
    **SHAPES,
    **AXIS_ORDER,
    **SELECTION,
    **SPLITTING,
    **FOURIER,
    **COMPLEX_NUMBERS,
    **DECOMPOSITIONS,
    **LINEAR_SYSTEMS,
    **NORMS,
    **PRODUCTS,
    **STACKING,
    **DIAGONALS,
    **GRIDS,
    **SORTING,
    **ORDER_STATISTICS,
    **DIFFERENCES,
    **WEIGHTING,
    **CONDITIONS,
    **CONVOLUTION,
    **PADDING,
    **SPECIAL,
    **INTERPOLATION,
    **POLYNOMIALS,
}
