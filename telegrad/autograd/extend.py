"""How functions get gradients: `primitive`, `composed`, `constant`, `numpy_function`.

telegrad's own tables (`telegrad.autograd.ops`) are written with these four and nothing else;
docs/extend.md shows each.

    primitive        a function over arrays and the gradient rule of each argument
    numpy_function   a primitive that stands in for a NumPy function, on Tensors
    composed         a function written in terms of others that have rules
    constant         a function whose derivative is zero wherever it has one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import numpy as np

from telegrad.autograd.graph.dispatch import TABLE, Tier, refuse_out
from telegrad.autograd.graph.operation import Operation
from telegrad.autograd.graph.plain import constant, has_tensor

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
    """Returns a function over arrays and Tensors that is recorded, with a rule per argument.

    A rule is called with the gradient of the result, and with what its further parameters name:
    an argument, the result `y`, an output, an option, or the argument's `shape`. It returns the
    gradient of its argument, which may still have axes that broadcasting added; None for none.
    Written with operators and functions that have rules, it can be differentiated again.

    Args:
        name: What messages call it.
        forward: Computes with arrays.
        arguments: The names of its leading array arguments, `a b`; `*parts` for any number.
        stands_for: Functions that become this one when a Tensor is among their arguments. They
            have no entry yet; they are ufuncs or dispatch by `__array_function__`.
        tier: How far it can be differentiated.
        outputs: The names of its outputs, where `forward` returns several: `values vectors`. The
            first parameter of a rule is then a tuple, None where no gradient came.
        arrays: The names of options that are arrays too: `where weights`.
        options: The other options with the defaults that rules are to see.
        view: Whether the result may share the first argument's memory.
        kernels: Other forward functions by the name of the array library: `{"cupy": function}`.
        complex_rule: None where the rules are of real numbers; "holomorphic" where they are right
            for complex numbers too, written without conjugates; "own" where they deal with them.
        rules: By argument name.

    Raises:
        ValueError: A rule names what there is not, or one of `stands_for` has an entry.

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
    """Returns a primitive that computes with a NumPy function and stands in for it on Tensors.

    Args:
        function: Gives name, signature and values. A ufunc's `dtype`, `casting` and `order` are
            options of all ufuncs.
        arguments: See `primitive`.
        also: Other functions that mean the same.
        options: See `primitive`.
        others: See `primitive`.
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
    """Returns where what stands in for `function` is found by name: `telegrad.numpy`, or below."""
    module = getattr(function, "__module__", None) or "numpy"
    return f"telegrad.{module}"


def composed(
    function: Callable[..., Any], *also: Callable[..., Any], tier: Tier = Tier.SECOND_ORDER
) -> Callable[[F], F]:
    """Returns a decorator for what stands in for `function` on Tensors, written with others.

    Arrays alone still go to `function` itself. What the decorated function does not take is no
    parameter of it, so Python's own TypeError names it; `out` may be one, and is None.
    """

    def decorate(body: F) -> F:
        code = body.__code__
        names = code.co_varnames[: code.co_argcount]
        place = names.index("out") if "out" in names else None

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
    """Enters functions whose derivative is zero wherever they have one: computed, never recorded."""
    for function in functions:
        entry = constant(function)
        entry.__module__ = _home(function)
        TABLE.register(function, tier=Tier.CONSTANT)(entry)


def find(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Returns what stands in for `function` on Tensors, None where nothing does."""
    return TABLE.find(function)


def tier_of(function: Callable[..., Any]) -> Tier:
    """Returns how far `function` can be differentiated.

    >>> tier_of(np.sin), tier_of(np.floor), tier_of(np.roots)
    (<Tier.SECOND_ORDER: 'tier 1'>, <Tier.CONSTANT: 'constant'>, <Tier.NONE: 'tier 3'>)
    """
    return TABLE.tier(function)
