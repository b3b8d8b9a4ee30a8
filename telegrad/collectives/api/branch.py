"""A branch of a group: the same members, and an order of operations of its own.

    hooks       0: P    1: P    2: P                     of the group: P, P, P on every rank
    callbacks      ╰─────── Q   ╰─────────────── Q       of branch 0: Q; of branch 1: Q; ...
                            ╰─ 2: Q, or only now ─╯

A callback runs when what it waits for is done, and no two ranks see that at the same moment. If
callbacks of several hooks started operations in the order of the group, it would differ between
ranks. In a branch for each hook, only the order within one hook counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import final


@final
class GroupBranch:
    """The branch of what one block leaves behind.

    Args:
        key: Its name in messages, the same on every rank; ASCII.
        name: Its name in errors.

    Attributes:
        key: Its name in messages.
        name: Its name in errors.
        token: Tells if code runs in the block itself: only the Context that made a token takes it.
    """

    token: Token[GroupBranch | None]

    def __init__(self, key: str, name: str) -> None:
        self.key = key
        self.name = name


_branch: ContextVar[GroupBranch | None] = ContextVar("telegrad_branch", default=None)


@contextmanager
def branching(key: str, name: str) -> Iterator[None]:
    """Lets callbacks that its block adds to futures start operations in a branch of each group.

    Operations that the block calls itself belong to the groups as others do.

    Args:
        key: The name of the branch in messages, the same on every rank; ASCII.
        name: Its name in errors.
    """
    branch = GroupBranch(key, name)
    branch.token = _branch.set(branch)
    try:
        yield
    finally:
        _branch.reset(branch.token)


def current_branch() -> GroupBranch | None:
    """Returns the branch that the calling callback belongs to; None outside of one."""
    branch = _branch.get()
    if branch is None:
        return None
    try:
        _branch.reset(branch.token)
    except (ValueError, RuntimeError):  # a callback runs in a copy of the block's Context
        return branch
    branch.token = _branch.set(branch)
    return None
