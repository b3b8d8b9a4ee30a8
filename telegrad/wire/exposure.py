"""`expose`, the mark on what other workers may call under any mode, and who bears it.

    marked              what others may call with that
    ------              ------------------------------
    a function          it, by name; as a method also through RRefs, on objects of subclasses too
    a class             its constructor; by name and through RRefs every public method, inherited
                        ones too, and the classes inside it
    its subclass        nothing by that; on its objects what it inherits from the marked class

What merely stands in a marked class (`run = subprocess.run`) is not covered by the class' mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, final

from telegrad.wire.lookup import attribute, is_class, namespace, own_attributes

__all__ = ["expose", "is_marked"]

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__telegrad_exposed__"


@final
class _Mark:
    """One use of `expose`; `functools.wraps` copies it to whatever goes around the function."""


def expose(func: F) -> F:
    """Marks a function or class as one that other workers may call.

    Of a class: its constructor and its public methods, inherited ones included, by name and
    through RRefs to its objects. A subclass is marked itself or not at all; what its objects
    inherit from a marked class may be called on them. A policy of one's own, as
    `RpcOptions.callables`, is asked about what is marked as about anything.

    Args:
        func: A function or class, which keeps its name.

    Returns:
        The same object.

    Raises:
        TypeError: It cannot be marked, as a function of a C extension cannot.

    Example:
        >>> @expose
        ... def status() -> str:
        ...     return "well"
    """
    target = func.__func__ if isinstance(func, staticmethod | classmethod) else func
    if not callable(target):
        raise TypeError(f"expose marks functions and classes, not {target!r}")
    try:
        setattr(target, _ATTRIBUTE, _Mark())
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{target!r} cannot be marked; expose a function that calls it") from error
    return func


def is_marked(target: object, path: str) -> bool:
    """Whether an object is marked itself, not by inheritance.

    A decorator that uses `functools.wraps` hands the mark of the function inside on. That counts
    for what stands in the place of that function, and for nothing else that wraps it.

    Args:
        target: A function, class, or anything else.
        path: Under which qualified name it was found.
    """
    mark = _mark_of(target)
    if mark is None:
        return False
    inside = None if is_class(target) else own_attributes(target).get("__wrapped__")
    return _mark_of(inside) is not mark or attribute(target, "__qualname__") == path


def _mark_of(target: object) -> _Mark | None:
    attributes = namespace(target) if is_class(target) else own_attributes(target)
    mark = attributes.get(_ATTRIBUTE)
    return mark if type(mark) is _Mark else None
