"""The part of the optimizers for the packages above, not for users."""

from __future__ import annotations

from telegrad.optim.optimizer import check_saved_state

__all__ = ["check_saved_state"]
