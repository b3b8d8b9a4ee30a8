"""Tests of this folder run on NumPy and on CuPy: the argument `xp`."""

from tests.array_libraries import cupy, gpu, xp

__all__ = ["cupy", "gpu", "xp"]
