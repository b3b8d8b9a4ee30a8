"""Training over several workers: optimizers of parameters that live anywhere."""

from __future__ import annotations

from telegrad.parallel.dist_optimizer import DistributedOptimizer
from telegrad.parallel.parameter_rrefs import parameter_rrefs

__all__ = ["DistributedOptimizer", "parameter_rrefs"]
