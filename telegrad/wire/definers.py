"""Who gives an object its methods: found through namespaces, running nothing of the user's."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

from telegrad.wire.lookup import (
    attribute,
    bases,
    is_class,
    namespace,
    own_attributes,
    wire_module,
)

__all__ = ["defined", "definers", "dotted", "home_of", "is_at_home", "is_method"]

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
        (module, path), (home, inside) = _names(raw), _names(definer)
        return f"{module}:{path}".startswith(f"{home}:{inside}.")
    if _is_builtin_method(definer, raw):
        return True
    if not _has_home(raw):
        return False
    module, path = _names(raw)
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
        module, path = map(str, _names(value))
        return wire_module(module), path
    owner = getattr(value, "__self__", None)
    bound = isinstance(value, types.BuiltinFunctionType) and owner is not None
    cls = type(owner) if bound else type(value)
    method = value.__name__ if isinstance(value, types.BuiltinFunctionType) else "__call__"
    return wire_module(cls.__module__), f"{cls.__qualname__}.{method}"


def dotted(definer: object, method: str) -> str:
    """Returns what a method is called in messages and patterns."""
    path = ".".join(map(str, _names(definer)))
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
    return all(type(name) is str for name in _names(value))


def _names(value: object) -> tuple[Any, Any]:
    return attribute(value, "__module__"), attribute(value, "__qualname__")
