"""The four functions that give a function its gradient, and look-ups in the table of entries.

telegrad's own tables (`telegrad.autograd.ops`) use only these four; docs/extend.md shows each.

    primitive        a function over arrays and the gradient rule of each argument
    numpy_function   a primitive that replaces a NumPy function on Tensors
    composed         a function made of others that have rules
    constants        enters functions whose derivative is zero wherever it exists
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import numpy as np

from telegrad.autograd.graph.dispatch import TABLE, Tier
from telegrad.autograd.graph.operation import Operation
from telegrad.autograd.graph.unrecorded import check_no_out, constant, has_tensor

__all__ = [
    "Operation",
    "Tier",
    "composed",
    "constant",
    "constants",
    "find",
    "numpy_function",
    "primitive",
    "tier_of",
]

F = TypeVar("F", bound=Callable[..., Any])

_OF_UFUNCS: Final = {"dtype": None, "casting": "same_kind", "order": "K", "subok": True}


primitive = Operation
"""An operation, by the name that `docs/extend.md` gives it."""


def numpy_function(
    function: Callable[..., Any],
    arguments: str,
    *also: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Operation:
    """Returns a primitive that computes with a NumPy function and replaces it on Tensors.

    Args:
        function: The NumPy function, which gives the name, the signature and the values. The
            `dtype`, `casting` and `order` of a ufunc are options of all ufuncs.
        arguments: The names of its array arguments, as for `Operation`.
        also: Other functions with the same meaning.
        options: The other options with their defaults, as for `Operation`.
        others: Further arguments of `Operation`, and the rules.

    Example:
        >>> import numpy as np
        >>> from telegrad.autograd import tensor
        >>> log2 = numpy_function(np.emath.log2, "x", x=lambda g, x: g / (x * np.log(2.0)))
        >>> x = tensor(0.5, requires_grad=True)
        >>> np.emath.log2(x).backward()
        >>> round(x.grad.item(), 4)
        2.8854
    """
    if options is None and isinstance(function, np.ufunc):
        options = _OF_UFUNCS
    entered = (function, *also)
    made = primitive(
        function.__name__, function, arguments, stands_for=entered, options=options, **others
    )
    made.__module__ = _home(function)
    return made


def _home(function: Callable[..., Any]) -> str:
    """Returns the module in which users find the replacement of `function` by name.

    It is `telegrad.numpy` or a module below it.
    """
    module = getattr(function, "__module__", None) or "numpy"
    return f"telegrad.{module}"


def composed(
    function: Callable[..., Any], *also: Callable[..., Any], tier: Tier = Tier.SECOND_ORDER
) -> Callable[[F], F]:
    """Returns a decorator for a function that replaces `function` on Tensors, made of others.

    Calls without Tensors still go to `function` itself. Parameters that the decorated function
    does not support are missing from its signature, so Python's own TypeError names them. It may
    take `out`, which is always None: another value is refused before.

    Example:
        >>> import numpy as np
        >>> from telegrad.autograd import tensor
        >>> @composed(np.emath.logn)
        ... def logn(n, x):
        ...     return np.log(x) / np.log(n)
        >>> x = tensor(0.5, requires_grad=True)
        >>> np.emath.logn(2.0, x).backward()
        >>> round(x.grad.item(), 4)
        2.8854
    """

    def decorate(body: F) -> F:
        if getattr(body, "__name__", "") == "<lambda>":
            body.__qualname__ = function.__name__  # for Python's TypeError

        @wraps(function)
        def either(*args: Any, **kwargs: Any) -> Any:
            if has_tensor((args, kwargs)):
                check_no_out(function, args, kwargs)
                return body(*args, **kwargs)
            return function(*args, **kwargs)

        either.body = body  # type: ignore[attr-defined]
        either.__module__ = _home(function)
        return TABLE.register(function, *also, tier=tier)(either)  # type: ignore[return-value]

    return decorate


def constants(*functions: Callable[..., Any]) -> None:
    """Enters functions whose derivative is zero wherever it exists; they are never recorded.

    Example:
        >>> import numpy as np
        >>> from telegrad.autograd import tensor
        >>> def round_half_up(x):
        ...     return np.floor(x + 0.5)
        >>> constants(round_half_up)
        >>> x = tensor([1.2, 2.5], requires_grad=True)
        >>> find(round_half_up)(x)
        tensor([1., 3.])
    """
    for function in functions:
        entry = constant(function)
        entry.__module__ = _home(function)
        TABLE.register(function, tier=Tier.CONSTANT)(entry)


def find(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Returns the replacement of `function` on Tensors, or None if there is none.

    >>> find(np.sin)(np.array(0.0)), find(np.roots) is None
    (np.float64(0.0), True)
    """
    return TABLE.find(function)


def tier_of(function: Callable[..., Any]) -> Tier:
    """Returns the tier of `function`: how often it can be differentiated.

    >>> tier_of(np.sin), tier_of(np.floor), tier_of(np.roots)
    (<Tier.SECOND_ORDER: 'tier 1'>, <Tier.CONSTANT: 'constant'>, <Tier.NONE: 'tier 3'>)
    """
    return TABLE.tier(function)
