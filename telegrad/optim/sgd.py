"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from telegrad.autograd import Tensor
from telegrad.optim.optimizer import Optimizer, State
from telegrad.types import Array

__all__ = ["SGD"]


class SGD(Optimizer):
    """Steps against the gradient.

        g = gradient + weight_decay * parameter
        velocity = momentum * velocity + g            (g, at the first step)
        parameter = parameter - lr * velocity

    Args:
        params: The parameters.
        lr: How far a step goes; not negative.
        momentum: How much of the last velocity is kept, at least 0 and below 1.
        weight_decay: Not negative.

    Raises:
        TypeError: A parameter is no Tensor.
        ValueError: A number is out of its range, or a parameter is no leaf that needs a gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer = SGD([x], lr=0.25)
    >>> (x * x).backward()
    >>> optimizer.step()
    >>> x.item()
    0.5
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params)
        # Written so that nan is refused too.
        if not lr >= 0 or not 0 <= momentum < 1 or not weight_decay >= 0:
            raise ValueError(
                f"SGD needs lr >= 0, 0 <= momentum < 1 and weight_decay >= 0, not lr={lr}, "
                f"momentum={momentum}, weight_decay={weight_decay}"
            )
        self.lr = float(lr)
        self.momentum = float(momentum)
        self.weight_decay = float(weight_decay)

    def update(self, parameter: Array, gradient: Array, state: State) -> tuple[Array, State]:
        """Returns the stepped array and the new velocity."""
        direction: Any = gradient
        if self.weight_decay:
            direction = direction + self.weight_decay * parameter
        if not self.momentum:
            return parameter - self.lr * direction, {}
        if "velocity" in state:
            direction = self.momentum * state["velocity"] + direction
        else:
            direction = direction.copy()  # the gradient is the caller's
        return parameter - self.lr * direction, {"velocity": direction}
