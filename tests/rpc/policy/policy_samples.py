"""What stands in a project's module: functions of its own, and ways around what may be called."""

from __future__ import annotations

import collections
import functools
import io
import operator
import os
import subprocess
import types
from collections.abc import Callable
from os import path, system
from pathlib import Path, PosixPath
from typing import Any, TypeVar

import numpy as np

from telegrad.nn import Module
from telegrad.rpc import expose
from tests.wire.samples import double, shown

__all__ = ["Path", "double", "np", "os", "path", "shown", "system"]

F = TypeVar("F", bound=Callable[..., Any])


def timed(func: F) -> F:
    """A decorator that says whom it wraps."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def rude(func: F) -> F:
    """A decorator that does not."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


# -- the project's own ------------------------------------------------------------------------


def plain(x: int) -> int:
    return x


alias = plain


@timed
def decorated(x: int) -> int:
    return x


@functools.lru_cache
def cached(x: int) -> int:
    return x


class Model:
    limit = 3

    def __call__(self, x: int) -> int:
        return x

    def forward(self, x: int) -> int:
        return x

    def _step(self) -> None: ...

    @staticmethod
    def build() -> Model:
        return Model()

    @classmethod
    def default(cls) -> Model:
        return cls()

    class Inner:
        @staticmethod
        def deep() -> int:
            return 1


class Small(Model):
    pass


model = Model()
bound = model.forward

# -- ways around ------------------------------------------------------------------------------

run = system
halved = functools.partial(double, 0.5)
shell = functools.partial(subprocess.run, shell=True)
cached_system = functools.lru_cache(system)
get_environ = operator.attrgetter("environ")
call_system = operator.methodcaller("system", "true")
vectorized = np.vectorize(system)
ufunc = np.frompyfunc(system, 1, 1)
results: list[int] = []
append = results.append
write = io.StringIO().write
namespace = types.SimpleNamespace(system=system)


@functools.wraps(system)
def wrapping_system(command: str) -> int:
    return len(command)


class Toolbox:
    run = staticmethod(subprocess.run)
    system = system
    path_class = Path
    module = os
    made = property(lambda self: subprocess.run)


class LogFile(PosixPath):
    """Derived from what does I/O, with nothing of its own."""


class Opener(io.FileIO):
    """Its constructor, which it does not have itself, opens a file."""


# -- what is exposed ----------------------------------------------------------------------------


@expose
def open_function() -> int:
    return 1


alias_of_open = open_function


@timed
@expose
def under_a_decorator() -> int:
    return 1


@expose
@timed
def above_a_decorator() -> int:
    return 1


@rude
@expose
def under_a_rude_one() -> int:
    return 1


@functools.wraps(open_function)
def admin() -> str:
    """Bears the mark of what it claims to wrap, and is another function."""
    return "admin"


@expose
class Open(Model):
    """Exposed: all of it, and what it inherits."""

    run = staticmethod(subprocess.run)
    path_class = Path
    item_class = Small
    own = plain

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.system = system

    def score(self) -> int:
        return self.width

    @timed
    def scored(self) -> int:
        return self.width

    @rude
    def rudely_scored(self) -> int:
        return self.width

    @staticmethod
    def make() -> Open:
        return Open()

    @classmethod
    def made(cls) -> Open:
        return cls()

    def _secret(self) -> None: ...

    class Part:
        @staticmethod
        def piece() -> int:
            return 1


class OpenChild(Open):
    """Not exposed itself."""

    def score(self) -> int:
        return 0

    def more(self) -> int:
        return 1


@expose
class OpenNet(Module):
    def forward(self, x: int) -> int:
        return x


class Half:
    """One of its methods is exposed."""

    @expose
    def shown(self) -> int:
        return 1

    @staticmethod
    @expose
    def static() -> int:
        return 1

    @expose
    @classmethod
    def of_class(cls) -> int:
        return 1

    def hidden(self) -> int:
        return 1


class HalfChild(Half):
    def shown(self) -> int:
        return 2


class Factory(collections.defaultdict[str, Any]):
    """Keeps a function where nobody expects one."""
