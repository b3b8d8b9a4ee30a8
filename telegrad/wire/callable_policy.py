"""The callee decides what may be called: from a name to a function, or a refusal.

Nothing is imported, looked up through a property, or built for a name that is refused.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

from telegrad.errors import CallRefusedError, FunctionNotFoundError
from telegrad.wire.allowed_functions import (
    ALLOWED_NAMES,
    ALLOWED_PACKAGES,
    REFUSED_METHODS,
    VALUE_MODULES,
)
from telegrad.wire.class_types import own_attributes
from telegrad.wire.function_ref import FunctionRef
from telegrad.wire.lookup import (
    MAIN_NAMES,
    Found,
    bases,
    find,
    is_class,
    main_script,
    module_of,
    namespace,
    split,
    wire_module,
)
from telegrad.wire.project import Project, is_foreign_name

__all__ = ["CallablePolicy", "expose"]

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("project", "exposed", "importable")

_MARK = "__telegrad_exposed__"
_OWN = Path(__file__).resolve().parent.parent

# From these it is a step or two to all that the process holds, and their class is a builtin one.
_INTERNALS = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)

_BUILTIN_METHODS = (
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
)


def expose(func: F) -> F:
    """Marks a function or class as one that other workers may call, under any policy.

    Of a class, its constructor and all methods that its qualified name leads to.

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
        setattr(target, _MARK, True)
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{target!r} cannot be marked; expose a function that calls it") from error
    return func


