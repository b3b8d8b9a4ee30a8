"""Functions by reference: the name of a function, checked at the caller to lead back to it.

A function or class travels as `module:qualname`. The callee's treatment of such a name is in
`telegrad.rpc.policy.policy`.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import re
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple, TypeGuard

from telegrad.errors import DecodeError, EncodeError, FunctionNotFoundError

# -- from `module:qualname` to an object and back, without imports and without user code ---------
#
# A Context may have an importer for modules that are missing; otherwise a module that is not
# imported does not exist.

MAIN_NAMES = ("__main__", "__mp_main__")  # the second is multiprocessing spawn's name for it
MAX_NAME_LENGTH = 500  # characters
KEPT_NAMES = 1000  # names that were checked: 0.1 us in place of 0.8

_importer: ContextVar[Callable[[str], object] | None] = ContextVar(
    "telegrad_importer", default=None
)

_NAMESPACE = type.__dict__["__dict__"].__get__
_BASES = type.__dict__["__mro__"].__get__
_MODULE_NAMESPACE = _NAMESPACE(types.ModuleType)["__dict__"].__get__
# Descriptors of fields that C keeps; reading one runs no user code.
_C_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_PATH = r"[^\W_]\w*(?:\.[^\W_]\w*)*"
_NAME = re.compile(rf"(?:{_PATH}(?:\.__main__)?|__main__|__mp_main__):{_PATH}")
_PRIVATE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class Found(NamedTuple):
    """An object and the classes that its path leads through.

    Attributes:
        value: The object that a caller gets: for a static method its function, for a class method
            the method bound to its class.
        raw: The object in the namespace.
        owners: The classes on the path, outermost first.
    """

    value: object
    raw: object
    owners: tuple[type, ...]


def split(name: str, *, private: bool = False) -> tuple[str, tuple[str, ...]]:
    """Splits `module:qualname`.

    Args:
        name: The name.
        private: True if parts may begin with an underscore: for classes of named tuples alone.

    Returns:
        The module's name, and the parts of the path inside it.

    Raises:
        ValueError: The name is malformed, or a part begins with an underscore (the modules
            `__main__` and `package.__main__` are the exceptions).
    """
    form = _PRIVATE_NAME if private else _NAME
    if len(name) > MAX_NAME_LENGTH or not form.fullmatch(name):
        raise ValueError(
            f"{name[:MAX_NAME_LENGTH]!r} is not a public name of the form module:path.to.it"
        )
    module, _, path = name.partition(":")
    return module, tuple(path.split("."))


def module_of(name: str) -> types.ModuleType | None:
    """Returns a module if it is already imported; every name of `__main__` means this process'.

    The module that `python -m` runs has its own name as well, unless it was also imported.
    """
    if name in MAIN_NAMES:
        return main_module()
    module = sys.modules.get(name)
    importer = _importer.get()
    if importer is not None and (module is None or _begun(module)):
        importer(name)
        module = sys.modules.get(name)
    if module is None and name == _name_of_run(main_namespace()):
        return main_module()
    return module if issubclass(type(module), types.ModuleType) else None


def namespace_of(name: str) -> Mapping[str, Any] | None:
    """Returns the namespace of a module if it is already imported."""
    module = module_of(name)
    if module is None:
        return None
    is_main = module is sys.modules.get("__main__") or module is sys.modules.get("__mp_main__")
    return main_namespace() if is_main else _MODULE_NAMESPACE(module)


def import_missing_with(importer: Callable[[str], object] | None) -> None:
    """Sets a function `importer(name)` that, in this Context, may import missing modules.

    If the module is there afterwards, it is used; otherwise it stays missing. The function is also
    called for a module that another thread is importing at this moment.
    """
    _importer.set(importer)


def _begun(module: types.ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def main_module() -> types.ModuleType | None:
    """Returns the module of the script; also works in a process that multiprocessing spawned."""
    return sys.modules.get("__mp_main__") or sys.modules.get("__main__")


def main_namespace(main: types.ModuleType | None = None) -> Mapping[str, Any]:
    """Returns the namespace of the script, which is that of a main module, or run by it.

    `python -m cProfile`, `profile` and `trace` stay `__main__` themselves, and run the script in a
    dict that belongs to no module. Its frame in the main thread leads there.
    """
    module = main or main_module()
    if module is None:
        return {}
    space = module_namespace(module)
    path = _text(space.get("__file__"))
    return _run_by(space) if path and is_tool(path) else space


def _run_by(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the namespace of the script that a program runs; its own if it runs none."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        space = frame.f_globals
        if space is not tool and _text(space.get("__name__")) == "__main__":
            return space
        frame = frame.f_back
    return tool


@lru_cache(KEPT_NAMES)
def is_tool(path: str) -> bool:
    """Returns True if the program at a path was installed, rather than being the user's own."""
    full = os.path.abspath(path)
    parts = full.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    scripts, stdlib = (sysconfig.get_path(name) for name in ("scripts", "stdlib"))
    return os.path.dirname(full) == scripts or full.startswith(stdlib + os.sep)


