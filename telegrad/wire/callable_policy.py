"""The callee decides what may be called: from a name to a function, or a refusal.

Nothing is imported, looked up through a property, or built for a name that is refused.
"""

from __future__ import annotations

import importlib
import os
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, final

from telegrad.errors import CallRefusedError, FunctionNotFoundError
from telegrad.wire.allowed_functions import ALLOWED_NAMES, ALLOWED_PACKAGES
from telegrad.wire.class_types import own_attributes
from telegrad.wire.function_ref import FunctionRef
from telegrad.wire.lookup import (
    MAIN_NAMES,
    Found,
    find,
    is_class,
    main_script,
    module_of,
    namespace,
    split,
    wire_module,
)

__all__ = ["CallablePolicy", "expose"]

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("project", "exposed", "importable")

_MARK = "__telegrad_exposed__"
_OWN = Path(__file__).resolve().parent.parent


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

    __slots__ = ("_foreign", "_verdicts", "mode", "patterns")

    def __init__(self, mode: str = "project", patterns: Sequence[str] = ()) -> None:
        if mode not in MODES:
            raise ValueError(f"no such policy: {mode!r}; one of {', '.join(MODES)}")
        if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
            raise TypeError(
                f"patterns are a list of strings, such as ['mypkg.*'], not {patterns!r}"
            )
        self.mode = mode
        self.patterns = tuple(patterns)
        self._foreign = _foreign_directories()
        self._verdicts: dict[str, bool] = {}

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
        request = _Request(
            ref if isinstance(ref, FunctionRef) else FunctionRef(ref), caller, worker
        )
        try:
            module_name, parts = split(request.ref.name)
        except (ValueError, TypeError) as error:
            raise request.refused(str(error)) from error
        found = _find(module_of(module_name), parts)
        if found is not None and _is_exposed(found):
            return _callable(found, request)
        if self.mode == "exposed":
            raise request.refused("only what is marked with rpc.expose may be called")
        if not self._may_import(module_name, parts):
            self._check_project(module_name, found, request)
        elif module_of(module_name) is None:
            found = _find(_import(module_name, request), parts)
        if found is None:
            raise request.not_found()
        if not self._is_at_home(found, request.ref.name):
            raise request.refused("it is defined elsewhere, where it may not be called")
        return _callable(found, request)

    def _may_import(self, module: str, parts: tuple[str, ...]) -> bool:
        return self.mode == "importable" or self._matches(f"{module}.{'.'.join(parts)}")

    def _matches(self, dotted: str) -> bool:
        return any(fnmatchcase(dotted, pattern) for pattern in self.patterns)

    def _check_project(self, module_name: str, found: Found | None, request: _Request) -> None:
        if request.ref.name in ALLOWED_NAMES or self._is_project(module_name):
            return
        if module_name.startswith(ALLOWED_PACKAGES):
            return
        if module_of(module_name) is None and not _is_foreign_name(module_name):
            raise request.not_found()
        dotted = request.ref.name.replace(":", ".")
        raise request.refused(
            "it is not of this project; mark a function of yours with rpc.expose, or start the"
            f" worker with RpcOptions(callables=[{dotted!r}])"
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
            or self._is_project(home)
            or self._matches(f"{home}.{path}")
        )

    def _is_project(self, name: str) -> bool:
        if name in MAIN_NAMES:
            return True
        module = module_of(name)
        path = vars(module).get("__file__") if module is not None else None
        if not isinstance(path, str):
            return False
        if path not in self._verdicts:
            self._verdicts[path] = not _is_below(path, self._foreign)
        return self._verdicts[path]


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
            script = self.ref.script or "another one, or this one started otherwise"
            return FunctionNotFoundError(
                f"{self._worker} has no {path!r} in its script ({main_script()}); the script of"
                f" {self._caller} is {script}. All workers run the same script, or import"
                " what they call from a module"
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


def _import(name: str, request: _Request) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise request.not_found() from error


def _foreign_directories() -> tuple[str, ...]:
    """Returns where modules lie that are not the user's: the library's, packages', ours."""
    paths = sysconfig.get_paths()
    directories = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    directories += [*site.getsitepackages(), site.getusersitepackages(), str(_OWN)]
    directories.append(str(Path(os.__file__).parent))
    resolved = [os.path.realpath(directory) for directory in directories]
    return tuple(dict.fromkeys(f"{each}{os.sep}" for each in (*directories, *resolved)))


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    return path.startswith(directories) or os.path.realpath(path).startswith(directories)


def _is_foreign_name(module: str) -> bool:
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root == "telegrad"
