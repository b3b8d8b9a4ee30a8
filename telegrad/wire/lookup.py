"""From `module:qualname` to an object and back, importing nothing and running no user code.

A Context may say who imports what is missing; without that, what is not imported is not there.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeGuard

from telegrad.errors import DecodeError

__all__ = [
    "MAIN_NAMES",
    "Found",
    "attribute",
    "bases",
    "candidate_names",
    "class_name",
    "find",
    "find_class",
    "first_in_bases",
    "import_missing_with",
    "instance_dict",
    "is_class",
    "is_exactly",
    "main_module",
    "main_script",
    "module_namespace",
    "module_of",
    "namespace",
    "own_attributes",
    "own_dict",
    "split",
    "wire_module",
]

MAIN_NAMES = ("__main__", "__mp_main__")  # the second is multiprocessing spawn's name for it
MAX_NAME_LENGTH = 500  # characters

_importer: ContextVar[Callable[[str], object] | None] = ContextVar(
    "telegrad_importer", default=None
)

_NAMESPACE = type.__dict__["__dict__"]
_BASES = type.__dict__["__mro__"]
_MODULE_NAMESPACE = _NAMESPACE.__get__(types.ModuleType)["__dict__"]
# What reads a field that C keeps, and runs nothing.
_C_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_PATH = r"[^\W_]\w*(?:\.[^\W_]\w*)*"
_NAME = re.compile(rf"(?:{_PATH}|__main__|__mp_main__):{_PATH}")


class Found(NamedTuple):
    """An object and the classes that its path leads through.

    Attributes:
        value: What a caller would get: of a static method its function, of a class method the
            method bound to its class.
        raw: What stands in the namespace.
        owners: The classes on the path, outermost first.
    """

    value: object
    raw: object
    owners: tuple[type, ...]


def split(name: str) -> tuple[str, tuple[str, ...]]:
    """Splits `module:qualname`.

    Returns:
        The module's name, and the parts of the path inside it.

    Raises:
        ValueError: It is no such name, or a part begins with an underscore (`__main__` as the
            module is the exception).
    """
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:MAX_NAME_LENGTH]!r} is not a public name of the form module:path.to.it"
        )
    module, _, path = name.partition(":")
    return module, tuple(path.split("."))


def module_of(name: str) -> types.ModuleType | None:
    """Returns a module if it is imported already; every name of `__main__` means this one's."""
    if name in MAIN_NAMES:
        return main_module()
    module = sys.modules.get(name)
    importer = _importer.get()
    if importer is not None and (module is None or _begun(module)):
        importer(name)
        module = sys.modules.get(name)
    return module if issubclass(type(module), types.ModuleType) else None


def import_missing_with(importer: Callable[[str], object] | None) -> None:
    """Has `importer(name)` called, in this Context, where a module is named that is not imported.

    Nothing is expected of it: when the module is there afterwards, it is used. It is called for
    one that another thread imports at this moment as well.
    """
    _importer.set(importer)


