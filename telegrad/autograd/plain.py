"""NumPy functions on Tensors without being recorded.

has a rule                               recorded (`operation`)
is constant in between (`np.argmax`)     computed, the result needs no gradient
neither, but nothing needs a gradient    computed
neither, and a gradient is needed        AutogradError: never cut off silently
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from telegrad.arrays import is_array
from telegrad.autograd.dispatch import PLAIN, TABLE
from telegrad.autograd.grad_mode import is_grad_enabled
from telegrad.autograd.tensor import Tensor
from telegrad.errors import AutogradError

__all__ = ["call_plain", "constant", "has_tensor"]


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` for Tensors and arrays; its derivative is zero wherever it has one.

    Results that are arrays are Tensors where an argument is one.
    """

    @wraps(function)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            name = getattr(function, "__name__", str(function))
            raise TypeError(f"np.{name} cannot write into a tensor (out=...); assign its result")
        tensors = has_tensor((args, kwargs))
        result = function(*_unwrap(args), **_unwrap(kwargs))
        return _wrap(result) if tensors else result

    return evaluate


@TABLE.register(PLAIN)
def call_plain(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function that has no rule, if that cuts nothing off.

    Raises:
        AutogradError: An argument needs a gradient.
        TypeError: `out` is given.
    """
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", str(function))
    needing = [x for x in _flatten((args, kwargs)) if isinstance(x, Tensor) and x.requires_grad]
    if needing and is_grad_enabled():
        raise AutogradError(
            f"np.{name} has no gradient rule (tier 3 of docs/numpy.md), and an argument needs a "
            "gradient; use operations that have one, write one (docs/extend.md), or pass t.detach()"
        )
    return constant(function)(*args, **kwargs)


def has_tensor(tree: Any) -> bool:
    """Tells whether a Tensor is in `tree`: lists, tuples and dicts."""
    return any(isinstance(x, Tensor) for x in _flatten(tree))


def _flatten(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _flatten(part)
    elif isinstance(tree, dict):
        yield from _flatten(list(tree.values()))
    else:
        yield tree


def _unwrap(tree: Any) -> Any:
    if type(tree) in (list, tuple):
        return type(tree)(_unwrap(part) for part in tree)
    if type(tree) is dict:
        return {key: _unwrap(part) for key, part in tree.items()}
    return tree.data if isinstance(tree, Tensor) else tree


def _wrap(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        parts = [_wrap(part) for part in result]
        return type(result)(*parts) if type(result) not in (tuple, list) else type(result)(parts)
    return Tensor(result) if is_array(result) or isinstance(result, np.generic) else result
