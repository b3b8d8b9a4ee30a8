"""The callee's policy on calls: maps a name to a function, or refuses it.

For a refused name nothing is imported, no property is read, and no object is built.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, final

from telegrad.errors import CallRefusedError, FunctionNotFoundError
from telegrad.rpc.policy.allowed import (
    ALLOWED_NAMES,
    ALLOWED_PACKAGES,
    REFUSED_METHODS,
    SENT_TYPES,
    VALUE_MODULES,
)
from telegrad.rpc.policy.exposure import (
    defined,
    definers,
    dotted,
    home_of,
    is_at_home,
    is_marked,
    is_method,
)
from telegrad.types import WorkerInfo
from telegrad.wire import Project, is_foreign_name, names

# -- the option that says what may be called -----------------------------------------------------

MODES = ("project", "exposed", "importable")

# (caller, module, qualified name) -> True if it may be called.
Decide: TypeAlias = Callable[[WorkerInfo, str, str], bool]
Callables: TypeAlias = str | Sequence[str] | Decide


def checked_callables(callables: object) -> str | tuple[str, ...] | Decide:
    """Returns `RpcOptions.callables`, checked and frozen.

    Raises:
        ValueError: There is no such mode.
        TypeError: The value is no mode, list of patterns, or plain function.
    """
    if isinstance(callables, str):
        if callables not in MODES:
            raise ValueError(
                f"RpcOptions.callables must be one of {', '.join(map(repr, MODES))} or a list "
                f"of patterns such as ['mypkg.*'] (got {callables!r})"
            )
        return callables
    if isinstance(callables, Sequence) and all(isinstance(each, str) for each in callables):
        return tuple(callables)
    if not callable(callables):
        raise TypeError(
            "RpcOptions.callables must be a str, a list of patterns, or a function (caller, "
            f"module, qualname) -> bool, not {callables!r}"
        )
    if inspect.iscoroutinefunction(callables):
        raise TypeError(
            f"RpcOptions.callables must not be async, as {callables!r} is: a call waits in a "
            "thread until it is decided; write a plain def, which may block"
        )
    return callables


# -- requests for a function, and the errors that refuse them ------------------------------------

_SOMEBODY = WorkerInfo("", -1, 0)  # the caller if none is given

Record: TypeAlias = Callable[[WorkerInfo, str, str, CallRefusedError, str | None], None]


def _no_record(*_: object) -> None:
    pass


@final
@dataclass(slots=True)
class CallableRequest:
    """A request for a function, with the names for errors.

    Attributes:
        policy: The policy that judges it.
        name: The name of the function in errors, `module:qualname`.
        caller: The worker that requests it.
        script: The caller's script; empty where it is not known.
        logged: The name of the function in the audit log; `name` by default.
        reason: The reason in the audit log.
        kind: The kind of the envelope in the audit log; None for that of the call that is served.
    """

    policy: CallablePolicy
    name: str
    caller: WorkerInfo
    script: str = ""
    logged: str = ""
    reason: str = "NOT_ALLOWED"
    kind: str | None = None

    def refused(self, why: str) -> CallRefusedError:
        """Records that the caller may not have the function, and returns the error."""
        name = repr(self.name)[:500]
        error = CallRefusedError(f"{self._worker} does not let {self._who} have {name}: {why}")
        logged = self.logged or self.name
        self.policy.record(self.caller, logged, self.reason, error, self.kind)
        return error

    def not_found(self) -> FunctionNotFoundError:
        """Returns the error for a function that does not exist."""
        module, _, path = self.name.partition(":")
        if module in names.MAIN_NAMES:
            return self._not_in_script(path)
        if names.module_of(module) is None:
            return FunctionNotFoundError(
                f"{self._worker} has not imported {module!r}, so it has no {path!r} for"
                f" {self._who}; import {module} in its script ({names.main_script()})"
            )
        return FunctionNotFoundError(
            f"{self._worker} has no {path!r} in its module {module!r}, which {self._who} has;"
            " do both run the same version?"
        )

    def _not_in_script(self, path: str) -> FunctionNotFoundError:
        own, script = names.main_script(), self.script
        if script == own:
            return FunctionNotFoundError(
                f"{self._worker} has no {path!r} in its script ({own}), which is also that of"
                f" {self._who}; define it at the top level, before init_rpc and not only"
                " on some ranks"
            )
        return FunctionNotFoundError(
            f"{self._worker} has no {path!r} in its script ({own}); the script of"
            f" {self._who} is {script or 'another one, or this one started otherwise'}."
            " All workers run the same script, or import what they call from a module"
        )

    @property
    def _worker(self) -> str:
        return f"worker {self.policy.worker!r}" if self.policy.worker else "this worker"

    @property
    def _who(self) -> str:
        return f"the caller {self.caller.name!r}" if self.caller.name else "the caller"


# -- the policy ----------------------------------------------------------------------------------

MOST_KNOWN = 1000  # methods; only a program that keeps making classes has more

# These lead in a step or two to everything in the process, though their class is a builtin one.
_INTERNALS = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType)


@final
class CallablePolicy:
    """The policy on functions that others may call on this worker by name.

    In every mode, objects marked with `expose` may be called. No part of a name may begin with an
    underscore.

    Args:
        callables: As in `RpcOptions`. `"project"`: objects defined in `__main__`, or in modules
            that this process has imported from outside the standard library, site-packages and
            telegrad; and the functions of `telegrad.rpc.policy.allowed`. `"exposed"`: nothing else.
            `"importable"`: anything; that is remote code execution for anyone who holds the token.
            Dotted names (`["mypkg.*", "math.sqrt"]`): these, and those of `"project"`. A function
            that decides instead of all that, on marked objects too: it gets the caller, the module
            and the qualified name, and returns True or False; if it raises, the call is refused. It
            is called each time, before anything is imported. If the name leads to an object that
            was defined under another name, it is called for that name as well.
        worker: The name of this worker, for errors.
        record: Called for each refusal with the caller, the function's name, the reason for
            programs, the error, and the kind of the envelope or None.

    Attributes:
        mode: One of `MODES`; `"project"` under patterns.
        worker: The name of this worker, for errors.
        record: As given.

    Raises:
        ValueError: There is no such mode.
        TypeError: `callables` is nothing that the option takes.

    Example:
        >>> CallablePolicy(["math.*"]).resolve("math:sqrt")(16.0)
        4.0
        >>> only_pow = CallablePolicy(lambda caller, module, name: name == "pow")
        >>> only_pow.resolve("math:pow")(2.0, 3.0)
        8.0
    """

    def __init__(
        self, callables: Callables = "project", worker: str = "", record: Record = _no_record
    ) -> None:
        checked = checked_callables(callables)
        self.mode = checked if isinstance(checked, str) else "project"
        self.worker = worker
        self.record = record
        self._patterns = checked if isinstance(checked, tuple) else ()
        self._decide = checked if not isinstance(checked, str | tuple) else None
        self._project = Project()
        # Verdicts on functions that may be called; most are called again. A verdict holds for the
        # same function under the same name, and for a method also on the same class.
        self._known: dict[str, tuple[str, str, types.ModuleType, types.FunctionType]] = {}
        self._known_methods: set[tuple[type, str, object]] = set()

    def __repr__(self) -> str:
        return f"CallablePolicy({self._decide or list(self._patterns) or self.mode!r})"

    def resolve(
        self, name: str, *, script: str = "", caller: WorkerInfo = _SOMEBODY
    ) -> Callable[..., Any]:
        """Returns the function or class of that name.

        Args:
            name: `module:qualname`.
            script: The caller's script, for errors.
            caller: The worker that requests it.

        Raises:
            CallRefusedError: The function may not be called here.
            FunctionNotFoundError: There is no function of that name here.
        """
        known = self._known.get(name) if type(name) is str else None
        if known is not None:
            module, path, home, function = known
            same = home.__dict__.get(path) is function
            if same and sys.modules.get(module) is home:
                return function
        found: Callable[..., Any] = self._resolve(
            CallableRequest(self, name, caller, script), called=True
        )
        mine = self._decide is None and _at_top(name) is found  # one in a class has many names
        if mine and type(found) is types.FunctionType:
            module, _, path = name.partition(":")
            # The script's module has several names, and a tool runs it in a dict of its own.
            owner = names.module_of(module)
            if owner is not None and vars(owner).get(path) is found:
                self._known[name] = owner.__name__, path, owner, found
        return found

    def resolve_value(
        self, name: str, *, caller: WorkerInfo = _SOMEBODY, kind: str | None = None
    ) -> Callable[..., Any]:
        """Returns the function or class of a name that is sent as a value: an argument, a dtype.

        The rules are those of `resolve`, since its receiver may call it. However, the listed
        functions, and the modules and optimizers of telegrad, are allowed in every mode, without
        asking `decide`.

        Args:
            name: `module:qualname`.
            caller: The worker that has sent it.
            kind: The kind of the envelope that brought it.

        Raises:
            CallRefusedError: The function may not be had here.
            FunctionNotFoundError: There is no function of that name here.
        """
        reason = "NOT_ALLOWED_AS_VALUE"
        request = CallableRequest(self, name, caller, reason=reason, kind=kind)
        return self._resolve(request, called=False)

    def check_method(
        self, value: object, method: str, caller: WorkerInfo = _SOMEBODY, logged: str = ""
    ) -> None:
        """Checks that others may call a method of a value, through a reference to it.

        A method is allowed if the class that defines it would be allowed as a function: it is of
        this project, marked, or named by a pattern (`"pathlib.*"`). Methods of plain values and
        arrays that do no I/O may be called as well. No method of a module may be called.

        The attribute that the method's name gives may have to be checked as well: `check_found`.

        Args:
            value: The object that has the method.
            method: The method's name; `__call__` for the object itself.
            caller: The worker that requests it.
            logged: The name of the method in the audit log; that of the object's class by default.

        Raises:
            CallRefusedError: The method may not be called here.

        Example:
            >>> CallablePolicy("project").check_method([1, 2], "append")
            >>> from pathlib import Path
            >>> CallablePolicy("project").check_method(Path("/"), "rmdir")
            Traceback (most recent call last):
            telegrad.errors.CallRefusedError: ...
        """
        if self.mode == "importable" and self._decide is None:
            return
        if self._knows(value, method):
            return
        request = CallableRequest(self, "", caller, logged=logged or _called(value, method))
        if isinstance(value, _INTERNALS):
            name = names.own_attributes(value).get("__name__") or type(value).__qualname__
            request.name = f"{name}.{method}"
            raise request.refused(
                f"methods and attributes of a {type(value).__qualname__} cannot be used through an"
                " RRef; call a function of your own that uses it"
            )
        if self._decide is not None:
            self._ask_of_method(value, method, request)
            return
        deciding = definers(value, method)
        for definer, name in deciding:
            if self._may_have(value, definer, name):
                continue
            request.name = called = dotted(definer, name)
            if self.mode == "exposed":
                raise request.refused("only what is marked with rpc.expose may be called")
            raise request.refused(
                "it is not of this project; mark the class with rpc.expose if it is yours, or"
                f" start the worker with RpcOptions(callables=[{called!r}])"
            )
        # An attribute of the object itself, or a foreign function, was judged as "__call__".
        if [name for _, name in deciding] == [method] != ["__call__"] and not names.is_class(value):
            self._remember(type(value), method)

    def check_found(
        self, value: object, name: str, found: object, caller: WorkerInfo = _SOMEBODY
    ) -> None:
        """Checks that others may call an attribute's value, after `check_method` of its name.

        `check_method` decides on a method by its class. The result of a slot, a property or
        `__getattr__` is known only now, and is checked as the function or object that it is.

        Args:
            value: The object that has the attribute.
            name: The attribute's name; `__call__` for the object itself.
            found: The attribute's value, which is about to be called.
            caller: The worker that requests it.

        Raises:
            CallRefusedError: The value may not be called here.

        Example:
            >>> import os
            >>> from types import SimpleNamespace
            >>> policy = CallablePolicy("project")
            >>> policy.check_found(SimpleNamespace(run=os.system), "run", os.system)
            Traceback (most recent call last):
            telegrad.errors.CallRefusedError: ...
        """
        if type(found) is types.MethodType and found.__self__ is value and name != "__call__":
            cls = type(value)
            if type(cls) is type and (cls, name, found.__func__) in self._known_methods:
                return
        if name != "__call__" and not is_method(value, name):
            self.check_method(found, "__call__", caller, _called(value, name))

    # Methods.

    def _knows(self, value: object, name: str) -> bool:
        """Returns True if this method of the object's class was allowed; runs no user code."""
        cls = type(value)
        if type(cls) is not type:  # another metaclass may define equality of its classes
            return False
        function, own = names.first_in_bases(cls, name), names.instance_dict(cls)
        return (
            type(function) is types.FunctionType
            and (cls, name, function) in self._known_methods
            and (own is None or name not in own(value))
        )

    def _remember(self, cls: type, name: str) -> None:
        """Remembers that a method may be called on the objects of a class."""
        function = names.first_in_bases(cls, name)
        plain = type(cls) is type and type(function) is types.FunctionType
        if plain and "<locals>" not in cls.__qualname__ and len(self._known_methods) < MOST_KNOWN:
            self._known_methods.add((cls, name, function))

    def _may_have(self, value: object, definer: object, method: str) -> bool:
        """Returns True if a class may give this object this method, or a function may be called."""
        cls = value if names.is_class(value) else type(value)
        constructs = names.is_class(value) and method == "__call__"
        if names.is_class(definer) and definer in names.bases(cls) and not constructs:
            path = f"{definer.__qualname__}.{method}"
            if is_marked(defined(definer, method)[1], path):
                return True
            marked = any(is_marked(each, each.__qualname__) for each in (cls, definer))
        else:
            marked = is_marked(definer, _path_to(definer))
        return marked or (self.mode != "exposed" and self._may_define(definer, method))

    def _may_define(self, definer: object, method: str) -> bool:
        home = getattr(definer, "__module__", None)
        if not isinstance(home, str):
            return False
        if self._project.has(home) or _is_own(home) or self._matches(dotted(definer, method)):
            return True
        if names.is_class(definer) and method != "__call__":
            return home in VALUE_MODULES and method not in REFUSED_METHODS
        return f"{home}:{getattr(definer, '__qualname__', '')}" in ALLOWED_NAMES

    # Names.

    def _resolve(self, request: CallableRequest, *, called: bool) -> Callable[..., Any]:
        try:
            module_name, parts = names.split(request.name)
        except (ValueError, TypeError) as error:
            raise request.refused(str(error)) from error
        if not called and request.name in SENT_TYPES:
            return SENT_TYPES[request.name]
        listed = not called and _is_listed(request.name)
        if self._decide is not None and not listed:
            return self._ask_of_name(request, module_name, parts)
        found = names.find(names.namespace_of(module_name), parts)
        if found is not None and _is_exposed(found, parts):
            return _callable(found, request)
        if self.mode == "exposed" and not listed:
            raise request.refused("only what is marked with rpc.expose may be called")
        if not self._may_import(module_name, parts):
            self._check_project(module_name, request)
        if names.module_of(module_name) is None and self._imports(request.name, parts):
            found = names.find(_import(module_name, request), parts)
        if found is None:
            raise request.not_found()
        if not self._is_at_home(found, request.name):
            raise request.refused("it is defined elsewhere, where it may not be called")
        return _callable(found, request)

    def _imports(self, name: str, parts: tuple[str, ...]) -> bool:
        """Returns True if the module of a name is imported for a call.

        NumPy imports some of its own modules (`numpy.fft`) on first use; if NumPy is loaded, they
        count as loaded.
        """
        module = name.partition(":")[0]
        if name in ALLOWED_NAMES and names.module_of(module.partition(".")[0]) is not None:
            return True
        return self._may_import(module, parts)

    def _may_import(self, module: str, parts: tuple[str, ...]) -> bool:
        return self.mode == "importable" or self._matches(f"{module}.{'.'.join(parts)}")

    def _matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _check_project(self, module_name: str, request: CallableRequest) -> None:
        if request.name in ALLOWED_NAMES or self._project.has(module_name):
            return
        if _is_own(module_name):
            return
        if names.module_of(module_name) is None and not is_foreign_name(module_name):
            raise request.not_found()
        pattern = request.name.replace(":", ".")
        raise request.refused(
            "it is not of this project; write a function of your own that uses it, or start"
            f" the worker with RpcOptions(callables=[{pattern!r}])"
        )

    def _is_at_home(self, found: names.Found, name: str) -> bool:
        """Returns True if the object is also defined where it may be called, not just imported."""
        if self.mode == "importable" or name in ALLOWED_NAMES:
            return True
        target = _function_of(found)
        home = names.attribute(target, "__module__")
        if type(home) is not str:
            return self._matches(name.replace(":", "."))
        path = names.attribute(target, "__qualname__") or ""
        return (
            names.wire_module(home) == name.partition(":")[0]
            or _is_own(home)
            or self._project.has(home)
            or self._matches(f"{home}.{path}")
        )

    # A policy function of the user's.

    def _ask_of_name(
        self, request: CallableRequest, module_name: str, parts: tuple[str, ...]
    ) -> Callable[..., Any]:
        asked = names.wire_module(module_name), ".".join(parts)
        self._ask(request, *asked)
        space = names.namespace_of(module_name)
        found = names.find(_import(module_name, request) if space is None else space, parts)
        if found is None:
            raise request.not_found()
        function = _callable(found, request)
        if request.name not in ALLOWED_NAMES:
            self._ask_elsewhere(request, asked, home_of(function))
        return function

    def _ask_of_method(self, value: object, method: str, request: CallableRequest) -> None:
        """Asks about `Class.method`, and about its definition if that is in another module."""
        cls = value if names.is_class(value) else type(value)
        asked = names.wire_module(cls.__module__), f"{cls.__qualname__}.{method}"
        if method == "__call__":
            asked = home_of(value)
        request.name = ":".join(asked)
        self._ask(request, *asked)
        for definer, name in definers(value, method):
            if not (names.is_class(definer) and definer in names.bases(cls)):
                self._ask_elsewhere(request, asked, home_of(definer))
            elif not _is_below(home := names.wire_module(definer.__module__), asked[0]):
                self._ask(request, home, f"{definer.__qualname__}.{name}")

    def _ask_elsewhere(
        self, request: CallableRequest, asked: tuple[str, str], home: tuple[str, str]
    ) -> None:
        """Asks about the definition of an object if it was named elsewhere."""
        if not (home[1] == asked[1] and _is_below(home[0], asked[0])):
            self._ask(request, *home)

    def _ask(self, request: CallableRequest, module: str, path: str) -> None:
        assert self._decide is not None
        about = "" if request.name == f"{module}:{path}" else f", asked of {module}:{path}"
        try:
            allowed: object = self._decide(request.caller, module, path)
        except BaseException as error:  # around the user's function
            words = f"{type(error).__name__}: {error}"[:500]
            raise request.refused(f"the policy of that worker raised {words}{about}") from error
        if allowed is True:
            return
        if allowed is False:
            raise request.refused(f"the policy of that worker says no{about}")
        if isinstance(allowed, Coroutine):
            allowed.close()  # `decide` may not be an `async def`: the caller would wait for it
        raise request.refused(
            f"the policy of that worker returned a {type(allowed).__qualname__}, and not True or"
            f" False{about}"
        )


