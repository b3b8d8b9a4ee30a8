"""The part of `parallel` that an agent is built with; not for users."""

from __future__ import annotations

from telegrad.parallel.pipeline.mailbox import attach_to

__all__ = ["attach_to"]