@final
class CallablePolicy:
    """What may be called on this worker by name.

    Under every mode: what is marked with `expose`. No part of a name may begin with an
    underscore.

    Args:
        mode: `"project"`: what is defined in `__main__`, or in modules that this process has
            imported from outside the standard library, site-packages and telegrad; and the array
            functions of `telegrad.wire.allowed_functions`. `"exposed"`: nothing else.
            `"importable"`: anything; that is remote code execution for whoever holds the token.
        patterns: Under `"project"`, further dotted names: `"mypkg.*"`, `"math.sqrt"`.

    Raises:
        ValueError: No such mode.
        TypeError: `patterns` is no sequence of strings.

    Example:
        >>> CallablePolicy("project", ["math.*"]).resolve("math:sqrt")(16.0)
        4.0
    """

    __slots__ = ("_known", "_project", "mode", "patterns")

    def __init__(self, mode: str = "project", patterns: Sequence[str] = ()) -> None:
        if mode not in MODES:
            raise ValueError(f"no such policy: {mode!r}; one of {', '.join(MODES)}")
        if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
            raise TypeError(
                f"patterns are a list of strings, such as ['mypkg.*'], not {patterns!r}"
            )
        self.mode = mode
        self.patterns = tuple(patterns)
        self._project = Project()
        self._known: dict[str, _Known] = {}  # functions that may be called, by name

    def __repr__(self) -> str:
        return f"CallablePolicy({self.mode!r}, {list(self.patterns)!r})"

    def resolve(
        self, ref: str | FunctionRef, *, caller: str = "", worker: str = ""
    ) -> Callable[..., Any]:
        """Returns the function or class of that name.

        Args:
            ref: Its name, or a reference, whose script an error names.
            caller: Who asks, for errors.
            worker: Who is asked, for errors.

        Raises:
            CallRefusedError: It may not be called here.
            FunctionNotFoundError: There is none of that name here.
        """
        ref = ref if isinstance(ref, FunctionRef) else FunctionRef(ref)
        known = self._known.get(ref.name) if type(ref.name) is str else None
        if known is not None and known.is_there():
            return known.function
        function = self._resolve(_Request(ref, caller, worker), called=True)
        if type(function) is types.FunctionType:
            module, _, path = ref.name.partition(":")
            self._known[ref.name] = _Known(module, path, function)
        return function

    def resolve_value(self, name: str) -> Callable[..., Any]:
        """Returns the function or class of a name that is sent as a value: an argument, a dtype.

        The rules are those of `resolve`, since whoever gets it may call it; but array functions
        and the modules and optimizers of telegrad are there under every mode.

        Raises:
            CallRefusedError: It may not be had here.
            FunctionNotFoundError: There is none of that name here.
        """
        return self._resolve(_Request(FunctionRef(name), "", ""), called=False)

    def check_method(
        self, value: object, method: str, *, caller: str = "", worker: str = ""
    ) -> None:
        """Checks that others may call a method of a value, through a reference to it.

        What holds for a function holds for the class that defines the method: it is of this
        project, marked, or named by a pattern (`"pathlib.*"`). Methods of plain values and arrays
        that do no I/O may be called as well. A module has no methods.

        What the attribute gives may have to be checked as well: `check_found`.

        Args:
            value: Whose method.
            method: Its name; `__call__` for the value itself.
            caller: Who asks, for errors.
            worker: Who is asked, for errors.

        Raises:
            CallRefusedError: It may not be called here.

        Example:
            >>> CallablePolicy("project").check_method([1, 2], "append")
            >>> CallablePolicy("project").check_method(Path("/"), "rmdir")
            Traceback (most recent call last):
            telegrad.errors.CallRefusedError: ...
        """
        if self.mode == "importable":
            return
        if isinstance(value, _INTERNALS):
            name = own_attributes(value).get("__name__") or type(value).__qualname__
            raise _Request(FunctionRef(f"{name}.{method}"), caller, worker).refused(
                f"nothing is called on a {type(value).__qualname__}, or read of one, through an"
                " RRef; call a function of your own that uses it"
            )
        definers = _definers(value, method)
        if any(map(_is_marked, (type(value), *(definer for definer, _ in definers)))):
            return
        exposed = self.mode == "exposed"
        foreign = next((each for each in definers if exposed or not self._may_define(*each)), None)
        if foreign is None:
            return
        dotted = _dotted(*foreign)
        request = _Request(FunctionRef(dotted), caller, worker)
        if exposed:
            raise request.refused("only what is marked with rpc.expose may be called")
        raise request.refused(
            "it is not of this project; mark the class with rpc.expose if it is yours, or"
            f" start the worker with RpcOptions(callables=[{dotted!r}])"
        )

    def check_found(
        self, value: object, name: str, found: object, *, caller: str = "", worker: str = ""
    ) -> None:
        """Checks that others may call what an attribute gave, after `check_method` of its name.

        That judged a method by its class. What a slot, a property or `__getattr__` gives is known
        only now, and judged as the function or object that it is.

        Args:
            value: Whose attribute.
            name: Its name; `__call__` for the value itself.
            found: What is about to be called.
            caller: Who asks, for errors.
            worker: Who is asked, for errors.

        Raises:
            CallRefusedError: It may not be called here.

        Example:
            >>> import os
            >>> from types import SimpleNamespace
            >>> policy = CallablePolicy("project")
            >>> policy.check_found(SimpleNamespace(run=os.system), "run", os.system)
            Traceback (most recent call last):
            telegrad.errors.CallRefusedError: ...
        """
        if name != "__call__" and not _is_method(value, name):
            self.check_method(found, "__call__", caller=caller, worker=worker)

    def _may_define(self, definer: object, method: str) -> bool:
        """Whether a class may give its objects this method, or a function may be called."""
        home = getattr(definer, "__module__", None)
        if not isinstance(home, str):
            return False
        dotted = _dotted(definer, method)
        if self._project.has(home) or home.startswith(ALLOWED_PACKAGES) or self._matches(dotted):
            return True
        if is_class(definer) and method != "__call__":
            return home in VALUE_MODULES and method not in REFUSED_METHODS
        return f"{home}:{getattr(definer, '__qualname__', '')}" in ALLOWED_NAMES

    def _resolve(self, request: _Request, *, called: bool) -> Callable[..., Any]:
        try:
            module_name, parts = split(request.ref.name)
        except (ValueError, TypeError) as error:
            raise request.refused(str(error)) from error
        found = _find(module_of(module_name), parts)
        if found is not None and _is_exposed(found):
            return _callable(found, request)
        if self.mode == "exposed" and (called or not _is_listed(request.ref.name)):
            raise request.refused("only what is marked with rpc.expose may be called")
        if not self._may_import(module_name, parts):
            self._check_project(module_name, found, request)
        if module_of(module_name) is None and self._imports(request.ref.name, parts):
            found = _find(_import(module_name, request), parts)
        if found is None:
            raise request.not_found()
        if not self._is_at_home(found, request.ref.name):
            raise request.refused("it is defined elsewhere, where it may not be called")
        return _callable(found, request)

    def _imports(self, name: str, parts: tuple[str, ...]) -> bool:
        """Whether the module of a name is imported for a call.

        NumPy imports some of its own modules (`numpy.fft`) when they are first used; where it is
        loaded, these are as good as loaded.
        """
        module = name.partition(":")[0]
        if name in ALLOWED_NAMES and module_of(module.partition(".")[0]) is not None:
            return True
        return self._may_import(module, parts)

    def _may_import(self, module: str, parts: tuple[str, ...]) -> bool:
        return self.mode == "importable" or self._matches(f"{module}.{'.'.join(parts)}")

    def _matches(self, dotted: str) -> bool:
        return any(fnmatchcase(dotted, pattern) for pattern in self.patterns)

    def _check_project(self, module_name: str, found: Found | None, request: _Request) -> None:
        if request.ref.name in ALLOWED_NAMES or self._project.has(module_name):
            return
        if module_name.startswith(ALLOWED_PACKAGES):
            return
        if module_of(module_name) is None and not is_foreign_name(module_name):
            raise request.not_found()
        dotted = request.ref.name.replace(":", ".")
        raise request.refused(
            "it is not of this project; call a function of your own script that uses it, or start"
            f" the worker with RpcOptions(callables=[{dotted!r}])"
        )

    def _is_at_home(self, found: Found, name: str) -> bool:
        """Whether the object was defined where it may be called, not merely imported there."""
        if self.mode == "importable" or name in ALLOWED_NAMES:
            return True
        target = found.value.__func__ if isinstance(found.value, types.MethodType) else found.value
        home = getattr(target, "__module__", None)
        if not isinstance(home, str):
            return self._matches(name.replace(":", "."))
        path = getattr(target, "__qualname__", "")
        return (
            wire_module(home) == name.partition(":")[0]
            or home.startswith(ALLOWED_PACKAGES)
            or self._project.has(home)
            or self._matches(f"{home}.{path}")
        )


