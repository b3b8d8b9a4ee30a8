"""What works on gradients of parameters, under the name that it has in PyTorch."""

from telegrad.nn.clipping import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
