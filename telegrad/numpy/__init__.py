"""NumPy's functions under NumPy's names and signatures, differentiable.

    import telegrad.numpy as np

Each function takes arrays, Tensors, numbers and lists. With a Tensor among the arguments, the
result is a Tensor and the operation is recorded; without one, NumPy itself runs. `numpy.f(tensor)`
does the same as `telegrad.numpy.f(tensor)`. docs/numpy.md lists how often each function can be
differentiated. A function without a gradient raises if an argument needs one, under either name.

The names follow the NumPy that is installed, so this file does not list them.

>>> import telegrad as tg
>>> x = tg.tensor([0.0, 1.0], requires_grad=True)
>>> logaddexp(x, 0.0).sum().backward()
>>> x.grad
tensor([0.5       , 0.73105858])
"""

import numpy

from telegrad.numpy import fft as fft
from telegrad.numpy import linalg as linalg
from telegrad.numpy import namespace

__all__ = sorted({*namespace.names_of(numpy), "fft", "linalg"})

globals().update(namespace.names_of(numpy))
