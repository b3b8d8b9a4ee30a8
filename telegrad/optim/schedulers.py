"""Schedules of learning rates, as functions of how many steps were made.

Each is `rate(base, t)`, with the group's rate before any scheduler as `base`: it needs no history,
and one schedule may go on where another ends (`SequentialLR`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from telegrad.optim.optimizer import INITIAL_LR, Group, HasGroups

__all__ = [
    "CosineAnnealingLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "Scheduler",
    "SequentialLR",
    "StepLR",
]


class Scheduler(ABC):
    """Sets the `lr` of each group of an optimizer; subclasses write `rate`.

    Made, it sets the rates of the first step; `step()` is called after those of the optimizer.

    Args:
        optimizer: Its groups' present rates are the bases, unless a scheduler came before.
        last_epoch: How many steps were made already, less one.

    Raises:
        TypeError: `optimizer` is none.

    Attributes:
        last_epoch: How often `step` was called.
    """

    def __init__(self, optimizer: HasGroups, *, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, HasGroups):
            raise TypeError(f"{type(self).__name__} needs an Optimizer, not {optimizer!r}")
        self.optimizer = optimizer
        for group in self._groups:
            group.setdefault(INITIAL_LR, group["lr"])
        self.base_lrs: list[float] = [group[INITIAL_LR] for group in self._groups]
        self.last_epoch = last_epoch
        self.step()

    @property
    def _groups(self) -> list[Group]:
        return self.optimizer.param_groups

    @abstractmethod
    def rate(self, base: float, t: int) -> float:
        """Returns the learning rate after `t` steps.

        Args:
            base: That of the group before any scheduler.
            t: From 0.
        """

    def step(self) -> None:
        """Sets the rates of the next step."""
        self.last_epoch += 1
        self.set_groups(self.last_epoch)

    def set_groups(self, t: int) -> None:
        """Sets the rates after `t` steps."""
        for group, base in zip(self._groups, self.base_lrs, strict=True):
            group["lr"] = self.rate(base, t)

    def get_last_lr(self) -> list[float]:
        """Returns the present rate of each group."""
        return [group["lr"] for group in self._groups]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(last_epoch={self.last_epoch}, lr={self.get_last_lr()})"

    def state_dict(self) -> dict[str, Any]:
        """Returns where it is: numbers alone."""
        return {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from there, for a scheduler made with the same options.

        Raises:
            ValueError: It was of another number of groups.
        """
        if len(state_dict["base_lrs"]) != len(self._groups):
            raise ValueError(
                f"state of {len(state_dict['base_lrs'])} groups for an optimizer of "
                f"{len(self._groups)}"
            )
        self.base_lrs = list(state_dict["base_lrs"])
        self.last_epoch = int(state_dict["last_epoch"])
        self.set_groups(self.last_epoch)


