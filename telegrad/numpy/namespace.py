"""From a NumPy module to its names, with what stands in for its functions."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from telegrad.autograd import extend

__all__ = ["names_of"]


def names_of(module: ModuleType) -> dict[str, Any]:
    """Returns the public names of a NumPy module, its functions replaced by those with rules.

    A function that has no rule is NumPy's own: with a Tensor that needs a gradient it comes back
    to telegrad by NumPy's protocols, and raises.
    """
    held = vars(module)  # getattr would load submodules such as numpy.testing
    found = {name: held[name] for name in module.__all__ if name in held}
    return {
        name: _stand_in(value) for name, value in found.items() if not isinstance(value, ModuleType)
    }


def _stand_in(value: Any) -> Any:
    entry = extend.find(value) if callable(value) else None
    return value if entry is None else entry
