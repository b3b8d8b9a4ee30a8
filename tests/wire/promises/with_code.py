"""Classes whose code must not run while a message is read; each notes in `RAN` what did."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, NamedTuple

from telegrad.wire import register_type

RAN: list[str] = []


def noted(name: str, result: Any = None) -> Callable[..., Any]:
    """Returns a method that notes that it ran."""

    def method(*args: object, **kwargs: object) -> Any:
        RAN.append(name)
        return result

    return method


class Descriptor:
    """In the place of a field: goes before what the object itself holds."""

    __get__ = noted("Descriptor.__get__", 1)
    __set__ = noted("Descriptor.__set__")


class Meta(type):
    """Everything that a metaclass is asked."""

    __call__ = noted("Meta.__call__")
    __eq__ = noted("Meta.__eq__", result=False)
    __hash__ = noted("Meta.__hash__", 1)
    __instancecheck__ = noted("Meta.__instancecheck__", result=False)
    __subclasscheck__ = noted("Meta.__subclasscheck__", result=False)
    mro_was: ClassVar[object] = None

    def __getattribute__(cls, name: str) -> Any:
        RAN.append(f"Meta.__getattribute__({name})")
        return type.__getattribute__(cls, name)


def answers(name: str, methods: str, properties: str, result: Any = 1) -> dict[str, Any]:
    """Returns what stands in a class that notes whatever it is asked."""
    space: dict[str, Any] = {each: noted(f"{name}.{each}", result) for each in methods.split()}
    for each in properties.split():
        asked, told = noted(f"{name}.{each}", result), noted(f"{name}.{each} =")
        space[each] = property(asked, told)
    return space


@dataclass(eq=False, init=False, repr=False)
class Everything:
    """All that an object is asked by Python and by NumPy; nothing of it is needed to rebuild one."""

    value: Any
    early: InitVar[int]
    shared: ClassVar[int] = 0

    vars().update(
        answers(
            "Everything",
            "__new__ __init__ __post_init__ __setattr__ __delattr__ __getattribute__ __getattr__ "
            "__setstate__ __reduce__ __reduce_ex__ __getstate__ __eq__ __ne__ __lt__ __hash__ __bool__ "
            "__len__ __iter__ __getitem__ __contains__ __index__ __int__ __float__ __complex__ __str__ "
            "__repr__ __format__ __bytes__ __call__ __array__ __array_ufunc__ __array_function__ "
            "__buffer__ __fspath__ __init_subclass__ __class_getitem__ __dir__ __copy__ __deepcopy__ "
            "__enter__ __set__ __get__ __set_name__",
            "__class__ dtype __array_interface__ __array_priority__",
        )
    )


@dataclass(eq=False, init=False, repr=False)
class Hiding(Everything):
    """Hides what it holds."""

    vars().update(answers("Hiding", "", "__dict__ __weakref__", {}))


def vars_of(value: object) -> dict[str, Any]:
    """Returns the dictionary that an object really has."""
    spaces = [type.__dict__["__dict__"].__get__(base) for base in type.mro(type(value))]
    descriptors = [space.get("__dict__") for space in spaces]
    (found,) = (each for each in descriptors if type(each) is types.GetSetDescriptorType)
    own: dict[str, Any] = found.__get__(value)
    return own


@dataclass
class OfMeta(metaclass=Meta):
    value: int = 1


@dataclass(frozen=True)
class Own:
    """Hashes and compares as it pleases."""

    value: int = 1
    __hash__ = noted("Own.__hash__", 1)
    __eq__ = noted("Own.__eq__", result=True)


@dataclass(frozen=True)
class OwnHash:
    value: int = 1

    def __hash__(self) -> int:
        RAN.append("OwnHash.__hash__")
        return 1


@dataclass(eq=False)
class OwnEqual:
    value: int = 1
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        RAN.append("OwnEqual.__eq__")
        return True


class OwnTuple(NamedTuple):
    value: int = 1


OwnTuple.__hash__ = noted("OwnTuple.__hash__", 1)  # type: ignore[method-assign]


class OwnColor(enum.Enum):
    RED = 1

    def __hash__(self) -> int:
        RAN.append("OwnColor.__hash__")
        return 1


class OwnLookup(enum.Enum):
    RED = 1

    def __getattribute__(self, name: str) -> Any:
        RAN.append("OwnLookup.__getattribute__")
        return super().__getattribute__(name)


@dataclass(frozen=True)
class Looked:
    value: int = 1

    def __getattribute__(self, name: str) -> Any:
        RAN.append("Looked.__getattribute__")
        return object.__getattribute__(self, name)


@dataclass(frozen=True)
class Described:
    value: int = 1


Described.value = Descriptor()  # type: ignore[assignment]


class Missing(enum.Flag):
    A = 1
    B = 2
    _missing_ = classmethod(noted("missing of Missing"))


class Iterating(enum.Flag):
    A = 1
    B = 2
    _iter_member_ = classmethod(noted("members of Iterating", ()))


class Setting(enum.Flag):
    A = 1
    B = 2

    def __setattr__(self, name: str, value: object) -> None:
        RAN.append("Setting.__setattr__")
        object.__setattr__(self, name, value)


class Number(int):
    def __new__(cls, value: int = 0) -> Number:
        RAN.append("Number.__new__")
        return int.__new__(cls, value)

    __eq__ = noted("Number.__eq__", result=True)
    __hash__ = int.__hash__


class OfNumbers(Number, enum.Flag):  # type: ignore[misc]
    A = 1
    B = 2


class Dropped:
    def __del__(self) -> None:
        RAN.append("Dropped.__del__")


@dataclass
class DroppedRecord(Dropped):
    value: int = 1


class DroppedPair(NamedTuple):
    value: int = 1


DroppedPair.__del__ = noted("DroppedPair.__del__")  # type: ignore[attr-defined]


class DroppedError(Dropped, ValueError):
    pass


class CarefulError(OSError, metaclass=Meta):
    """An exception whose class has an opinion on everything."""

    vars().update(
        answers(
            "CarefulError",
            "__new__ __init__ __setattr__ __getattribute__ __setstate__ __str__ __repr__ add_note "
            "with_traceback __eq__ __hash__",
            "__cause__ __notes__ __dict__ __context__ args errno detail",
        )
    )


class Callable_:
    """Can be called, and found in a module; says about itself what it likes."""

    __call__ = noted("Callable_.__call__")

    def __getattribute__(self, name: str) -> Any:
        RAN.append(f"Callable_.{name}")
        return "tests.wire.promises.with_code"


found = Callable_()


class Lazy(types.ModuleType):
    """A module that is loaded when it is first used, as `importlib.util.LazyLoader` makes them."""

    def __getattribute__(self, name: str) -> Any:
        RAN.append(f"Lazy.{name}")
        return types.ModuleType.__getattribute__(self, name)


@dataclass(frozen=True)
class Key:
    """As most are: nothing of it runs."""

    name: str
    size: Any = 0
    note: list[int] = field(default_factory=list, compare=False)


class Answering(NamedTuple):
    value: int = 1


Answering.__array__ = noted("Answering.__array__")  # type: ignore[attr-defined]


class Registered:
    """Of a type that is registered: only that code of it runs."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        RAN.append("Registered.__eq__")
        return True


register_type(Registered, encode=lambda _: [1, 2], decode=lambda _: Registered())


def lazily() -> Iterator[None]:
    """Has a lazy module among those that are imported; for a fixture."""
    sys.modules["tests_lazy"] = Lazy("tests_lazy")
    try:
        yield
    finally:
        del sys.modules["tests_lazy"]


class OwnWord(enum.StrEnum):
    """Text, as far as `isinstance` goes."""

    YES = "builtins:ValueError"


_WORD = answers(
    "OwnWord",
    "__getattribute__ __eq__ __hash__ __len__ __str__ __repr__ __format__ __getitem__ __iter__ "
    "__contains__ __lt__ __bool__ encode partition split startswith rpartition __fspath__",
    "",
)
for _name, _method in _WORD.items():
    setattr(OwnWord, _name, _method)
