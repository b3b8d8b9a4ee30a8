"""Schedules of learning rates, as functions of the number of steps made.

Each schedule is a function `rate(base, t)`, where `base` is the group's rate before any scheduler.
It needs no history, so one schedule can continue where another ends (`SequentialLR`).
`ReduceLROnPlateau` is different: it follows a metric.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from telegrad.autograd import Tensor
from telegrad.optim.groups import INITIAL_LR, Group, HasGroups
from telegrad.optim.saved_state import entries


class Scheduler(ABC):
    """Sets the `lr` of each group of an optimizer; subclasses write `rate`.

    The constructor sets the rates of the first step. Call `step()` after the optimizer's `step()`.
    A call that raises changes nothing.

    A group that is added later keeps its own rate until the next `step()`; that rate is its base.

    Args:
        optimizer: The optimizer; its groups' present rates are the bases, unless it already had a
            scheduler.
        last_epoch: The number of steps already made, minus one.

    Raises:
        TypeError: `optimizer` has no groups.

    Attributes:
        last_epoch: The number of calls of `step`.

    >>> from telegrad import optim, tensor
    >>> class Halve(Scheduler):
    ...     def rate(self, base: float, t: int) -> float:
    ...         return base / 2**t
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = Halve(optimizer)
    >>> scheduler.step()
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    def __init__(self, optimizer: HasGroups, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, HasGroups):
            raise TypeError(f"{type(self).__name__} needs an Optimizer, not {optimizer!r}")
        self.optimizer = optimizer
        self.last_epoch = last_epoch
        self.step()

    @property
    def base_lrs(self) -> list[float]:
        """The rate of each group before any scheduler."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return [group[INITIAL_LR if INITIAL_LR in group else "lr"] for group in groups]

    @abstractmethod
    def rate(self, base: float, t: int) -> float:
        """Returns the learning rate after `t` steps.

        Args:
            base: The rate of the group before any scheduler.
            t: The number of steps made, from 0.
        """

    def options_at(self, t: int, base: float, group: Group) -> dict[str, Any]:
        """Returns the options of a group that are different after `t` steps."""
        return {"lr": self.rate(base, t)}

    def step(self) -> None:
        """Sets the rates of the next step."""
        self._move_to(self.last_epoch + 1, self.base_lrs)

    def _move_to(self, t: int, bases: Sequence[float]) -> None:
        """Sets the options of all groups after `t` steps; all are computed before the first."""
        groups = self.optimizer.param_groups
        found = [
            {INITIAL_LR: base, **self.options_at(t, base, group)}
            for base, group in zip(bases, groups, strict=True)
        ]
        for group, options in zip(groups, found, strict=True):
            group.update(options)
        self.last_epoch = t

    def get_last_lr(self) -> list[float]:
        """Returns the present rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(last_epoch={self.last_epoch}, lr={self.get_last_lr()})"

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the scheduler, which is numbers only."""
        return {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict()` returned, for a scheduler with the same options.

        Raises:
            TypeError: The state is no mapping.
            ValueError: The state has another number of groups, or is of something else.
        """
        bases, t = entries(type(self).__name__, state_dict, base_lrs=list, last_epoch=int)
        if len(bases) != len(self.optimizer.param_groups):
            raise ValueError(
                f"state of {len(bases)} groups for an optimizer of "
                f"{len(self.optimizer.param_groups)}"
            )
        self._move_to(t, bases)


