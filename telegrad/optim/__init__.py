"""Optimizers: pure updates of arrays, applied to parameters."""

from telegrad.optim.optimizer import Optimizer, State
from telegrad.optim.sgd import SGD

__all__ = ["SGD", "Optimizer", "State"]
