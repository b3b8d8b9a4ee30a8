"""NumPy's functions under NumPy's names and signatures, differentiable.

    import telegrad.numpy as np

Each takes arrays, Tensors, numbers and lists. A Tensor among the arguments makes the result a
Tensor, recorded; without one, this is NumPy itself. `numpy.f(tensor)` does the same as
`telegrad.numpy.f(tensor)`. docs/numpy.md lists how far each function can be differentiated; one
that cannot be raises when an argument needs a gradient, here as there.

What is here follows the NumPy that is installed, so the names are not written out below.

>>> import telegrad as tg
>>> x = tg.tensor([0.0, 1.0], requires_grad=True)
>>> logaddexp(x, 0.0).sum().backward()
>>> x.grad
tensor([0.5       , 0.73105858])
"""

import typing

import numpy

from telegrad.numpy import fft as fft
from telegrad.numpy import linalg as linalg
from telegrad.numpy import namespace

__all__ = sorted({*namespace.names_of(numpy), "fft", "linalg"})

globals().update(namespace.names_of(numpy))

if typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any: ...