class _Known(NamedTuple):
    """A function that was found and judged once; most are called again."""

    module: str
    path: str
    function: types.FunctionType

    def is_there(self) -> bool:
        """Whether its name still leads to it, at the top of its module."""
        module = module_of(self.module)
        return module is not None and vars(module).get(self.path) is self.function


@final
class _Request:
    """Who asks for what, to be named in errors."""

    __slots__ = ("_caller", "_worker", "ref")

    def __init__(self, ref: FunctionRef, caller: str, worker: str) -> None:
        self.ref = ref
        self._caller = f"the caller {caller!r}" if caller else "the caller"
        self._worker = f"worker {worker!r}" if worker else "this worker"

    def refused(self, why: str) -> CallRefusedError:
        name = repr(self.ref.name)[:500]
        return CallRefusedError(f"{self._worker} does not let {self._caller} have {name}: {why}")

    def not_found(self) -> FunctionNotFoundError:
        module, _, path = self.ref.name.partition(":")
        if module in MAIN_NAMES:
            own, script = main_script(), self.ref.script
            if script == own:
                return FunctionNotFoundError(
                    f"{self._worker} has no {path!r} in its script ({own}), which is also that of"
                    f" {self._caller}; define it at the top level, before init_rpc and not only"
                    " on some ranks"
                )
            return FunctionNotFoundError(
                f"{self._worker} has no {path!r} in its script ({own}); the script of"
                f" {self._caller} is {script or 'another one, or this one started otherwise'}."
                " All workers run the same script, or import what they call from a module"
            )
        if module_of(module) is None:
            return FunctionNotFoundError(
                f"{self._worker} has not imported {module!r}, so it has no {path!r} for"
                f" {self._caller}; import {module} in its script ({main_script()})"
            )
        return FunctionNotFoundError(
            f"{self._worker} has no {path!r} in its module {module!r}, which {self._caller} has;"
            " do both run the same version?"
        )


