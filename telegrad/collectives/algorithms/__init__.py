"""Algorithms that move data: coroutines over a Link, each with its steps and bytes."""

from __future__ import annotations

from telegrad.collectives.algorithms import direct, dissemination, ring, tree

__all__ = ["direct", "dissemination", "ring", "tree"]
