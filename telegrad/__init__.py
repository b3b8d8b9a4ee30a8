"""NumPy and CuPy programs that call each other, and take gradients through those calls.

`import telegrad as tg` is the compute tower alone: tensors, autograd, modules, optimizers. It
loads no gRPC. The network is `from telegrad import rpc, dist_autograd, launch`.
"""

import numpy as _numpy  # noqa: F401  first: imported from deeper below it takes 10 ms longer

from telegrad import nn, optim
from telegrad.autograd import (
    Function,
    Tensor,
    as_tensor,
    enable_grad,
    grad,
    gradcheck,
    no_grad,
    tensor,
)
from telegrad.nn import manual_seed

# That of pyproject.toml; to ask importlib.metadata for it would be a third of this import.
__version__ = "0.1.0.dev0"

__all__ = [
    "Function",
    "Tensor",
    "__version__",
    "as_tensor",
    "enable_grad",
    "grad",
    "gradcheck",
    "manual_seed",
    "nn",
    "no_grad",
    "optim",
    "tensor",
]
