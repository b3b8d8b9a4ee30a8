"""CuPy's kernels of special functions: `cupyx.scipy.special` under SciPy's names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["special_function"]


def special_function(name: str) -> Callable[..., Any]:
    """Returns a function that computes `scipy.special.<name>` of CuPy arrays.

    The returned function raises TypeError if the installed CuPy does not have it.
    """

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        function = getattr(importlib.import_module("cupyx.scipy.special"), name, None)
        if function is None:
            raise TypeError(
                f"CuPy has no scipy.special.{name}; compute it on the host: tensor.to('cpu')"
            )
        return function(*args, **kwargs)

    evaluate.__name__ = name
    return evaluate