def main_script() -> str:
    """Returns the path of this process' script, or a text if there is none."""
    path = _text(main_namespace().get("__file__"))
    return path or "no script (interactive, or python -c)"


def main_stays_here() -> bool:
    """Returns True if no process that this one starts can import the main program.

    That is so if it is no file, or the `__main__.py` of a package, a directory or an archive, which
    `multiprocessing` does not import either: most of these do their work unconditionally.
    """
    main = main_namespace(sys.modules["__main__"])
    path, name = _text(main.get("__file__")), _name_of_run(main)
    return not os.path.isfile(path) or name == "__main__" or name.endswith(".__main__")


def main_stays_error(path: str) -> EncodeError:
    """Returns the error for a function or class of a main program that no process can import."""
    is_file = main_script().endswith("__main__.py")
    what = (
        "a __main__.py" if is_file else "a program that is no file (python -c, or standard input)"
    )
    return EncodeError(
        f"{path} is defined in {what}, which local workers cannot import; write it to a file "
        f"mycode.py, run `from mycode import {path.partition('.')[0]}`, and call that"
    )


def _name_of_run(main: Mapping[str, Any]) -> str:
    """Returns the name of the module that `python -m` runs; "" for a script."""
    spec = main.get("__spec__")
    return _text(spec.name) if type(spec) is ModuleSpec else ""


def _text(value: object) -> str:
    """Returns a str as one that is of no subclass; "" for anything else.

    Under pdb `__file__` is of a class of pdb's own.
    """
    return str.__str__(value) if issubclass(type(value), str) else ""


def wire_module(name: str) -> str:
    """Returns the name under which a module travels."""
    return "__main__" if name in MAIN_NAMES else name


def is_class(value: object) -> TypeGuard[type]:
    """Returns True for a class; unlike `isinstance` it does not read a user's `__class__`."""
    return issubclass(type(value), type)


def is_exactly(value: object, *kinds: type) -> bool:
    """Returns True if it is of one of these classes itself; runs no comparison of a metaclass."""
    kind = type(value)
    for each in kinds:  # noqa: SIM110 - a generator takes three times as long
        if kind is each:
            return True
    return False


def namespace(cls: type) -> Mapping[str, Any]:
    """Returns the namespace of a class' own body, whatever its metaclass defines."""
    space: Mapping[str, Any] = _NAMESPACE(cls)
    return space


def bases(cls: type) -> tuple[type, ...]:
    """Returns the method resolution order, whatever the metaclass defines."""
    order: tuple[type, ...] = _BASES(cls)
    return order


def module_namespace(module: types.ModuleType) -> Mapping[str, Any]:
    """Returns the namespace of a module; does not trigger the load of a lazy module."""
    space: Mapping[str, Any] = _MODULE_NAMESPACE(module)
    return space


def first_in_bases(cls: type, name: str) -> object:
    """Returns the attribute of a class or, nearest first, of its bases; `...` if there is none."""
    for base in bases(cls):  # each call of a method comes here: a generator takes twice as long
        space = namespace(base)
        if name in space:
            return space[name]
    return ...


