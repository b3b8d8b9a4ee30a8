"""NumPy functions that compute on Tensors and are not recorded.

has a rule                               recorded (`operation`)
is constant in between (`np.argmax`)     computed, the result needs no gradient
neither, but nothing needs a gradient    computed
neither, and a gradient is needed        AutogradError: never cut off silently
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any, Final

import numpy as np

from telegrad.arrays import check_supported, is_array
from telegrad.autograd.graph.dispatch import PLAIN, TABLE, refuse_out
from telegrad.autograd.graph.grad_mode import is_grad_enabled
from telegrad.autograd.graph.parameters import positional_names
from telegrad.autograd.tensor.tensor import Tensor, array_of
from telegrad.errors import AutogradError

_WRITES: Final = {
    np.copyto: "dst",
    np.fill_diagonal: "a",
    np.place: "arr",
    np.put: "a",
    np.put_along_axis: "arr",
    np.putmask: "a",
}
"""The NumPy functions that write into their first argument, with that argument's name."""


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` for Tensors and arrays; its derivative is zero wherever it exists.

    Array results become Tensors if an argument is a Tensor.

    >>> import numpy as np
    >>> from telegrad.autograd import tensor
    >>> x = tensor([0.5, 1.5], requires_grad=True)
    >>> constant(np.floor)(x)
    tensor([0., 1.])
    """

    @wraps(function)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        tensors = has_tensor((args, kwargs))
        if tensors:
            check_no_out(function, args, kwargs)
        plain, options = _unwrap(args), _unwrap(kwargs)
        try:
            result = function(*plain, **options)
        except (TypeError, AttributeError) as error:
            check_supported(function, error, *_flatten((plain, options)))
            raise
        return _wrap(result) if tensors else result

    return evaluate


def check_no_out(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Checks that a call gives no `out`, by name or by place.

    Raises:
        TypeError: It gives one.
    """
    refuse_out(function, kwargs.get("out"))
    if len(args) > 1 and len(args) > (place := _place_of_out(function)):
        refuse_out(function, args[place])


@cache
def _place_of_out(function: Callable[..., Any]) -> int:
    if isinstance(function, np.ufunc):
        return function.nin
    names = positional_names(function)
    return names.index("out") if "out" in names else sys.maxsize


@TABLE.register(PLAIN)
def call_plain(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function that has no rule, unless that would lose a gradient.

    Raises:
        AutogradError: An argument needs a gradient.
        TypeError: The function would write into a Tensor.
    """
    name = _name(function)
    if isinstance(_written(function, args, kwargs), Tensor):
        raise TypeError(
            f"{name} does not write into a tensor; assign to a part of it (t[index] = value)"
        )
    needing = [x for x in _flatten((args, kwargs)) if isinstance(x, Tensor) and x.requires_grad]
    if needing and is_grad_enabled():
        raise AutogradError(
            f"{name} has no gradient rule, and an argument needs a gradient; use functions that "
            f"have one ({_lists(function)}), write one (docs/extend.md), or pass t.detach()"
        )
    return constant(function)(*args, **kwargs)


def _lists(function: Any) -> str:
    """Returns words for messages: the place that lists functions like this one with a rule."""
    if _name_in_scipy(function):
        return "help(telegrad.scipy.special) lists SciPy's"
    return "docs/numpy.md lists NumPy's"


def _name_in_scipy(function: Any) -> str:
    """Returns the name in `scipy.special` of a function, or of the ufunc inside it; "" for others.

    `zeta` is a Python function around `_zeta` and `_riemann_zeta`.
    """
    special, name = sys.modules.get("scipy.special"), getattr(function, "__name__", "")
    if getattr(special, name, None) is function:
        return name
    if getattr(getattr(special, "_ufuncs", None), name, None) is not function:
        return ""
    public = name.strip("_").removeprefix("riemann_")
    return public if hasattr(special, public) else name


def _name(function: Any) -> str:
    """Returns the name that users know: `np.roots`, `np.linalg.f`, `np.add.reduce`."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", str(function))
    if isinstance(owner, np.ufunc):
        return f"{_name(owner)}.{name}"
    if isinstance(function, np.ufunc):  # SciPy's ufuncs do not know their module
        known = getattr(np, name, None) is function
        return f"np.{name}" if known else _name_in_scipy(function) or name
    return f"{function.__module__}.{name}".replace("numpy", "np", 1)


def _written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the argument that a function writes into, None if it writes into none."""
    name = _WRITES.get(function)
    if name is None and function.__name__ == "at" and isinstance(function.__self__, np.ufunc):
        name = "a"
    return None if name is None else args[0] if args else kwargs.get(name)


def has_tensor(tree: Any) -> bool:
    """Returns True if `tree`, made of lists, tuples and dicts, contains a Tensor."""
    # `_flatten` is too slow: each call of a composed function runs this, often on a Tensor.
    if isinstance(tree, Tensor):
        return True
    if isinstance(tree, (list, tuple)):
        return any(map(has_tensor, tree))
    return isinstance(tree, dict) and any(map(has_tensor, tree.values()))


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
    return array_of(tree)


def _wrap(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        parts = [_wrap(part) for part in result]
        return type(result)(*parts) if type(result) not in (tuple, list) else type(result)(parts)
    return Tensor(result) if is_array(result) or isinstance(result, np.generic) else result
