"""RMSprop and Adagrad, which divide gradients by the root of their squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from telegrad import kernels
from telegrad.arrays import computing_dtype, is_array, namespace
from telegrad.optim.optimizer import (
    Optimizer,
    Params,
    State,
    held_arrays,
    in_blocks,
    steps_so_far,
)
from telegrad.types import Array


class RMSprop(Optimizer):
    """Divides gradients by the root of the mean of their squares.

        g = gradient + weight_decay * parameter
        square = alpha * square + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g                        (if centered, else 0)
        buffer = momentum * buffer + g / (sqrt(square - mean**2) + eps)
        parameter = parameter - lr * buffer

    Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning" (2012); centered:
    Graves, "Generating sequences with recurrent neural networks" (2013).

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; not negative.
        alpha: The part of each mean that a step keeps; at least 0 and at most 1.
        eps: The number added to the root; not negative.
        weight_decay: The factor of the decay; not negative.
        momentum: The part of the last velocity that a step keeps; not negative.
        centered: True to subtract the squared mean, so that the divisor estimates the variance.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: A number is out of its range, or a parameter is not a leaf that needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer = RMSprop([x], lr=0.25)
    >>> (x * x).backward()
    >>> optimizer.step()
    >>> round(x.item(), 6)
    -1.5
    """

    _ranges: ClassVar = {
        **dict.fromkeys(("lr", "eps", "weight_decay", "momentum"), ">= 0"),
        "alpha": ">= 0 and <= 1",
    }

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
        )

    def rule(self, options: Mapping[str, Any], first: bool) -> kernels.StepRule | None:
        """Returns the rule of the kernel."""
        names = ("lr", "alpha", "eps", "momentum")
        numbers = (*(float(options[name]) for name in names), int(options["centered"]))
        return kernels.StepRule(
            "rmsprop_step", self._names(options), options["weight_decay"], numbers
        )

    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the stepped array and the new means."""
        options = {**self.defaults, **options}
        alpha, momentum, decay = (options[k] for k in ("alpha", "momentum", "weight_decay"))
        names = self._names(options)
        held = held_arrays(state, names, parameter)
        xp = namespace(parameter)
        stepped = xp.empty_like(parameter)
        for p, g, change, *parts in in_blocks(parameter, gradient, stepped, *held.values()):
            part = dict(zip(names, parts, strict=True))
            g = g + decay * p if decay else g
            square = part["square_avg"]
            fresh = (1 - alpha) * g
            if options["centered"]:
                mean = part["grad_avg"]
                mean *= alpha
                mean += fresh
            fresh *= g
            square *= alpha
            square += fresh
            xp.sqrt(square - mean * mean if options["centered"] else square, out=change)
            change += options["eps"]
            xp.divide(g, change, out=change)
            if momentum:
                velocity = part["momentum_buffer"]
                velocity *= momentum
                velocity += change
                change[...] = velocity
            change *= -options["lr"]
            change += p
        return stepped, {"step": steps_so_far(state) + 1, **held}

    def _names(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        asked = {"grad_avg": options["centered"], "momentum_buffer": options["momentum"]}
        return ("square_avg", *[name for name, wanted in asked.items() if wanted])


# -- Adagrad -------------------------------------------------------------------------------------


class Adagrad(Optimizer):
    """Divides gradients by the root of the sum of their squares so far.

        g = gradient + weight_decay * parameter
        sum = sum + g**2
        parameter = parameter - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(sum) + eps)

    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization" (2011).

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; not negative.
        lr_decay: The rate at which the learning rate falls; not negative.
        weight_decay: The factor of the decay; not negative.
        initial_accumulator_value: The first value of the sum; not negative.
        eps: The number added to the root; not negative.

    Raises:
        TypeError: A parameter is not a Tensor.
        ValueError: A number is out of its range, or a parameter is not a leaf that needs a
            gradient.

    >>> from telegrad.autograd import tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer = Adagrad([x], lr=0.25)
    >>> (x * x).backward()
    >>> optimizer.step()
    >>> round(x.item(), 6)
    0.75
    """

    _ranges: ClassVar = dict.fromkeys(
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"), ">= 0"
    )

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "eps": eps,
            },
        )

    def rule(self, options: Mapping[str, Any], first: bool) -> kernels.StepRule | None:
        """Returns the rule of the kernel."""
        numbers = tuple([float(options[name]) for name in ("lr", "lr_decay", "eps")])
        return kernels.StepRule("adagrad_step", ("sum",), options["weight_decay"], numbers)

    def steps_rows(self, options: Mapping[str, Any]) -> bool:
        """Returns True if there is no weight decay."""
        return not options["weight_decay"]

    def initial(self, parameter: Array, options: Mapping[str, Any]) -> State:
        """Returns the first value of the sum."""
        start, dtype = options["initial_accumulator_value"], computing_dtype(parameter.dtype)
        return {"step": 0, "sum": namespace(parameter).full_like(parameter, start, dtype=dtype)}

    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the stepped array and the new sum."""
        options = {**self.defaults, **options}
        xp = namespace(parameter)
        step = steps_so_far(state) + 1
        rate = options["lr"] / (1 + (step - 1) * options["lr_decay"])
        rate = rate.astype(parameter.dtype) if is_array(rate) else rate
        decay = options["weight_decay"]
        total = (state or self.initial(parameter, options))["sum"]
        stepped = xp.empty_like(parameter)
        for p, g, change, squares in in_blocks(parameter, gradient, stepped, total):
            g = g + decay * p if decay else g
            squares += g * g
            xp.sqrt(squares, out=change)
            change += options["eps"]
            xp.divide(g, change, out=change)
            change *= -rate
            change += p
        return stepped, {"step": step, "sum": total}
