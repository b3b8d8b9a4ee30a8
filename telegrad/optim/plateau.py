"""`ReduceLROnPlateau`: a learning rate that falls when nothing gets better any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from telegrad.optim.optimizer import HasGroups

__all__ = ["ReduceLROnPlateau"]


@final
class ReduceLROnPlateau:
    """Multiplies the rates by `factor` when a metric has stopped getting better.

    Args:
        optimizer: The one whose rates it sets.
        mode: Whether a good metric is a `min` or a `max`.
        factor: Below 1.
        patience: How many steps without an improvement are let pass.
        threshold: By how much a metric must be better to count as an improvement.
        threshold_mode: Whether that is `rel`, to the best so far, or `abs`.
        cooldown: How many steps after a reduction are not counted.
        min_lr: No rate falls below it.
        eps: A reduction by less is not made.

    Raises:
        ValueError: `factor` is not below 1, or a mode is none.
    """

    def __init__(
        self,
        optimizer: HasGroups,
        *,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not factor < 1 or mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                "ReduceLROnPlateau needs factor < 1, mode 'min' or 'max' and threshold_mode 'rel' "
                f"or 'abs', not {factor}, {mode!r} and {threshold_mode!r}"
            )
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: float) -> None:
        """Takes note of a metric, and reduces the rates if it is time."""
        metric = float(metrics)
        self.last_epoch += 1
        if self._is_better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, metric: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        best = self.best
        if self.threshold_mode == "rel":
            if math.isinf(best):
                return sign * metric < sign * best
            return sign * metric < sign * best * (1 - sign * self.threshold)
        return sign * metric < sign * best - self.threshold

    def _reduce(self) -> None:
        for group in self.optimizer.param_groups:
            lower = max(group["lr"] * self.factor, self.min_lr)
            if group["lr"] - lower > self.eps:
                group["lr"] = lower

    def get_last_lr(self) -> list[float]:
        """Returns the present rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Returns where it is: numbers alone; the rates are the optimizer's to save."""
        names = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self.best = float(state_dict["best"])
        self.num_bad_epochs = int(state_dict["num_bad_epochs"])
        self.cooldown_counter = int(state_dict["cooldown_counter"])
        self.last_epoch = int(state_dict["last_epoch"])
