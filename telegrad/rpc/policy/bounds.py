"""Bounds on the arguments of listed functions that hold the interpreter for as long as they run.

    floor(Decimal("1e99999999"))    countOf(range(10**12), 0.5)
    gcd(2**800_000, 3**200_000)     power(7, 3 * 10**8, dtype="O")

These take minutes on arguments of a few bytes. Nobody can stop them, and no other thread runs
meanwhile: the others would take the worker for lost. The functions of NumPy on numbers are no
concern, since they give the interpreter to other threads; those on Python objects are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, Final

import numpy as np

from telegrad.errors import CallRefusedError

# Dividing numbers of so many bits takes 0.4 ms; the time grows with the square.
MOST_BITS: Final = 2**16
# Digits before or after the point: int() of it has as many.
MOST_DIGITS: Final = 10_000
# Items of all ranges together: comparing them with a number takes 0.3 s.
MOST_ITEMS: Final = 10**7

_PYTHON: Final = ("builtins", "math", "operator")
_ARRAYS: Final = ("numpy", "cupy", "telegrad.numpy", "telegrad.autograd.ops")
_CONTAINERS: Final = (list, tuple, deque, set, frozenset, dict)
_SIGNATURES: Final = ("sig", "signature")
# In an array with anything else, numbers and texts would be Python objects.
_ITEMS: Final = frozenset((bool, int, float, complex, str, bytes))
_WITH_DIGITS: Final = ("base_repr", "binary_repr")  # of numbers of any size


def check_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks the arguments of a listed function.

    Args:
        name: The function, `module:name`.
        args: Its arguments by position.
        kwargs: Its arguments by name.

    Raises:
        CallRefusedError: The call might hold the interpreter for minutes.

    Example:
        >>> check_call("operator:countOf", [range(10), 3], {})
        >>> check_call("operator:countOf", [range(10**12), 3], {})
        Traceback (most recent call last):
        telegrad.errors.CallRefusedError: ...
    """
    module = name.partition(":")[0]
    on_arrays = module.startswith(_ARRAYS)
    if not on_arrays and module not in _PYTHON:
        return
    words = _of_values([*args, *kwargs.values()])
    if not words and on_arrays:
        words = _of_arrays(name, args, kwargs)
    if words:
        raise CallRefusedError(
            f"{name!r} of {words} could keep this worker busy for minutes, and nothing else would "
            "run there; call a function of your own that uses it"
        )


def _of_values(values: Iterable[Any]) -> str:
    """Returns words about a value that is too large, in containers as well; "" if there is none."""
    items = 0
    for level, kinds in _levels(values, _CONTAINERS):
        for kind in kinds & _LARGE.keys():
            if any(_LARGE[kind](value) for value in level if type(value) is kind):
                return f"a large {kind.__name__}"
        if range in kinds:
            items += sum(len(value) for value in level if type(value) is range)
            if items > MOST_ITEMS:
                return f"ranges of more than {MOST_ITEMS} numbers"
    return ""


def _levels(
    values: Iterable[Any], containers: tuple[type, ...]
) -> Iterator[tuple[list[Any], set[type]]]:
    """Yields values with their types, then the items of those that are containers, and so on."""
    level = list(values)
    while level:
        kinds = set(map(type, level))
        yield level, kinds
        inner: list[Any] = []
        if any(issubclass(kind, containers) for kind in kinds):
            inner = [value for value in level if isinstance(value, containers)]
        mapped = [value.values() for value in inner if isinstance(value, dict)]
        level = list(chain(chain.from_iterable(inner), chain.from_iterable(mapped)))


def _is_large_decimal(value: Decimal) -> bool:
    exponent = value.as_tuple().exponent
    if type(exponent) is not int:  # not a number, or infinite
        return False
    return abs(exponent) > MOST_DIGITS or abs(value.adjusted()) > MOST_DIGITS


def _is_large_fraction(value: Fraction) -> bool:
    return max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS


def _is_long_range(value: range) -> bool:
    return max(abs(value.start), abs(value.stop)) > 2**62  # len() takes less than 2**63


_LARGE: Final[dict[type, Callable[[Any], bool]]] = {
    int: lambda value: value.bit_length() > MOST_BITS,
    Decimal: _is_large_decimal,
    Fraction: _is_large_fraction,
    range: _is_long_range,
}


# -- arrays, whose items must not become Python objects --------------------------------------------


def _of_arrays(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    types = [each for each in args if isinstance(each, (str, type))]
    types += [kwargs["dtype"]] if "dtype" in kwargs else []
    objects = any("O" in str(kwargs.get(each, "")) for each in _SIGNATURES)
    if objects or any(map(_has_objects, types)):
        return "an array of Python objects"
    if name.endswith(_WITH_DIGITS):
        few = [*args[1:], *kwargs.values()]
        return "a large width" if any(type(n) is int and n > MOST_ITEMS for n in few) else ""
    others = [each for each in (*args, *kwargs.values()) if type(each) is not np.ndarray]
    return next(filter(None, map(_of_items, others)), "")


def _has_objects(dtype: Any) -> bool:
    try:
        return bool(np.dtype(dtype).hasobject)
    except (TypeError, ValueError, SyntaxError):  # NumPy parses a text such as "(2,3)f4"
        return False


def _of_items(value: object) -> str:
    """Returns words about an argument of which NumPy would make an array of Python objects."""
    kinds: set[type] = set()
    for level, found in _levels([value], (list, tuple, deque)):
        kinds |= found
        if int in found and any(type(n) is int and not -(2**63) <= n < 2**64 for n in level):
            return "an integer of more than 64 bits"
    for kind in kinds & {Decimal, Fraction}:
        return f"a {kind.__name__}"
    strange = [kind for kind in kinds - _ITEMS if not _is_item(kind)]
    if strange and kinds & _ITEMS:
        return f"a list of numbers or texts and a {strange[0].__name__}"
    return ""


def _is_item(kind: type) -> bool:
    arrays = ("numpy", "cupy", "telegrad", "scipy", "ml_dtypes")
    return issubclass(kind, (list, tuple, deque, range)) or kind.__module__.startswith(arrays)
