"""`LossScale`: the factor that keeps small gradients of few bits from vanishing.

Micikevicius et al., "Mixed precision training" (2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

__all__ = ["LossScale"]


@final
@dataclass(slots=True)
class LossScale:
    """What a loss is multiplied with; falls at an overflow, rises after many steps without one.

    Args:
        value: The first factor.
        growth: What it is multiplied with after `interval` steps in a row; above 1.
        backoff: What it is multiplied with at an overflow; above 0 and below 1.
        interval: So many steps; positive.

    Raises:
        ValueError: A number is out of its range.

    >>> scale = LossScale(8.0, interval=2)
    >>> values = []
    >>> for overflow in (False, True, False, False):
    ...     scale.update(overflow=overflow)
    ...     values.append(scale.value)
    >>> values
    [8.0, 4.0, 4.0, 8.0]
    """

    value: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good_steps: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if not (self.value > 0 and self.growth > 1 and 0 < self.backoff < 1 and self.interval > 0):
            raise ValueError(
                "LossScale needs value > 0, growth > 1, 0 < backoff < 1 and interval > 0, not "
                f"{self!r}"
            )

    def update(self, *, overflow: bool) -> None:
        """Takes note of one step, or of one that was not made since a gradient was not finite."""
        if overflow:
            self.value *= self.backoff
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.value *= self.growth
            self.good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns where it is: numbers alone."""
        return {"value": self.value, "good_steps": self.good_steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self.value = float(state_dict["value"])
        self.good_steps = int(state_dict["good_steps"])
