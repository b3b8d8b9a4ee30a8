"""Functions that clip the gradients of parameters, under PyTorch's module name."""

from telegrad.nn.clipping import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
