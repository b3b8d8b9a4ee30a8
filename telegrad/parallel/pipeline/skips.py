"""Skip connections: a layer puts a value aside; a later layer, perhaps of another stage, takes it.

    stage 0              stage 1              stage 2
    Stash("a") ───────────────────────────▶ Pop("a")         one message, past stage 1

Both are layers. In a pipeline the value goes straight from stage to stage, and its gradient
straight back. In one process both work the same way, without a pipeline.

A second run of `recompute` puts nothing aside, and uses the value that the first run has taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

from telegrad.autograd import Tensor, once
from telegrad.errors import InvalidUseError
from telegrad.nn import Module
from telegrad.rpc import expose


class Skips(ABC):
    """The place where one forward puts values aside."""

    @abstractmethod
    def stash(self, name: str, value: Tensor) -> None:
        """Puts a value aside."""

    @abstractmethod
    def pop(self, name: str) -> Tensor:
        """Returns the value of a name."""


class SkipsHere(Skips):
    """The values of a forward in one process."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    def stash(self, name: str, value: Tensor) -> None:
        """Puts a value aside, in place of one that nobody took."""
        self._values[name] = value

    def pop(self, name: str) -> Tensor:
        """Returns the value of a name, once."""
        if name not in self._values:
            raise InvalidUseError(
                f"Pop({name!r}) found nothing: run Stash({name!r}) before it in the same forward"
            )
        return self._values.pop(name)


_skips: ContextVar[Skips | None] = ContextVar("telegrad_skips", default=None)


@contextmanager
def through(skips: Skips) -> Iterator[None]:
    """Lets the layers in a block put values aside at `skips`."""
    token = _skips.set(skips)
    try:
        yield
    finally:
        _skips.reset(token)


def _present() -> Skips:
    found = _skips.get()
    if found is None:  # of this thread, until its end: a forward outside of a pipeline
        found = SkipsHere()
        _skips.set(found)
    return found


@expose
@final
class Stash(Module):
    """A layer that returns its input, and puts it aside for the `Pop` of the same name.

    Args:
        name: A name that no other Stash of the model has.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn
        >>> from telegrad.parallel.pipeline import Pop, Stash
        >>> model = nn.Sequential(Stash("input"), nn.ReLU(), Pop("input"))
        >>> model(np.array([-1.0, 2.0]))
        tensor([-1.,  4.])
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Any) -> Any:
        """Returns `x`."""
        once(lambda: _present().stash(self.name, x if isinstance(x, Tensor) else Tensor(x)))
        return x

    def __repr__(self) -> str:
        return f"Stash({self.name!r})"


@expose
@final
class Pop(Module):
    """A layer that takes the value of a `Stash`, and by default adds it to its input.

    Called without an input it returns the value itself.

    Args:
        name: The name of the Stash, which is of the same or of an earlier stage.
        combine: `combine(input, value)` returns the output; a function that workers find by name.
            None adds the value.

    Example:
        >>> import numpy as np
        >>> from telegrad import nn
        >>> from telegrad.parallel.pipeline import Pop, Stash
        >>> model = nn.Sequential(Stash("input"), nn.ReLU(), Pop("input", np.maximum))
        >>> model(np.array([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, name: str, combine: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.name, self.combine = name, combine

    def forward(self, *inputs: Any) -> Any:
        """Returns `combine(input, value)`, or the value."""
        value = once(lambda: _present().pop(self.name))
        if not inputs:
            return value
        return inputs[0] + value if self.combine is None else self.combine(*inputs, value)

    def __repr__(self) -> str:
        return f"Pop({self.name!r})"


def names_in(module: Module) -> tuple[list[str], list[str]]:
    """Returns the names that a module puts aside, and those that it takes.

    >>> from telegrad import nn
    >>> names_in(nn.Sequential(Stash("a"), Stash("b"), Pop("a")))
    (['a', 'b'], ['a'])
    """
    parts = list(module.modules())
    stashed = [each.name for each in parts if isinstance(each, Stash)]
    return stashed, [each.name for each in parts if isinstance(each, Pop)]
