"""`expose`, the mark for functions that others may call in any mode; and definers of methods.

    marked              consequence
    ------              -----------
    a function          others may call it by name; a method also through RRefs, on objects of
                        subclasses too
    a class             others may call its constructor; by name and through RRefs every public
                        method, inherited ones too, and the classes inside it
    its subclass        is not marked; on its objects, methods inherited from the marked class may
                        be called

A foreign function that merely stands in a marked class (`run = subprocess.run`) is not marked.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, final

from telegrad.wire import names

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__telegrad_exposed__"


@final
class _Mark:
    """The mark of one use of `expose`; `functools.wraps` copies it to wrappers of the function."""


def expose(func: F) -> F:
    """Marks a function or class as one that other workers may call.

    The mark on a class covers its constructor and its public methods, inherited ones included, by
    name and through RRefs to its objects. It does not cover subclasses; but methods that their
    objects inherit from a marked class may be called on them. A policy function of the user's, as
    in `RpcOptions.callables`, is asked about marked objects like any others.

    Args:
        func: A function or class, which keeps its name.

    Returns:
        The same object.

    Raises:
        TypeError: The object cannot be marked, for example a function of a C extension.

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
    """Returns True if an object is marked itself, not by inheritance.

    A decorator that uses `functools.wraps` copies the mark of the wrapped function. The copy counts
    for the object that replaces that function, and for no other wrapper of it.

    Args:
        target: A function, class, or anything else.
        path: The qualified name under which it was found.
    """
    mark = _mark_of(target)
    if mark is None:
        return False
    inside = None if names.is_class(target) else names.own_attributes(target).get("__wrapped__")
    return _mark_of(inside) is not mark or names.attribute(target, "__qualname__") == path


def _mark_of(target: object) -> _Mark | None:
    attributes = names.namespace(target) if names.is_class(target) else names.own_attributes(target)
    mark = attributes.get(_ATTRIBUTE)
    return mark if type(mark) is _Mark else None


# -- the definers of an object's methods, found through namespaces without running user code -----

_BUILTIN_METHODS = (
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
)


def definers(value: object, method: str) -> tuple[tuple[object, str], ...]:
    """Returns the definers that decide on a method: a class, and the function if it is known.

    These are checked as the functions that they are: an attribute in an object's own dictionary, a
    function or class that is called itself, and a function that a class holds but does not define.

    Returns:
        Each definer with the name by which it is used; `__call__` if it is called itself.
    """
    if method == "__call__":
        if type(value) is partial:
            return definers(value.func, method)
        if type(value) is types.MethodType:
            return definers(value.__func__, method)
        if names.is_class(value) or _has_home(value):
            return ((value, method),)
    own = None if names.is_class(value) else names.own_attributes(value).get(method)
    if callable(own):
        return definers(own, "__call__")
    definer, raw = defined(value, method)
    if not callable(raw) or is_at_home(raw, definer):
        return ((definer, method),)
    return ((definer, method), *definers(raw, "__call__"))  # defined elsewhere, only put here


def is_at_home(raw: object, definer: type) -> bool:
    """Returns True if an attribute of a class was defined for it: a method or class of its body.

    That includes a function made there by a decorator that does not name the wrapped function.
    """
    if names.is_class(raw):
        (module, path), (home, inside) = _module_and_name(raw), _module_and_name(definer)
        return f"{module}:{path}".startswith(f"{home}:{inside}.")
    if _is_builtin_method(definer, raw):
        return True
    if not _has_home(raw):
        return False
    module, path = _module_and_name(raw)
    return module == names.attribute(definer, "__module__") or "<locals>" in path


def is_method(value: object, name: str) -> bool:
    """Returns True if this name of an object leads to a method of its class, and only there.

    A class that was defined inside the object's class counts as a method.
    """
    if not names.is_class(value):
        _, looked_up_by = defined(value, "__getattribute__")
        if name in names.own_attributes(value) or isinstance(looked_up_by, types.FunctionType):
            return False
    definer, raw = defined(value, name)
    if not callable(raw):
        return False
    if names.is_class(raw):
        return is_at_home(raw, definer)
    return _has_home(raw) or _is_builtin_method(definer, raw)


def home_of(value: object) -> tuple[str, str]:
    """Returns the module and qualified name by which a callable object was defined.

    For an instance, it is those of its class' `__call__`.
    """
    if type(value) is partial:
        return home_of(value.func)
    if type(value) is types.MethodType:
        return home_of(value.__func__)
    if names.is_class(value) or _has_home(value):
        module, path = map(str, _module_and_name(value))
        return names.wire_module(module), path
    owner = getattr(value, "__self__", None)
    bound = isinstance(value, types.BuiltinFunctionType) and owner is not None
    cls = type(owner) if bound else type(value)
    method = value.__name__ if isinstance(value, types.BuiltinFunctionType) else "__call__"
    return names.wire_module(cls.__module__), f"{cls.__qualname__}.{method}"


def dotted(definer: object, method: str) -> str:
    """Returns the name of a method in messages and patterns."""
    path = ".".join(map(str, _module_and_name(definer)))
    return f"{path}.{method}" if names.is_class(definer) and method != "__call__" else path


def defined(value: object, name: str) -> tuple[type, object]:
    """Returns the class that gives an object, or a class, this name, and the object it defines."""
    cls = value if names.is_class(value) else type(value)
    definer = next((base for base in names.bases(cls) if name in names.namespace(base)), cls)
    raw: Any = names.namespace(definer).get(name)
    return definer, raw.__func__ if issubclass(type(raw), (staticmethod, classmethod)) else raw


def _is_builtin_method(definer: type, raw: object) -> bool:
    """Returns True for a method of a C class, which names no module, found in its own class."""
    if not issubclass(type(raw), _BUILTIN_METHODS):
        return False
    return getattr(raw, "__objclass__", getattr(raw, "__self__", None)) is definer


def _has_home(value: object) -> bool:
    """Returns True for a function, of any kind, that names its module."""
    return all(type(name) is str for name in _module_and_name(value))


def _module_and_name(value: object) -> tuple[Any, Any]:
    return names.attribute(value, "__module__"), names.attribute(value, "__qualname__")
