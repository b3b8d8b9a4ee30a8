"""Tensors, the graph that their operations record, and the functions that differentiate it.

Names that a training step does not need are loaded when they are first used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from telegrad.autograd import extend, ops
from telegrad.autograd.differentiate import (
    Wanted,
    grad,
    gradients_of_roots,
    own_gradient,
    tensors_in,
)
from telegrad.autograd.gradcheck import gradcheck, gradgradcheck
from telegrad.autograd.graph.autocast import autocast
from telegrad.autograd.graph.engine import (
    Completion,
    GradientTarget,
    LocalGradients,
    PassEnd,
    backward,
)
from telegrad.autograd.graph.function import Function, FunctionContext
from telegrad.autograd.graph.grad_mode import GradMode, enable_grad, is_grad_enabled, no_grad
from telegrad.autograd.graph.graph_task import GraphTask
from telegrad.autograd.graph.node import Edge, HookList, Node, RemovableHandle, Sink
from telegrad.autograd.graph.operation import Operation
from telegrad.autograd.tensor.creation import as_tensor, from_dlpack, tensor
from telegrad.autograd.tensor.row_sparse import RowSparse, is_row_sparse
from telegrad.autograd.tensor.tensor import (
    Accumulate,
    AccumulateGrad,
    Gradient,
    Gradients,
    Tensor,
    attach,
    place_under,
)

if TYPE_CHECKING:
    from telegrad.autograd.generator import SeededGenerator, current_generator, manual_seed
    from telegrad.autograd.graph.anomaly import detect_anomaly
    from telegrad.autograd.packing import saved_values
    from telegrad.autograd.recomputation import once, recompute
    from telegrad.autograd.transforms import (
        elementwise_grad,
        hessian,
        hvp,
        jacobian,
        jvp,
        value_and_grad,
        vjp,
    )

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
    "HookList",
    "LocalGradients",
    "Node",
    "Operation",
    "PassEnd",
    "RemovableHandle",
    "RowSparse",
    "SeededGenerator",
    "Sink",
    "Tensor",
    "Wanted",
    "as_tensor",
    "attach",
    "autocast",
    "backward",
    "current_generator",
    "detect_anomaly",
    "elementwise_grad",
    "enable_grad",
    "extend",
    "from_dlpack",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "gradients_of_roots",
    "hessian",
    "hvp",
    "is_grad_enabled",
    "is_row_sparse",
    "jacobian",
    "jvp",
    "manual_seed",
    "no_grad",
    "once",
    "ops",
    "own_gradient",
    "place_under",
    "recompute",
    "saved_values",
    "tensor",
    "tensors_in",
    "value_and_grad",
    "vjp",
]

_LATER = {
    "once": "telegrad.autograd.recomputation",
    "recompute": "telegrad.autograd.recomputation",
    "saved_values": "telegrad.autograd.packing",
    "SeededGenerator": "telegrad.autograd.generator",
    "current_generator": "telegrad.autograd.generator",
    "manual_seed": "telegrad.autograd.generator",
    "detect_anomaly": "telegrad.autograd.graph.anomaly",
    **dict.fromkeys(
        ("elementwise_grad", "hessian", "hvp", "jacobian", "jvp", "value_and_grad", "vjp"),
        "telegrad.autograd.transforms",
    ),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'telegrad.autograd' has no attribute {name!r}")
    return getattr(_import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