def _begun(module: types.ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


def main_module() -> types.ModuleType | None:
    """Returns the module of the script, in a process that multiprocessing spawned too."""
    return sys.modules.get("__mp_main__") or sys.modules.get("__main__")


def main_script() -> str:
    """Returns the path of this process' script, or words for its absence."""
    module = main_module()
    path = module_namespace(module).get("__file__") if module is not None else None
    return path if isinstance(path, str) else "no script (interactive, or python -c)"


def wire_module(name: str) -> str:
    """Returns the name under which a module travels."""
    return "__main__" if name in MAIN_NAMES else name


def is_class(value: object) -> TypeGuard[type]:
    """Whether it is a class; unlike `isinstance`, asks no `__class__` of a user's."""
    return issubclass(type(value), type)


def is_exactly(value: object, *kinds: type) -> bool:
    """Whether it is of one of these classes itself; compares none, which a metaclass may do its way."""
    kind = type(value)
    return any(kind is each for each in kinds)


def namespace(cls: type) -> Mapping[str, Any]:
    """Returns what stands in a class' own body, whatever its metaclass says."""
    space: Mapping[str, Any] = _NAMESPACE.__get__(cls)
    return space


def bases(cls: type) -> tuple[type, ...]:
    """Returns the method resolution order, whatever the metaclass says."""
    order: tuple[type, ...] = _BASES.__get__(cls)
    return order


def module_namespace(module: types.ModuleType) -> Mapping[str, Any]:
    """Returns what stands in a module; one that is loaded when it is first used stays as it is."""
    space: Mapping[str, Any] = _MODULE_NAMESPACE.__get__(module)
    return space


def first_in_bases(cls: type, name: str) -> object:
    """Returns what stands under a name in a class or, nearest first, its bases; else `...`."""
    return next((space[name] for space in map(namespace, bases(cls)) if name in space), ...)


def own_dict(value: object) -> dict[str, Any] | None:
    """Returns an instance's own dictionary; None where it has none.

    A property that its class calls `__dict__` is not asked.
    """
    own = instance_dict(type(value))
    return None if own is None else own(value)


def instance_dict(cls: type) -> Callable[[object], dict[str, Any]] | None:
    """Returns what gives an instance's own dictionary; None for a class whose instances have none."""
    for base in bases(cls):
        descriptor: Any = namespace(base).get("__dict__")
        if is_exactly(descriptor, *_C_FIELDS):
            read: Callable[[object], dict[str, Any]] = descriptor.__get__
            return read
    return None


def own_attributes(value: object) -> dict[str, Any]:
    """Returns a copy of what stands in an instance's own dictionary, if it has one."""
    return dict(own_dict(value) or {})


def attribute(value: object, name: str) -> object:
    """Returns an attribute of a function, a class or an object, as far as no code computes it.

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
    computed = raw is ... or any("__get__" in namespace(base) for base in bases(type(raw)))
    return None if computed else raw


def find(module: types.ModuleType, parts: tuple[str, ...]) -> Found | None:
    """Walks a path through a module's namespace and those of classes, never through `getattr`."""
    raw: Any = module_namespace(module).get(parts[0])
    owners: list[type] = []
    for part in parts[1:]:
        if not is_class(raw):
            return None
        owners.append(raw)
        spaces = map(namespace, bases(raw))
        raw = next((space[part] for space in spaces if part in space), None)
    if raw is None:
        return None
    value = raw
    if type(raw) is staticmethod:
        value = raw.__func__
    elif type(raw) is classmethod and owners:
        value = types.MethodType(raw.__func__, owners[-1])
    return Found(value, raw, tuple(owners))


def find_class(name: object) -> type:
    """Returns the class of that name.

    Raises:
        DecodeError: It has no public name, is not imported here, or is not a class.
    """
    if type(name) is not str:
        raise DecodeError("a class that is not named by a string")
    try:
        module_name, parts = split(name)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    module = module_of(module_name)
    if module is None:
        raise DecodeError(f"class {name!r} is not imported here; import {module_name} first")
    found = find(module, parts)
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
        try:
            module_name, parts = split(name)
        except ValueError:
            continue
        module = module_of(module_name)
        found = find(module, parts) if module is not None else None
        if found is not None and found.raw is cls:
            return name
    return None


def candidate_names(module: str, path: str) -> Iterator[str]:
    """Yields the names under which an object may stand, best first.

    An object of a private module (`scipy.linalg._basic`) is usually to be had from a public
    package above it, or from a module without the underscore.
    """
    yield f"{wire_module(module)}:{path}"
    if module not in MAIN_NAMES:
        parents = module.split(".")
        for end in range(len(parents) - 1, 0, -1):
            yield f"{'.'.join(parents[:end])}:{path}"
        yield f"{'.'.join(part.lstrip('_') for part in parents)}:{path}"
