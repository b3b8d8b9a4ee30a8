"""Tensors, the graph that their operations record, and the ways through it."""

from telegrad.autograd import extend, ops
from telegrad.autograd.creation import as_tensor, tensor
from telegrad.autograd.differentiate import grad
from telegrad.autograd.engine import backward
from telegrad.autograd.function import Function, FunctionContext
from telegrad.autograd.grad_mode import GradMode, enable_grad, is_grad_enabled, no_grad
from telegrad.autograd.gradcheck import gradcheck, gradgradcheck
from telegrad.autograd.gradient_target import (
    Completion,
    GradientTarget,
    LocalGradients,
    PassEnd,
)
from telegrad.autograd.graph_task import Accumulate, GraphTask
from telegrad.autograd.hooks import RemovableHandle
from telegrad.autograd.node import AccumulateGrad, Edge, Gradient, Gradients, Node, Sink
from telegrad.autograd.operation import Operation
from telegrad.autograd.tensor import Tensor, attach

__all__ = [
    "Accumulate",
    "AccumulateGrad",
    "Completion",
    "Edge",
    "Function",
    "FunctionContext",
    "GradMode",
    "Gradient",
    "GradientTarget",
    "Gradients",
    "GraphTask",
    "LocalGradients",
    "Node",
    "Operation",
    "PassEnd",
    "RemovableHandle",
    "Sink",
    "Tensor",
    "as_tensor",
    "attach",
    "backward",
    "enable_grad",
    "extend",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "is_grad_enabled",
    "no_grad",
    "ops",
    "tensor",
]
