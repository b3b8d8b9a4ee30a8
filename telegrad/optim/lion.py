"""Lion, which steps by the signs of a mean of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from telegrad import kernels
from telegrad.arrays import namespace
from telegrad.optim.optimizer import Optimizer, Params, State, held_arrays, in_blocks
from telegrad.types import Array


class Lion(Optimizer):
    """Steps by the sign of a mean of gradients; its state is half of Adam's.

        direction = sign(betas[0] * mean + (1 - betas[0]) * gradient)
        parameter = parameter - lr * (direction + weight_decay * parameter)
        mean = betas[1] * mean + (1 - betas[1]) * gradient

    Chen et al., "Symbolic discovery of optimization algorithms" (2023). A learning rate of a third
    to a tenth of Adam's is usual, with a decay as much larger.

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; not negative.
        betas: The parts of the mean that the direction and the next mean keep; at least 0 and below
            1.
        weight_decay: The factor of the decay of the parameter itself; not negative.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: A number is out of its range, or a parameter is not a leaf that needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor([1.0, -100.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> Lion([x], lr=0.25).step()  # each number by lr, whatever the size of its gradient
    >>> x.data
    array([  0.75, -99.75])
    """

    _ranges: ClassVar = {
        "lr": ">= 0",
        "betas": "of two numbers >= 0 and < 1",
        "weight_decay": ">= 0",
    }

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def rule(self, options: Mapping[str, Any], first: bool) -> kernels.StepRule | None:
        """Returns the rule of the kernel."""
        numbers = (float(options["lr"]), *map(float, options["betas"]))
        decay = options["weight_decay"]
        return kernels.StepRule("lion_step", ("exp_avg",), decay, numbers, counts=False)

    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the stepped array and the new mean."""
        options = {**self.defaults, **options}
        lr, decay, (first, second) = options["lr"], options["weight_decay"], options["betas"]
        xp = namespace(parameter)
        held = held_arrays(state, ("exp_avg",), parameter)
        stepped = xp.empty_like(parameter)
        for p, g, change, mean in in_blocks(parameter, gradient, stepped, held["exp_avg"]):
            xp.sign(first * mean + (1 - first) * g, out=change)
            change *= -lr
            change += p * (1 - lr * decay) if decay else p
            mean *= second
            mean += (1 - second) * g
        return stepped, held
