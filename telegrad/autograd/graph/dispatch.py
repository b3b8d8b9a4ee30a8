"""The table from a NumPy function or Python operator to its implementation for Tensors.

Modules fill the table while they are imported, and an entry never changes, so the table is no
state. `import telegrad` imports `ops`, which enters the functions that operators, methods and
modules need. The files in `_LATER` enter all others; the first lookup of a missing function imports
them.

Operations, and the `backward` that runs a graph, import Tensor. Tensor's methods call them through
this table, so no module below Tensor imports a module above it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Tier(Enum):
    """The order up to which a function can be differentiated; `NONE` if it has no entry.

    >>> import numpy as np
    >>> from telegrad.autograd import extend
    >>> extend.tier_of(np.exp), extend.tier_of(np.floor)
    (<Tier.SECOND_ORDER: 'tier 1'>, <Tier.CONSTANT: 'constant'>)
    """

    SECOND_ORDER = "tier 1"
    FIRST_ORDER = "tier 2"
    CONSTANT = "constant"
    NONE = "tier 3"


@final
class DispatchTable(dict[object, Callable[..., Any]]):
    """Implementations by the function that they replace; each entry is written once.

    The first miss imports the files that enter the rest.
    """

    def __init__(self) -> None:
        self._tiers: dict[object, Tier] = {}

    def register(self, *functions: object, tier: Tier = Tier.SECOND_ORDER) -> Callable[[F], F]:
        """Returns a decorator that enters the decorated function for each of `functions`."""

        def enter(implementation: F) -> F:
            for function in functions:
                if self.setdefault(function, implementation) is not implementation:
                    raise ValueError(f"the rule for {function} is entered twice")
                self._tiers[function] = tier
            return implementation

        return enter

    def find(self, function: object) -> Callable[..., Any] | None:
        """Returns the implementation of `function`, or None."""
        found = self.get(function)
        if found is None:
            _load_rules()
            found = self.get(function)
        return found

    def tier(self, function: object) -> Tier:
        """Returns the tier of `function`."""
        self.find(function)
        return self._tiers.get(function, Tier.NONE)

    def functions(self) -> list[object]:
        """Returns all functions that have an implementation."""
        _load_rules()
        return [function for function in self._tiers if function not in (PLAIN, BACKWARD)]

    if TYPE_CHECKING:  # the caller declares the type: this file cannot name Tensor, which is above

        def __getitem__(self, function: object, /) -> Callable[..., R]: ...

    def __missing__(self, function: object) -> Callable[..., Any]:
        found = self.find(function)
        if found is None:
            raise KeyError(function)
        return found


TABLE: Final = DispatchTable()
"""The entries. Tensor's methods read them without a call, for small arrays."""
PLAIN: Final = "functions without a rule"
"""The key of the function called with (function, args, kwargs) for functions without an entry."""

_LATER: Final = (
    "axes", "fourier", "joining", "layers", "linear_algebra", "products", "selection", "sequences",
    "sorting", "statistics", "ufuncs",
)  # fmt: skip
"""The files of operations that operators and methods do not need."""

BACKWARD: Final = "backward"
"""The key of the engine's `backward`, which runs a graph."""


def refuse_out(function: object, out: object) -> None:
    """Checks that the caller gave no `out`.

    Raises:
        TypeError: `out`, or an entry of the tuple `out`, is not None.
    """
    given = out if isinstance(out, tuple) else (out,)
    if any(x is not None for x in given):
        name = getattr(function, "__name__", str(function))
        raise TypeError(f"{name} of tensors does not take out; assign its result")


def _load_rules() -> None:
    # Imported at the first miss: at the top, the rules would take half of `import telegrad`.
    for name in _LATER:
        importlib.import_module(f"telegrad.autograd.ops.{name}")
    if "scipy.special" in sys.modules:  # a program without it has none of its functions
        importlib.import_module("telegrad.autograd.ops.special")


def dispatch(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the implementation of a NumPy function or ufunc, or `PLAIN` if it has none.

    Raises:
        TypeError: The caller gave `out`.
    """
    if "out" in kwargs:
        refuse_out(function, kwargs["out"])
    rule = TABLE.get(function) or TABLE.find(function)
    if rule is None:
        return TABLE[PLAIN](function, args, kwargs)
    return rule(*args, **kwargs)
