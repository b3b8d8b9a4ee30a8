"""The grad mode, a ContextVar that says whether this thread or task records operations.

`recompute` and `detect_anomaly` see each node as it is recorded: they are `ModeWatcher`s. Watchers
stand in the same ContextVar, so a step without watchers does not read a second one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from telegrad.autograd.graph.node import Node

__all__ = [
    "ENABLED",
    "GradMode",
    "ModeWatcher",
    "Watched",
    "enable_grad",
    "is_grad_enabled",
    "no_grad",
    "set_mode",
    "watched_by",
    "watchers",
]


class ModeWatcher(ABC):
    """An observer of the operations that are recorded in its context."""

    @abstractmethod
    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Receives a node that was just made.

        Args:
            node: The recorded operation.
            inputs: The inputs of the operation; Tensors come as arrays.
            outputs: The arrays that the operation returned.
        """


class Watched(NamedTuple):
    """A grad mode with watchers; true if operations are recorded."""

    enabled: bool
    watchers: tuple[ModeWatcher, ...]

    def __bool__(self) -> bool:
        return self.enabled

    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Tells the watchers, the outermost one first."""
        for watcher in self.watchers:
            watcher.recorded(node, inputs, outputs)


ENABLED: Final[ContextVar[bool | Watched]] = ContextVar("telegrad_grad_enabled", default=True)
"""The mode itself, for code that runs once for each operation; others call `is_grad_enabled`."""


def is_grad_enabled() -> bool:
    """Returns True if this context records operations on tensors that need a gradient."""
    return bool(ENABLED.get())


def watchers() -> tuple[ModeWatcher, ...]:
    """Returns the watchers of this context."""
    mode = ENABLED.get()
    return mode.watchers if isinstance(mode, Watched) else ()


@contextmanager
def watched_by(*seeing: ModeWatcher) -> Iterator[None]:
    """Makes `seeing` the only watchers inside the block; does not change the grad mode."""
    token = ENABLED.set(Watched(is_grad_enabled(), seeing))
    try:
        yield
    finally:
        ENABLED.reset(token)


def set_mode(enabled: bool) -> Token[bool | Watched]:
    """Sets the grad mode and keeps the watchers; returns the token for `ENABLED.reset`."""
    mode = ENABLED.get()
    return ENABLED.set(Watched(enabled, mode[1]) if type(mode) is Watched else enabled)


class GradMode(ContextDecorator):
    """A grad mode for a `with` block or a decorated function; nests, and restores the old mode."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = bool(enabled)
        self._tokens: list[Token[bool | Watched]] = []

    def _recreate_cm(self) -> GradMode:
        return GradMode(enabled=self._enabled)  # a decorated function may run in several threads

    def __enter__(self) -> None:
        self._tokens.append(set_mode(self._enabled))

    def __exit__(self, *exc_info: object) -> None:
        ENABLED.reset(self._tokens.pop())


class no_grad(GradMode):
    """A block in which operations record nothing and their results need no gradient.

    >>> from telegrad.autograd import tensor
    >>> w = tensor([1.0], requires_grad=True)
    >>> with no_grad():
    ...     (w * 2).requires_grad
    False
    """

    def __init__(self) -> None:
        super().__init__(enabled=False)


class enable_grad(GradMode):
    """A block in which operations are recorded, whatever mode the enclosing block has set.

    >>> from telegrad.autograd import no_grad, tensor
    >>> x = tensor(2.0, requires_grad=True)
    >>> with no_grad(), enable_grad():
    ...     y = x * x
    >>> y.requires_grad
    True
    """

    def __init__(self) -> None:
        super().__init__(enabled=True)
