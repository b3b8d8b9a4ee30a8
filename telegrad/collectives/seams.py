"""The parts of collectives for the packages above: not for users."""

from __future__ import annotations

from telegrad.collectives.api.branch import branching
from telegrad.collectives.api.coalescing import check_outside
from telegrad.collectives.backends import GroupTerms
from telegrad.collectives.groups.groups import Groups, attach_to

__all__ = [
    "GroupTerms",
    "Groups",
    "attach_to",
    "branching",
    "check_outside",
]