def own_dict(value: object) -> dict[str, Any] | None:
    """Returns an instance's own dictionary; None if it has none.

    A property that its class calls `__dict__` is not read.
    """
    own = instance_dict(type(value))
    return None if own is None else own(value)


def instance_dict(cls: type) -> Callable[[object], dict[str, Any]] | None:
    """Returns a reader of the instances' own dictionary; None if instances have none."""
    for base in bases(cls):
        descriptor: Any = namespace(base).get("__dict__")
        if is_exactly(descriptor, *_C_FIELDS):
            read: Callable[[object], dict[str, Any]] = descriptor.__get__
            return read
    return None


def own_attributes(value: object) -> dict[str, Any]:
    """Returns a copy of an instance's own dictionary; empty if it has none."""
    return dict(own_dict(value) or {})


def attribute(value: object, name: str) -> object:
    """Returns an attribute of a function, a class or an object, unless code would compute it.

    >>> attribute(find, "__qualname__"), attribute(property(), "name")
    ('find', None)
    """
    raw: Any
    if is_class(value):
        raw = type.__dict__.get(name, ...)
    else:
        if name in (own := own_attributes(value)):
            return own[name]
        raw = first_in_bases(type(value), name)
    if is_exactly(raw, *_C_FIELDS):
        try:
            return raw.__get__(value)
        except AttributeError:
            return None
    return None if raw is ... or is_computed(raw) else raw


def is_computed(raw: object) -> bool:
    """Returns True for what stands in a namespace and computes what a reader of it gets."""
    return first_in_bases(type(raw), "__get__") is not ...


def find(space: Mapping[str, Any] | None, parts: tuple[str, ...]) -> Found | None:
    """Walks a path through a module's namespace and those of classes, never through `getattr`."""
    if space is None:
        return None
    raw: Any = space.get(parts[0])
    owners: list[type] = []
    for part in parts[1:]:
        if not is_class(raw):
            return None
        owners.append(raw)
        raw = first_in_bases(raw, part)
    if raw is None or raw is ...:
        return None
    value = raw
    if type(raw) is staticmethod:
        value = raw.__func__
    elif type(raw) is classmethod and owners:
        value = types.MethodType(raw.__func__, owners[-1])
    return Found(value, raw, tuple(owners))


def find_name(name: str, *, private: bool = False) -> Found | None:
    """Returns the object to which a name leads here, without an import; None if there is none."""
    try:
        module, parts = split(name, private=private)
    except ValueError:
        return None
    return find(namespace_of(module), parts)


def load(name: str) -> object:
    """Returns the object of a name, and imports its module: for a sender that may run any code.

    Raises:
        FunctionNotFoundError: There is none.
    """
    module_name, parts = split(name)
    try:
        space = namespace_of(module_name) or vars(importlib.import_module(module_name))
        found = find(space, parts)
    except ImportError as error:
        raise FunctionNotFoundError(f"there is no {name!r} in this process: {error}") from error
    if found is None:
        raise FunctionNotFoundError(f"there is no {name!r} in this process")
    return found.value


def find_class(name: object, *, private: bool = False) -> type:
    """Returns the class of that name.

    Args:
        name: The name that was sent.
        private: True if its parts may begin with an underscore; the caller then checks that the
            class is a named tuple's.

    Raises:
        DecodeError: The name is not public, the class is not imported here, or it is no class.
    """
    if type(name) is not str:
        raise DecodeError("a class that is not named by a string")
    try:
        module_name, parts = split(name, private=private)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    space = namespace_of(module_name)
    if space is None:
        raise DecodeError(f"class {name!r} is not imported here; import {module_name} first")
    found = find(space, parts)
    if found is None or not is_class(found.raw):
        where = (
            f" ({main_script()}); put it into a module that both workers import"
            if module_name in MAIN_NAMES
            else ""
        )
        raise DecodeError(f"there is no class {name!r} here{where}")
    return found.raw


