"""What joins process groups to an agent: not for users."""

from __future__ import annotations

from telegrad.collectives.groups import Groups, attach_to

__all__ = [
    "Groups",
    "attach_to",
]
