"""All samples in one table; a part that adds rules adds its table here."""

from __future__ import annotations

from typing import Final

from tests.autograd.samples.algebra.decompositions import DECOMPOSITIONS
from tests.autograd.samples.algebra.linear_systems import LINEAR_SYSTEMS
from tests.autograd.samples.algebra.norms import NORMS
from tests.autograd.samples.algebra.polynomials import POLYNOMIALS
from tests.autograd.samples.algebra.products import PRODUCTS
from tests.autograd.samples.arithmetic import ARITHMETIC
from tests.autograd.samples.arrangement.axis_order import AXIS_ORDER
from tests.autograd.samples.arrangement.diagonals import DIAGONALS, GRIDS
from tests.autograd.samples.arrangement.padding import PADDING
from tests.autograd.samples.arrangement.selection import SELECTION
from tests.autograd.samples.arrangement.shape import SHAPES
from tests.autograd.samples.arrangement.sorting import ORDER_STATISTICS, SORTING
from tests.autograd.samples.arrangement.splitting import SPLITTING
from tests.autograd.samples.arrangement.stacking import STACKING
from tests.autograd.samples.complex_numbers import COMPLEX_NUMBERS
from tests.autograd.samples.convolution import CONVOLUTION
from tests.autograd.samples.differences import CONDITIONS, DIFFERENCES, WEIGHTING
from tests.autograd.samples.elementwise import ELEMENTWISE
from tests.autograd.samples.fourier import FOURIER
from tests.autograd.samples.interpolation import INTERPOLATION
from tests.autograd.samples.reduction import REDUCTIONS
from tests.autograd.samples.sample import Table
from tests.autograd.samples.special import SPECIAL

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
