"""Adam and AdamW, whose step length depends on the scatter of the gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from telegrad import kernels
from telegrad.arrays import is_array, namespace
from telegrad.optim.optimizer import Optimizer, Params, State, held_arrays, in_blocks, steps_so_far
from telegrad.types import Array


class Adam(Optimizer):
    """Steps by the mean of past gradients over the root of the mean of their squares.

        g = gradient + weight_decay * parameter
        mean = betas[0] * mean + (1 - betas[0]) * g
        square = betas[1] * square + (1 - betas[1]) * g**2
        parameter -= lr * mean / (1 - betas[0]**t) / (sqrt(square / (1 - betas[1]**t)) + eps)

    Kingma and Ba, "Adam: a method for stochastic optimization" (2015). With `amsgrad`, the largest
    square so far is the divisor: Reddi, Kale and Kumar (2018).

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; not negative.
        betas: The parts of the two means that each step keeps; at least 0 and below 1.
        eps: The number added to the root; not negative.
        weight_decay: The factor of the decay; not negative.
        amsgrad: True to divide by the largest square so far.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: A number is out of its range, or a parameter is not a leaf that needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer = Adam([x], lr=0.25)
    >>> (x * x).backward()
    >>> optimizer.step()
    >>> round(x.item(), 6)
    0.75
    """

    decoupled: ClassVar[bool] = False
    """True if the decay applies to the parameter itself, False if it is part of the gradient."""

    _ranges: ClassVar = {
        "lr": ">= 0",
        "betas": "of two numbers >= 0 and < 1",
        "eps": ">= 0",
        "weight_decay": ">= 0",
    }

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
            },
        )

    def rule(self, options: Mapping[str, Any], first: bool) -> kernels.StepRule | None:
        """Returns the rule of the kernel."""
        given = (options["lr"], *options["betas"], options["eps"])
        numbers = (*map(float, given), int(self.decoupled))
        return kernels.StepRule("adam_step", self._names(options), options["weight_decay"], numbers)

    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the stepped array and the new means."""
        options = {**self.defaults, **options}
        lr, eps, decay = options["lr"], options["eps"], options["weight_decay"]
        first, second = options["betas"]
        step = steps_so_far(state) + 1
        xp = namespace(parameter)
        sqrt: Any = xp.sqrt if is_array(step) else math.sqrt
        rate: Any = -lr / (1 - first**step)
        root = sqrt(1 - second**step)
        if is_array(step):  # a LossScale may have skipped one; float64 would take twice as long
            rate, root = rate.astype(parameter.dtype), root.astype(parameter.dtype)
        held = held_arrays(state, self._names(options), parameter)
        stepped = xp.empty_like(parameter)
        for p, g, change, mean, square, *largest in in_blocks(
            parameter, gradient, stepped, *held.values()
        ):
            if decay and not self.decoupled:
                g = g + decay * p
            mean *= first
            mean += (1 - first) * g
            part: Any = (1 - second) * g
            part *= g
            square *= second
            square += part
            for most in largest:
                square = xp.maximum(most, square, out=most)
            xp.sqrt(square, out=change)
            change /= root
            change += eps
            xp.divide(mean, change, out=change)
            change *= rate
            change += p * (1 - lr * decay) if decay and self.decoupled else p
        return stepped, {"step": step, **held}

    def _names(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if options["amsgrad"] else names


class AdamW(Adam):
    """Adam with a decay of the parameter itself: `parameter -= lr * decay * parameter`.

    Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; not negative.
        betas: The parts of the two means that each step keeps; at least 0 and below 1.
        eps: The number added to the root; not negative.
        weight_decay: The factor of the decay; not negative.
        amsgrad: True to divide by the largest square so far.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: A number is out of its range, or a parameter is not a leaf that needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer = AdamW([x], lr=0.25)
    >>> (x * x).backward()
    >>> optimizer.step()
    >>> round(x.item(), 6)
    0.7475
    """

    decoupled = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )
