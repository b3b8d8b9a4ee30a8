"""Classes and functions that the tests of the wire send about."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from functools import cached_property, lru_cache, partial
from importlib import import_module
from os import system
from typing import Any, NamedTuple

import numpy as np

from telegrad.errors import (
    CallTimeoutError,
    EncodeError,
    RemoteError,
    TelegradError,
    WorkerLostError,
)
from telegrad.rpc import expose
from telegrad.rpc.seams import CallablePolicy
from telegrad.wire import decode, describe, encode, rebuild

__all__ = ["os", "subprocess", "system"]


FUNCTIONS = CallablePolicy().resolve


def round_trip(value: Any) -> Any:
    """Sends a value as far as the bytes and back."""
    encoded = encode(value)
    metadata, buffers = describe(encoded.externals)
    arrays = rebuild(metadata, [bytearray(each) for each in buffers])
    return decode(encoded.document, arrays, functions=FUNCTIONS)


class Color(Enum):
    RED = 1
    GREEN = "green"
    BOTH = (1, "green")


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"


class Access(Flag):
    READ = auto()
    WRITE = auto()
    RUN = auto()


class Bits(IntFlag):
    A = 1
    B = 2


class Peculiar(Flag):
    A = 1
    B = 2

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise AssertionError("ran while decoding")


@dataclass
class Point:
    x: float
    y: Any = 0
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class Slotted:
    name: str
    size: int = 3


@dataclass(eq=False)
class Watchful:
    """Everything that decoding must not run."""

    value: int

    def __new__(cls, value: int) -> Watchful:
        raise AssertionError("__new__ ran")

    def __post_init__(self) -> None:
        raise AssertionError("__post_init__ ran")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("__setattr__ ran")

    def __setstate__(self, state: object) -> None:
        raise AssertionError("__setstate__ ran")


@dataclass
class Derived:
    base: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.base * 2
        self.extra = "kept"

    @cached_property
    def slow(self) -> int:
        return self.base + 1


@dataclass
class Unset:
    """`steps` stands in the class alone."""

    base: int
    steps: int = field(init=False, default=0)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.base * 2


@dataclass
class Computed:
    """What stands under the name of its field is no value, but what computes one."""

    size: int = field(init=False)

    @property
    def computed_size(self) -> int:
        raise AssertionError("ran while encoding")


Computed.size = Computed.computed_size  # type: ignore[assignment]


@dataclass
class Called:
    """Could be called, with what its sender wrote into it."""

    command: str = ""

    def __call__(self) -> str:
        return self.command


class Whole(int):
    pass


class Undecorated(Point):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Interval:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high


class Plain:
    pass


class OddError(Exception):
    """Cannot be built from its args, and keeps attributes."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class SilentError(TelegradError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class SlottedError(Exception):
    """Keeps what it knows in slots, one of which is never set, and one of which is None."""

    __slots__ = ("code", "nothing", "unset")

    code: int
    nothing: None
    unset: int

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.nothing = None


def raised(func: Any, *args: Any) -> BaseException:
    try:
        func(*args)
    except BaseException as error:
        return error.with_traceback(None)
    raise AssertionError("nothing was raised")


EXCEPTIONS: list[BaseException] = [
    ValueError("words", 3),
    KeyError(("a", 1)),
    FileNotFoundError(2, "no such file", "/x"),
    PermissionError("one argument alone"),
    BlockingIOError(11, "not now", 5),
    OSError(2, (1,)),
    raised(os.rename, "/no/such/file", "/nor/this"),
    raised(open, "/no/such/file"),
    raised(b"\xff".decode, "utf-8"),
    raised(json.loads, "{"),
    raised(np.sum, np.zeros(2), 5),
    StopIteration(4),
    ImportError("m", name="n", path="p"),
    raised(import_module, "no_such_module"),
    raised(eval, "no_such_name"),
    raised(getattr, 3, "nope"),
    OddError(4, detail="d"),
    SlottedError(7),
    ExceptionGroup("many", [ValueError(1)]),
    EncodeError("e", path="args[0]"),
    WorkerLostError("w", worker="ps", incarnation=2**62, last_seen=1.5, reason="r"),
    CallTimeoutError("t", worker="ps", function="f", phase="waiting", elapsed=2.0),
    RemoteError("r", type_name="a:b"),
    raised(compile, "1 +", "<x>", "eval"),
]

# Where exceptions keep what is neither in `args` nor in their dictionary.
FIELDS = """axis characters_written code end errno filename filename2 lineno message msg name nothing object
    offset path reason start strerror text unset value"""


def is_like(arrived: BaseException, error: BaseException) -> bool:
    """Tells whether an exception has all of another one, but for notes and what is private."""

    def told(each: BaseException) -> dict[str, object]:
        fields = {name: getattr(each, name) for name in FIELDS.split() if hasattr(each, name)}
        own = {name: value for name, value in vars(each).items() if name[:2] != "__"}
        members = list(map(repr, getattr(each, "exceptions", ())))
        return {**fields, **own, "": (type(each), str(each), members or each.args)}

    assert told(arrived) == told(error)
    return True


@dataclass(frozen=True)
class Model:
    width: int = 1

    def forward(self, x: int) -> int:
        return x * self.width

    @staticmethod
    def build(width: int) -> Model:
        return Model(width)

    @classmethod
    def default(cls) -> Model:
        return cls(7)

    def _private(self) -> None: ...


class SmallModel(Model):
    pass


def double(x: Any) -> Any:
    return 2 * x


def _hidden(x: int) -> int:
    return x


def outer() -> Any:
    def inner() -> None: ...

    return inner


@lru_cache
def remembered(x: int) -> int:
    return x


@expose
def shown() -> str:
    return "shown"


@expose
class Shown:
    @staticmethod
    def make() -> int:
        return 1


square = lambda x: x * x  # noqa: E731
halved = partial(double, 0.5)
model = Model(3)
bound = model.forward
