"""The grad mode, a ContextVar that says whether this thread or task records operations.

`recompute` and `detect_anomaly` see each node as it is recorded: they are watchers. `saved_values`
packs what a node has saved. All stand in the same ContextVar, so a step without them does not read
a second one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

if TYPE_CHECKING:
    from telegrad.autograd.graph.node import Node

Watcher: TypeAlias = "Callable[[Node, Sequence[Any], Sequence[Any]], None]"
"""Called with each node that was just made, the inputs as arrays, and the arrays of the outputs."""


class Watched(NamedTuple):
    """A grad mode with watchers; true if operations are recorded.

    Attributes:
        enabled: True if operations are recorded.
        watchers: The watchers, the outermost one first.
        packing: The one that packs saved values; it sees a node last, when `recompute` has dropped
            its values already.
    """

    enabled: bool
    watchers: tuple[Watcher, ...]
    packing: Watcher | None = None

    def __bool__(self) -> bool:
        return self.enabled

    def recorded(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Tells the watchers, the outermost one first, and the packing."""
        for watcher in self.watchers:
            watcher(node, inputs, outputs)
        if self.packing is not None:
            self.packing(node, inputs, outputs)


ENABLED: Final[ContextVar[bool | Watched]] = ContextVar("telegrad_grad_enabled", default=True)
"""The mode itself, for code that runs once for each operation; others call `is_grad_enabled`."""


def is_grad_enabled() -> bool:
    """Returns True if this context records operations on tensors that need a gradient."""
    return bool(ENABLED.get())


def watchers() -> tuple[Watcher, ...]:
    """Returns the watchers of this context."""
    mode = ENABLED.get()
    return mode.watchers if isinstance(mode, Watched) else ()


def watched_by(*watchers: Watcher, enabled: bool) -> Watched:
    """Returns a grad mode with other watchers and the packing of this context."""
    mode = ENABLED.get()
    return Watched(enabled, watchers, mode.packing if isinstance(mode, Watched) else None)


@contextmanager
def setting(variable: ContextVar[Any], value: object) -> Iterator[None]:
    """Gives a variable a value inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def set_mode(enabled: bool) -> Token[bool | Watched]:
    """Sets the grad mode and keeps the watchers; returns the token for `ENABLED.reset`."""
    mode = ENABLED.get()
    return ENABLED.set(Watched(enabled, *mode[1:]) if type(mode) is Watched else enabled)


class ModeBlock(ContextDecorator, ABC):
    """A `with` block or a decorated function in which a mode holds; nests, and restores the old."""

    def __init__(self) -> None:
        self._tokens: list[Token[Any]] = []

    @abstractmethod
    def _set(self) -> Token[Any]:
        """Sets the mode; returns the token that resets it."""

    def _recreate_cm(self) -> Self:
        made = copy(self)  # a decorated function may run in several threads
        made._tokens = []
        return made

    def __enter__(self) -> None:
        self._tokens.append(self._set())

    def __exit__(self, *exc_info: object) -> None:
        token = self._tokens.pop()
        token.var.reset(token)


class GradMode(ModeBlock):
    """A block in which operations are recorded, or are not."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__()
        self._enabled = bool(enabled)

    def _set(self) -> Token[Any]:
        return set_mode(self._enabled)


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