@final
class LambdaLR(Scheduler):
    """The schedule `base * function(t)`.

    Args:
        optimizer: The optimizer whose rates it sets.
        lr_lambda: The function of the number of steps that returns the factor.
        last_epoch: The number of steps already made, minus one.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = LambdaLR(optimizer, lambda t: 1 / (1 + t))
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [1.0, 0.5, 0.333, 0.25]
    """

    def __init__(
        self, optimizer: HasGroups, lr_lambda: Callable[[int], float], last_epoch: int = -1
    ) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns `base * lr_lambda(t)`."""
        return base * self.lr_lambda(t)


@final
class StepLR(Scheduler):
    """The schedule `base * gamma ** (t // step_size)`.

    Args:
        optimizer: The optimizer whose rates it sets.
        step_size: The number of steps after which the rate falls; positive.
        gamma: The factor by which it falls.
        last_epoch: The number of steps already made, minus one.

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
        self, optimizer: HasGroups, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        _check_positive("step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the base, multiplied by `gamma` for each whole `step_size`."""
        return base * float(self.gamma ** (t // self.step_size))


@final
class MultiStepLR(Scheduler):
    """The schedule `base * gamma ** n`, where n is the number of milestones that `t` has reached.

    Args:
        optimizer: The optimizer whose rates it sets.
        milestones: The numbers of steps after which the rate falls.
        gamma: The factor by which it falls.
        last_epoch: The number of steps already made, minus one.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = MultiStepLR(optimizer, [1, 3], gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [1.0, 0.5, 0.5, 0.25]
    """

    def __init__(
        self,
        optimizer: HasGroups,
        milestones: Sequence[int],
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
    """The schedule `base * gamma ** t`.

    Args:
        optimizer: The optimizer whose rates it sets.
        gamma: The factor of each step.
        last_epoch: The number of steps already made, minus one.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = ExponentialLR(optimizer, 0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [1.0, 0.5, 0.25, 0.125]
    """

    def __init__(self, optimizer: HasGroups, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns `base * gamma ** t`."""
        return base * float(self.gamma**t)


@final
class LinearLR(Scheduler):
    """The schedule from `start_factor * base` to `end_factor * base` on a line: a warm-up.

    Args:
        optimizer: The optimizer whose rates it sets.
        start_factor: The first factor; above 0, at most 1.
        end_factor: The last factor; at least 0, at most 1.
        total_iters: The number of steps after which the end is reached; positive.
        last_epoch: The number of steps already made, minus one.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = LinearLR(optimizer, start_factor=0.25, total_iters=3)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    def __init__(
        self,
        optimizer: HasGroups,
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
        """Returns the base times the value of the line at `t`."""
        part = min(t, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * part)


@final
class CosineAnnealingLR(Scheduler):
    """The schedule from the base to `eta_min` on half a cosine, and back again.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017), without
    restarts.

    Args:
        optimizer: The optimizer whose rates it sets.
        T_max: The number of steps after which `eta_min` is reached; positive.
        eta_min: The least rate.
        last_epoch: The number of steps already made, minus one.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = CosineAnnealingLR(optimizer, 4)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(
        self, optimizer: HasGroups, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        _check_positive("T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the value of the cosine at `t`."""
        return _cosine(base, self.eta_min, t / self.T_max)


@final
class OneCycleLR(Scheduler):
    """The schedule up to `max_lr` and down to almost nothing; momentum goes the other way.

    Smith and Topin, "Super-convergence" (2018). The rates do not depend on the optimizer's own.

    Args:
        optimizer: The optimizer whose rates it sets.
        max_lr: The largest rate.
        total_steps: The number of steps of the cycle. `step` may be called only so often; the rates
            do not change after the last one.
        pct_start: The part of the cycle in which the rate rises; between 0 and 1.
        anneal_strategy: `cos` or `linear`.
        cycle_momentum: True to set `momentum`, or the first of `betas`, too.
        base_momentum: The least momentum, at the largest rate.
        max_momentum: The largest momentum, at both ends of the cycle.
        div_factor: The divisor that gives the first rate: `max_lr / div_factor`.
        final_div_factor: The divisor that gives the last rate from the first rate.
        last_epoch: The number of steps already made, minus one.

    Raises:
        ValueError: A number is out of its range, or the optimizer has no momentum to cycle.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = OneCycleLR(optimizer, 1.0, 5, cycle_momentum=False)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [0.04, 0.95, 0.611, 0.188, 0.0]
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
        t = min(t, self.total_steps - 1)  # loops call `step` after the last step, too
        top, last = self.pct_start * self.total_steps - 1, self.total_steps - 1
        if t <= top:
            return self._anneal(start, middle, t / top if top else 1.0)
        return self._anneal(middle, end, (t - top) / (last - top))

    def options_at(self, t: int, base: float, group: Group) -> dict[str, Any]:
        """Returns the rate and the momentum of a group after `t` steps."""
        options = super().options_at(t, base, group)
        if self.momenta is None:
            return options
        high, low = self.momenta
        momentum = self._at(t, high, low, high)
        if "betas" in group:
            return {**options, "betas": (momentum, *group["betas"][1:])}
        return {**options, "momentum": momentum}


@final
class SequentialLR(Scheduler):
    """One schedule after the other: for example a warm-up and then a cosine.

    Args:
        optimizer: The optimizer whose rates it sets.
        schedulers: The schedules in their order, made for this optimizer.
        milestones: The numbers of steps after which each schedule but the first starts at 0.
        last_epoch: The number of steps already made, minus one.

    Raises:
        ValueError: The number of milestones is not that of the schedules minus one, or a schedule
            belongs to another optimizer.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = SequentialLR(
    ...     optimizer, [LinearLR(optimizer, total_iters=2), ExponentialLR(optimizer, 0.5)], [2]
    ... )
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(round(scheduler.get_last_lr()[0], 3))
    ...     scheduler.step()
    >>> rates
    [0.333, 0.667, 1.0, 0.5, 0.25]
    """

    def __init__(
        self,
        optimizer: HasGroups,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"{len(schedulers)} schedulers need {len(schedulers) - 1} milestones, not "
                f"{len(milestones)}"
            )
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ValueError("one of the schedulers belongs to another optimizer")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch=last_epoch)

    def rate(self, base: float, t: int) -> float:
        """Returns the rate of the schedule that is active at `t`."""
        i = bisect_right(self.milestones, t)
        return self.schedulers[i].rate(base, t - (self.milestones[i - 1] if i else 0))

    def options_at(self, t: int, base: float, group: Group) -> dict[str, Any]:
        """Returns the options of a group after `t` steps by the schedule that is active then."""
        i = bisect_right(self.milestones, t)
        t -= self.milestones[i - 1] if i else 0
        return self.schedulers[i].options_at(t, base, group)


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def _line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


def _check_positive(name: str, number: int) -> None:
    if number <= 0:
        raise ValueError(f"{name} is positive, not {number}")


# -- `ReduceLROnPlateau` -------------------------------------------------------------------------


@final
class ReduceLROnPlateau:
    """Multiplies the rates by `factor` when a metric has stopped improving.

    Args:
        optimizer: The optimizer whose rates it sets.
        mode: The direction of improvement: `min` if a small metric is good, `max` if a large one
            is.
        factor: The factor of the rates; below 1.
        patience: The number of steps without an improvement that pass before a reduction.
        threshold: The difference from the best metric that counts as an improvement.
        threshold_mode: The meaning of `threshold`: `rel`, relative to the best metric, or `abs`.
        cooldown: The number of steps after a reduction that are not counted.
        min_lr: The least rate.
        eps: The least reduction; smaller ones are not made.

    Raises:
        ValueError: `factor` is not below 1, or a mode is unknown.

    >>> from telegrad import optim, tensor
    >>> optimizer = optim.SGD([tensor(1.0, requires_grad=True)], lr=1.0)
    >>> scheduler = ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     scheduler.step(loss)
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    def __init__(
        self,
        optimizer: HasGroups,
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

    def step(self, metrics: float | Tensor) -> None:
        """Records a metric, and reduces the rates if it has not improved for too long."""
        metric = float(metrics.item() if isinstance(metrics, Tensor) else metrics)
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
        """Returns the state, which is numbers only; the optimizer saves the rates."""
        names = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict()` returned.

        Raises:
            TypeError: The state is no mapping.
            ValueError: The state is of something else.
        """
        wanted = {"num_bad_epochs": int, "cooldown_counter": int, "last_epoch": int}
        best, *counts = entries(type(self).__name__, state_dict, best=float, **wanted)
        self.best = best
        self.num_bad_epochs, self.cooldown_counter, self.last_epoch = counts
