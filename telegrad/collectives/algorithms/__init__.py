"""Algorithms that move data: coroutines over a Link, each with its steps and bytes."""
