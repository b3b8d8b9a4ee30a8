"""Functions by reference: the name of one, checked at the caller to lead back to it.

A function or class travels as `module:qualname`. What the callee does with such a name is in
`telegrad.wire.callable_policy`.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from functools import lru_cache
from typing import Any, NamedTuple

from telegrad.errors import EncodeError
from telegrad.wire.lookup import (
    MAIN_NAMES,
    candidate_names,
    find,
    is_class,
    main_module,
    main_script,
    module_of,
    split,
)

__all__ = ["FunctionRef", "name_of"]

MAX_SHORT_NAME = 200  # characters; longer names take the general search, which knows the limit
MAX_SHORT_NAMES = 1000  # that are kept made: 0.1 us in place of 0.8


class FunctionRef(NamedTuple):
    """A function by name, with the script of whoever named it.

    Attributes:
        name: `module:qualname`.
        script: Of a name in `__main__`, what the caller's is, for the error where it is not found.
    """

    name: str
    script: str = ""

    @classmethod
    def of(cls, func: object) -> FunctionRef:
        """Refers to a function or class; raises EncodeError as `name_of` does."""
        if type(func) is types.FunctionType and (name := _name_at_top(func)):
            ref = _ref_to(name)
        else:
            ref = cls(name_of(func))
        return cls(ref.name, main_script()) if ref.name.startswith("__main__:") else ref


def name_of(func: object) -> str:
    """Returns the name by which another worker finds a function or class.

    Args:
        func: A function at the top of a module or of a class in it, a class, a function of a C
            extension, a ufunc, or a class method.

    Returns:
        `module:qualname`; the script's own module is always `__main__`.

    Raises:
        EncodeError: It has no such name; the message says what to write instead.

    Example:
        >>> import math
        >>> name_of(math.sqrt)
        'math:sqrt'
    """
    if type(func) is types.FunctionType and (known := _name_at_top(func)):
        return known
    owner, target = _owner_of(func)
    path = _qualname(target)
    if owner is not None:
        path = f"{owner.__qualname__}.{path.rpartition('.')[2]}"
    module = _home(target if owner is None else owner)
    _refuse_nameless(func, module, path)
    for name in candidate_names(module, path):
        if _leads_to(name, func):
            return name
    raise EncodeError(_no_way_back(func, module, path))


def _name_at_top(func: types.FunctionType) -> str:
    """Returns the name of a public function at the top of its module; "" for any other, and maybe.

    What most calls name, found without the general search.
    """
    module, path = func.__module__, func.__qualname__
    name = _short_name(module, path) if type(module) is str else ""
    if not name:
        return ""
    if module in MAIN_NAMES:
        home = main_module()
        if home is None or "__file__" not in vars(home):  # a notebook, or a prompt
            return ""
    else:
        home = sys.modules.get(module)
    if not isinstance(home, types.ModuleType) or vars(home).get(path) is not func:
        return ""
    return name


@lru_cache(MAX_SHORT_NAMES)
def _ref_to(name: str) -> FunctionRef:
    return FunctionRef(name)


@lru_cache(MAX_SHORT_NAMES)
def _short_name(module: str, path: str) -> str:
    """Returns the name of what stands at the top of a module; "" where a part of it is not public."""
    if len(module) + len(path) > MAX_SHORT_NAME or path[:1] == "_" or not path.isidentifier():
        return ""
    if module in MAIN_NAMES:
        return f"__main__:{path}"
    if module[:1] == "_" or "._" in module or not module.replace(".", "_").isidentifier():
        return ""
    return f"{module}:{path}"


def _owner_of(func: Any) -> tuple[type | None, object]:
    """Takes a class method apart; what is bound to an instance cannot travel."""
    if isinstance(func, functools.partial | functools.partialmethod):
        raise EncodeError(
            "a functools.partial has no name by which the callee could find it; send the function"
            " itself and its arguments with args and kwargs"
        )
    if not callable(func):
        raise EncodeError(f"{_short(func)} is no function or class")
    if not isinstance(func, types.MethodType):
        return None, func
    if is_class(func.__self__):
        return func.__self__, func.__func__
    method = func.__name__
    raise EncodeError(
        f"{_qualname(func.__func__)} is bound to an object, which would have to travel with it;"
        f" keep the object on one worker and call rref.rpc_sync().{method}(...), or send a function"
    )


def _qualname(target: object) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    return name if isinstance(name, str) else ""


def _home(target: object) -> str:
    module = getattr(target, "__module__", None)
    if isinstance(module, str):
        return module
    return type(target).__module__.partition(".")[0]  # a ufunc of an older NumPy


def _refuse_nameless(func: object, module: str, path: str) -> None:
    if not path:
        kind = type(func).__qualname__
        raise EncodeError(
            f"an object of type {kind} that can be called has no name by which the callee could"
            f" find it; send a function, make {kind} a dataclass, or register it:"
            f" rpc.register_type({kind}, encode=..., decode=...)"
        )
    where = f"{module}.{path}"
    if "<lambda>" in path:
        raise EncodeError(
            f"{where} is a lambda, which has no name by which the callee could find it; write a def"
            " at the top of a module that both workers import"
        )
    if "<locals>" in path:
        raise EncodeError(
            f"{where} is defined inside a function, so the callee cannot find it; move it to the"
            " top of its module, and pass what it closes over as arguments"
        )
    if module in MAIN_NAMES and _is_interactive():
        name = path.partition(".")[0]
        how = (
            "move it to a cell that begins with `%%writefile mycode.py`, run `from mycode import"
            f" {name}`, and call that"
            if _is_ipython()
            else f"write it to a file mycode.py, run `from mycode import {name}`, and call that"
        )
        raise EncodeError(
            f"{where} is defined in a notebook or at a prompt, which other workers cannot import;"
            f" {how}"
        )


def _is_interactive() -> bool:
    main = main_module()
    if main is None or "__file__" in vars(main):
        return False
    return "ps1" in vars(sys) or _is_ipython()


def _is_ipython() -> bool:
    return "__IPYTHON__" in vars(builtins)


def _leads_to(name: str, func: object) -> bool:
    try:
        module_name, parts = split(name)
    except ValueError:
        return False
    module = module_of(module_name)
    found = find(module, parts) if module is not None else None
    if found is None:
        return False
    if isinstance(func, types.MethodType) and isinstance(found.value, types.MethodType):
        return found.value.__self__ is func.__self__ and found.value.__func__ is func.__func__
    return found.value is func


def _no_way_back(func: object, module: str, path: str) -> str:
    owner = getattr(func, "__self__", None)
    if isinstance(func, types.BuiltinFunctionType) and not isinstance(owner, types.ModuleType):
        whose = owner.__qualname__ if is_class(owner) else f"a {type(owner).__qualname__}"
        return (
            f"{path} is a method, written in C, of {whose}, and no name leads to it; write a"
            " function of your own that calls it, and send that"
        )
    private = [part for part in (*module.split("."), *path.split(".")) if part.startswith("_")]
    if private and module not in MAIN_NAMES:
        return (
            f"{module}.{path} is private ({private[0]}), and no part of the name of what is called"
            " on another worker begins with an underscore; rename it"
        )
    if path.rpartition(".")[2].startswith("_"):
        return f"{path} is private and cannot be called on another worker; rename it"
    return (
        f"the name {module}.{path} does not lead back to this object, so the callee would find"
        " another one or none; define it at the top of its module, under its own name"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