def _find(module: types.ModuleType | None, parts: tuple[str, ...]) -> Found | None:
    return find(module, parts) if module is not None else None


def _callable(found: Found, request: _Request) -> Callable[..., Any]:
    value = found.value
    if not callable(value):
        raise request.refused(f"it is a {type(value).__qualname__}, not a function or class")
    return value


def _is_exposed(found: Found) -> bool:
    """Whether the object, or a class on the way to it, is marked itself, not by inheritance."""
    target = found.value.__func__ if isinstance(found.value, types.MethodType) else found.value
    return any(_is_marked(each) for each in (target, *found.owners))


def _is_marked(target: object) -> bool:
    attributes = namespace(target) if is_class(target) else own_attributes(target)
    return attributes.get(_MARK) is True


def _is_listed(name: str) -> bool:
    return name in ALLOWED_NAMES or name.startswith(ALLOWED_PACKAGES)


def _definers(value: object, method: str) -> tuple[tuple[object, str], ...]:
    """Returns what decides on a method: the class that defines it, and the function where known.

    What stands in an object's own dictionary, and a function or class that is called itself, is
    judged as the function that it is; so is what a class holds and does not define.

    Returns:
        Each with the name by which it is used; `__call__` where it is called itself.
    """
    if method == "__call__":
        if type(value) is partial:
            return _definers(value.func, method)
        if isinstance(value, types.MethodType):
            return _definers(value.__func__, method)
        if is_class(value) or _has_home(value):
            return ((value, method),)
    own = None if is_class(value) else own_attributes(value).get(method)
    if callable(own):
        return _definers(own, "__call__")
    definer, raw = _defined(value, method)
    if not callable(raw) or _is_builtin_method(definer, raw):
        return ((definer, method),)
    if not is_class(raw) and _has_home(raw) and raw.__module__ == definer.__module__:
        return ((definer, method),)
    return ((definer, method), *_definers(raw, "__call__"))  # defined elsewhere, only put there


def _defined(value: object, name: str) -> tuple[type, object]:
    """Returns the class that gives an object, or a class, this name, and what it defines."""
    cls = value if is_class(value) else type(value)
    definer = next((base for base in bases(cls) if name in namespace(base)), cls)
    raw = namespace(definer).get(name)
    return definer, raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw


def _is_method(value: object, name: str) -> bool:
    """Whether an object has from its class what it calls by this name, and only that."""
    if not is_class(value):
        _, looked_up_by = _defined(value, "__getattribute__")
        if name in own_attributes(value) or isinstance(looked_up_by, types.FunctionType):
            return False
    definer, raw = _defined(value, name)
    if not callable(raw) or is_class(raw):
        return False
    return _has_home(raw) or _is_builtin_method(definer, raw)


def _is_builtin_method(definer: type, raw: object) -> bool:
    """Whether it is a method of a class in C, which says no module, in the class that it is of."""
    if not isinstance(raw, _BUILTIN_METHODS):
        return False
    return getattr(raw, "__objclass__", getattr(raw, "__self__", None)) is definer


def _has_home(value: object) -> bool:
    """Whether it is a function, of any kind, that says which module it is of."""
    names = (getattr(value, name, None) for name in ("__module__", "__qualname__"))
    return all(isinstance(name, str) for name in names)


def _dotted(definer: object, method: str) -> str:
    names = (getattr(definer, name, "") for name in ("__module__", "__qualname__"))
    path = ".".join(map(str, names))
    return f"{path}.{method}" if is_class(definer) and method != "__call__" else path


def _import(name: str, request: _Request) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise request.not_found() from error
