"""`LossScale`: a factor for the loss, so that small gradients do not vanish in short dtypes.

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
    """A factor for the loss; falls at an overflow, rises after many steps without one.

    Args:
        value: The first factor.
        growth: Multiplies the factor after `interval` steps without an overflow; above 1.
        backoff: Multiplies the factor at an overflow; above 0 and below 1.
        interval: The number of good steps in a row before the factor grows; positive.

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
        """Records a step, or a step that was skipped because a gradient was not finite."""
        if overflow:
            self.value *= self.backoff
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.value *= self.growth
            self.good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, which consists of numbers alone."""
        return {"value": self.value, "good_steps": self.good_steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores the state."""
        self.value = float(state_dict["value"])
        self.good_steps = int(state_dict["good_steps"])
