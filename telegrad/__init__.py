"""NumPy and CuPy programs that call each other, and take gradients through those calls.

`import telegrad as tg` is the compute tower alone: tensors and autograd; modules, optimizers and
NumPy's functions are loaded when they are first named. It loads no gRPC. The network is
`from telegrad import rpc, dist_autograd, launch`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

import numpy as _numpy  # noqa: F401  first: imported from deeper below it takes 10 ms longer

from telegrad.autograd import (
    Function,
    Tensor,
    as_tensor,
    enable_grad,
    from_dlpack,
    grad,
    gradcheck,
    gradgradcheck,
    no_grad,
    tensor,
)

if TYPE_CHECKING:
    from telegrad import nn, numpy, optim, scipy
    from telegrad.autograd import (
        detect_anomaly,
        elementwise_grad,
        hessian,
        hvp,
        jacobian,
        jvp,
        recompute,
        saved_values,
        value_and_grad,
        vjp,
    )
    from telegrad.nn import manual_seed

# That of pyproject.toml; to ask importlib.metadata for it would be a third of this import.
__version__ = "0.1.0.dev0"
"""The version of telegrad."""

__all__ = [
    "Function",
    "Tensor",
    "__version__",
    "as_tensor",
    "detect_anomaly",
    "elementwise_grad",
    "enable_grad",
    "from_dlpack",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "manual_seed",
    "nn",
    "no_grad",
    "numpy",
    "optim",
    "recompute",
    "saved_values",
    "scipy",
    "tensor",
    "value_and_grad",
    "vjp",
]

# Where names come from that are loaded on first use; a module is found in itself.
_LATER = {
    "recompute": "telegrad.autograd",
    "saved_values": "telegrad.autograd",
    "detect_anomaly": "telegrad.autograd",
    "elementwise_grad": "telegrad.autograd",
    "hessian": "telegrad.autograd",
    "hvp": "telegrad.autograd",
    "jacobian": "telegrad.autograd",
    "jvp": "telegrad.autograd",
    "value_and_grad": "telegrad.autograd",
    "vjp": "telegrad.autograd",
    "manual_seed": "telegrad.nn",
    "nn": "telegrad.nn",
    "numpy": "telegrad.numpy",
    "optim": "telegrad.optim",
    "scipy": "telegrad.scipy",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'telegrad' has no attribute {name!r}")
    module = _import_module(_LATER[name])
    return getattr(module, name) if _LATER[name].rpartition(".")[2] != name else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
