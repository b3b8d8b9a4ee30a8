"""The random numbers that modules draw from: `telegrad.autograd.generator`, which checkpoints keep."""

from telegrad.autograd import SeededGenerator, current_generator, manual_seed

__all__ = ["SeededGenerator", "current_generator", "manual_seed"]
