"""Autograd across workers: contexts, backward passes, and what rides on every call."""

from __future__ import annotations

from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.engine import (
    AutogradContext,
    attach_to,
    backward,
    backward_from_rref,
    context,
    get_gradients,
    grad,
)
from telegrad.dist_autograd.functions import ROW_SPARSE, TENSOR, RecvFunction, SendFunction

__all__ = [
    "ROW_SPARSE",
    "TENSOR",
    "AutogradContext",
    "Container",
    "RecvFunction",
    "SendFunction",
    "attach_to",
    "backward",
    "backward_from_rref",
    "context",
    "get_gradients",
    "grad",
]
