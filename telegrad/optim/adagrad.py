"""Adagrad: rates that fall where gradients were large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from telegrad.arrays import namespace
from telegrad.optim.blocks import in_blocks
from telegrad.optim.optimizer import Optimizer, Params, State
from telegrad.types import Array

__all__ = ["Adagrad"]


class Adagrad(Optimizer):
    """Divides gradients by the root of the sum of their squares so far.

        g = gradient + weight_decay * parameter
        sum = sum + g**2
        parameter = parameter - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(sum) + eps)

    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization" (2011).

    Args:
        params: The parameters, or groups of them.
        lr: How far a step goes; not negative.
        lr_decay: Not negative.
        weight_decay: Not negative.
        initial_accumulator_value: What the sum starts from; not negative.
        eps: Added to the root; not negative.

    Raises:
        TypeError: A parameter is no Tensor.
        ValueError: A number is out of its range, or a parameter is no leaf that needs a gradient.
    """

    def __init__(
        self,
        params: Params,
        *,
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

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises a ValueError where an option is out of its range."""
        if not all(options[name] >= 0 for name in self.defaults):
            told = ", ".join(f"{name}={options[name]}" for name in self.defaults)
            raise ValueError(f"Adagrad needs options that are not negative, not {told}")

    def steps_rows(self, options: Mapping[str, Any]) -> bool:
        """Without weight decay."""
        return not options["weight_decay"]

    def initial(self, parameter: Array, options: Mapping[str, Any]) -> State:
        """Returns the sum that it starts from."""
        start = namespace(parameter).full_like(parameter, options["initial_accumulator_value"])
        return {"step": 0, "sum": start}

    def update(
        self, parameter: Array, gradient: Array, state: State, *args: Any, **options: Any
    ) -> tuple[Array, State]:
        """Returns the stepped array and the new sum."""
        options = {**self.defaults, **options}
        xp = namespace(parameter)
        step = int(state.get("step", 0)) + 1
        rate = options["lr"] / (1 + (step - 1) * options["lr_decay"])
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
