"""The few operations worth a kernel of their own, for NumPy and CuPy arrays alike."""

from telegrad.kernels.cross_entropy import (
    cross_entropy,
    cross_entropy_gradient,
    log_softmax,
    one_hot,
    softmax,
)
from telegrad.kernels.flatten import flatten, unflatten

__all__ = [
    "cross_entropy",
    "cross_entropy_gradient",
    "flatten",
    "log_softmax",
    "one_hot",
    "softmax",
    "unflatten",
]