def class_name(cls: type) -> str | None:
    """Returns the public name that leads back to a class, if it has one."""
    for name in candidate_names(cls.__module__, cls.__qualname__):
        found = find_name(name)
        if found is not None and found.raw is cls:
            return name
    return None


def private_class_name(cls: type) -> str | None:
    """Returns the name that leads back to a class, parts with an underscore included, if any."""
    name = f"{wire_module(cls.__module__)}:{cls.__qualname__}"
    found = find_name(name, private=True)
    return name if found is not None and found.raw is cls else None


def candidate_names(module: str, path: str) -> Iterator[str]:
    """Yields the names under which an object may be found, best first.

    An object of a private module (`scipy.linalg._basic`) is usually available from a public package
    above it, or from a module without the underscore.
    """
    yield f"{wire_module(module)}:{path}"
    if module not in MAIN_NAMES:
        parents = module.split(".")
        for end in range(len(parents) - 1, 0, -1):
            yield f"{'.'.join(parents[:end])}:{path}"
        yield f"{'.'.join(part.lstrip('_') for part in parents)}:{path}"


# -- names of functions --------------------------------------------------------------------------


class FunctionRef(NamedTuple):
    """A function by name, with the script of the worker that named it.

    Attributes:
        name: `module:qualname`.
        script: For a name in `__main__`: the caller's script, for the error if it is not found.
    """

    name: str
    script: str = ""

    @classmethod
    def of(cls, func: object) -> FunctionRef:
        """Returns a reference to a function or class; raises EncodeError as `name_of` does."""
        # As `name_of` begins, without that function: each call names one.
        known = _name_at_top(func) if type(func) is types.FunctionType else ""
        name = known or name_of(func)
        return cls(name, main_script() if name.startswith("__main__:") else "")


def name_of(func: object) -> str:
    """Returns the name by which another worker finds a function or class.

    Args:
        func: A function at the top of a module or of a class in it, a class, a function of a C
            extension, a ufunc, or a class method.

    Returns:
        `module:qualname`; the script's own module is always `__main__`.

    Raises:
        EncodeError: It has no such name; the message states an alternative.

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
    """Returns the name of a public function at the top of its module; "" if the check fails.

    It finds most functions that are called, without the general search.
    """
    module, path = func.__module__, func.__qualname__
    if type(module) is not str:
        return ""
    if module in MAIN_NAMES:
        space = main_namespace()
        if "__file__" not in space:  # a notebook, or a prompt
            return ""
    else:
        home = sys.modules.get(module)
        space = vars(home) if isinstance(home, types.ModuleType) else {}
    if space.get(path) is not func:
        return ""
    return _public_name(module, path)


@lru_cache(KEPT_NAMES)
def _public_name(module: str, path: str) -> str:
    """Returns the name of an object at the top of a module; "" if a part of it is not public."""
    name = f"{wire_module(module)}:{path}"
    return name if len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) else ""


def _owner_of(func: Any) -> tuple[type | None, object]:
    """Takes a class method apart; refuses methods bound to an instance, which cannot travel."""
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
        f" keep the object on one worker and call rref.rpc_sync().{method}(...), or send a "
        "function, and the object among its arguments"
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
    found = find_name(name)
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
    parts = (*module.removesuffix(".__main__").split("."), *path.split("."))
    private = [part for part in parts if part.startswith("_")]
    if private and module not in MAIN_NAMES:
        return (
            f"{module}.{path} is private ({private[0]}), and no part of the name of what is called"
            " on another worker begins with an underscore; rename it"
        )
    if path.rpartition(".")[2].startswith("_"):
        return f"{path} is private and cannot be called on another worker; rename it"
    if module in MAIN_NAMES:
        return (
            f"the name {module}.{path} does not lead back to this object: the main program is "
            f"{main_script()}; define it at its top, under its own name, or in a module that all"
            " workers import"
        )
    return (
        f"the name {module}.{path} does not lead back to this object, so the callee would find"
        " another one or none; define it at the top of its module, under its own name"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