def project_function(name: str) -> Callable[..., Any]:
    """Returns the function of a name if the mode `"project"` lets every worker send it.

    It is for values that belong to no call of one agent: of collectives, and of exceptions.

    Raises:
        CallRefusedError: The function may not be had here.
        FunctionNotFoundError: There is no function of that name here.
    """
    return CallablePolicy().resolve_value(name)


def _called(value: object, method: str) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}.{method}"


def _at_top(name: str) -> object:
    """Returns the object at the top of a module that has this name; None if there is none."""
    module, _, path = name.partition(":")
    space = names.namespace_of(module)
    return None if space is None else space.get(path)


def _path_to(function: object) -> str:
    """Returns the qualified name of a function or class if that leads to it, else ""."""
    module, path = home_of(function)
    found = names.find(names.namespace_of(module), tuple(path.split(".")))
    return path if found is not None and found.value is function else ""


def _callable(found: names.Found, request: CallableRequest) -> Callable[..., Any]:
    value = found.value
    if not callable(value):
        raise request.refused(f"it is a {type(value).__qualname__}, not a function or class")
    return value


def _function_of(found: names.Found) -> object:
    value = found.value
    return value.__func__ if type(value) is types.MethodType else value


def _is_exposed(found: names.Found, parts: tuple[str, ...]) -> bool:
    """Returns True if an object is marked, or was defined in a marked class on the way to it."""
    target = _function_of(found)
    if is_marked(target, ".".join(parts)):
        return True
    path = parts[len(parts) - len(found.owners) :]
    covered = False
    for owner, name in zip(found.owners, path, strict=True):
        definer, raw = defined(owner, name)
        qualname = str(names.attribute(owner, "__qualname__"))
        covered = (covered or is_marked(owner, qualname)) and is_at_home(raw, definer)
    return covered


def _is_listed(name: str) -> bool:
    return name in ALLOWED_NAMES or _is_own(name.partition(":")[0])


def _is_own(module: str) -> bool:
    return any(_is_below(module, package) for package in ALLOWED_PACKAGES)


def _is_below(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _import(name: str, request: CallableRequest) -> Mapping[str, Any]:
    """Imports a module and returns its namespace."""
    try:
        return names.module_namespace(importlib.import_module(name))
    except ImportError as error:
        raise request.not_found() from error
