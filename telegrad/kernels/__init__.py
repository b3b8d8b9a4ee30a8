"""Hand-written kernels for the few operations that need one, for NumPy and CuPy arrays alike.

The kernels of modules (`telegrad.nn`) are loaded when they are first used, so `import telegrad`
does not pay for them.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from telegrad.kernels.cross_entropy import (
    check_classes,
    cross_entropy,
    cross_entropy_gradient,
    label_range,
    log_softmax,
    log_softmax_gradient,
    mean_cross_entropy,
    one_hot,
    softmax,
    softmax_gradient,
)
from telegrad.kernels.flatten import flatten, scaled, unflatten

if TYPE_CHECKING:
    from telegrad.kernels.attention import attention_backward, attention_forward, causal_bias
    from telegrad.kernels.compression import (
        mean_largest,
        mean_quantized,
        pack_largest,
        quantize,
    )
    from telegrad.kernels.convolution import conv2d, conv2d_input, conv2d_weight
    from telegrad.kernels.gaussian import GATES, gated, gated_gradient, gelu, gelu_slope
    from telegrad.kernels.norm import joint_norm
    from telegrad.kernels.normalization import Over, normalize, normalize_gradients
    from telegrad.kernels.philox import dropout
    from telegrad.kernels.pooling import (
        max_pool2d,
        mean_pool2d,
        pick_places,
        spread_means,
        spread_places,
    )
    from telegrad.kernels.recurrent import recurrence_backward, recurrence_forward
    from telegrad.kernels.rows import add_rows
    from telegrad.kernels.steps import StepRule, plan_step, step_rows, steps_dtype
    from telegrad.kernels.windows import Windows

__all__ = [
    "GATES",
    "Over",
    "StepRule",
    "Windows",
    "add_rows",
    "attention_backward",
    "attention_forward",
    "causal_bias",
    "check_classes",
    "conv2d",
    "conv2d_input",
    "conv2d_weight",
    "cross_entropy",
    "cross_entropy_gradient",
    "dropout",
    "flatten",
    "gated",
    "gated_gradient",
    "gelu",
    "gelu_slope",
    "joint_norm",
    "label_range",
    "log_softmax",
    "log_softmax_gradient",
    "max_pool2d",
    "mean_cross_entropy",
    "mean_largest",
    "mean_pool2d",
    "mean_quantized",
    "normalize",
    "normalize_gradients",
    "one_hot",
    "pack_largest",
    "pick_places",
    "plan_step",
    "quantize",
    "recurrence_backward",
    "recurrence_forward",
    "scaled",
    "softmax",
    "softmax_gradient",
    "spread_means",
    "spread_places",
    "step_rows",
    "steps_dtype",
    "unflatten",
]

_MODULES = {
    "attention": "attention_backward attention_forward causal_bias",
    "compression": "mean_largest mean_quantized pack_largest quantize",
    "convolution": "conv2d conv2d_input conv2d_weight",
    "gaussian": "GATES gated gated_gradient gelu gelu_slope",
    "normalization": "Over normalize normalize_gradients",
    "philox": "dropout",
    "norm": "joint_norm",
    "pooling": "max_pool2d mean_pool2d pick_places spread_means spread_places",
    "recurrent": "recurrence_backward recurrence_forward",
    "rows": "add_rows",
    "steps": "StepRule plan_step step_rows steps_dtype",
    "windows": "Windows",
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names.split():
            found = getattr(_import_module(f"telegrad.kernels.{module}"), name)
            globals()[name] = found  # so that the next use does not come here
            return found
    raise AttributeError(f"module 'telegrad.kernels' has no attribute {name!r}")
