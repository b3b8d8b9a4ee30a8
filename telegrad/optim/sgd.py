"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from telegrad import kernels
from telegrad.optim.optimizer import Optimizer, Params, State, in_blocks
from telegrad.types import Array


class SGD(Optimizer):
    """Takes steps against the gradient.

        g = gradient + weight_decay * parameter
        buffer = momentum * buffer + (1 - dampening) * g      (g, at the first step)
        parameter = parameter - lr * buffer                   (lr * (g + momentum * buffer), if
                                                               nesterov; lr * g, without momentum)

    Momentum is that of Polyak (1964), Nesterov's in the form of Sutskever et al. (2013).

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; not negative.
        momentum: The part of the last velocity that a step keeps; not negative.
        dampening: The part of the gradient that does not go into the velocity.
        weight_decay: The factor of the decay; not negative.
        nesterov: True for Nesterov's momentum, which looks ahead; needs momentum and no dampening.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: A number is out of its range, or a parameter is not a leaf that needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer = SGD([x], lr=0.25)
    >>> (x * x).backward()
    >>> optimizer.step()
    >>> x.item()
    0.5
    """

    _ranges: ClassVar = {"lr": ">= 0", "momentum": ">= 0", "weight_decay": ">= 0"}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def check(self, options: Mapping[str, Any]) -> None:
        """Checks the options.

        Raises:
            ValueError: An option is out of its range.
        """
        super().check(options)
        if options["nesterov"] and (not options["momentum"] or options["dampening"]):
            raise ValueError("Nesterov's momentum needs momentum > 0 and dampening=0")

    def steps_rows(self, options: Mapping[str, Any]) -> bool:
        """Returns True if there is neither momentum nor weight decay."""
        return not options["momentum"] and not options["weight_decay"]

    def rule(self, options: Mapping[str, Any], first: bool) -> kernels.StepRule | None:
        """Returns the rule of the kernel."""
        momentum = float(options["momentum"])
        numbers = (float(options["lr"]), momentum, 1.0 - options["dampening"])
        # From a velocity of zero, without dampening, the first step is as the others.
        flags = (int(options["nesterov"]), int(first and bool(options["dampening"])))
        names = ("momentum_buffer",) if momentum else ()
        decay = options["weight_decay"]
        return kernels.StepRule("sgd_step", names, decay, (*numbers, *flags), counts=False)

    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the stepped array and the new velocity."""
        options = {**self.defaults, **options}
        lr, momentum, decay = options["lr"], options["momentum"], options["weight_decay"]
        stepped = np.empty_like(parameter)
        velocity = state.get("momentum_buffer") if momentum else gradient
        first = velocity is None
        velocity = np.empty_like(parameter) if first else velocity
        fresh = 1 - options["dampening"]
        for p, g, v, new in in_blocks(parameter, gradient, velocity, stepped):
            direction = g + decay * p if decay else g
            if first:
                v[...] = direction
            elif momentum:
                v *= momentum
                v += direction if fresh == 1 else fresh * direction
            if options["nesterov"]:
                direction = direction + momentum * v
            elif momentum:
                direction = v
            np.multiply(direction, -lr, out=new)
            new += p
        return stepped, {"momentum_buffer": velocity} if momentum else {}
