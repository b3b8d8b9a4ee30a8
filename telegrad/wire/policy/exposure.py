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

import types
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, final

from telegrad.wire.names import attribute, bases, is_class, namespace, own_attributes, wire_module

__all__ = [
    "defined",
    "definers",
    "dotted",
    "expose",
    "home_of",
    "is_at_home",
    "is_marked",
    "is_method",
]


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


# -- who gives an object its methods: found through namespaces, running nothing of the user's ----

_BUILTIN_METHODS = (
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
)


def definers(value: object, method: str) -> tuple[tuple[object, str], ...]:
    """Returns what decides on a method: the class that defines it, and the function where known.

    What stands in an object's own dictionary, and a function or class that is called itself, is
    judged as the function that it is; so is what a class holds and does not define.

    Returns:
        Each with the name by which it is used; `__call__` where it is called itself.
    """
    if method == "__call__":
        if type(value) is partial:
            return definers(value.func, method)
        if type(value) is types.MethodType:
            return definers(value.__func__, method)
        if is_class(value) or _has_home(value):
            return ((value, method),)
    own = None if is_class(value) else own_attributes(value).get(method)
    if callable(own):
        return definers(own, "__call__")
    definer, raw = defined(value, method)
    if not callable(raw) or is_at_home(raw, definer):
        return ((definer, method),)
    return ((definer, method), *definers(raw, "__call__"))  # defined elsewhere, only put there


def is_at_home(raw: object, definer: type) -> bool:
    """Whether what stands in a class was defined for it: a method or a class of its body.

    A function made where it stands, by a decorator that does not say whom it wraps, is.
    """
    if is_class(raw):
        (module, path), (home, inside) = _module_and_name(raw), _module_and_name(definer)
        return f"{module}:{path}".startswith(f"{home}:{inside}.")
    if _is_builtin_method(definer, raw):
        return True
    if not _has_home(raw):
        return False
    module, path = _module_and_name(raw)
    return module == attribute(definer, "__module__") or "<locals>" in path


def is_method(value: object, name: str) -> bool:
    """Whether an object has from its class what it calls by this name, and only that.

    A class that was defined inside its class is as good as a method.
    """
    if not is_class(value):
        _, looked_up_by = defined(value, "__getattribute__")
        if name in own_attributes(value) or isinstance(looked_up_by, types.FunctionType):
            return False
    definer, raw = defined(value, name)
    if not callable(raw):
        return False
    if is_class(raw):
        return is_at_home(raw, definer)
    return _has_home(raw) or _is_builtin_method(definer, raw)


def home_of(value: object) -> tuple[str, str]:
    """Returns the module and qualified name by which whatever can be called was defined.

    Of an object that can be called, those of its class' `__call__`.
    """
    if type(value) is partial:
        return home_of(value.func)
    if type(value) is types.MethodType:
        return home_of(value.__func__)
    if is_class(value) or _has_home(value):
        module, path = map(str, _module_and_name(value))
        return wire_module(module), path
    owner = getattr(value, "__self__", None)
    bound = isinstance(value, types.BuiltinFunctionType) and owner is not None
    cls = type(owner) if bound else type(value)
    method = value.__name__ if isinstance(value, types.BuiltinFunctionType) else "__call__"
    return wire_module(cls.__module__), f"{cls.__qualname__}.{method}"


def dotted(definer: object, method: str) -> str:
    """Returns what a method is called in messages and patterns."""
    path = ".".join(map(str, _module_and_name(definer)))
    return f"{path}.{method}" if is_class(definer) and method != "__call__" else path


def defined(value: object, name: str) -> tuple[type, object]:
    """Returns the class that gives an object, or a class, this name, and what it defines."""
    cls = value if is_class(value) else type(value)
    definer = next((base for base in bases(cls) if name in namespace(base)), cls)
    raw: Any = namespace(definer).get(name)
    return definer, raw.__func__ if issubclass(type(raw), (staticmethod, classmethod)) else raw


def _is_builtin_method(definer: type, raw: object) -> bool:
    """Whether it is a method of a class in C, which says no module, in the class that it is of."""
    if not issubclass(type(raw), _BUILTIN_METHODS):
        return False
    return getattr(raw, "__objclass__", getattr(raw, "__self__", None)) is definer


def _has_home(value: object) -> bool:
    """Whether it is a function, of any kind, that says which module it is of."""
    return all(type(name) is str for name in _module_and_name(value))


def _module_and_name(value: object) -> tuple[Any, Any]:
    return attribute(value, "__module__"), attribute(value, "__qualname__")
