"""The names that `rpc`'s agent and the optimizer import from this package; not for users."""

from __future__ import annotations

from telegrad.dist_autograd.api import AutogradContext, attach_to, backward_from_rref
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.functions import ROW_SPARSE, TENSOR, RecvFunction, SendFunction

__all__ = [
    "ROW_SPARSE",
    "TENSOR",
    "AutogradContext",
    "Container",
    "RecvFunction",
    "SendFunction",
    "attach_to",
    "backward_from_rref",
]
