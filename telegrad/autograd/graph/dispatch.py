"""From a NumPy function (or Python operator) to what telegrad does for it on Tensors.

The table is filled while modules are imported, and an entry never changes: it is no state. What
operators, methods and modules need is entered by `ops` with `import telegrad`, all else by `rules`
when first looked for.

Operations, and the `backward` that runs a graph, are written in terms of Tensor and import it. Tensor's
methods call them through this table, so nothing that stands below Tensor imports what stands above.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

__all__ = [
    "BACKWARD",
    "ENTRIES",
    "PLAIN",
    "TABLE",
    "DispatchTable",
    "Tier",
    "dispatch",
    "refuse_out",
]

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Tier(Enum):
    """How far a function can be differentiated; what has no entry is `NONE`.

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
class DispatchTable:
    """Functions by the function that they stand in for; an entry is written once."""

    def __init__(self) -> None:
        self._tiers: dict[object, Tier] = {}

    def register(self, *functions: object, tier: Tier = Tier.SECOND_ORDER) -> Callable[[F], F]:
        """Returns a decorator that enters what it decorates for each of `functions`."""

        def enter(implementation: F) -> F:
            for function in functions:
                if ENTRIES.setdefault(function, implementation) is not implementation:
                    raise ValueError(f"the rule for {function} is entered twice")
                self._tiers[function] = tier
            return implementation

        return enter

    def find(self, function: object) -> Callable[..., Any] | None:
        """Returns what stands in for `function`, or None."""
        found = ENTRIES.get(function)
        if found is None:
            _load_rules()
            found = ENTRIES.get(function)
        return found

    def tier(self, function: object) -> Tier:
        """Returns how far `function` can be differentiated."""
        self.find(function)
        return self._tiers.get(function, Tier.NONE)

    def __iter__(self) -> Iterator[object]:
        _load_rules()
        return iter([function for function in self._tiers if function not in (PLAIN, BACKWARD)])

    def __getitem__(self, function: object) -> Callable[..., Any]:
        return ENTRIES[function]


@final
class _Entries(dict[object, Callable[..., Any]]):
    """What stands in for functions, by function; what `rules` enters comes at the first miss."""

    if TYPE_CHECKING:  # an entry returns what its caller declares: Tensor, which stands above

        def __getitem__(self, function: object, /) -> Callable[..., R]: ...

    def __missing__(self, function: object) -> Callable[..., Any]:
        _load_rules()
        if function not in self:
            raise KeyError(function)
        return self[function]


ENTRIES: Final = _Entries()
"""The entries of `TABLE`, for Tensor's methods: a call between is felt in graphs of small arrays."""
TABLE: Final = DispatchTable()
PLAIN: Final = "functions without a rule"
"""The key of what is called, with (function, args, kwargs), for those that have no entry."""

BACKWARD: Final = "backward"
"""The key of what runs a graph: the engine's `backward`."""


def refuse_out(function: object, out: object) -> None:
    """Checks that a function is not to write into what it was given.

    Raises:
        TypeError: It is.
    """
    given = out if isinstance(out, tuple) else (out,)
    if any(x is not None for x in given):
        name = getattr(function, "__name__", str(function))
        raise TypeError(f"{name} of tensors does not take out; assign its result")


def _load_rules() -> None:
    # By name, as it is for the first miss alone: half of `import telegrad` would be theirs.
    importlib.import_module("telegrad.autograd.rules")
    if "scipy.special" in sys.modules:  # without that, nobody has its functions
        importlib.import_module("telegrad.autograd.rules.special")


def dispatch(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls what stands in for a NumPy function or ufunc, or what deals with all the others.

    Raises:
        TypeError: `out` is given.
    """
    if "out" in kwargs:
        refuse_out(function, kwargs["out"])
    rule = ENTRIES.get(function) or TABLE.find(function)
    if rule is None:
        return ENTRIES[PLAIN](function, args, kwargs)
    return rule(*args, **kwargs)
