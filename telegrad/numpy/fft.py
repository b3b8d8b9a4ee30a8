"""`numpy.fft` with gradients; see `telegrad.numpy`."""

import numpy

from telegrad.numpy import namespace

__all__ = sorted(namespace.names_of(numpy.fft))

globals().update(namespace.names_of(numpy.fft))
