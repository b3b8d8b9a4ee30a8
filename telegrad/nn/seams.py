"""The parts of `nn` for the packages above it, not for users."""

from __future__ import annotations

from telegrad.nn.module import fit_state

__all__ = ["fit_state"]
