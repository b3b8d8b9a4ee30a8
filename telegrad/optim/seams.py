"""The part of the optimizers for the packages above, not for users."""

from __future__ import annotations

from telegrad.optim.saved_state import check_saved_state, saved_parts

__all__ = ["check_saved_state", "saved_parts"]
