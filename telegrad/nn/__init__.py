"""Modules: parameters and what is computed with them."""

from telegrad.nn import functional
from telegrad.nn.generator import current_generator, manual_seed
from telegrad.nn.layers import Linear, ReLU, Sequential
from telegrad.nn.module import Module
from telegrad.nn.parameter import Parameter

__all__ = [
    "Linear",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "current_generator",
    "functional",
    "manual_seed",
]
