"""The parameters of NumPy functions: names, order and defaults, as NumPy defines them.

They are read at the first use: at import, this would take longer than the whole table of rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["positional_names", "signature_of"]


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the signature of `function`; None if neither `inspect` nor the ufunc gives one.

    Ufuncs have a signature of their own only since NumPy 2.4.

    >>> str(signature_of(np.cumsum))
    '(a, axis=None, dtype=None, out=None)'
    """
    try:
        return inspect.signature(function)
    except ValueError:
        return _of_ufunc(function) if isinstance(function, np.ufunc) else None


def positional_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the parameters of `function` that may be positional, in order.

    >>> positional_names(np.sum)[:3]
    ('a', 'axis', 'dtype')
    """
    found = signature_of(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = () if found is None else found.parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def _of_ufunc(function: np.ufunc) -> inspect.Signature:
    kind = inspect.Parameter
    names = ["x"] if function.nin == 1 else [f"x{i + 1}" for i in range(function.nin)]
    inputs = [kind(name, kind.POSITIONAL_ONLY) for name in names]
    out = None if function.nout == 1 else (None,) * function.nout
    options: dict[str, Any] = {"casting": "same_kind", "order": "K", "dtype": None}
    options |= {"subok": True, "signature": None}
    if function.signature is None:
        options = {"where": True, **options}
    return inspect.Signature([
        *inputs,
        kind("out", kind.POSITIONAL_OR_KEYWORD, default=out),
        *(kind(name, kind.KEYWORD_ONLY, default=value) for name, value in options.items()),
    ])  # fmt: skip
