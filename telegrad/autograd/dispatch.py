"""From a NumPy function (or Python operator) to what telegrad does for it on Tensors.

The table is filled while `telegrad.autograd` is imported and frozen at the end of that: it is no
state. It stands below `tensor`, so that Tensor's methods need not import the operations, which
are written in terms of Tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

if TYPE_CHECKING:
    from telegrad.autograd.tensor import Tensor

__all__ = ["PLAIN", "TABLE", "DispatchTable", "call", "dispatch"]

F = TypeVar("F", bound=Callable[..., Any])


@final
class DispatchTable:
    """Functions by the function that they stand in for; write-once, then read-only."""

    def __init__(self) -> None:
        self._entries: dict[object, Callable[..., Any]] = {}
        self._frozen = False

    def register(self, *functions: object) -> Callable[[F], F]:
        """Returns a decorator that enters what it decorates for each of `functions`."""

        def enter(implementation: F) -> F:
            for function in functions:
                if self._frozen or function in self._entries:
                    raise ValueError(f"the rule for {function} is entered twice or too late")
                self._entries[function] = implementation
            return implementation

        return enter

    def freeze(self) -> None:
        """Ends the filling."""
        self._frozen = True

    def find(self, function: object) -> Callable[..., Any] | None:
        """Returns what stands in for `function`, or None."""
        return self._entries.get(function)

    def __getitem__(self, function: object) -> Callable[..., Any]:
        return self._entries[function]


TABLE: Final = DispatchTable()
PLAIN: Final = "functions without a rule"
"""The key of what is called, with (function, args, kwargs), for those that have no entry."""


def call(function: object, *args: Any, **kwargs: Any) -> Tensor:
    """Calls what stands in for `function`; at least one of the arguments is a Tensor."""
    result: Tensor = TABLE[function](*args, **kwargs)
    return result


def dispatch(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls what stands in for a NumPy function or ufunc, or what deals with all the others."""
    rule = TABLE.find(function)
    if rule is None:
        return TABLE[PLAIN](function, args, kwargs)
    return rule(*args, **kwargs)