@final
class LambdaLR(Scheduler):
    """`base * function(t)`.

    Args:
        optimizer: See `Scheduler`.
        lr_lambda: The factor after `t` steps.
        last_epoch: See `Scheduler`.
    """

    def __init__(
        self, optimizer: HasGroups, lr_lambda: Callable[[int], float], *, last_epoch: int = -1
    ) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns `base * lr_lambda(t)`."""
        return base * self.lr_lambda(t)


@final
class StepLR(Scheduler):
    """`base * gamma ** (t // step_size)`.

    Args:
        optimizer: See `Scheduler`.
        step_size: After how many steps the rate falls; positive.
        gamma: By what it is multiplied then.
        last_epoch: See `Scheduler`.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=0.5)
    >>> scheduler = StepLR(optimizer, 2, gamma=0.5)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(scheduler.get_last_lr()[0])
    ...     scheduler.step()
    >>> rates
    [0.5, 0.5, 0.25, 0.25, 0.125]
    """

    def __init__(
        self, optimizer: HasGroups, step_size: int, *, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        _check_positive("step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the base, multiplied by `gamma` for each whole `step_size`."""
        return base * float(self.gamma ** (t // self.step_size))


@final
class MultiStepLR(Scheduler):
    """`base * gamma ** n`, where `t` has reached `n` of the milestones.

    Args:
        optimizer: See `Scheduler`.
        milestones: After how many steps the rate falls.
        gamma: By what it is multiplied then.
        last_epoch: See `Scheduler`.
    """

    def __init__(
        self,
        optimizer: HasGroups,
        milestones: Sequence[int],
        *,
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the base, multiplied by `gamma` for each milestone reached."""
        return base * float(self.gamma ** bisect_right(self.milestones, t))


@final
class ExponentialLR(Scheduler):
    """`base * gamma ** t`.

    Args:
        optimizer: See `Scheduler`.
        gamma: By what each step multiplies the rate.
        last_epoch: See `Scheduler`.
    """

    def __init__(self, optimizer: HasGroups, gamma: float, *, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns `base * gamma ** t`."""
        return base * float(self.gamma**t)


@final
class LinearLR(Scheduler):
    """From `start_factor * base` to `end_factor * base` on a line: a warm-up.

    Args:
        optimizer: See `Scheduler`.
        start_factor: Above 0, at most 1.
        end_factor: At least 0, at most 1.
        total_iters: After how many steps the end is reached; positive.
        last_epoch: See `Scheduler`.
    """

    def __init__(
        self,
        optimizer: HasGroups,
        *,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(
                "LinearLR needs 0 < start_factor <= 1 and 0 <= end_factor <= 1, not "
                f"{start_factor} and {end_factor}"
            )
        _check_positive("total_iters", total_iters)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the base times what the line is at `t`."""
        part = min(t, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * part)


@final
class CosineAnnealingLR(Scheduler):
    """From the base to `eta_min` on half a cosine, and back again.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017), without
    restarts.

    Args:
        optimizer: See `Scheduler`.
        T_max: After how many steps `eta_min` is reached; positive.
        eta_min: The least rate.
        last_epoch: See `Scheduler`.
    """

    def __init__(
        self, optimizer: HasGroups, T_max: int, *, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        _check_positive("T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns what the cosine is at `t`."""
        return _cosine(base, self.eta_min, t / self.T_max)


@final
class OneCycleLR(Scheduler):
    """Up to `max_lr`, and down to almost nothing; momentum goes the other way.

    Smith and Topin, "Super-convergence" (2018). The rates do not depend on the optimizer's own.

    Args:
        optimizer: See `Scheduler`.
        max_lr: The largest rate.
        total_steps: How many steps there will be; `step` is called no more often. After the last
            one the rates stay.
        pct_start: Which part of them goes up; between 0 and 1.
        anneal_strategy: `cos` or `linear`.
        cycle_momentum: Whether `momentum`, or the first of `betas`, is set too.
        base_momentum: The least, where the rate is largest.
        max_momentum: The largest, at both ends.
        div_factor: The first rate is `max_lr / div_factor`.
        final_div_factor: The last rate is the first over this.
        last_epoch: See `Scheduler`.

    Raises:
        ValueError: A number is out of its range, or the optimizer has no momentum to cycle.
    """

    def __init__(
        self,
        optimizer: HasGroups,
        max_lr: float,
        total_steps: int,
        *,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        last_epoch: int = -1,
    ) -> None:
        _check_positive("total_steps", total_steps)
        if not 0 <= pct_start <= 1 or anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                "OneCycleLR needs 0 <= pct_start <= 1 and anneal_strategy 'cos' or 'linear', not "
                f"{pct_start} and {anneal_strategy!r}"
            )
        names = {"betas", "momentum"} & optimizer.defaults.keys()
        if cycle_momentum and not names:
            raise ValueError(
                f"{type(optimizer).__name__} has no momentum to cycle; pass cycle_momentum=False"
            )
        self.max_lr, self.total_steps, self.pct_start = max_lr, total_steps, pct_start
        self.momenta = (max_momentum, base_momentum) if cycle_momentum else None
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self._anneal = _cosine if anneal_strategy == "cos" else _line
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the rate of the cycle at `t`."""
        first = self.max_lr / self.div_factor
        return self._at(t, first, self.max_lr, first / self.final_div_factor)

    def _at(self, t: int, start: float, middle: float, end: float) -> float:
        if t > self.total_steps:
            raise ValueError(f"a cycle of {self.total_steps} steps has no step {t}")
        t = min(t, self.total_steps - 1)  # loops call `step` after the last step too
        top, last = self.pct_start * self.total_steps - 1, self.total_steps - 1
        if t <= top:
            return self._anneal(start, middle, t / top if top else 1.0)
        return self._anneal(middle, end, (t - top) / (last - top))

    def set_groups(self, t: int) -> None:
        """Sets the rates, and the momenta, after `t` steps."""
        super().set_groups(t)
        if self.momenta is None:
            return
        high, low = self.momenta
        momentum = self._at(t, high, low, high)
        for group in self._groups:
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum


@final
class SequentialLR(Scheduler):
    """One schedule after the other: a warm-up and then a cosine.

    Args:
        optimizer: See `Scheduler`.
        schedulers: Made for this optimizer.
        milestones: After how many steps each but the first takes over, and counts from 0.
        last_epoch: See `Scheduler`.

    Raises:
        ValueError: There are not as many milestones as schedulers after the first, or one
            is of another optimizer.
    """

    def __init__(
        self,
        optimizer: HasGroups,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[int],
        *,
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"{len(schedulers)} schedulers need {len(schedulers) - 1} milestones, not "
                f"{len(milestones)}"
            )
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ValueError("one of the schedulers is of another optimizer")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the rate of the schedule whose turn it is."""
        i = bisect_right(self.milestones, t)
        return self.schedulers[i].rate(base, t - (self.milestones[i - 1] if i else 0))

    def set_groups(self, t: int) -> None:
        """Sets the rates after `t` steps, as the schedule whose turn it is does."""
        i = bisect_right(self.milestones, t)
        self.schedulers[i].set_groups(t - (self.milestones[i - 1] if i else 0))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from there, and so does each of the schedules.

        Raises:
            ValueError: It was of another number of groups.
        """
        for scheduler in self.schedulers:
            scheduler.base_lrs = list(state_dict["base_lrs"])
        super().load_state_dict(state_dict)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def _line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


def _check_positive(name: str, number: int) -> None:
    if number <= 0:
        raise ValueError(f"{name} is positive, not {number}")


# -- `ReduceLROnPlateau`: a learning rate that falls when nothing gets better any more -----------


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
