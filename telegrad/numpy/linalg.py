"""`numpy.linalg` with gradients; see `telegrad.numpy`."""

import typing

import numpy

from telegrad.numpy import namespace

__all__ = sorted(namespace.names_of(numpy.linalg))

globals().update(namespace.names_of(numpy.linalg))

if typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any: ...
