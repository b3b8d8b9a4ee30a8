"""`LossScale`: a factor for the loss, so that small gradients do not vanish in short dtypes.

    loss ──scale──▶ backward ──▶ unscale_ ──▶ (clipping) ──▶ step, unless a gradient is not finite
      ▲                                                        │
      └──────────── update: a smaller or a larger factor ◀─────┘

On a GPU the factor and the decision to step are arrays there, so that the host waits for neither.
Micikevicius et al., "Mixed precision training" (2018).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, final

import numpy as np

from telegrad import kernels
from telegrad.arrays import CPU, device_of, is_array, is_cupy, is_floating, namespace
from telegrad.autograd import RowSparse, Tensor
from telegrad.optim.optimizer import Optimizer
from telegrad.optim.saved_state import entries
from telegrad.types import Array


@final
@dataclass(slots=True)
class LossScale:
    """A factor for the loss; falls at an overflow, rises after many steps without one.

    Args:
        value: The first factor. After an update on a GPU it is an array without axes there, and
            `float(scale.value)` waits.
        growth: Multiplies the factor after `interval` steps without an overflow; above 1.
        backoff: Multiplies the factor at an overflow; above 0 and below 1.
        interval: The number of good steps in a row before the factor grows; positive.

    Raises:
        ValueError: A number is out of its range.

    >>> from telegrad import optim, tensor
    >>> x = tensor(1.0, requires_grad=True)
    >>> optimizer, scale = optim.SGD([x], lr=0.25), LossScale(8.0, interval=2)
    >>> values = []
    >>> for factor in (1.0, float("inf"), 1.0, 1.0):
    ...     optimizer.zero_grad()
    ...     scale.scale(x * factor).backward()
    ...     scale.step(optimizer)
    ...     scale.update()
    ...     values.append((scale.value, x.item()))
    >>> values
    [(8.0, 0.75), (4.0, 0.75), (4.0, 0.5), (8.0, 0.25)]
    """

    value: float | Array = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good_steps: int | Array = field(default=0, repr=False)
    # By optimizer: is a gradient of it not finite, and has it stepped? Since the last update.
    _seen: dict[Any, tuple[Any, bool]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not (self.value > 0 and self.growth > 1 and 0 < self.backoff < 1 and self.interval > 0):
            raise ValueError(
                "LossScale needs value > 0, growth > 1, 0 < backoff < 1 and interval > 0, not "
                f"{self!r}"
            )

    def scale(self, loss: Tensor) -> Tensor:
        """Returns `loss` multiplied by the factor; call `backward` on the result."""
        scaled: Tensor = loss * self.value
        return scaled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients of an optimizer's parameters by the factor; before clipping them.

        `step` does it otherwise. The gradients are replaced, not written into.

        Raises:
            TypeError: `optimizer` is not an `Optimizer`. A `DistributedOptimizer` takes a
                `loss_scale` of its own.
            ValueError: This was called since the last `update`, or a parameter is in float16.
        """
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"a LossScale steps an Optimizer, not a {type(optimizer).__name__}")
        if optimizer in self._seen:
            raise ValueError("the gradients were unscaled already; call update() after each step")
        parameters: list[Any] = [p for p in optimizer.params if p.grad is not None]
        if any(p.dtype == np.float16 for p in parameters):
            raise ValueError(
                "gradients of float16 parameters vanish when they are unscaled; keep the "
                "parameters in float32 and compute inside nn.autocast"
            )
        factor: Any = 1.0 / self.value
        dense = [p for p in parameters if not isinstance(p.grad, RowSparse)]
        for p in parameters:
            if isinstance(p.grad, RowSparse):
                p.grad = (p.grad * factor).astype(p.grad.dtype, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            unscaled = kernels.scaled([p.grad.data for p in dense], factor)
        for p, gradient in zip(dense, unscaled, strict=True):
            p.grad = Tensor(gradient)
        on: dict[str, list[Any]] = {}
        for items in [_items(p.grad) for p in parameters]:
            on.setdefault(device_of(items), []).append(items)
        finite = {device: _all_finite(arrays) for device, arrays in on.items()}
        if len(finite) == 1 and CPU not in finite:
            (good,) = finite.values()
            self._seen[optimizer] = ~good, False
        else:
            self._seen[optimizer] = not all(map(bool, finite.values())), False

    def step(self, optimizer: Optimizer) -> None:
        """Steps `optimizer`, unless one of its gradients is not finite.

        For gradients on one GPU this does not wait.

        Raises:
            TypeError: As `unscale_`.
            ValueError: As `unscale_`, or the optimizer has stepped since the last `update`.
        """
        if optimizer not in self._seen:
            self.unscale_(optimizer)
        overflow, stepped = self._seen[optimizer]
        if stepped:
            raise ValueError("the optimizer has stepped already; call update() after each step")
        self._seen[optimizer] = overflow, True
        if is_array(overflow):
            optimizer.step(skip=overflow)
        elif not overflow:
            optimizer.step()

    def update(self, *, overflow: bool | Array | None = None) -> None:
        """Records a step, or a step that was skipped because a gradient was not finite.

        Args:
            overflow: True if it was skipped; an array on a GPU is not waited for. None for what
                `step` has found, since the last update, in the gradients of any optimizer.

        Raises:
            ValueError: `overflow` is None and no optimizer has stepped.
        """
        if overflow is None:
            overflow = self._found()
        self._seen = {}
        if is_cupy(overflow):
            self._update_there(overflow)
        elif overflow:
            self.value *= self.backoff
            self.good_steps = 0
        else:
            self.good_steps += 1
            if self.good_steps == self.interval:
                self.value *= self.growth
                self.good_steps = 0

    def _found(self) -> Any:
        found = [overflow for overflow, stepped in self._seen.values() if stepped]
        if not found:
            raise ValueError("no optimizer has stepped since the last update(); call step() first")
        devices = {device_of(x) for x in found}
        return reduce(operator.or_, found if len(devices) == 1 else map(bool, found))

    def _update_there(self, overflow: Any) -> None:
        xp = namespace(overflow)
        with overflow.device:
            value, good = self.value, self.good_steps
            value = value if is_array(value) else xp.full((), value, np.float32)
            good = (good if is_array(good) else xp.full((), good, np.int64)) + 1
            grown = good == self.interval
            risen = xp.where(grown, value * self.growth, value)
            self.value = xp.where(overflow, value * self.backoff, risen)
            self.good_steps = xp.where(overflow | grown, xp.zeros((), np.int64), good)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, which consists of numbers alone; waits for a factor on a GPU."""
        return {"value": float(self.value), "good_steps": int(self.good_steps)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the state.

        Raises:
            TypeError: The state is no mapping.
            ValueError: The state is of something else.
        """
        value, good_steps = entries("LossScale", state_dict, value=float, good_steps=int)
        if not value > 0:
            raise ValueError(f"state does not fit LossScale: value is {value}")
        self.value, self.good_steps = value, good_steps


def _items(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, RowSparse) else gradient.data


def _all_finite(arrays: list[Any]) -> Any:
    """Returns True if all items are finite; on a GPU by their norm, in two launches."""
    xp = namespace(*arrays)
    if is_cupy(arrays[0]) and all(is_floating(x.dtype) for x in arrays):
        return xp.isfinite(kernels.joint_norm(arrays)[0])
    return reduce(operator.and_, [xp.isfinite(x).all() for x in arrays])
