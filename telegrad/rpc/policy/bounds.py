"""Bounds on the arguments of listed functions that hold the interpreter for as long as they run.

    int(Decimal("1e99999999"))      lshift(1, 10**12)       sum(range(10**12))
    power(7, 3 * 10**8, dtype="O")  "x" * 10**12            set([0, 2**61 - 1, 2**62 - 2, ...])
    max([Decimal("1e9999")] * 20_000, key=int)

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
from numbers import Number
from typing import Any, Final, TypeAlias

import numpy as np

from telegrad.errors import CallRefusedError, DecodeError
from telegrad.wire import DEFAULT_LIMITS, Allowance

# Dividing numbers of so many bits takes 0.4 ms; the time grows with the square.
MOST_BITS: Final = 2**16
# Digits before or after the point: int() of it has as many.
MOST_DIGITS: Final = 10_000
# Squares of the digits of all numbers that a key converts, added up: converting one Decimal of
# 10,000 digits takes 3.5 ms, and 100 of them a third of a second.
MOST_SQUARES: Final = 100 * MOST_DIGITS**2
# Bits of all fractions together that are added or multiplied, which takes 0.4 s.
MOST_FRACTION_BITS: Final = 2 * MOST_BITS
# Items of all ranges together, or of a repeated sequence: adding them up takes 0.3 s.
MOST_ITEMS: Final = 10**7

_PYTHON: Final = ("builtins", "math", "operator")
_ARRAYS: Final = ("numpy", "cupy", "telegrad.numpy", "telegrad.autograd.ops")
_CONTAINERS: Final = (list, tuple, deque, set, frozenset, dict)
_SEQUENCES: Final = (str, bytes, bytearray, list, tuple, deque)
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
        >>> check_call("operator:pow", [7, 300], {})
        >>> check_call("operator:pow", [7, 300_000_000], {})
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
    if not words and (check := _CHECKS.get(name)) is not None:
        words = check(args, kwargs)
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


# -- Python's own ---------------------------------------------------------------------------------


def _of_power(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    del kwargs
    match args:
        case [int() | Fraction() as base, int() | Fraction() as exponent]:
            power = abs(exponent.numerator) if exponent.denominator == 1 else 1
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            return "a large exponent" if bits * power > MOST_BITS else ""
    return ""


def _of_shift(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    del kwargs
    match args:
        case [int(), int(bits)] if bits > MOST_BITS:
            return "a large shift"
    return ""


def _of_product(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    del kwargs
    for value, times in (args, args[::-1]) if len(args) == 2 else ():
        repeated = isinstance(value, _SEQUENCES) and isinstance(times, int)
        if repeated and len(value) * times > MOST_ITEMS:
            return "a large number of repetitions"
    return ""


def _of_remainder(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    del kwargs
    formats = args and isinstance(args[0], (str, bytes, bytearray))
    return "a text to be formatted" if formats else ""


def _of_sum(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    start = args[1] if len(args) > 1 else kwargs.get("start")
    if isinstance(start, _SEQUENCES):
        return "lists, each of which is copied for the next"
    return _of_fractions([*args, *kwargs.values()])


def _of_fractions(values: Iterable[Any]) -> str:
    """Bounds the digits of the denominator that fractions have together."""
    bits = 0
    for level, kinds in _levels(values, _CONTAINERS):
        if Fraction in kinds:
            found = [value for value in level if type(value) is Fraction]
            bits += sum(n.numerator.bit_length() + n.denominator.bit_length() for n in found)
    return "too many fractions" if bits > MOST_FRACTION_BITS else ""


def _of_products(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Bounds the digits of a product of many numbers."""
    values = [*args, *kwargs.values()]
    if words := _of_fractions(values):
        return words
    bits = 0
    for level, kinds in _levels(values, _CONTAINERS):
        if range in kinds:
            bits += sum(64 * len(value) for value in level if type(value) is range)
        if int in kinds:
            bits += sum(value.bit_length() for value in level if type(value) is int)
    return "too many numbers" if bits > 16 * MOST_BITS else ""


def _of_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Checks the key, which is called with one item after the other."""
    key = kwargs.get("key")
    home = getattr(key, "__module__", None)
    if isinstance(home, str) and home.startswith(_ARRAYS) and not isinstance(key, type):
        return "a key that makes arrays"
    if key is None:
        return ""
    items = args if len(args) != 1 or not isinstance(args[0], _CONTAINERS) else [*args[0]]
    name = f"{home}:{getattr(key, '__name__', '')}"
    if name in _OF_ALL and (words := _CHECKS[name](items, {})):
        return f"a key and {words}"
    return _of_conversions(key, items)


def _of_conversions(key: Any, items: Sequence[Any]) -> str:
    """Bounds the digits of all the items that a key such as `int` or `math.floor` converts."""
    makes_numbers = isinstance(key, type) and issubclass(key, Number)
    if key is bytes and sum(n for n in items if type(n) is int and n > 0) > MOST_ITEMS:
        return "a key that makes many bytes"
    squares = 0
    for value in items:
        if isinstance(value, Decimal) and value.is_finite():
            squares += (abs(value.adjusted()) + len(value.as_tuple().digits)) ** 2
        elif isinstance(value, (int, Fraction)):
            squares += (max(map(int.bit_length, (value.numerator, value.denominator))) // 3) ** 2
        elif makes_numbers and isinstance(value, (str, bytes, bytearray)):
            squares += len(value) ** 2
        if squares > MOST_SQUARES:  # reading the digits of many more would take seconds
            return "a key for numbers with many digits"
    return ""


def _of_hashes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Looks for items that collide, by adding them a few at a time."""
    del kwargs
    for items in args:
        if not isinstance(items, (list, tuple, deque)):
            continue
        for keys in (
            [*items],
            [each[0] for each in items if isinstance(each, (list, tuple)) and each],
        ):
            try:
                Allowance(DEFAULT_LIMITS).fill(set().update, keys)
            except DecodeError as error:
                return str(error)
            except TypeError:  # they have no hash: the function says so itself
                continue
    return ""


_Check: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], str]
_CHECKS: Final[dict[str, _Check]] = {
    **dict.fromkeys(("operator:pow", "operator:ipow"), _of_power),
    **dict.fromkeys(("operator:lshift", "operator:ilshift"), _of_shift),
    **dict.fromkeys(("operator:mul", "operator:imul"), _of_product),
    **dict.fromkeys(("operator:mod", "operator:imod"), _of_remainder),
    **dict.fromkeys(("builtins:max", "builtins:min", "builtins:sorted"), _of_key),
    **dict.fromkeys(("builtins:set", "builtins:frozenset", "builtins:dict"), _of_hashes),
    **dict.fromkeys(("math:prod", "math:lcm"), _of_products),
    "builtins:sum": _of_sum,
}
# The checks that add up what they find in all arguments, so that items may take their place.
_OF_ALL: Final = frozenset(
    name for name, check in _CHECKS.items() if check in (_of_hashes, _of_products, _of_sum)
)


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
