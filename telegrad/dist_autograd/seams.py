"""The names that `rpc`'s agent and the optimizer import from this package; not for users."""

from __future__ import annotations

from telegrad.dist_autograd.api import attach_to, backward_from_rref
from telegrad.dist_autograd.container import Container
from telegrad.dist_autograd.context import Ambient, ambient_context, enter_ambient, leave_ambient
from telegrad.dist_autograd.functions import ROW_SPARSE, TENSOR, RecvFunction, SendFunction
from telegrad.dist_autograd.pass_gradients import PassGradients

__all__ = [
    "ROW_SPARSE",
    "TENSOR",
    "Ambient",
    "Container",
    "PassGradients",
    "RecvFunction",
    "SendFunction",
    "ambient_context",
    "attach_to",
    "backward_from_rref",
    "enter_ambient",
    "leave_ambient",
]
