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

from telegrad.autograd.graph.dispatch import TABLE, Tier, refuse_out
from telegrad.autograd.graph.operation import Operation
from telegrad.autograd.graph.unrecorded import constant, has_tensor

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


def primitive(
    name: str,
    forward: Callable[..., Any],
    arguments: str,
    *,
    stands_for: tuple[Callable[..., Any], ...] = (),
    tier: Tier = Tier.SECOND_ORDER,
    outputs: str = "",
    arrays: str = "",
    options: Mapping[str, Any] | None = None,
    view: bool = False,
    kernels: Mapping[str, Callable[..., Any]] | None = None,
    complex_rule: str | None = None,
    **rules: Callable[..., Any],
) -> Operation:
    """Returns an operation over arrays and Tensors that is recorded, with one rule per argument.

    The first parameter of a rule is the gradient of the result. Its other parameters name what the
    rule needs: an argument, the result `y`, an output, an option, or `shape`, the shape of the
    rule's argument. A rule returns the gradient of its argument, or None for no gradient. The
    gradient may still have axes that broadcasting added. A rule made of operators and functions
    that have rules can be differentiated again.

    Args:
        name: The name of the operation in messages.
        forward: The function that computes with arrays.
        arguments: The names of its leading array arguments, `a b`; `*parts` for any number.
        stands_for: Functions that this operation replaces when a Tensor is among their arguments.
            They must have no entry yet; they are ufuncs or dispatch by `__array_function__`.
        tier: The number of times that it can be differentiated.
        outputs: The names of the outputs if `forward` returns several: `values vectors`. The first
            parameter of a rule is then a tuple, with None for an output that got no gradient.
        arrays: The names of options that are arrays, too: `where weights`.
        options: The other options with the defaults that rules get.
        view: True if the result may share the memory of the first argument.
        kernels: Other forward functions by the name of the array library: `{"cupy": function}`.
        complex_rule: None if the rules are valid for real numbers only; "holomorphic" if they are
            valid for complex numbers, too, but are written without conjugates; "own" if they handle
            the conjugates themselves.
        rules: The rules by argument name.

    Raises:
        ValueError: A rule names something unknown, or a function in `stands_for` has an entry.

    >>> from telegrad.autograd import tensor
    >>> cube = primitive("cube", lambda x: x * x * x, "x", x=lambda g, x: g * 3 * x * x)
    >>> x = tensor(2.0, requires_grad=True)
    >>> cube(x).backward()
    >>> x.grad.item()
    12.0
    """
    made = Operation(
        name,
        forward,
        arguments,
        outputs=outputs,
        arrays=arrays,
        options=options,
        view=view,
        kernels=kernels,
        complex_rule=complex_rule,
        **rules,
    )
    TABLE.register(*stands_for, tier=tier)(made)
    return made


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
        arguments: The names of its array arguments, as for `primitive`.
        also: Other functions with the same meaning.
        options: The other options with their defaults, as for `primitive`.
        others: Further arguments of `primitive`, and the rules.

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
    made = primitive(
        function.__name__,
        function,
        arguments,
        stands_for=(function, *also),
        options=options,
        **others,
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
    does not support are missing from its signature, so Python's own TypeError names them. `out` may
    be in the signature; a value other than None is refused.

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
        code = body.__code__
        names = code.co_varnames[: code.co_argcount]
        place = names.index("out") if "out" in names else None
        if body.__name__ == "<lambda>":
            body.__qualname__ = function.__name__  # for Python's TypeError

        @wraps(function)
        def either(*args: Any, **kwargs: Any) -> Any:
            if has_tensor((args, kwargs)):
                if place is not None:
                    refuse_out(function, args[place] if len(args) > place else kwargs.get("out"))
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
