"""Autograd across workers: contexts, backward passes, and the records that each call adds."""

from __future__ import annotations

from telegrad.dist_autograd.api import backward, context, get_gradients, grad

__all__ = [
    "backward",
    "context",
    "get_gradients",
    "grad",
]


def __dir__() -> list[str]:
    """Returns the public names, for completion."""
    return __all__
