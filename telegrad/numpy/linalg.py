"""`numpy.linalg` with gradients; see `telegrad.numpy`."""

import numpy

from telegrad.numpy import namespace

__all__ = sorted(namespace.names_of(numpy.linalg))

globals().update(namespace.names_of(numpy.linalg))
