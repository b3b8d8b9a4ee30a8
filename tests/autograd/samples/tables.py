"""All samples in one table; a part that adds rules adds its table here."""

from __future__ import annotations

from typing import Final

from tests.autograd.samples.arithmetic import ARITHMETIC
from tests.autograd.samples.elementwise import ELEMENTWISE
from tests.autograd.samples.reduction import REDUCTIONS
from tests.autograd.samples.sample import Table
from tests.autograd.samples.shape import SHAPES

__all__ = ["SAMPLES"]

SAMPLES: Final[Table] = {**ELEMENTWISE, **ARITHMETIC, **REDUCTIONS, **SHAPES}
