"""Algorithms that move data: coroutines over a Link, each with its steps and bytes."""

from __future__ import annotations

from telegrad.collectives.algorithms import (
    chain,
    circulant,
    direct,
    dissemination,
    objects,
    ring,
    shared_exchange,
    shared_memory,
    star,
    tree,
)

__all__ = [
    "chain",
    "circulant",
    "direct",
    "dissemination",
    "objects",
    "ring",
    "shared_exchange",
    "shared_memory",
    "star",
    "tree",
]
