"""The public names of a NumPy module, with telegrad's functions in place of NumPy's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from telegrad.autograd import extend

__all__ = ["names_of"]


def names_of(module: ModuleType) -> dict[str, Any]:
    """Returns the public names of a NumPy module; functions with a gradient rule replace NumPy's.

    A function without a rule stays NumPy's own. If it gets a Tensor that needs a gradient, NumPy's
    protocols pass the call to telegrad, which raises.
    """
    held = vars(module)  # not getattr, which would load submodules such as numpy.testing
    found = {name: held[name] for name in module.__all__ if name in held}
    return {
        name: _stand_in(value) for name, value in found.items() if not isinstance(value, ModuleType)
    }


def _stand_in(value: Any) -> Any:
    entry = extend.find(value) if callable(value) else None
    return value if entry is None else entry
